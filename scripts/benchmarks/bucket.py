"""Counts the requests of a host that follows a run in a bucket with 150,000 objects: between two changes, and after each one.

The store is simulated. A page of a listing has a thousand objects, as in S3. The host follows no shards, as a server
does. `lists_per_hour` is what the regular listings cost, which find the changes that a lost host did not announce.

Case `merging`: the objects and bytes of 512 shards of two turns with 2,000 tokens each, judged and trained, before and after their
host merges them. The session of a person goes on through all of them.
"""

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import orjson

from clawctl.collect.read_position import ReadPosition
from clawctl.collect.stems import new_stem
from clawctl.collect.upkeep import Upkeep
from clawctl.config import Recipe
from clawctl.extensions.bucket.leases import Leases
from clawctl.extensions.bucket.objects import Objects, StoredObject
from clawctl.extensions.bucket.storage import BucketStorage
from clawctl.run.directory import open_run, publish_bytes
from clawctl.run.rows import Turn, Verdict
from clawctl.run.shards import write_turns, write_verdicts
from clawctl.run.storage import mount_at, unmount
from scripts.benchmarks.table import Row, arguments, report

_OBJECTS, _PAGE = 150_000, 1000


class Simulated(Objects):
    """Objects in memory, with the requests that a store would see. Stores of one `objects` are one bucket."""

    def __init__(self, objects: dict[str, tuple[bytes, StoredObject]]) -> None:
        self._all, self.requests = objects, Counter[str]()

    def put(self, name: str, data: bytes | Path) -> str:
        content = data.read_bytes() if isinstance(data, Path) else data
        stored = StoredObject(name, uuid4().hex, len(content), time.time())
        self._all[name] = content, stored
        return stored.tag

    def create(self, name: str, data: bytes | Path) -> str | None:
        return None if name in self._all else self.put(name, data)

    def swap(self, name: str, data: bytes, tag: str | None) -> str | None:
        return self.put(name, data) if (self._all[name][1].tag if name in self._all else None) == tag else None

    def delete(self, name: str) -> None:
        self._all.pop(name, None)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        listed = [stored for name, (_, stored) in sorted(self._all.items()) if name.startswith(prefix)]
        self.requests["list"] += max(1, -(-len(listed) // _PAGE))
        yield from listed

    def read(self, name: str, unless_tag: str | None = None) -> tuple[bytes, str] | None:
        self.requests["get"] += 1
        content, stored = self._all.get(name, (b"", None))
        return None if stored is None or stored.tag == unless_tag else (content, stored.tag)

    def read_range(self, name: str, start: int, end: int) -> bytes:
        self.requests["get"] += 1
        return self._all[name][0][start:end]

    def describe(self, name: str) -> StoredObject | None:
        self.requests["get"] += 1
        return self._all[name][1] if name in self._all else None


def rows(options: argparse.Namespace, folder: Path, count: int = _OBJECTS) -> list[Row]:
    objects: dict[str, tuple[bytes, StoredObject]] = {}
    fill, refreshes = Simulated(objects), 10 if options.quick else 100
    for number in range(count // 2):
        fill.put(f"run/trajectories/{number:020d}-abc-collect.parquet", b"")
        fill.put(f"run/verdicts/{number:020d}-abc-collect.parquet", b"")
    writer, reader = (_host(folder / name, Simulated(objects)) for name in ("writer", "reader"))
    try:
        for host in (writer, reader):
            host.follower.poll_once()
        counted: Any = reader._objects
        counted.requests.clear()
        started = time.monotonic()
        for number in range(refreshes):
            publish_bytes(folder / "writer" / "trajectories" / f"{10**19 + number}-abc-collect.parquet", b"rows")
            publish_bytes(folder / "writer" / "eval" / f"{number + 1}.json", b"{}")
            writer.follower.announce()
            reader.follower.poll_once()
        took = time.monotonic() - started
        assert len(list((folder / "reader" / "eval").glob("*.json"))) == refreshes, "a change did not arrive"
        lists, gets = counted.requests["list"], counted.requests["get"]
        counted.requests.clear()
        reader.refresh()
        listing = counted.requests["list"]
    finally:
        for name in ("writer", "reader"):
            unmount(folder / name)
    return [
        Row("bucket", "objects", count + 2 * refreshes, "objects"),
        Row("bucket", "lists_per_refresh", lists / refreshes, "requests"),
        Row("bucket", "gets_per_refresh", gets / refreshes, "requests"),
        Row("bucket", "refresh_ms", 1000 * took / refreshes, "ms"),
        Row("bucket", "lists_per_hour", round(listing * 3600 / reader.follower.list_s), "requests"),
        *_merging(folder / "merging", 8 if options.quick else 512),
    ]


def _merging(root: Path, shards: int) -> list[Row]:
    objects: dict[str, tuple[bytes, StoredObject]] = {}
    bucket = _host(root, Simulated(objects))
    try:
        run, stem, turns, dice = open_run(root), "", dict[str, list[str]](), Random(0)
        tokens = [dice.randrange(150_000) for _ in range(2000 * 2 * shards)]
        for number in range(shards):
            stem = new_stem(stem, bucket.host)
            made = [_turn(2 * number + index, tokens) for index in range(2)]
            turns[stem] = [turn.turn_id for turn in made]
            write_turns(run.turn_shard(stem), made)
            write_verdicts(run.verdict_shard(stem), [Verdict(turn, 1.0, [1], None, [], "judge", None, 0.1) for turn in turns[stem]])
        entry = {"step": 1, "outcome": "skipped", "reason": None, "turns": turns}
        publish_bytes(run.ledger_entry(1), orjson.dumps(entry))
        position, before = ReadPosition(run), _stored(objects)
        position.shards_after = stem
        Upkeep(run, Recipe.model_validate({"collect": {"merge_shards": shards}})).work(position)
        after = _stored(objects)
    finally:
        unmount(root)
    return [
        Row("merging", "objects_before", before[0], "objects"),
        Row("merging", "objects", after[0], "objects"),
        Row("merging", "mb_before", before[1] / 1e6, "MB"),
        Row("merging", "mb", after[1] / 1e6, "MB"),
    ]


def _stored(objects: dict[str, tuple[bytes, StoredObject]]) -> tuple[int, int]:
    """Number and bytes of the objects of shards."""
    sizes = [len(content) for name, (content, _) in objects.items() if name.endswith(".parquet")]
    return len(sizes), sum(sizes)


def _turn(number: int, tokens: Sequence[int]) -> Turn:
    """A turn whose prompt is the last 1,900 tokens before its answer of 100."""
    end = 2000 + 100 * number
    prompt, answer = list(tokens[end - 2000 : end - 100]), list(tokens[end - 100 : end])
    return Turn(
        turn_id=f"turn-{number}", session_id="talk", parent_turn_id=f"turn-{number - 1}" if number else None, turn_index=number,
        kind="main", source="serve", task_id=None, group_id=None, user="default", created_at=float(number),
        messages=[{"role": "user", "content": f"request {number}"}], tools=None,
        response={"role": "assistant", "content": f"answer {number}"}, next_state=[{"role": "user", "content": f"thanks {number}"}],
        prompt_ids=prompt, completion_ids=answer, logprobs=[-0.5] * len(answer), policy_version=0, policy_version_end=0,
        temperature=1.0, top_p=1.0, top_k=0, finish_reason="stop", outcome_reward=None, feedback=None, trainable=True,
        untrainable_reason=None,
    )  # fmt: skip


def _host(root: Path, objects: Simulated) -> BucketStorage:
    root.mkdir(parents=True)
    bucket = BucketStorage(root, objects, Leases(objects, root.name), poll_s=3600.0)
    mount_at(root, bucket)
    open_run(root, shards=False)
    return bucket


def main() -> None:
    options = arguments(__doc__ or "")
    with tempfile.TemporaryDirectory(prefix="clawctl-bucket-") as folder:
        report("bucket", rows(options, Path(folder).resolve()), options.json)


if __name__ == "__main__":
    main()
