"""When the newest checkpoint cannot be trusted: training goes back to the newest that can, as if what came after had never been.

What is set back goes into quarantine with the reason. The turns of the steps that are gone are trained again, and so they are once
in what the weights have learned.
"""

import logging
from pathlib import Path

from clawctl.checksums import Damaged, check_folder
from clawctl.errors import ClawError
from clawctl.policies import list_versions, move_live, policy_folder, readable_live
from clawctl.run_dir import RunDir, publish_bytes, published, quarantine
from clawctl.train.checkpoints import newest_checkpoint, read_rows, read_state, row_line, steps_kept

log = logging.getLogger("clawctl.train")


def sound_checkpoint(run: RunDir) -> Path | None:
    """The newest checkpoint, after going back to it from damaged ones and from versions that have none. Raises ClawError where no
    sound one is left."""
    steps = steps_kept(run)
    problem = None
    for place, step in reversed(list(enumerate(steps))):
        try:
            _check(run.train / "checkpoints" / str(step))
            break
        except Damaged as error:
            problem = f"checkpoint {step}: {error}"
            log.error("%s", problem)
            if place == 0:
                told = f"{run.train / 'checkpoints'} holds no sound checkpoint; {problem}"
                raise ClawError(told, "restore one from a copy, or start a new run with --run") from error
    newest = newest_checkpoint(run)
    if newest is None:
        return None
    beyond = [version for version in list_versions(run) if version > step]
    if problem is not None or beyond:
        _set_back(run, step, problem or f"version {beyond[0]} has no checkpoint any more")
    return newest_checkpoint(run)


def _check(checkpoint: Path) -> None:
    try:
        files = read_state(checkpoint).get("files", {})  # none: written before there were checksums
    except ClawError as error:
        raise Damaged(error.problem) from error
    check_folder(checkpoint, files)


def _set_back(run: RunDir, step: int, problem: str) -> None:
    """Doing it again after a kill completes it: the checkpoints go last. LIVE goes first, so that what serves is not taken away."""
    reason = f"training went back to step {step}: {problem}"
    log.error("%s; what came after it is in quarantine, its turns are trained again", reason)
    live = readable_live(run)
    if live is not None and live > step:
        standing = [version for version in list_versions(run) if version <= step]
        move_live(run, max(standing), by="train, which went back")
    rows = [row for row in read_rows(run) if row["step"] <= step]
    publish_bytes(run.train / "steps.jsonl", b"".join(map(row_line, rows)))
    after = [path for folder in ("ledger", "turns") for path in _numbered(run.train / folder) if int(path.stem) > step]
    after += [path for path in _numbered(run.eval) if int(path.stem) > step]
    after += [policy_folder(run, version) for version in reversed(list_versions(run)) if version > step]
    after += [run.train / "checkpoints" / str(other) for other in reversed(steps_kept(run)) if other > step]
    for path in after:
        quarantine(run, path, reason)


def _numbered(folder: Path) -> list[Path]:
    """The files of a folder that are named by a step or version."""
    paths = [path for suffix in (".json", ".parquet") for path in published(folder, suffix)] if folder.exists() else []
    return [path for path in paths if path.stem.isdigit()]
