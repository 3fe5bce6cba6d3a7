"""`clawctl openclaw-setup`."""

from typing import Annotated

import typer

from clawctl.cli.options import DEFAULT_RUN, AsJson, RecipeOption, RunOption
from clawctl.config import load_recipe
from clawctl.run.directory import open_run, recipe_file


def openclaw_setup(
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    openclaw: Annotated[str, typer.Option("--openclaw", help="OpenClaw command.")] = "openclaw",
    way: Annotated[
        str | None, typer.Option(help="plugin, responses or plain. Unset: the best one for the installed OpenClaw.")
    ] = None,
    key: Annotated[str, typer.Option("--key", help="Name of the API key that is created for OpenClaw.")] = "openclaw",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written; write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write OpenClaw's configuration for this server. The format fits the installed version. The old file is kept as a copy."""
    opened = open_run(run, create=False)
    resolved = load_recipe(recipe_file(opened.root, recipe))
    from clawctl.launch.openclaw import show_setup

    show_setup(opened, resolved, openclaw, way, key, dry_run, as_json)
