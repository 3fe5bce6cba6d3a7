"""`clawctl connect`."""

from typing import Annotated

import typer

from clawctl.cli.options import DEFAULT_RUN, AsJson, RecipeOption, RunOption
from clawctl.config import load_recipe
from clawctl.run.directory import open_run, recipe_file


def connect(
    client: Annotated[
        str,
        typer.Argument(
            help="openclaw, codex, claude-code, qwen-code, opencode, continue, aider, mini-swe-agent, copilot or cline."
        ),
    ],
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write the client's configuration. Unset: print what to paste into it.")
    ] = False,
    attempt: Annotated[
        bool,
        typer.Option(
            "--try", help="Send one request through the client, and check that it arrives. Without --write, in an empty home."
        ),
    ] = False,
    program: Annotated[str | None, typer.Option("--program", help="The client's command. Unset: its usual name.")] = None,
    way: Annotated[
        str | None, typer.Option(help="For OpenClaw: plugin, responses or plain. Unset: the best one for its version.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="With --write: name of the API key that is created. Unset: the client's name.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Point an agent at this run. The format fits the installed version. With --write, an existing configuration is added to, and a
    copy of it is kept.

    Example: `clawctl connect codex --write --try`
    """
    opened = open_run(run, create=False)
    resolved = load_recipe(recipe_file(opened.root, recipe))
    from clawctl.launch.connecting import ConnectOptions, show_connection

    show_connection(opened, resolved, client, ConnectOptions(program, way, key, write, attempt), as_json)
