"""`clawctl up`."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from clawctl.cli.opening import open_stage
from clawctl.cli.options import DEFAULT_RUN, LogLevel, RunOption
from clawctl.config import Recipe, from_environment, gpus_from_environment, load_recipe


def up(
    recipe: Annotated[Path, typer.Argument(help="Recipe (YAML) whose `up.stages` are started.")],
    run: RunOption = DEFAULT_RUN,
    log_level: LogLevel = "info",
    plain: Annotated[
        bool, typer.Option("--plain", help="Print the merged log also on a terminal. Unset: a terminal shows the stages' status.")
    ] = False,
) -> None:
    """Run all stages of a recipe under one parent. Failed stages are restarted, logs are merged, Ctrl-C stops all cleanly."""
    settings = {
        "model.path": from_environment("MODEL"),
        "serve.host": from_environment("HOST"),
        "serve.port": from_environment("PORT"),
        "serve.gpus": gpus_from_environment("ROLLOUT_GPUS"),
        "train.gpus": gpus_from_environment("TRAIN_GPUS"),
    }
    from clawctl.launch.up import up as work
    from clawctl.run.first_try import first_try
    from clawctl.serve.gateway import check_engine

    serves = "serve" in load_recipe(recipe, settings).up.stages

    def check(resolved: Recipe) -> None:
        if serves:
            check_engine(resolved)

    with first_try(run) if serves else nullcontext():
        opened, resolved = open_stage("up", run, recipe, settings, log_level, create=True, check=check)
        live = sys.stdout.isatty() and not plain
        work(opened, resolved, opened.recipe, log_level, live)  # as it was resolved here, for all stages alike
