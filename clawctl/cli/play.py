"""`clawctl play`."""

from typing import Annotated

import typer

from clawctl.cli.opening import open_stage
from clawctl.cli.options import DEFAULT_RUN, LogLevel, RecipeOption, RunOption


def play(
    rollout: Annotated[str, typer.Argument(help="Your code that plays an episode: file.py:name.")],
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    generate: Annotated[str | None, typer.Option(help="Your own sampler: file.py:name. Required.")] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Number of episodes.")] = 1,
    log_level: LogLevel = "info",
) -> None:
    """Run episodes with your own code and publish their turns."""
    opened, resolved = open_stage("collect", run, recipe, {}, log_level, create=True)
    from clawctl.collect.custom_rollout import collect_custom

    collect_custom(opened, resolved, rollout, generate, episodes)
