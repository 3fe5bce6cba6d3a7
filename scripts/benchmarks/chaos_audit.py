"""Audits a run: every reported item exists exactly once, and no published file was ever incomplete."""

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq

from clawctl.run.directory import RunDir, published
from clawctl.run.keys import list_keys
from clawctl.run.policies import list_versions, policy_names, read_policy
from clawctl.run.rows import DEFAULT_POLICY
from clawctl.run.shards import UnreadableShard, read_columns, read_turns, read_verdicts
from scripts.benchmarks.chaos_clients import Answered, Rated

_COMPLAINT = re.compile(r"(?<! lines )quarantine|cannot (be )?(read|used?)|Traceback|DecodeError|UnreadableShard")


class Watcher(threading.Thread):
    """Reads each published file as soon as it appears, and repeatedly reads the few files that are replaced."""

    def __init__(self, run: RunDir) -> None:
        super().__init__(name="watcher", daemon=True)
        self.read, self.half = 0, list[str]()
        self._run, self._ended = run, threading.Event()
        self._seen: set[Path] = set()

    def run(self) -> None:
        while not self._ended.wait(0.1):
            self.poll()

    def end(self) -> None:
        self._ended.set()
        self.join()
        self.poll()

    def poll(self) -> None:
        run, train = self._run, self._run.train
        for folder, suffix, parse in (
            (run.trajectories, ".parquet", read_turns),
            (run.verdicts, ".parquet", read_verdicts),
            *((run.of(name).ledger, ".json", _json) for name in policy_names(run)),
            *((run.of(name).records, ".parquet", pq.read_table) for name in policy_names(run)),
        ):
            self._try_new(published(folder, suffix) if folder.exists() else [], parse)
        again = [run.root / "collect.json", run.root / "serve.json", run.root / "run.json", train / "feed.json"]
        for path in again:
            self._try(path, _json)
        for policy in map(run.of, policy_names(run)):
            self._try_new([policy.version_folder(version) for version in list_versions(policy)], _policy)
            self._try(policy.live, lambda path: int(path.read_text()))

    def _try_new(self, paths: Iterable[Path], parse: Callable[[Path], Any]) -> None:
        for path in paths:
            if path not in self._seen:
                self._seen.add(path)
                self._try(path, parse)

    def _try(self, path: Path, parse: Callable[[Path], Any]) -> None:
        try:
            parse(path)
            self.read += 1
        except Exception as error:  # noqa: BLE001 - whatever a reader trips over is what is counted here
            if path.exists():  # otherwise it was merged or deleted, or does not exist yet
                self.half.append(f"{path.name}: {error}")


def _json(path: Path) -> Any:
    return orjson.loads(path.read_bytes())


def _policy(folder: Path) -> None:
    from safetensors import safe_open

    _json(folder / "policy.json")
    for weights in folder.glob("*.safetensors"):
        with safe_open(weights, framework="numpy") as file:  # checks the file's length against its header
            file.keys()


@dataclass(frozen=True, slots=True)
class Found:
    """The result of the audit. All lists should be empty; the numbers are counts."""

    lost: list[str]  # complete answers or captures without a trajectory row
    doubled: list[str]  # turns with more than one row
    altered: list[str]  # rows that differ from the client's request or answer
    lost_ratings: list[str]
    unjudged: list[str]  # rows without exactly one verdict
    trained: int
    trained_twice: list[str]
    trained_others_turns: list[str]  # turns that trained a policy which does not belong to their key
    inconsistent_steps: list[str]  # steps for which checkpoint, ledger, policy and steps.jsonl differ
    torn_tails: int  # capture files that end within a line, because the writer was killed before it answered
    quarantined: list[str]
    complaints: list[str]  # log lines about unreadable files


def audit(run: RunDir, answered: list[Answered], rated: list[Rated], logs: list[Path]) -> Found:
    captured, torn = captured_lines(run)
    rows = {path.stem: _rows(path) for path in published(run.trajectories, ".parquet")}
    counts = Counter(row["turn_id"] for shard in rows.values() for row in shard)
    by_id = {row["turn_id"]: row for shard in rows.values() for row in shard}
    verdicts = Counter(verdict.turn_id for path in published(run.verdicts, ".parquet") for verdict in read_verdicts(path))
    answered_ids = {answer.turn_id for answer in answered}
    ratings = {(row["turn_id"], row["rating"]) for row in _lines(run.feedback) if "rating" in row}
    policies = {name: run.of(name) for name in policy_names(run)}
    ledgers = {name: _entries(policy) for name, policy in policies.items()}
    trained = {name: _trained(entries) for name, entries in ledgers.items()}
    users = {row["turn_id"]: row["user"] for shard in rows.values() for row in shard}
    return Found(
        lost=sorted(turn_id for turn_id in answered_ids | captured if not counts[turn_id]),
        doubled=sorted(turn_id for turn_id, count in counts.items() if count > 1),
        altered=sorted(a.turn_id for a in answered if a.turn_id in by_id and not _same(a, by_id[a.turn_id])),
        lost_ratings=sorted(r.turn_id for r in rated if (r.turn_id, r.rating) not in ratings),
        unjudged=sorted(turn_id for turn_id in counts.keys() | verdicts.keys() if verdicts[turn_id] != 1),
        trained=sum(len(turns) for steps in trained.values() for turns in steps.values()),
        trained_twice=_twice(entry for entries in ledgers.values() for entry in entries),
        trained_others_turns=list(_for_others(run, trained, users)),
        inconsistent_steps=[problem for name, steps in trained.items() for problem in _inconsistent(policies[name], steps)],
        torn_tails=torn,
        quarantined=sorted(path.name for path in run.quarantine.iterdir() if path.suffix != ".txt"),
        complaints=[line for log in logs for line in _complaints(log)],
    )


def captured_lines(run: RunDir) -> tuple[set[str], int]:
    """Return the ids of all exchanges with a complete line, and the number of files that end within a line."""
    torn = sum(not file.read_bytes().endswith(b"\n") for file in published(run.captures, ".jsonl") if file.stat().st_size)
    return {row["exchange_id"] for row in _lines(run.captures)}, torn


def row_ids(run: RunDir) -> set[str]:
    return {row["turn_id"] for path in published(run.trajectories, ".parquet") for row in read_columns(path, "turns", ["turn_id"])}


def judged_ids(run: RunDir) -> set[str]:
    return {row["turn_id"] for path in published(run.verdicts, ".parquet") for row in read_columns(path, "verdicts", ["turn_id"])}


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    for file in published(folder, ".jsonl"):
        for line in file.read_bytes().split(b"\n")[:-1]:
            if line:
                yield orjson.loads(line)


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        return read_columns(path, "turns", ["turn_id", "user", "messages", "response"])
    except UnreadableShard:
        return []  # its turns then count as missing


def _same(answer: Answered, row: dict[str, Any]) -> bool:
    return _words(row["messages"][-1]) == answer.question and _words(row["response"]) == answer.text


def _words(message: dict[str, Any] | None) -> str:
    content = (message or {}).get("content") or ""
    return content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content)


def _entries(policy: RunDir) -> list[dict[str, Any]]:
    return [_json(path) for path in published(policy.ledger, ".json")] if policy.ledger.exists() else []


def _turns(entry: dict[str, Any]) -> list[str]:
    return [turn_id for part in entry["turns"].values() for turn_id in part]


def _trained(entries: Iterable[dict[str, Any]]) -> dict[int, list[str]]:
    """The turns of each step."""
    return {entry["step"]: _turns(entry) for entry in entries if entry["outcome"] == "trained"}


def _twice(entries: Iterable[dict[str, Any]]) -> list[str]:
    """The turns that are in the ledgers more than once, trained or skipped."""
    counts = Counter(turn_id for entry in entries for turn_id in _turns(entry))
    return sorted(turn_id for turn_id, count in counts.items() if count > 1)


def _for_others(run: RunDir, trained: dict[str, dict[int, list[str]]], users: dict[str, str]) -> Iterator[str]:
    """Yield the turns that trained a policy other than that of their key."""
    policy_of = {key.name: key.policy for key in list_keys(run)}
    for policy, steps in trained.items():
        for turn_id in (turn_id for turns in steps.values() for turn_id in turns):
            if policy_of.get(users.get(turn_id, ""), DEFAULT_POLICY) != policy:
                yield f"{turn_id} of {users.get(turn_id)} trained {policy}"


def _inconsistent(run: RunDir, steps: dict[int, list[str]]) -> Iterator[str]:
    """Yield contradictions between the files of the steps.

    Three lists of turns must agree: `turns/<step>.parquet`, which the step itself writes, policy.json, and the ledger. Each step
    must have exactly one row in steps.jsonl, and the step numbers have no gaps.
    """
    versions = [version for version in list_versions(run) if version > 0]
    if versions != sorted(steps) or versions != list(range(1, len(versions) + 1)):
        yield f"policies {versions[-3:]} and ledger {sorted(steps)[-3:]}"
    file = run.train / "steps.jsonl"
    logged = [orjson.loads(line)["step"] for line in file.read_bytes().splitlines()] if file.exists() else []
    if logged != sorted(steps):
        yield f"steps.jsonl has {len(logged)} rows of {len(steps)} steps"
    for step, turns in steps.items():
        record = pq.read_table(run.train / "turns" / f"{step}.parquet", columns=["turn_id"]).column("turn_id").to_pylist()
        policy = read_policy(run, step)
        if not sorted(turns) == sorted(record) == sorted(policy.turns) or policy.parent != step - 1:
            yield f"step {step}"


def _complaints(log: Path) -> list[str]:
    lines = log.read_bytes().decode(errors="replace").splitlines() if log.exists() else []
    return [f"{log.stem}: {line}" for line in lines if _COMPLAINT.search(line)]
