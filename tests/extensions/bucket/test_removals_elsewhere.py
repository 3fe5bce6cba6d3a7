"""`clawctl forget` and retention with a run in a bucket: two hosts, each with captures that the other cannot reach."""

import io
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.extensions.bucket.objects import open_store
from clawctl.privacy.forget import catch_up, forget
from clawctl.privacy.selection import Selection
from clawctl.run.directory import RunDir, claimed, publish_bytes, publish_folder, published, sole_worker
from clawctl.run.lines import LineWriter
from clawctl.run.policies import ensure_base_policy
from clawctl.run.retention import expire
from clawctl.run.shards import read_turn_ids, write_turns, write_verdicts
from scripts.benchmarks.chaos_bucket import bucket_environment, make_bucket
from scripts.benchmarks.chaos_store import store as started
from tests.extensions.bucket.test_bucket import Hosts, two_hosts
from tests.inspect.example_run import turn, verdict

SECRET, OTHER = "xyzzy plugh 7331", "somebody else entirely"


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with started("moto", tmp_path_factory.mktemp("store")) as port:
        make_bucket(port)
        yield port


@pytest.fixture(params=["memory", "moto"])
def hosts(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    store: Any = MemoryStore()
    if request.param == "moto":
        for name, value in bucket_environment(request.getfixturevalue("moto")).items():
            monkeypatch.setenv(name, value)
        store = open_store(f"s3://chaos/{request.node.name.partition('[')[0]}")
    with two_hosts(store, tmp_path) as pair:
        yield pair


def captured(turn_id: str, session: str, text: str, at: float = 1000.0) -> bytes:
    row = {"exchange_id": turn_id, "key": "default", "created_at": at, "hints": {"session_id": session}}
    return orjson.dumps({**row, "messages": [{"role": "user", "content": text}], "response": {"content": f"on {text}"}})


def fill(hosts: Hosts) -> None:
    """Two sessions with turns on both hosts, their rows, and the files that a trainer made from them."""
    first, second = hosts.first, hosts.second
    ensure_base_policy(first, "crafts")
    said = {"t1": ("gone", SECRET), "t2": ("stays", OTHER)}
    turns = [turn(name, session, messages=[{"role": "user", "content": text}]) for name, (session, text) in said.items()]
    write_turns(first.turn_shard("s1"), turns)
    write_verdicts(first.verdict_shard("s1"), [verdict("t1", 1.0, f"about {SECRET}"), verdict("t2", 1.0, f"about {OTHER}")])
    publish_folder(first.checkpoint(1), lambda folder: write_turns(folder / "turns.parquet", turns))
    publish_bytes(first.quarantined("captures-x.jsonl"), captured("t1", "gone", SECRET))
    for run, turn_ids in ((first, ("t1", "t2")), (second, ("t3", "t4"))):
        writer, ratings = LineWriter(run.captures, rotate_bytes=1), LineWriter(run.feedback, 1 << 20)
        for turn_id, (session, message) in zip(turn_ids, said.values(), strict=True):
            writer.append(captured(turn_id, session, message))
            ratings.append(orjson.dumps({"turn_id": turn_id, "session_id": session, "key": "default", "text": message}))
        writer.append(captured(f"{turn_ids[0]}-last", "new", OTHER))  # the files before it are rotated
    hosts.poll()


def texts_in(data: bytes) -> str:
    return repr(pq.read_table(io.BytesIO(data)).to_pylist()) if data[:4] == b"PAR1" else data.decode(errors="replace")


def in_the_bucket(hosts: Hosts) -> str:
    objects = hosts.buckets[0]._objects
    return "".join(texts_in(content[0]) for stored in objects.list("") if (content := objects.read(stored.name)) is not None)


def on_the_disk(run: RunDir) -> str:
    return "".join(texts_in(path.read_bytes()) for path in run.root.rglob("*") if path.is_file())


def test_forget_reaches_every_object_and_each_hosts_own_files_before_its_next_collect(hosts: Hosts) -> None:
    fill(hosts)
    assert SECRET in in_the_bucket(hosts)
    done = forget(hosts.first, Selection(session="gone"), dry_run=False, retrain=False)
    assert done.turns == 1, "the turn of the other host is not in a shard yet"
    assert SECRET not in in_the_bucket(hosts) + on_the_disk(hosts.first)
    assert SECRET in on_the_disk(hosts.second), "captures of another host cannot be reached from here"
    catch_up(hosts.second)
    hosts.poll()
    hosts.poll()
    for text in (in_the_bucket(hosts), on_the_disk(hosts.first), on_the_disk(hosts.second)):
        assert (SECRET in text, OTHER in text) == (False, True)
    for run in (hosts.first, hosts.second):
        assert read_turn_ids(run.turn_shard("s1")) == read_turn_ids(run.verdict_shard("s1")) == ["t2"]
        assert sum(len(path.read_bytes().splitlines()) for path in published(run.feedback, ".jsonl")) == 2, "t2 and t4, once each"
        assert sum(len(path.read_bytes().splitlines()) for path in published(run.captures, ".jsonl")) == 2


def test_a_host_killed_during_forget_resumes_it(hosts: Hosts) -> None:
    fill(hosts)
    forget(hosts.first, Selection(session="gone"), dry_run=False, retrain=False)
    hosts.buckets[1].refresh()
    assert len(hosts.buckets[1].pending_removals()) == 1
    LineWriter(hosts.second.feedback, 1 << 20).append(orjson.dumps({"turn_id": "t3", "text": SECRET}))
    hosts.buckets[1].follower.upload()
    assert SECRET not in in_the_bucket(hosts), "nothing goes up before this host has forgotten"
    catch_up(hosts.second)
    hosts.poll()
    assert SECRET not in in_the_bucket(hosts) + on_the_disk(hosts.second)
    assert not hosts.buckets[1].pending_removals()
    catch_up(hosts.second)  # and again: nothing happens


def test_messages_after_forget_are_kept_on_a_host_that_applies_it_later(hosts: Hosts) -> None:
    fill(hosts)
    forget(hosts.first, Selection(user="default"), dry_run=False, retrain=False)
    LineWriter(hosts.second.captures, 1).append(captured("t9", "later", "a new subject", at=time.time() + 60))
    catch_up(hosts.second)
    kept = b"".join(path.read_bytes() for path in published(hosts.second.captures, ".jsonl"))
    assert [orjson.loads(line)["exchange_id"] for line in kept.splitlines()] == ["t9"]


def test_forget_and_the_collect_workers_of_other_hosts_exclude_one_another(hosts: Hosts) -> None:
    with sole_worker(hosts.second, "collect"):
        with sole_worker(hosts.first, "collect"):
            pass  # each host has its own
        with pytest.raises(ClawError, match="1 other host"):
            forget(hosts.first, Selection(session="gone"), dry_run=False, retrain=False)
    with claimed(hosts.first, "forget"), claimed(hosts.second, "collect") as mine:
        assert not mine


def test_expired_captures_go_with_their_copies_and_shards_for_every_host(hosts: Hosts) -> None:
    fill(hosts)
    recipe, now = Recipe.model_validate({"privacy": {"max_age_days": 30}}), time.time()
    stem = f"{int((now - 40 * 86400) * 1e9):020d}-abcdef"
    write_turns(hosts.first.turn_shard(stem), [turn("t8", messages=[{"role": "user", "content": SECRET}])])
    for path in published(hosts.first.captures, ".jsonl"):
        os.utime(path, (now - 40 * 86400, now - 40 * 86400))
    hosts.poll()
    assert hosts.second.turn_shard(stem).exists()
    expire(hosts.first, recipe, now)
    hosts.poll()
    assert not published(hosts.first.captures, ".jsonl")
    assert not hosts.second.turn_shard(stem).exists(), "its name says how old it is, and no download makes it younger"
    assert hosts.second.turn_shard("s1").exists()
    copies = {stored.name.rpartition("/")[2] for stored in hosts.buckets[0]._objects.list("captures/")}
    assert copies
    assert copies <= {path.name for path in published(hosts.second.captures, ".jsonl")}


def test_parts_that_no_version_lists_are_swept_once_they_are_a_day_old(hosts: Hosts) -> None:
    fill(hosts)
    bucket = hosts.buckets[0]
    bucket._objects.put("parts/of-a-killed-worker/weights", b"w")
    bucket._objects.put("leases/judge-old", b"{}")
    assert bucket.sweep() == 0, "they may belong to a worker that is uploading"
    before = {stored.name for stored in bucket._objects.list("parts/")}
    bucket._leases._clock = lambda: time.time() + 90_000.0
    assert bucket.sweep() >= 2
    assert {stored.name for stored in bucket._objects.list("parts/")} == before - {"parts/of-a-killed-worker/weights"}
