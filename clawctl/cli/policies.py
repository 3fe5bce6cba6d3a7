"""`clawctl policies …`."""

from typing import Annotated

import typer

from clawctl.cli.opening import of_policy
from clawctl.cli.options import DEFAULT_RUN, AsJson, PolicyOption, RunOption, TeachesShared
from clawctl.run.directory import open_run
from clawctl.run.rows import DEFAULT_POLICY

app = typer.Typer(no_args_is_help=True, help="List, promote and roll back policy versions.")


@app.command(name="list")
def list_policies(run: RunOption = DEFAULT_RUN, policy: PolicyOption = DEFAULT_POLICY, as_json: AsJson = False) -> None:
    """List the versions and show which one is live. Same as `clawctl inspect policies`.

    Example: `clawctl policies list --run runs/mine`
    """
    from clawctl.inspect.policies import show_policies

    show_policies(of_policy(open_run(run, create=False), policy), as_json)


@app.command()
def promote(
    version: Annotated[int, typer.Argument(help="A published version.")],
    run: RunOption = DEFAULT_RUN,
    policy: PolicyOption = DEFAULT_POLICY,
) -> None:
    """Make a published version live. The server switches after the version passes its canary check. The move is recorded
    with your name.

    Example: `clawctl policies promote 3 --run runs/mine`
    """
    from clawctl.run.promotion import promote as work

    typer.echo(work(of_policy(open_run(run, create=False), policy), version))


@app.command()
def rollback(
    version: Annotated[int | None, typer.Argument(help="An older version. Unset: the version that was live before.")] = None,
    run: RunOption = DEFAULT_RUN,
    policy: PolicyOption = DEFAULT_POLICY,
) -> None:
    """Make an older version live again. The server switches after the version passes its canary check. Nothing is deleted. The
    move is recorded with your name.

    Example: `clawctl policies rollback --run runs/mine`
    """
    from clawctl.run.promotion import rollback as work

    typer.echo(work(of_policy(open_run(run, create=False), policy), version))


@app.command()
def split(
    names: Annotated[list[str], typer.Argument(help="Names of keys, as in `clawctl keys list`.")],
    run: RunOption = DEFAULT_RUN,
    teaches_shared: TeachesShared = False,
) -> None:
    """Give each of these keys a policy of its own.

    It begins with the weights that the shared policy has now, and takes effect unless `policies.per` is `shared` in the recipe.

    Example: `clawctl policies split anna bert --run runs/mine`
    """
    from clawctl.run.keys import split as work

    typer.echo(work(open_run(run, create=False), names, teaches_shared))
