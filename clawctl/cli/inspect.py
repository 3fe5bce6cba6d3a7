"""`clawctl inspect …`."""

from pathlib import Path
from typing import Annotated

import typer

from clawctl.cli.options import DEFAULT_RUN, AsJson, RunOption
from clawctl.run_dir import open_run

app = typer.Typer(no_args_is_help=True, help="Look at a run: tables, or --json for scripts.")


@app.command()
def sessions(run: RunOption = DEFAULT_RUN, as_json: AsJson = False) -> None:
    """One line a session: its turns, what was trained, its reward. A narrow terminal is shown fewer columns; --json has all."""
    from clawctl.inspect.sessions import show_sessions

    show_sessions(open_run(run, create=False), as_json)


@app.command()
def turns(
    run: RunOption = DEFAULT_RUN,
    session: Annotated[str | None, typer.Option(help="Only this session, with its words: its id, or the beginning of it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Each turn: asked, answered, came back, reward, hint, fate. Fate is the step that trained it, or why none did."""
    from clawctl.inspect.turns import show_turns

    show_turns(open_run(run, create=False), session, as_json)


@app.command()
def why(
    turn: Annotated[str, typer.Argument(help="The turn's id, or the beginning of it.")],
    run: RunOption = DEFAULT_RUN,
    tokens: Annotated[bool, typer.Option("--tokens", help="Each token with its text, logprobs, ratio and advantages.")] = False,
    as_json: AsJson = False,
) -> None:
    """All numbers between one turn and its gradient. Verdict, credit, versions, ratio, mask, advantages and weights."""
    from clawctl.inspect.why import show_why

    show_why(open_run(run, create=False), turn, tokens, as_json)


@app.command()
def policies(run: RunOption = DEFAULT_RUN, as_json: AsJson = False) -> None:
    """One line a version: loss, what eval said, what is live. With its step, method, turns and who moved LIVE last."""
    from clawctl.inspect.policies import show_policies

    show_policies(open_run(run, create=False), as_json)


@app.command()
def health(run: RunOption = DEFAULT_RUN, as_json: AsJson = False) -> None:
    """What runs, waits, was lost, and why turns are not trained."""
    from clawctl.inspect.health import show_health

    show_health(open_run(run, create=False), as_json)


@app.command()
def data(run: RunOption = DEFAULT_RUN, as_json: AsJson = False) -> None:
    """What is stored where, since when, and about whom. One line a folder, one a user."""
    from clawctl.inspect.data import show_data

    show_data(open_run(run, create=False), as_json)


@app.command()
def report(
    run: RunOption = DEFAULT_RUN,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write into. Unset: the run directory.")] = None,
    as_json: AsJson = False,
) -> None:
    """A page and a picture to look at or send to somebody. What eval measured and what each step said; it loads nothing."""
    from clawctl.inspect.report import show_report

    show_report(open_run(run, create=False), out, as_json)
