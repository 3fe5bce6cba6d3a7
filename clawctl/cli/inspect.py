"""`clawctl inspect …`."""

from typing import Annotated

import typer

from clawctl.cli.options import DEFAULT_RUN, AsJson, RunOption
from clawctl.run_dir import open_run

app = typer.Typer(no_args_is_help=True, help="Look at a run: tables, or --json for scripts.")


@app.command()
def sessions(run: RunOption = DEFAULT_RUN, as_json: AsJson = False) -> None:
    """One line a session: turns, main and side, trainable, judged, trained, mean reward."""
    from clawctl.inspect.sessions import show_sessions

    show_sessions(open_run(run, create=False), as_json)


@app.command()
def turns(
    run: RunOption = DEFAULT_RUN,
    session: Annotated[str | None, typer.Option(help="Only this session, with its words.")] = None,
    as_json: AsJson = False,
) -> None:
    """One line a turn: what was asked, answered, came back, the verdict, the hint, and why it is not trained if it is not."""
    from clawctl.inspect.turns import show_turns

    show_turns(open_run(run, create=False), session, as_json)


@app.command()
def why(
    turn: Annotated[str, typer.Argument(help="The turn's id, or the beginning of it.")],
    run: RunOption = DEFAULT_RUN,
    tokens: Annotated[bool, typer.Option("--tokens", help="Each token with its text, logprobs, ratio and advantages.")] = False,
    as_json: AsJson = False,
) -> None:
    """Every number between one turn and its gradient: verdict, credit, versions, ratio, mask, advantages and weights."""
    from clawctl.inspect.why import show_why

    show_why(open_run(run, create=False), turn, tokens, as_json)


@app.command()
def policies(run: RunOption = DEFAULT_RUN, as_json: AsJson = False) -> None:
    """One line a policy version: step, method, turns, loss, what eval measured and decided; which one is live."""
    from clawctl.inspect.policies import show_policies

    show_policies(open_run(run, create=False), as_json)


@app.command()
def health(run: RunOption = DEFAULT_RUN, as_json: AsJson = False) -> None:
    """What runs, what waits, what was lost or put aside, and why turns are not trained."""
    from clawctl.inspect.health import show_health

    show_health(open_run(run, create=False), as_json)


@app.command()
def data(run: RunOption = DEFAULT_RUN, as_json: AsJson = False) -> None:
    """What is stored where, how much of it, since when, and about whom: one line a folder, one a user."""
    from clawctl.inspect.data import show_data

    show_data(open_run(run, create=False), as_json)
