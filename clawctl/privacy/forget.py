"""`clawctl forget`: removes a session, a user or a time span from the run and lists the policies that learned from it.

Derived files are removed first, captures next and trajectories last. If the command is interrupted at any moment, the next `forget`
finds the same turns again and completes the removal. Serving continues meanwhile. The collect, train and eval workers must be
stopped, because they hold conversations in memory.
"""

import os
import re
import shutil
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
from clawctl.printing import counted
from clawctl.privacy.elsewhere import pending_requests, send_request
from clawctl.privacy.rewriting import Unreadable, kept_lines, rewrite_appended, rewrite_json, rewrite_parquet
from clawctl.privacy.rollback import RollbackPlan, learned_from, plan_rollback, roll_back
from clawctl.privacy.selection import SelectedTurns, Selection, matches, select, session_of
from clawctl.run import columns
from clawctl.run.checksums import sealed
from clawctl.run.directory import FOLDERS, RunDir, claimed, published, remove, sole_worker
from clawctl.run.images import remove_unused
from clawctl.run.lines import append_lines, read_lines
from clawctl.run.notes import notes_folder, read_notes
from clawctl.run.policies import list_versions, policy_names, read_policy
from clawctl.run.storage import ABOUT, storage_of

# These folders hold no turns, or only random turn ids, which identify nothing once the turns are gone. The folders of rows are
# handled separately.
_FOLDERS_WITHOUT_TURNS = (ABOUT, "policies", "locks", "logs", "captures", "images", "feedback", "episodes", "trajectories")
_PATIENCE_S = 120.0  # how long to wait for workers to stop: a training step may take a while
_POLL_S = 0.05  # shorter than the delay after which any supervisor restarts a worker


@dataclass(slots=True)
class Forgotten:
    """What was done or, with `dry_run`, would be done."""

    turns: int
    sessions: int
    policies: list[int]  # versions that learned from the turns
    dry_run: bool
    # Files rewritten or removed, and rows taken out of each: {"verdicts/a.parquet": 3}
    files: dict[str, int] = field(default_factory=dict)
    removed_whole: list[str] = field(default_factory=list)  # unreadable files that were deleted
    rollback_plan: RollbackPlan | None = None
    others: dict[str, list[int]] = field(default_factory=dict)  # the same of the policies of keys: {"anna": [2, 3]}
    other_plans: dict[str, RollbackPlan] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # "anna/answer-in-spanish": notes of a forgotten user


def forget(run: RunDir, selection: Selection | None, dry_run: bool, retrain: bool, end_workers: bool = False) -> Forgotten:
    """Remove what `selection` covers. With `retrain`, return to the last policy that learned neither from it nor from data
    forgotten earlier.

    Raises ClawError while practice, collect, train, eval or a judge of these turns is running. With `end_workers` they are asked to
    stop, and the call waits for them.
    """
    stages = () if dry_run else ("practice", "collect", "train", "eval")
    with _stopped_workers(run, stages, end_workers):
        if not dry_run:
            catch_up(run)
        chosen = select(run, selection) if selection is not None else SelectedTurns()
        policies = sorted({*learned_from(run, chosen.turn_ids), *(_affected_earlier(run) if retrain else [])})
        result = Forgotten(len(chosen.turn_ids), len(chosen.sessions), policies, dry_run)
        result.rollback_plan = plan_rollback(run, policies) if retrain and policies else None
        for part in map(run.of, policy_names(run)[1:]):
            if versions := sorted({*learned_from(part, chosen.turn_ids), *(_affected_earlier(part) if retrain else [])}):
                result.others[part.policy] = versions
                if retrain:
                    result.other_plans[part.policy] = plan_rollback(part, versions)
        if selection is not None and selection.user is not None:
            result.notes = [f"{selection.user}/{note.id}" for note in read_notes(run, selection.user)]
        if dry_run:
            return result
        with _stopped_judges(run, chosen, end_workers):
            if chosen.turn_ids or chosen.unreadable or storage_of(run.root).in_bucket:
                _record(run, result)
                _remove_everywhere(run, selection, chosen, result)
            columns.prune(run)  # what an earlier, interrupted `forget` left
            if selection is not None and selection.user is not None and notes_folder(run, selection.user).exists():
                shutil.rmtree(notes_folder(run, selection.user))
            if removed := len(remove_unused(run)):  # includes images that an earlier, interrupted `forget` left
                result.files["images"] = removed
            if result.rollback_plan is not None:
                roll_back(run, result.rollback_plan)
            for name, plan in result.other_plans.items():
                roll_back(run.of(name), plan)
        return result


def catch_up(run: RunDir) -> None:
    """Carry out the requests to forget from other hosts of a run in a bucket, before a worker of this host reads a turn."""
    storage = storage_of(run.root)
    storage.refresh()
    if not storage.pending_removals():
        return
    with storage.exclusive(run.lock("catch-up"), _PATIENCE_S):
        for request in pending_requests(storage):
            chosen = request.chosen if request.selection is None else select(run, request.selection, request.chosen)
            _remove(run, request.selection, chosen, Forgotten(len(chosen.turn_ids), len(chosen.sessions), [], False))
            remove_unused(run)
            storage.complete_removal(request.name)


def _remove_everywhere(run: RunDir, selection: Selection | None, chosen: SelectedTurns, result: Forgotten) -> None:
    """In a bucket, ask the other hosts first. The request includes this host, so an interrupted removal is completed later."""
    storage = storage_of(run.root)
    if not storage.in_bucket:
        return _remove(run, selection, chosen, result)
    send_request(storage, selection, chosen)
    for request in pending_requests(storage):
        _remove(run, request.selection, request.chosen, result)
        storage.complete_removal(request.name)


def _remove(run: RunDir, selection: Selection | None, chosen: SelectedTurns, result: Forgotten) -> None:
    storage = storage_of(run.root)
    for folder in run.root.glob("train/**/checkpoints/*/"):
        storage_of(folder).complete(folder, ".parquet")
    for path in _derived(run):
        _rewrite(run, path, chosen.turn_ids, result)
    for path in [*run.captures.glob(".*.tmp"), *run.trajectories.glob(".*.tmp"), *run.verdicts.glob(".*.tmp")]:
        if "-custom.parquet." not in path.name:  # a custom rollout may be writing
            path.unlink(missing_ok=True)  # left by a killed writer; the live writers of trajectories and verdicts are stopped
    for part in map(run.of, policy_names(run)):
        part.trained_marks.unlink(missing_ok=True)  # contains hashes of conversation text
    run.position.unlink(missing_ok=True)  # holds offsets in captures, which are about to change

    def belongs(row: dict[str, Any]) -> bool:
        turn_id = row.get("exchange_id", row.get("turn_id"))
        if turn_id in chosen.turn_ids or (row.get("key"), row.get("session_id")) in chosen.sessions:  # a turn or an outcome
            return True
        if selection is None:
            return False
        captured = {"user": row.get("key"), "session_id": None, "created_at": row.get("created_at", 0.0)}
        if isinstance(row.get("hints"), dict):  # a captured exchange, possibly from a host whose captures are not here
            captured["session_id"] = session_of(row)
            return (row.get("key"), captured["session_id"]) in chosen.sessions or matches(selection, captured)
        return selection.user is not None and matches(selection, captured)

    for folder in (run.feedback, run.episodes, run.captures):
        for path in published(folder, ".jsonl") if folder.exists() else []:
            if storage.is_own(path):
                _count(run, path, rewrite_appended(path, belongs), result)
    storage.rewrite_copies(lambda data: kept_lines(data, belongs)[0])
    storage.refresh()
    for path in published(run.trajectories, ".parquet"):
        _rewrite(run, path, chosen.turn_ids, result)
    columns.prune(run)


def _derived(run: RunDir) -> Iterator[Path]:
    """Yield every file that may hold turns, whichever stage wrote it, except appended files and trajectories.

    Of a checkpoint only the record of turns is included: weights cannot be unlearned, see `rollback.py`.
    """
    folders = (path for path in run.root.iterdir() if path.is_dir() and path.name not in _FOLDERS_WITHOUT_TURNS)
    for folder in sorted(
        path for path in folders if path.name in FOLDERS or not path.is_symlink()
    ):  # a link may point outside the run
        for path in sorted(folder.rglob("*")):
            in_checkpoint = "checkpoints" in path.relative_to(run.root).parts
            if path.is_file() and path.name != run.forgotten.name and (not in_checkpoint or path.suffix == ".parquet"):
                yield path


def _rewrite(run: RunDir, path: Path, turn_ids: set[str], result: Forgotten) -> None:
    try:
        if path.suffix == ".parquet":
            _count(run, path, rewrite_parquet(path, turn_ids), result)
        elif path.suffix in (".json", ".jsonl"):
            _count(run, path, rewrite_json(path, turn_ids), result)
        elif path.suffix not in (".txt", ".lock") or _contains_id(path, turn_ids):
            raise Unreadable
    except Unreadable:
        if path.parent == run.quarantine or path.suffix == ".parquet" or _contains_id(path, turn_ids):
            remove(path)
            remove(path.with_name(path.name + ".reason.txt"))
            result.removed_whole.append(str(path.relative_to(run.root)))
    except FileNotFoundError:
        return  # the reason file of a file that has just been removed


def _contains_id(path: Path, turn_ids: set[str]) -> bool:
    text = path.read_bytes()
    return any(turn_id.encode() in text for turn_id in turn_ids)


def _count(run: RunDir, path: Path, rows: int, result: Forgotten) -> None:
    if rows:
        result.files[str(path.relative_to(run.root))] = rows


# ---- data forgotten earlier --------------------------------------------------------------------------------------------------


def _record(run: RunDir, result: Forgotten) -> None:
    for name, versions in {run.policy: result.policies, **result.others}.items():
        row = {"at": time.time(), "turns": result.turns, "policies": versions}
        append_lines(run.of(name).forgotten, [sealed(orjson.dumps(row))])


def _affected_earlier(run: RunDir) -> list[int]:
    """Return the existing versions that an earlier `forget` named, and their descendants."""
    rows = list(read_lines(run.forgotten))
    existing = {version: read_policy(run, version) for version in list_versions(run)}
    named = {v for row in rows for v in row["policies"] if v in existing and existing[v].created_at <= row["at"]}
    for version, policy in existing.items():
        if policy.parent in named:
            named.add(version)
    return sorted(named)


# ---- workers ---------------------------------------------------------------------------------------------------------------


@contextmanager
def _stopped_workers(run: RunDir, stages: tuple[str, ...], end_workers: bool) -> Iterator[None]:
    """Hold the worker locks of stages that keep the affected data in memory."""
    storage = storage_of(run.root)
    with ExitStack() as locks:
        if stages and storage.in_bucket and not locks.enter_context(claimed(run, "forget")):
            raise ClawError("another host is running `clawctl forget` on this run", "try again when it has finished")
        for stage in stages:
            _take_lock(run, stage, end_workers, locks)
        if stages and (other_hosts := storage.collecting_elsewhere()):
            fix = "stop `clawctl collect` there while data is forgotten; serve can keep running"
            raise ClawError(f"collect works on {counted(other_hosts, 'other host')} of this run", fix)
        yield


def _take_lock(run: RunDir, stage: str, end_workers: bool, locks: ExitStack) -> None:
    """Take the worker lock of `stage`. If its worker was asked to stop, wait for it; its supervisor restarts it afterwards."""
    deadline, stop_requested = time.monotonic() + _PATIENCE_S, False
    while True:
        try:
            locks.enter_context(sole_worker(run, stage))
            return
        except ClawError as error:
            stop_requested = stop_requested or (end_workers and _request_stop(run, stage))
            if not stop_requested or time.monotonic() >= deadline:
                fix = f"add --stop-workers, or stop `clawctl {stage}` while data is forgotten; serve can keep running"
                raise ClawError(error.problem, fix) from error
            time.sleep(_POLL_S)


def _request_stop(run: RunDir, stage: str) -> bool:
    """Send SIGTERM to the worker that holds the lock, if it runs on this machine."""
    owner = re.fullmatch(r"process (\d+) on (.+)", run.owner(stage).read_text().strip())
    if owner is None or owner[2] != socket.gethostname() or int(owner[1]) == os.getpid():
        return False
    with suppress(ProcessLookupError):
        os.kill(int(owner[1]), signal.SIGTERM)
    return True


@contextmanager
def _stopped_judges(run: RunDir, chosen: SelectedTurns, wait: bool) -> Iterator[None]:
    """Hold the locks of the affected shards: a judge that has claimed one would otherwise publish verdicts on removed turns."""
    deadline = time.monotonic() + (_PATIENCE_S if wait else 0)
    with ExitStack() as locks:
        for stem in sorted(chosen.stems):
            while not locks.enter_context(claimed(run, f"judge-{stem}")):
                if time.monotonic() >= deadline:
                    raise ClawError(f"a judge is working on {stem}", "wait for it, or stop `clawctl judge`, and try again")
                time.sleep(_POLL_S)
        yield
        for stem in chosen.stems:
            run.lock(f"judge-{stem}").unlink(missing_ok=True)
