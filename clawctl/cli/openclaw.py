"""`clawctl openclaw-setup`."""

from typing import Annotated

import typer

from clawctl.cli.options import DEFAULT_RUN, AsJson, RecipeOption, RunOption
from clawctl.config import load_recipe, recipe_file
from clawctl.run_dir import open_run


def openclaw_setup(
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    openclaw: Annotated[str, typer.Option("--openclaw", help="OpenClaw's command.")] = "openclaw",
    way: Annotated[str | None, typer.Option(help="plugin, responses or plain. Unset: the best for the OpenClaw found.")] = None,
    key: Annotated[str, typer.Option("--key", help="Name of the API key that is made for it.")] = "openclaw",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be written.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write OpenClaw's configuration for this server. As the version of OpenClaw found understands it; keeps a copy."""
    opened = open_run(run, create=False)
    resolved = load_recipe(recipe_file(opened.root, recipe))
    from clawctl.openclaw import show_setup

    show_setup(opened, resolved, openclaw, way, key, dry_run, as_json)
