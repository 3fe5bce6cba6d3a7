"""Opens the run directory and the settings of a stage."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clawctl.config import Recipe, dump_recipe, load_recipe
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, open_run, recipe_file
from clawctl.run.policies import policy_names


def open_stage(
    stage: str,
    root: Path,
    recipe: Path | None,
    settings: dict[str, Any],
    log_level: str,
    create: bool = False,
    check: Callable[[Recipe], object] = lambda recipe: None,
) -> tuple[RunDir, Recipe]:
    """Open the run and resolve its settings, which are stored as `recipe.yaml`. From then on, the process logs to the stage's file.

    `check` can refuse settings before anything is created or written. Raises ClawError.
    """
    from clawctl.named_code import check_named_code
    from clawctl.process import check_level, log_to
    from clawctl.run.checksums import sealed_yaml
    from clawctl.run.directory import publish_bytes
    from clawctl.run.model_binding import bind_model, bound_model, is_bound
    from clawctl.run.mounts import is_in_bucket

    check_level(log_level)
    stored_recipe = RunDir(root).recipe
    resolved = load_recipe(recipe_file(root, recipe), settings)
    begins = stage == "serve" or (stage == "up" and "serve" in resolved.up.stages)
    if "path" not in resolved.model.model_fields_set and (model := bound_model(root, begins)) is not None:
        resolved = load_recipe(recipe_file(root, recipe), {**settings, "model.path": model})
    check(resolved)
    _check_bucket(stage, root, resolved)
    check_named_code(stage, root, resolved, recipe, settings)
    is_new = not (root / "run.json").exists()
    # In an existing run, create missing folders: a copy may have omitted empty ones.
    run = open_run(root, create=create or not is_new, shards=stage not in ("serve", "up"))
    if stage in ("judge", "train", "eval") and is_in_bucket(run.root):
        from clawctl.privacy.forget import catch_up

        catch_up(run)
    model = bind_model(run, resolved.model.path, begins)
    if model != resolved.model.path:
        resolved = load_recipe(recipe_file(root, recipe), {**settings, "model.path": model})
    if recipe is not None or not stored_recipe.exists() or (begins and not is_bound(run)):
        text = sealed_yaml(dump_recipe(resolved).encode())
        if not stored_recipe.exists() or stored_recipe.read_bytes() != text:  # a restart then needs no disk space
            publish_bytes(stored_recipe, text)
    log_to(run.log(stage), log_level)
    if is_new:
        logging.getLogger("clawctl").info("created run directory %s", run.root)
    return run, resolved


def of_policy(run: RunDir, policy: str) -> RunDir:
    """The run for a policy that exists. Raises ClawError (exit code 2)."""
    if policy not in (names := policy_names(run)):
        raise ClawError(f"{run.root} has no policy {policy!r}", f"choose one of {', '.join(names)}", 2)
    return run.of(policy)


def _check_bucket(stage: str, root: Path, recipe: Recipe) -> None:
    """Raises ClawError if the stage does not work with a run in a bucket."""
    from clawctl.run.mounts import refuse_in_bucket

    if stage == "play" or (stage == "up" and "play" in recipe.up.stages):
        refuse_in_bucket(root, "playing environments", "use a run on a disk")
