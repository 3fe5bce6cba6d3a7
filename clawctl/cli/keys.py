"""`clawctl keys …`."""

from typing import Annotated

import typer

from clawctl.cli.options import DEFAULT_RUN, AsJson, RunOption
from clawctl.run_dir import open_run

app = typer.Typer(no_args_is_help=True, help="Named API keys of a run: whose turns are whose.")


@app.command(name="add")
def add_key(
    name: Annotated[str, typer.Argument(help="Whose key it is; turns asked with it carry the name.")], run: RunOption = DEFAULT_RUN
) -> None:
    """Make a key and show it, once: only a salted hash is kept. A running server takes it within a second."""
    from clawctl.keys import add_key as work

    typer.echo(work(open_run(run), name))
    typer.echo(f"This is the only time the key of {name} is shown.", err=True)


@app.command(name="list")
def list_keys(run: RunOption = DEFAULT_RUN, as_json: AsJson = False) -> None:
    """The names of the keys and when each was made; never a key. The run's own key, `default`, is not among them."""
    from clawctl.keys import show_keys

    show_keys(open_run(run, create=False), as_json)


@app.command(name="remove")
def remove_key(name: Annotated[str, typer.Argument(help="Whose key it is.")], run: RunOption = DEFAULT_RUN) -> None:
    """Take a key away. A running server refuses it within a second; requests that run already finish."""
    from clawctl.keys import remove_key as work

    work(open_run(run, create=False), name)
    typer.echo(f"the key of {name} opens nothing any more")
