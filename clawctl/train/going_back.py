"""Returning to the live version: detecting it, recording it, and pausing after many consecutive refusals.

`train/back.jsonl`      one line for each time that training continued from a version other than the newest
`train/refusals.json`   whether training is paused, and which refusals no longer count
"""

import logging
import time
import zlib
from typing import Any

import orjson

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.run.checksums import read_object, sealed
from clawctl.run.directory import RunDir, publish_bytes
from clawctl.run.lineage import TWICE, Lineage, read_lineage, refusals_in_a_row, refused_now, why_dead
from clawctl.run.lines import append_lines, read_lines
from clawctl.run.policies import read_moves
from clawctl.train.ledger import give_back
from clawctl.train.setback import Start

log = logging.getLogger("clawctl.train")

_FIX = (
    "try a lower train.lr, check the judge's verdicts (`clawctl inspect turns`) and the gate's reasons (`clawctl inspect "
    "policies`); training resumes when LIVE moves, when you start it with another recipe, or with `clawctl train --from VERSION`"
)


def note_start(run: RunDir, start: Start) -> None:
    """Log and record once that training goes back, and how many turns of the dead versions can be trained again."""
    lineage = start.lineage
    turns = give_back(run, lineage)
    if lineage.tip == lineage.newest:
        return
    last: dict[str, Any] = next(reversed(read_back(run)), {})
    if (last.get("newest"), last.get("to")) == (lineage.newest, lineage.tip):
        return
    reasons = why_dead(run, lineage)
    roots = [version for version in reasons if lineage.parents[version] not in reasons and version > last.get("newest", 0)]
    named = roots or [lineage.newest]
    reason = "; ".join(f"version {version}: {reasons.get(version, 'not continued')}" for version in named)
    fresh = start.checkpoint is None and lineage.tip > 0
    log.warning(
        "training goes back from version %d to version %d (%s); %d turns of dead versions can be trained again, "
        "%d are skipped (%s), %d have expired%s",
        lineage.newest, lineage.tip, reason, turns.free, turns.twice, TWICE, turns.expired,
        "; its checkpoint is gone, so the optimizer, the baselines and the teacher start fresh" if fresh else "",
    )  # fmt: skip
    row = {
        "at": time.time(),
        "newest": lineage.newest,
        "to": lineage.tip,
        "why": reason,
        "dead": sorted(version for version in reasons if version > last.get("newest", 0)),
        "refused": refused_now(run, sorted(reasons)),
        "given_back": turns.free,
        "skipped": turns.twice,
        "expired": turns.expired,
        "optimizer": "fresh" if fresh or lineage.tip == 0 else "kept",
    }
    append_lines(run.went_back, [sealed(orjson.dumps(row))])


def read_back(run: RunDir) -> list[dict[str, Any]]:
    """Return each time that training went back, oldest first. Unreadable lines are skipped."""
    return list(read_lines(run.went_back))


class LineageWatch:
    """Reads the lineage again when one of its files has changed."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._stamps: list[Any] = []
        self._lineage: Lineage | None = None

    def read(self) -> Lineage:
        stamps = self._stamp()
        if self._lineage is None or stamps != self._stamps:
            self._lineage, self._stamps = read_lineage(self._run), stamps
        return self._lineage

    def _stamp(self) -> list[Any]:
        run, entries = self._run, list[Any]()
        for path in (run.policies, run.moves, run.eval, run.abandoned):
            try:
                status = path.stat()
            except FileNotFoundError:
                entries.append(None)
            else:
                entries.append((status.st_mtime_ns, status.st_size))
        return entries


class Pause:
    """Decides whether so many consecutive updates were refused that training should pause."""

    def __init__(self, run: RunDir, recipe: Recipe) -> None:
        self._run, self._max_refusals = run, recipe.train.max_refusals
        sections = recipe.model_dump_json(include={"train", "judge", "eval", "gate"}).encode()
        self._recipe = f"{zlib.crc32(sections):08x}"
        self._checked: Lineage | None = None
        self._error: ClawError | None = None

    def check(self, lineage: Lineage) -> ClawError | None:
        """Return the error message while training is paused, else None. Changes are recorded."""
        if lineage is self._checked:
            return self._error
        run, refusals = self._run, read_refusals(self._run)
        moves = len(read_moves(run))
        paused = refusals.get("paused")
        now = {"live": lineage.live, "moves": moves, "recipe": self._recipe}
        if paused and any(paused.get(name) != value for name, value in now.items()):
            why = "LIVE moved" if paused.get("recipe") == self._recipe else "the recipe changed"
            clear_refusals(run, paused.get("newest", 0), why)
            refusals = read_refusals(run)
            paused = None
        refused = refusals_in_a_row(run, lineage, refusals.get("forgiven", 0))
        self._checked, self._error = lineage, None
        if len(refused) >= self._max_refusals:
            problem = f"training is paused: the last {len(refused)} updates were refused (versions {_listed(refused[::-1])})"
            self._error = ClawError(problem, _FIX)
            if not paused or paused.get("newest") != lineage.newest:
                pause = {"at": time.time(), "newest": lineage.newest, "problem": problem, "fix": _FIX, **now}
                _write_refusals(run, {**refusals, "paused": pause})
                log.error("%s; %s", problem, _FIX)
        elif paused:
            _write_refusals(run, {**refusals, "paused": None})
        return self._error


def clear_refusals(run: RunDir, newest: int, why: str) -> None:
    """Stop counting refusals of versions up to `newest`, and resume training."""
    refusals = read_refusals(run)
    if refusals.get("paused") or newest > refusals.get("forgiven", 0):
        _write_refusals(run, {"forgiven": max(newest, refusals.get("forgiven", 0)), "paused": None})
        if refusals.get("paused"):
            log.info("training resumes: %s", why)


def read_refusals(run: RunDir) -> dict[str, Any]:
    return read_object(run.refusals) or {}


def _write_refusals(run: RunDir, refusals: dict[str, Any]) -> None:
    publish_bytes(run.refusals, sealed(orjson.dumps(refusals)))


def _listed(versions: list[int]) -> str:
    return ", ".join(map(str, versions))
