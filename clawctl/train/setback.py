"""Finds the start of training: the tip of the lineage (`clawctl/run/lineage.py`), or the next best version.

After a refusal or a rollback, the trainer starts at another version than the newest. Its weights come from the checkpoint. If the
checkpoint was pruned, they come from the published policy, with a fresh optimizer.

If a checkpoint is damaged, training goes back to the newest ancestor with an intact checkpoint. Everything after that is
quarantined with the reason. The turns of the discarded steps are trained again, and so count once in the weights.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clawctl.config import Recipe
from clawctl.errors import ClawError, Damaged
from clawctl.run.checksums import check_folder
from clawctl.run.directory import RunDir, publish_bytes, published, quarantine
from clawctl.run.disk import retry_while_full
from clawctl.run.lineage import Lineage, read_lineage
from clawctl.run.names import number_of
from clawctl.run.policies import check_policy, move_live, read_policy
from clawctl.run.rows import DEFAULT_POLICY
from clawctl.run.storage import storage_of
from clawctl.train.checkpoints import check_published, check_resumable, complete_step, read_rows, read_state, row_line, steps_kept

log = logging.getLogger("clawctl.train")


@dataclass(frozen=True, slots=True)
class Start:
    """The version and state from which the next step continues."""

    lineage: Lineage
    checkpoint: Path | None  # None: the base model, or `weights`
    weights: Path | None  # a published policy without a checkpoint: the optimizer starts fresh

    @property
    def version(self) -> int:
        return self.lineage.tip


def start_of(run: RunDir, recipe: Recipe) -> Start:
    """Return the start of training, after everything that follows from the newest checkpoint is done.

    Raises ClawError if this recipe cannot continue from it.
    """

    def finish(checkpoint: Path) -> None:
        retry_while_full(lambda: complete_step(run, checkpoint, recipe), f"version {checkpoint.name}")

    start = find_start(run, finish)
    check_resumable(start.checkpoint, recipe)
    if start.weights is not None:
        check_published(start.weights, recipe)
    return start


def find_start(run: RunDir, complete_step: Callable[[Path], None]) -> Start:
    """Return the start of training. Raises ClawError if no intact checkpoint is left.

    First `settle` completes everything that follows from the newest checkpoint. If checkpoints are damaged, training goes back.
    """
    while True:
        steps = steps_kept(run)
        problem = _problem_of(run, steps[-1]) if steps else None
        if steps and problem is None:
            complete_step(run.checkpoint(steps[-1]))
        elif steps and not run.version_folder(steps[-1]).exists():  # it was committed, but nothing was published from it yet
            _set_back(run, read_lineage(run), steps[-1], problem or "")
            continue
        lineage = read_lineage(run)
        tip = lineage.tip
        checkpoint = run.checkpoint(tip)
        if tip in steps:
            problem = problem if tip == steps[-1] else _problem_of(run, tip)
            if problem is None:
                return Start(lineage, checkpoint, None)
            if tip == lineage.newest:
                _set_back(run, lineage, tip, problem)
                continue
            quarantine(run, checkpoint, f"training continues from the published weights of version {tip}: {problem}")
        elif tip == lineage.newest and tip > 0:
            _set_back(run, lineage, tip, f"the checkpoint of version {tip} is gone")
            continue
        if tip == 0 and (run.policy == DEFAULT_POLICY or read_policy(run, 0).kind == "base"):
            return Start(lineage, None, None)
        check_policy(run, tip)
        return Start(lineage, None, run.version_folder(tip))


def _problem_of(run: RunDir, step: int) -> str | None:
    """Return the problem of a checkpoint, or None."""
    checkpoint = run.checkpoint(step)
    try:
        storage_of(checkpoint).complete(checkpoint)
        check_folder(checkpoint, read_state(checkpoint).get("files", {}))  # no checksums: written by an older version
    except ClawError as error:
        return f"checkpoint {step}: {error.problem}"
    except Damaged as error:
        return f"checkpoint {step}: {error}"
    return None


def _set_back(run: RunDir, lineage: Lineage, step: int, problem: str) -> None:
    """Go back to the newest intact checkpoint among the ancestors of `step`. Raises ClawError if there is none.

    Repeating the call after a kill completes it, because the checkpoints are removed last. LIVE moves first, so that the served
    version stays available.
    """
    log.error("%s", problem)
    steps = steps_kept(run)
    if not steps:
        message = f"{run.root} has policy {lineage.newest} but no checkpoint to resume from"
        raise ClawError(message, "restore train/checkpoints, or start a new run with --run")
    ancestors = [v for v in lineage.ancestry(step if step in lineage.parents else lineage.tip) if v != step and v in steps]
    restart = next((version for version in ancestors if _problem_of(run, version) is None), None)
    if restart is None:
        message = f"{run.checkpoints} contains no intact checkpoint; {problem}"
        raise ClawError(message, "restore one from a copy, or start a new run with --run")
    discarded = {step}
    for version in sorted(lineage.parents):  # parents come before their children
        if version in lineage.above(lineage.tip, restart) or lineage.parents[version] in discarded:
            discarded.add(version)
    reason = f"training went back to step {restart}: {problem}"
    log.error("%s; later versions are quarantined, and their turns are trained again", reason)
    if lineage.live in discarded:
        move_live(run, restart, by="train, which went back")
    rows = [row for row in read_rows(run) if row["step"] not in discarded]
    publish_bytes(run.steps, b"".join(map(row_line, rows)))
    affected = [path for folder in (run.ledger, run.records) for path in _numbered(folder) if _number(path) in discarded]
    affected += [path for path in _numbered(run.eval) if _number(path) in discarded]
    affected += [run.version_folder(version) for version in sorted(discarded, reverse=True) if run.version_folder(version).exists()]
    affected += [run.checkpoint(other) for other in reversed(steps) if other in discarded]
    for path in affected:
        quarantine(run, path, reason)


def _numbered(folder: Path) -> list[Path]:
    """Return the files of a folder whose names contain a step or version."""
    paths = [path for suffix in (".json", ".parquet") for path in published(folder, suffix)] if folder.exists() else []
    return [path for path in paths if number_of(path.stem.removeprefix("refused-")) is not None]


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("refused-"))
