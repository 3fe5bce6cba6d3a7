"""`clawctl practice`."""

from typing import Annotated

import typer

from clawctl.cli.opening import open_stage
from clawctl.cli.options import DEFAULT_RUN, LogLevel, Once, RecipeOption, RunOption


def practice(
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    when: Annotated[str | None, typer.Option(help="idle (default): while nobody asks anything. always: at any time.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Most optimizer steps for one note (default 24).")] = None,
    once: Once = False,
    log_level: LogLevel = "info",
) -> None:
    """Practise the notes of this run until the model follows them without a reminder. Serve, collect, judge and train run beside
    it; `clawctl up` starts it with the recipes that have it in `up.stages`.

    Example: `clawctl practice --when always --run runs/mine`
    """
    opened, resolved = open_stage("practice", run, recipe, {"practice.when": when, "practice.steps": steps}, log_level)
    from clawctl.environments.practising import practise as work

    work(opened, resolved, once)
