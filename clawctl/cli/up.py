"""`clawctl up`."""

from pathlib import Path
from typing import Annotated

import typer

from clawctl.cli.opening import open_stage
from clawctl.cli.options import DEFAULT_RUN, LogLevel, RunOption


def up(
    recipe: Annotated[Path, typer.Argument(help="Recipe (YAML) whose `up.stages` are started.")],
    run: RunOption = DEFAULT_RUN,
    log_level: LogLevel = "info",
) -> None:
    """Run all stages of a recipe under one parent. Restarted if they die, one merged log, Ctrl-C stops them cleanly."""
    opened, resolved = open_stage("up", run, recipe, {}, log_level, create=True)
    from clawctl.up import up as work

    work(opened, resolved, recipe, log_level)
