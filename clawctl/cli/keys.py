"""`clawctl keys …`."""

from typing import Annotated

import typer

from clawctl.cli.options import DEFAULT_RUN, AsJson, RunOption, TeachesShared
from clawctl.run.directory import open_run
from clawctl.run.rows import DEFAULT_POLICY

app = typer.Typer(no_args_is_help=True, help="Manage the named API keys of a run, one per user.")


@app.command(name="create", hidden=True)
@app.command(name="add")
def add_key(
    name: Annotated[str, typer.Argument(help="Name of the key's user. The user's turns carry this name.")],
    policy: Annotated[
        str, typer.Option(help="Policy of its own that answers and learns from its requests, unless policies.per is shared.")
    ] = DEFAULT_POLICY,
    teaches_shared: TeachesShared = False,
    names_users: Annotated[
        bool, typer.Option("--names-users", help="Its requests may count as those of another key, with policies.per: user.")
    ] = False,
    run: RunOption = DEFAULT_RUN,
) -> None:
    """Create a key and show it once. Only a salted hash is stored. A running server accepts the key within a second.

    Example: `clawctl keys add anna --run runs/mine`
    """
    from clawctl.run.keys import add_key as work

    typer.echo(work(open_run(run), name, policy, teaches_shared=teaches_shared, names_users=names_users))
    typer.echo(f"This is the only time the key of {name} is shown.", err=True)


@app.command(name="list")
def list_keys(run: RunOption = DEFAULT_RUN, as_json: AsJson = False) -> None:
    """List the names and creation times of the keys. The keys themselves and the run's own key, `default`, are not shown.

    Example: `clawctl keys list --run runs/mine`
    """
    from clawctl.run.keys import show_keys

    show_keys(open_run(run, create=False), as_json)


@app.command(name="rotate")
def rotate_key(name: Annotated[str, typer.Argument(help="Name of the key's user.")], run: RunOption = DEFAULT_RUN) -> None:
    """Replace a key and show the new one once. A running server refuses the old one within a second, and ends its requests.

    Example: `clawctl keys rotate anna --run runs/mine`
    """
    from clawctl.run.keys import rotate_key as work

    typer.echo(work(open_run(run, create=False), name))
    typer.echo(f"This is the only time the new key of {name} is shown.", err=True)


@app.command(name="remove")
def remove_key(name: Annotated[str, typer.Argument(help="Name of the key's user.")], run: RunOption = DEFAULT_RUN) -> None:
    """Remove a key. A running server refuses it within a second, and ends its requests.

    Example: `clawctl keys remove anna --run runs/mine`
    """
    from clawctl.run.keys import remove_key as work

    work(open_run(run, create=False), name)
    typer.echo(f"the key of {name} is removed")
    typer.echo(
        f"turns and notes of {name} stay, also for a new key of that name; `clawctl forget --user {name}` deletes them", err=True
    )
