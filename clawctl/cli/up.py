"""`clawctl up`."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from clawctl.cli.opening import open_stage
from clawctl.cli.options import DEFAULT_RUN, LogLevel, RunOption
from clawctl.config import Recipe, load_recipe
from clawctl.config.environment import from_environment, gpus_from_environment, launch_of_job, named_code_for_jobs
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, open_run, recipe_file
from clawctl.shipped import find_recipe


def up(
    recipe: Annotated[
        Path | None,
        typer.Argument(help="Recipe whose stages are started: a file, or a shipped name. Not needed with --stop and --status."),
    ] = None,
    run: RunOption = DEFAULT_RUN,
    log_level: LogLevel = "info",
    plain: Annotated[
        bool, typer.Option("--plain", help="Print the merged log even on a terminal. Unset: a terminal shows the stages' status.")
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(
            "--on", help="Submit the stages as jobs to a scheduler instead: slurm, ray or sky. Ctrl-C leaves them running."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --on: print the jobs and submit nothing.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="With --on: submit the jobs, but do not follow them.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Show the jobs of this run once.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the jobs of this run.")] = False,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Show the memory that all stages need together, and exit with 2 if it is not there.")
    ] = False,
    card: Annotated[
        str | None,
        typer.Option("--card", help="With --estimate: plan for empty cards of this size, such as 24gb. Unset: this machine."),
    ] = None,
    fit: Annotated[
        bool, typer.Option("--fit", help="With --estimate: choose settings that fit, and write them into the recipe.")
    ] = False,
    only: Annotated[str | None, typer.Option("--only", help="Run only this stage. The jobs of --on use this option.")] = None,
) -> None:
    """Run all stages of a recipe under one parent process. It restarts failed stages and merges the logs. Ctrl-C stops all stages
    cleanly. With --on, a scheduler runs them on several machines.

    Example: `clawctl up smollm2 --run runs/mine`
    """
    if stop or status:
        from clawctl.launch import launcher_of

        opened = open_run(run, create=False)
        launcher = launcher_of(opened)
        return launcher.stop(opened) if stop else launcher.show(opened)
    if recipe is None:
        raise ClawError("clawctl up needs a recipe", "run `clawctl up RECIPE`, with a file, or with a name such as `default`", 2)
    recipe = find_recipe(recipe)
    if estimate or card is not None or fit:
        from clawctl.launch.estimating import show_plan

        return show_plan(recipe, card, fit)
    if only is not None:
        return _run_one(recipe, run, only, log_level)
    if on is None and (dry_run or detach):
        raise ClawError("--dry-run and --detach are for jobs", "add --on NAME, such as --on slurm", 2)
    if on is not None:
        return _submit(recipe, run, _settings(), log_level, on, dry_run, detach, sys.stdout.isatty() and not plain)
    return run_stages(recipe, run, log_level, plain)


def _settings() -> dict[str, Any]:
    return {
        "model.path": from_environment("MODEL"),
        "serve.host": from_environment("HOST"),
        "serve.port": from_environment("PORT"),
        "serve.gpus": gpus_from_environment("ROLLOUT_GPUS"),
        "train.gpus": gpus_from_environment("TRAIN_GPUS"),
    }


def run_stages(recipe: Path | None, run: Path, log_level: str, plain: bool, company: Any = None) -> None:
    """Run the stages of `recipe` on this machine; None: of the recipe in the run. `company`: what `clawctl start` adds."""
    from clawctl.launch.up import up as work
    from clawctl.privacy.finders import check_finders
    from clawctl.run.model_binding import first_attempt
    from clawctl.serve.gateway import check_engine

    settings = _settings()
    serves = "serve" in load_recipe(recipe_file(run, recipe), settings).up.stages

    def check(resolved: Recipe) -> None:
        if serves:
            check_engine(resolved)
            check_finders(resolved.privacy)

    with first_attempt(run) if serves else nullcontext():
        opened, resolved = open_stage("up", run, recipe, settings, log_level, create=True, check=check)
        live = sys.stdout.isatty() and not plain
        work(opened, resolved, opened.recipe, log_level, live, company)  # all stages get the settings as resolved here


def _submit(
    recipe: Path, run: Path, settings: dict[str, Any], level: str, on: str, dry_run: bool, detach: bool, live: bool
) -> None:
    from clawctl.launch import LAUNCHERS
    from clawctl.launch.up import check_stages

    launcher = LAUNCHERS.load(on, "--on")

    def render(resolved: Recipe) -> str:
        check_stages(resolved)
        return launcher.render(RunDir(run.resolve()), resolved, level)

    if dry_run:
        return print(render(load_recipe(recipe, settings)))
    opened, resolved = open_stage("up", run, recipe, settings, level, create=True, check=render)
    launcher.launch(opened, resolved, named_code_for_jobs(), level)
    if not detach:
        launcher.follow(opened, live)


def _run_one(recipe: Path, run: Path, stage: str, log_level: str) -> None:
    from clawctl.launch.up import check_is_shared, up_one

    check_is_shared(run.resolve(), launch_of_job())
    resolved = load_recipe(recipe)
    if stage not in resolved.up.stages:
        raise ClawError(f"up.stages has no stage {stage}", f"choose one of {', '.join(resolved.up.stages)}", 2)
    up_one(open_run(run, create=False), resolved, recipe, stage, log_level)
