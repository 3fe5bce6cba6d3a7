"""`clawctl recipe …`."""

from pathlib import Path
from typing import Annotated

import typer

from clawctl.cli.commands import Group
from clawctl.config import load_recipe

app = typer.Typer(cls=Group, no_args_is_help=True, help="Work with recipe files.")


@app.command(name="check")
def check_recipe(recipe: Annotated[Path, typer.Argument(help="A recipe (YAML).")]) -> None:
    """Check whether a recipe is valid. It reports the first wrong key and starts nothing.

    Example: `clawctl recipe check mine.yaml`
    """
    typer.echo(f"{recipe} is a valid recipe: {load_recipe(recipe).name}")
