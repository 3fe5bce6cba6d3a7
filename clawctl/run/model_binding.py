"""Determines the model of a run. A failed first attempt does not fix the model.

The model is fixed once a server has registered on the run or a version was trained. Before that, `serve` and `up` may use another
model. If they fail before they start to work, they remove their files.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clawctl.config.environment import is_stage_of_up
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, claimed, publish_bytes, remove
from clawctl.run.gguf import model_folder
from clawctl.run.policies import list_versions, read_policy


def is_bound(run: RunDir) -> bool:
    """Whether the run's model is fixed: a server or the trainer has worked on it."""
    has_worked = run.server.exists() or any(run.checkpoints.glob("*"))
    return has_worked or max(list_versions(run), default=0) > 0


def bound_model(root: Path, begins: bool) -> str | None:
    """Return the model of the run at `root`, for a recipe without one, or None if the run has no model yet. Raises ClawError."""
    run = RunDir(root.resolve())
    if not (run.version_folder(0) / "policy.json").exists() or (begins and not is_bound(run)):
        return None
    return read_policy(run, 0).base_model


def bind_model(run: RunDir, model: str, begins: bool) -> str:
    """Return the name under which the run knows `model`: a file, its folder and `smollm2` can be the same model.

    If the run has no fixed model yet and the caller `begins` it, the model of an earlier attempt is dropped. Raises ClawError
    (exit code 2) before anything is written if the run has another model.
    """
    if not (run.version_folder(0) / "policy.json").exists():
        return model
    first = read_policy(run, 0).base_model
    if first == model or _are_the_same(first, model):
        return first
    if begins and not is_bound(run):
        _remove_base(run)
        return model
    raise ClawError(
        f"{run.root} was created for the model {first!r}, but the recipe names {model!r}", "use another --run for another model", 2
    )


@contextmanager
def first_attempt(root: Path) -> Iterator[None]:
    """Wrap a server or all stages. If the run still has no model at the end, restore its earlier recipe and remove the base
    policy.
    """
    stored_recipe = RunDir(root).recipe
    before = stored_recipe.read_bytes() if stored_recipe.exists() else None
    run = RunDir(root.resolve())
    try:
        yield
    finally:
        if not is_stage_of_up() and run.policies.is_dir() and not is_bound(run) and not _is_trained(run):
            if before is None:
                stored_recipe.unlink(missing_ok=True)
            elif stored_recipe.read_bytes() != before:
                publish_bytes(stored_recipe, before)
            _remove_base(run)


def _are_the_same(first: str, second: str) -> bool:
    try:
        return model_folder(first) == model_folder(second)
    except ClawError:  # the run's own file or package is gone
        return False


def _is_trained(run: RunDir) -> bool:
    """Whether a trainer is working on the run."""
    with claimed(run, "train") as free:
        return not free


def _remove_base(run: RunDir) -> None:
    """Remove version 0, which contains no weights, and LIVE, which names it."""
    for name in ("LIVE", "moves.jsonl"):
        remove(run.policies / name)
    remove(run.version_folder(0))
