"""`clawctl inspect …`."""

from pathlib import Path
from typing import Annotated

import typer

from clawctl.cli.opening import of_policy
from clawctl.cli.options import DEFAULT_RUN, AsJson, PolicyOption, RunOption
from clawctl.run.directory import open_run
from clawctl.run.rows import DEFAULT_POLICY

app = typer.Typer(no_args_is_help=True, help="Inspect a run: tables, or --json for scripts.")


@app.command()
def sessions(run: RunOption = DEFAULT_RUN, as_json: AsJson = False) -> None:
    """Show each session: turns, trained turns and reward. A narrow terminal shows fewer columns; --json has all of them.

    Example: `clawctl inspect sessions --run runs/mine`
    """
    from clawctl.inspect.sessions import show_sessions

    show_sessions(open_run(run, create=False), as_json)


@app.command()
def turns(
    run: RunOption = DEFAULT_RUN,
    session: Annotated[
        str | None, typer.Option(help="Show only this session, with its text: its id, or the beginning of it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show each turn: request, answer, next state, reward, hint, fate. The fate is the step that trained
    the turn, or the reason why no step did.

    Example: `clawctl inspect turns --session chat-3f2a --run runs/mine`
    """
    from clawctl.inspect.turns import show_turns

    show_turns(open_run(run, create=False), session, as_json)


@app.command()
def why(
    turn: Annotated[str, typer.Argument(help="Id of the turn, or the beginning of it.")],
    run: RunOption = DEFAULT_RUN,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Show each token with its text, logprobs, ratio and advantages.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show all numbers between a turn and its gradient. They are the verdict, credit, versions, ratio, mask, advantages and
    weights.

    Example: `clawctl inspect why 3f2a --tokens --run runs/mine`
    """
    from clawctl.inspect.why import show_why

    show_why(open_run(run, create=False), turn, tokens, as_json)


@app.command()
def policies(run: RunOption = DEFAULT_RUN, policy: PolicyOption = DEFAULT_POLICY, as_json: AsJson = False) -> None:
    """Show each version: loss, eval results, whether it is live. It also shows the step, the method, the number of turns, and who
    moved LIVE last.

    Example: `clawctl inspect policies --run runs/mine`
    """
    from clawctl.inspect.policies import show_policies

    show_policies(of_policy(open_run(run, create=False), policy), as_json)


@app.command()
def episodes(
    run: RunOption = DEFAULT_RUN,
    plan: Annotated[str | None, typer.Option(help="List the episodes of this plan: its id, or the beginning of it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the episodes that were played. For each plan, it shows the tasks, the mean reward, pass@k and the endings.

    Example: `clawctl inspect episodes --json --run runs/mine`
    """
    from clawctl.inspect.episodes import show_episodes

    show_episodes(open_run(run, create=False), plan, as_json)


@app.command()
def better(run: RunOption = DEFAULT_RUN, policy: PolicyOption = DEFAULT_POLICY, as_json: AsJson = False) -> None:
    """Summarize in five lines whether the policy has improved. The evidence is the notes that it learned, the eval
    records and the complaints in real traffic.

    Example: `clawctl inspect better --run runs/mine`
    """
    from clawctl.inspect.better import show_better

    show_better(of_policy(open_run(run, create=False), policy), as_json)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")],
    second: Annotated[Path, typer.Argument(metavar="RUN", help="The run that is compared with it.")],
    as_json: AsJson = False,
) -> None:
    """Compare two runs. It shows versions, turns, complaints per 100 turns and eval scores of the live versions, and whether they
    differ by more than chance.

    Example: `clawctl inspect compare runs/mine runs/other`
    """
    from clawctl.inspect.compare import show_comparison

    show_comparison(open_run(first, create=False), open_run(second, create=False), as_json)


@app.command()
def health(run: RunOption = DEFAULT_RUN, as_json: AsJson = False) -> None:
    """Show the stages and their problems. It also counts waiting, lost and untrained turns, with reasons.

    Example: `clawctl inspect health --run runs/mine`
    """
    from clawctl.inspect.health_lines import show_health

    show_health(open_run(run, create=False), as_json)


@app.command()
def data(run: RunOption = DEFAULT_RUN, as_json: AsJson = False) -> None:
    """Show the stored data with its location, age and users. It prints one line per folder and one per user.

    Example: `clawctl inspect data --run runs/mine`
    """
    from clawctl.inspect.data import show_data

    show_data(open_run(run, create=False), as_json)


@app.command()
def report(
    run: RunOption = DEFAULT_RUN,
    out: Annotated[Path | None, typer.Option("--out", help="Output folder. Unset: the run directory.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a page and a picture that you can share. They show the eval results and each step. The page loads no external
    resources.

    Example: `clawctl inspect report --out report --run runs/mine`
    """
    from clawctl.inspect.report import show_report

    show_report(open_run(run, create=False), out, as_json)


@app.command()
def web(
    run: RunOption = DEFAULT_RUN,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1. 0: any free port.")] = 30080,
    beside: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Another run. A page compares the two, as `inspect compare` does.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve web pages that show the run. The command prints a link that logs you in. The pages are reachable from this machine
    only.

    Example: `clawctl inspect web --port 0 --run runs/mine`
    """
    from clawctl.inspect.web import serve_pages

    other = None if beside is None else open_run(beside, create=False)
    serve_pages(open_run(run, create=False), port, as_json, other)
