"""`clawctl train --from VERSION`: returns training to an earlier version on request."""

import getpass
import socket
from collections.abc import Sequence

from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, sole_worker
from clawctl.run.lineage import abandon, read_lineage
from clawctl.run.policies import check_policy, list_versions, move_live
from clawctl.run.rows import DEFAULT_POLICY
from clawctl.train.going_back import clear_refusals

_OPTIONS = ("--from", "--policy")


def go_back_to(run: RunDir, version: int) -> str:
    """Make `version` the version from which training continues. Returns the message to print. Repeating the call changes nothing.

    An ancestor of the live version becomes live itself, so that the served and the trained version agree. A candidate that the gate
    has not decided on does not change LIVE. Raises ClawError (exit code 2) for a dead or unpublished version, and (1) if a trainer
    is working on the run.
    """
    by = f"train --from {version} by {getpass.getuser()} on {socket.gethostname()}"
    with sole_worker(run.of(DEFAULT_POLICY), "train"):  # one trainer trains all policies
        if version in list_versions(run):
            check_policy(run, version)  # a damaged version would replace the live one
        lineage = read_lineage(run)
        if version not in lineage.parents:
            raise ClawError(f"policy {version} is not published", f"choose one of {sorted(lineage.parents)}", 2)
        if version not in lineage.living():
            fix = f"run `clawctl policies promote {version}`: it makes the version live, and training continues from it"
            raise ClawError(f"version {version} did not go live, and training never continues from such a version", fix, 2)
        messages = [f"training continues from version {version}"]
        if lineage.live is not None and version in lineage.ancestry(lineage.live)[1:]:
            move_live(run, version, by=by)
            messages.append(f"policy {version} is now live (before: {lineage.live})")
        _abandon_others(run, version, by)
        clear_refusals(run, lineage.newest, by)
    return "\n".join(messages)


def _abandon_others(run: RunDir, version: int, by: str) -> None:
    """Abandon the versions from which training would otherwise continue: newer children of `version`, and other undecided
    branches.
    """
    while (lineage := read_lineage(run)).tip != version:
        path = lineage.above(lineage.tip, lineage.live or 0)
        first = next((other for other in path if other not in lineage.ancestry(version)), None)
        if first is None:
            return
        abandon(run, [first], by=by)


def without_from(arguments: Sequence[str]) -> list[str]:
    """Return a command line without its `--from` and `--policy`, because torchrun must not go back again when it restarts its
    processes."""
    kept, skip = list[str](), False
    for word in arguments:
        if not skip and word.partition("=")[0] not in _OPTIONS:
            kept.append(word)
        skip = word in _OPTIONS
    return kept
