"""Points LIVE back from a version that the engine cannot serve."""

import logging

from filelock import Timeout

from clawctl.errors import ClawError
from clawctl.run.directory import RunDir
from clawctl.run.policies import LiveMoved, move_live, read_moves

_log = logging.getLogger("clawctl.serve")


def move_live_back(run: RunDir, served: int | None, version: int, error: Exception) -> None:
    """Point LIVE back at the version before, if train or eval moved it, because training must not continue from a version that is
    not served. A manual move stays. LIVE also stays if another version than the one before is `served`, as after a start; None:
    not known."""
    moves = read_moves(run)
    last = moves[-1] if moves else {}
    before = last.get("from")
    if last.get("to") != version or before is None or served not in (None, before) or last.get("by") not in ("train", "eval"):
        return
    try:
        move_live(run, before, by=f"serve, because of version {version}: {error}", only_from=version)
    except (LiveMoved, ClawError, OSError, Timeout) as problem:
        _log.error("cannot move LIVE back from version %d: %s", version, problem)
