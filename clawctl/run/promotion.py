"""`clawctl policies promote|rollback`: moves LIVE on request and reports the consequences."""

import getpass
import socket

from clawctl.config import load_recipe
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, recipe_file
from clawctl.run.lineage import read_lineage
from clawctl.run.policies import check_policy, list_versions, live_version, move_live, read_moves, read_policy, readable_live


def promote(run: RunDir, version: int) -> str:
    """Point LIVE at `version`. Returns the message to print. Raises ClawError (exit code 2) if the version is not completely
    published.
    """
    return _move(run, version, "promote")


def rollback(run: RunDir, version: int | None) -> str:
    """Point LIVE back at `version`, or at the version that was live before. Raises ClawError (exit code 2) if there was none."""
    live = live_version(run)
    if version is None:
        version = _version_before(run, live)
    elif live is not None and version > live:
        raise ClawError(
            f"policy {version} is newer than the live policy {live}", f"use `clawctl policies promote {version}` to go forward", 2
        )
    return _move(run, version, "rollback")


def _version_before(run: RunDir, live: int | None) -> int:
    if live is None:
        raise ClawError("no policy is live", "choose a version: `clawctl policies promote N`", 2)
    published = list_versions(run)
    previous = [move["from"] for move in read_moves(run) if move["to"] == live and move["from"] in published]
    # After a rollback, the newer version that was live before is not an earlier one
    earlier = [version for version in previous if version < live]
    parent = read_policy(run, live).parent
    for candidate in (*earlier[::-1], parent):
        if candidate in published:
            return int(candidate)
    raise ClawError(f"no policy was live before policy {live}", f"choose one of the published versions: {published}", 2)


def _move(run: RunDir, version: int, action: str) -> str:
    if version in list_versions(run):
        read_policy(run, version)  # READY, but unreadable or damaged: the server would refuse it as well
        check_policy(run, version)
    if version == readable_live(run):
        return f"policy {version} is already live"
    previous = move_live(run, version, by=f"{action} by {getpass.getuser()} on {socket.gethostname()}")
    message = f"policy {version} is now live (before: {'none' if previous is None else previous})"
    return "\n".join([message, *_serving_message(run), *_training_message(run)])


def _serving_message(run: RunDir) -> list[str]:
    if not run.server.exists():
        serving = "no server has run on this run yet; the first one will start with this version"
    else:
        serving = "the server switches to it once its canary passes; `clawctl inspect health` shows the result"
    if load_recipe(recipe_file(run.root)).waits_for_gate:
        return [serving]
    return [
        serving,
        "there is no gate, so the trainer's next version goes live automatically; use `clawctl serve --pin N` to stay on N",
    ]


def _training_message(run: RunDir) -> list[str]:
    """Return a message with the version from which training continues and the dead versions."""
    lineage = read_lineage(run)
    dead = lineage.dead()
    if not dead:
        return []
    shown = ", ".join(map(str, dead[-5:]))
    return [f"training continues from version {lineage.tip}; dead versions: {shown}. Their turns can be trained once more"]
