"""Where training starts: at the tip of the lineage (`clawctl/lineage.py`), or where that cannot be, at the next best place.

A refusal or a rollback makes the trainer start at another version than the newest. Its weights come from the checkpoint or, where
that is pruned, from the published policy with a fresh optimizer.

A damaged checkpoint is another matter. Training goes back to the newest ancestor whose checkpoint is sound, as if what came after
had never been: that goes into quarantine with the reason. The turns of the steps that are gone are trained again, and so they are
once in what the weights have learned.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clawctl.checksums import Damaged, check_folder
from clawctl.errors import ClawError
from clawctl.lineage import Lineage, read_lineage
from clawctl.names import number_of
from clawctl.policies import check_policy, move_live, policy_folder
from clawctl.run_dir import RunDir, publish_bytes, published, quarantine
from clawctl.train.checkpoints import read_rows, read_state, row_line, steps_kept

log = logging.getLogger("clawctl.train")


@dataclass(frozen=True, slots=True)
class Start:
    """What the next step is built on."""

    lineage: Lineage
    checkpoint: Path | None  # None: the base model, or `weights`
    weights: Path | None  # a published policy whose checkpoint is gone: the optimizer begins anew

    @property
    def version(self) -> int:
        return self.lineage.tip


def find_start(run: RunDir, settle: Callable[[Path], None]) -> Start:
    """Where training goes on, after `settle` made true what follows from the newest checkpoint, and after going back from damaged
    ones. Raises ClawError where no sound one is left."""
    while True:
        steps = steps_kept(run)
        problem = _problem_of(run, steps[-1]) if steps else None
        if steps and problem is None:
            settle(run.train / "checkpoints" / str(steps[-1]))
        elif steps and not policy_folder(run, steps[-1]).exists():  # it was committed, and nothing followed from it yet
            _set_back(run, read_lineage(run), steps[-1], problem or "")
            continue
        lineage = read_lineage(run)
        tip = lineage.tip
        checkpoint = run.train / "checkpoints" / str(tip)
        if tip in steps:
            problem = problem if tip == steps[-1] else _problem_of(run, tip)
            if problem is None:
                return Start(lineage, checkpoint, None)
            if tip == lineage.newest:
                _set_back(run, lineage, tip, problem)
                continue
            quarantine(run, checkpoint, f"training goes on from the published weights of version {tip}: {problem}")
        elif tip == lineage.newest and tip > 0:
            _set_back(run, lineage, tip, f"version {tip} has no checkpoint any more")
            continue
        if tip == 0:
            return Start(lineage, None, None)
        check_policy(run, tip)
        return Start(lineage, None, policy_folder(run, tip))


def _problem_of(run: RunDir, step: int) -> str | None:
    """What is wrong with a checkpoint."""
    checkpoint = run.train / "checkpoints" / str(step)
    try:
        check_folder(checkpoint, read_state(checkpoint).get("files", {}))  # none: written before there were checksums
    except ClawError as error:
        return f"checkpoint {step}: {error.problem}"
    except Damaged as error:
        return f"checkpoint {step}: {error}"
    return None


def _set_back(run: RunDir, lineage: Lineage, step: int, problem: str) -> None:
    """Go back to the newest sound checkpoint among the ancestors of `step`. Doing it again after a kill completes it: the
    checkpoints go last. LIVE goes first, so that what serves is not taken away. Raises ClawError where there is none."""
    log.error("%s", problem)
    steps = steps_kept(run)
    if not steps:
        told = f"{run.root} has policy {lineage.newest} but no checkpoint to continue from"
        raise ClawError(told, "restore train/checkpoints, or start a new run with --run")
    ancestors = [v for v in lineage.ancestry(step if step in lineage.parents else lineage.tip) if v != step and v in steps]
    back = next((version for version in ancestors if _problem_of(run, version) is None), None)
    if back is None:
        told = f"{run.train / 'checkpoints'} holds no sound checkpoint; {problem}"
        raise ClawError(told, "restore one from a copy, or start a new run with --run")
    gone = {step}
    for version in sorted(lineage.parents):  # a parent comes before its children
        if version in lineage.above(lineage.tip, back) or lineage.parents[version] in gone:
            gone.add(version)
    reason = f"training went back to step {back}: {problem}"
    log.error("%s; what was built on it is in quarantine, its turns are trained again", reason)
    if lineage.live in gone:
        move_live(run, back, by="train, which went back")
    rows = [row for row in read_rows(run) if row["step"] not in gone]
    publish_bytes(run.train / "steps.jsonl", b"".join(map(row_line, rows)))
    after = [path for folder in ("ledger", "turns") for path in _numbered(run.train / folder) if _number(path) in gone]
    after += [path for path in _numbered(run.eval) if _number(path) in gone]
    after += [policy_folder(run, version) for version in sorted(gone, reverse=True) if policy_folder(run, version).exists()]
    after += [run.train / "checkpoints" / str(other) for other in reversed(steps) if other in gone]
    for path in after:
        quarantine(run, path, reason)


def _numbered(folder: Path) -> list[Path]:
    """The files of a folder that are named by a step or version."""
    paths = [path for suffix in (".json", ".parquet") for path in published(folder, suffix)] if folder.exists() else []
    return [path for path in paths if number_of(path.stem.removeprefix("refused-")) is not None]


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("refused-"))
