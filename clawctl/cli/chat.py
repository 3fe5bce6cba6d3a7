"""`clawctl chat`."""

from typing import Annotated

import typer

from clawctl.cli.options import DEFAULT_RUN, RecipeOption, RunOption
from clawctl.config import load_recipe
from clawctl.run.directory import open_run, recipe_file


def chat(
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    version: Annotated[int | None, typer.Option("--version", min=0, help="Talk to this version. Unset: the live one.")] = None,
) -> None:
    """Talk to the run's server. What you say counts, as with any client: /good and /bad rate the last answer, and /remember adds a
    note. Without a terminal, each line of stdin is a message.

    Example: `clawctl chat --run run`
    """
    from clawctl.launch.chat import talk

    opened = open_run(run, create=False)
    talk(opened, load_recipe(recipe_file(opened.root, recipe)), version)
