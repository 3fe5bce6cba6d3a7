"""Which policies learned from a turn, and going back to the last that did not."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clawctl.run.checksums import Damaged, read_sealed
from clawctl.run.directory import RunDir, publish_bytes, published
from clawctl.run.lineage import read_lineage
from clawctl.run.names import number_of, numbers_in
from clawctl.run.policies import list_versions, live_version, move_live, read_policy


@dataclass(frozen=True, slots=True)
class WayBack:
    """What going back does."""

    to_version: int  # that training goes on from
    removed_versions: list[int]
    live: int | None  # that serves afterwards


def learned_from(run: RunDir, turn_ids: set[str]) -> list[int]:
    """The versions that were trained on one of these turns, and all that descend from them."""
    tainted: set[int] = set()
    for version in list_versions(run):  # a parent comes before its children
        policy = read_policy(run, version)
        if policy.parent in tainted or not turn_ids.isdisjoint(policy.turns):
            tainted.add(version)
    return sorted(tainted)


def way_back(run: RunDir, tainted: list[int]) -> WayBack:
    """Where training can start again: the newest checkpoint from before the first tainted step, else the base model.

    Versions in between have weights but no optimizer state: the trainer makes them again.
    """
    lineage, spoiled = read_lineage(run), set(tainted)
    way = [step for step in lineage.ancestry(lineage.tip) if step not in spoiled and spoiled.isdisjoint(lineage.ancestry(step))]
    clean = max((step for step in _checkpoints(run) if step in way), default=0)
    removed = [version for version in list_versions(run) if version > clean or version in spoiled]
    live = live_version(run)
    return WayBack(clean, removed, clean if live is None or live in removed else live)


def go_back(run: RunDir, way: WayBack) -> None:
    """Serve and train from `way.to_version`. The caller holds the trainer's place. Doing it again after a crash completes it.

    LIVE moves first: what serves is never deleted. Other turns of the removed steps may be trained again.
    """
    if way.live is not None and live_version(run) != way.live:
        move_live(run, way.live, by="forget")
    removed = set(way.removed_versions)
    for step in [step for step in _checkpoints(run) if step > way.to_version or step in removed]:
        _remove_folder(run.checkpoint(step))
    _keep_rows(run.steps, lambda row: row.get("step", 0) <= way.to_version and row.get("step") not in removed)
    for path in _json_files(run.ledger):
        if _step_of(path) > way.to_version or _step_of(path) in removed:
            path.unlink()
    turns = run.records
    for path in list(turns.rglob("*")) if turns.exists() else []:
        number = number_of(path.stem)
        if path.is_file() and number is not None and (number > way.to_version or number in removed):
            path.unlink()
    for version in way.removed_versions:
        run.eval_record(version).unlink(missing_ok=True)
    for version in reversed(way.removed_versions):
        _remove_folder(run.version_folder(version))


def _checkpoints(run: RunDir) -> list[int]:
    return numbers_in(run.checkpoints)


def _json_files(folder: Path) -> list[Path]:
    return published(folder, ".json") if folder.exists() else []


def _step_of(path: Path) -> int:
    """Of a ledger entry; a damaged one is known by its name, and what was skipped is tried again."""
    try:
        return int(read_sealed(path.read_bytes()).get("step", 0))
    except Damaged:
        return number_of(path.stem) or 0


def _remove_folder(folder: Path) -> None:
    doomed = folder.with_name(f".{folder.name}.forgotten.tmp")  # half a folder must never look like a whole one
    os.replace(folder, doomed)
    shutil.rmtree(doomed)


def _is_wanted(line: bytes, wanted: Callable[[dict[str, Any]], bool]) -> bool:
    try:
        return wanted(read_sealed(line))
    except Damaged:
        return False


def _keep_rows(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    if not path.exists():
        return
    whole = path.read_bytes().rpartition(b"\n")[0]
    kept = [line for line in whole.split(b"\n") if line and _is_wanted(line, wanted)]
    publish_bytes(path, b"".join(line + b"\n" for line in kept))
