"""`clawctl forget`: a session, a user or a time leaves the run, and the policies that learned from it are named.

What is derived goes first, captures next and trajectories last: broken off at any moment, the next `forget` finds the same turns
again and ends the work. Serving goes on meanwhile; collect and train, which hold conversations in memory, must rest.
"""

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from clawctl.errors import ClawError
from clawctl.privacy.rewriting import Unreadable, rewrite_appended, rewrite_json, rewrite_parquet
from clawctl.privacy.rollback import RollbackPlan, learned_from, plan_rollback, roll_back
from clawctl.privacy.selection import SelectedTurns, Selection, select
from clawctl.run.bucket import refuse_in_bucket
from clawctl.run.checksums import sealed
from clawctl.run.directory import FOLDERS, RunDir, claimed, published, sole_worker
from clawctl.run.images import remove_unused
from clawctl.run.lines import append_lines, read_lines
from clawctl.run.policies import list_versions, read_policy

# Where no turn stands, or where only its random id does, which leads nowhere once the turn is gone.
_LEFT_ALONE = ("policies", "locks", "logs", "captures", "images", "feedback", "episodes", "trajectories")
_PATIENCE_S = 120.0  # for workers that were asked to end: a step of training may take a while
_LOOK_S = 0.05  # shorter than any supervisor waits before it starts a worker again


@dataclass(slots=True)
class Forgotten:
    """What was, or with `dry_run` would be, done."""

    turns: int
    sessions: int
    policies: list[int]  # that learned from the turns
    dry_run: bool
    files: dict[str, int] = field(default_factory=dict)  # rewritten or removed: "verdicts/a.parquet": 3 rows
    removed_whole: list[str] = field(default_factory=list)  # that nobody could read
    way_back: RollbackPlan | None = None


def forget(run: RunDir, wish: Selection | None, dry_run: bool, retrain: bool, end_workers: bool = False) -> Forgotten:
    """Carry out `wish`; with `retrain` go back to the last policy that learned nothing of it, nor of what was forgotten earlier.

    Raises ClawError while collect, train, eval or a judge of these turns works; with `end_workers` they are asked to end and waited
    for.
    """
    refuse_in_bucket(run.root, "forget", "docs/storage.md says how to delete a conversation there")
    stages = () if dry_run else ("collect", "train", "eval")
    with _at_rest(run, stages, end_workers):
        chosen = select(run, wish) if wish is not None else SelectedTurns()
        policies = sorted({*learned_from(run, chosen.turn_ids), *(_learned_earlier(run) if retrain else [])})
        done = Forgotten(len(chosen.turn_ids), len(chosen.sessions), policies, dry_run)
        done.way_back = plan_rollback(run, policies) if retrain and policies else None
        if dry_run:
            return done
        with _judges_rest(run, chosen, end_workers):
            if chosen.turn_ids or chosen.unreadable:
                _record(run, done)
                _remove(run, wish, chosen, done)
            if removed := len(remove_unused(run)):  # also what an earlier `forget` that was broken off left
                done.files["images"] = removed
            if done.way_back is not None:
                roll_back(run, done.way_back)
        return done


def _remove(run: RunDir, wish: Selection | None, chosen: SelectedTurns, done: Forgotten) -> None:
    for path in _derived(run):
        _rewrite(run, path, chosen.turn_ids, done)
    for path in [*run.captures.glob(".*.tmp"), *run.trajectories.glob(".*.tmp"), *run.verdicts.glob(".*.tmp")]:
        if "-custom.parquet." not in path.name:  # a custom rollout may be writing
            path.unlink(missing_ok=True)  # what a killed writer left; the living ones of trajectories and verdicts rest
    run.trained_marks.unlink(missing_ok=True)  # hashes of what was said
    run.position.unlink(missing_ok=True)  # places in captures, should collect keep any: they are about to move

    def belongs(row: dict[str, Any]) -> bool:
        turn_id = row.get("exchange_id", row.get("turn_id"))
        if turn_id in chosen.turn_ids or (row.get("key"), row.get("session_id")) in chosen.sessions:  # a turn, or an outcome
            return True
        return wish is not None and wish.user is not None and row.get("key") == wish.user

    for folder in (run.feedback, run.episodes, run.captures):
        for path in published(folder, ".jsonl") if folder.exists() else []:
            _count(run, path, rewrite_appended(path, belongs), done)
    for path in published(run.trajectories, ".parquet"):
        _rewrite(run, path, chosen.turn_ids, done)


def _derived(run: RunDir) -> Iterator[Path]:
    """Every file that may hold turns, apart from those that are appended to and trajectories: whichever stage wrote it. Of a
    checkpoint only its record of turns: weights cannot be unlearned, see `rollback.py`."""
    folders = (path for path in run.root.iterdir() if path.is_dir() and path.name not in _LEFT_ALONE)
    for folder in sorted(
        path for path in folders if path.name in FOLDERS or not path.is_symlink()
    ):  # a link may lead out of the run
        for path in sorted(folder.rglob("*")):
            in_checkpoint = "checkpoints" in path.relative_to(run.root).parts
            if path.is_file() and path.name != run.forgotten.name and (not in_checkpoint or path.suffix == ".parquet"):
                yield path


def _rewrite(run: RunDir, path: Path, turn_ids: set[str], done: Forgotten) -> None:
    try:
        if path.suffix == ".parquet":
            _count(run, path, rewrite_parquet(path, turn_ids), done)
        elif path.suffix in (".json", ".jsonl"):
            _count(run, path, rewrite_json(path, turn_ids), done)
        elif path.suffix not in (".txt", ".lock") or _names_one(path, turn_ids):
            raise Unreadable
    except Unreadable:
        if path.parent == run.quarantine or path.suffix == ".parquet" or _names_one(path, turn_ids):
            path.unlink(missing_ok=True)
            path.with_name(path.name + ".reason.txt").unlink(missing_ok=True)
            done.removed_whole.append(str(path.relative_to(run.root)))
    except FileNotFoundError:
        return  # the reason of a file that has just been removed


def _names_one(path: Path, turn_ids: set[str]) -> bool:
    text = path.read_bytes()
    return any(turn_id.encode() in text for turn_id in turn_ids)


def _count(run: RunDir, path: Path, rows: int, done: Forgotten) -> None:
    if rows:
        done.files[str(path.relative_to(run.root))] = rows


# ---- what was forgotten before -----------------------------------------------------------------------------------------------


def _record(run: RunDir, done: Forgotten) -> None:
    row = {"at": time.time(), "turns": done.turns, "policies": done.policies}
    append_lines(run.forgotten, [sealed(orjson.dumps(row))])


def _learned_earlier(run: RunDir) -> list[int]:
    """Versions that still stand of those that an earlier `forget` named, and their descendants."""
    rows = list(read_lines(run.forgotten))
    standing = {version: read_policy(run, version) for version in list_versions(run)}
    named = {v for row in rows for v in row["policies"] if v in standing and standing[v].created_at <= row["at"]}
    for version, policy in standing.items():
        if policy.parent in named:
            named.add(version)
    return sorted(named)


# ---- workers ---------------------------------------------------------------------------------------------------------------


@contextmanager
def _at_rest(run: RunDir, stages: tuple[str, ...], end_workers: bool) -> Iterator[None]:
    """Hold the places of stages that keep in memory what is taken away."""
    with ExitStack() as held:
        for stage in stages:
            _take_place(run, stage, end_workers, held)
        yield


def _take_place(run: RunDir, stage: str, end_workers: bool, held: ExitStack) -> None:
    """Wait for the place if its worker was asked to end; whoever supervises it starts it again when we are done."""
    deadline, was_asked = time.monotonic() + _PATIENCE_S, False
    while True:
        try:
            held.enter_context(sole_worker(run, stage))
            return
        except ClawError as error:
            was_asked = was_asked or (end_workers and _ask_to_end(run, stage))
            if not was_asked or time.monotonic() >= deadline:
                cure = f"add --stop-workers, or stop `clawctl {stage}` while data is forgotten; serve can keep running"
                raise ClawError(error.problem, cure) from error
            time.sleep(_LOOK_S)


def _ask_to_end(run: RunDir, stage: str) -> bool:
    """SIGTERM to the worker that holds the place, if it is on this machine."""
    owner = re.fullmatch(r"process (\d+) on (.+)", run.owner(stage).read_text().strip())
    if owner is None or owner[2] != socket.gethostname() or int(owner[1]) == os.getpid():
        return False
    with suppress(ProcessLookupError):
        os.kill(int(owner[1]), signal.SIGTERM)
    return True


@contextmanager
def _judges_rest(run: RunDir, chosen: SelectedTurns, wait: bool) -> Iterator[None]:
    """Hold the shards in question: a judge that has one in hand would publish what it says of a turn that is gone."""
    deadline = time.monotonic() + (_PATIENCE_S if wait else 0)
    with ExitStack() as held:
        for stem in sorted(chosen.stems):
            while not held.enter_context(claimed(run, f"judge-{stem}")):
                if time.monotonic() >= deadline:
                    raise ClawError(f"a judge is working on {stem}", "wait for it, or stop `clawctl judge`, and try again")
                time.sleep(_LOOK_S)
        yield
        for stem in chosen.stems:
            run.lock(f"judge-{stem}").unlink(missing_ok=True)
