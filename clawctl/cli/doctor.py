"""`clawctl doctor`."""

from pathlib import Path
from typing import Annotated

import typer

from clawctl.cli.options import DEFAULT_RUN, RunOption


def doctor(
    run: RunOption = DEFAULT_RUN,
    judge: Annotated[
        bool, typer.Option("--judge", help="Ask the run's judge the planted turns now, and record the result.")
    ] = False,
) -> None:
    """Check the run's judge, each sandbox and the browser. Attempts to break out show whether the last two hold."""
    import asyncio

    from clawctl.environments import EpisodeFailed
    from clawctl.environments.gui.browser import escapes
    from clawctl.environments.sandbox.kinds import testable_kinds
    from clawctl.environments.sandbox.plan import SandboxFailed
    from clawctl.environments.sandbox.probe import attempt_escapes
    from clawctl.errors import ClawError
    from clawctl.printing import answers

    if judge or (run / "run.json").exists():
        answers().print(f"judge: {_judge_line(run, judge)}", soft_wrap=True)
    bad = False
    for kind in testable_kinds():
        try:
            kind.prepare()
            results = asyncio.run(attempt_escapes(kind))
        except (ClawError, SandboxFailed) as error:
            is_default = kind.name == "bubblewrap"
            report = f"cannot be used: {error.problem}; {error.fix}" if isinstance(error, ClawError) else f"failed: {error}"
            bad |= is_default
        else:
            escaped = [name for name, got_out in results.items() if got_out]
            report = f"DOES NOT HOLD against {', '.join(escaped)}" if escaped else f"holds against {', '.join(results)}"
            bad |= bool(escaped)
        answers().print(f"sandbox {kind.name}: {report}", soft_wrap=True)
    try:
        version, reached = asyncio.run(escapes())
        browser = f"holds in Chromium {version}" if not reached else f"DOES NOT HOLD: a page reaches {', '.join(reached)}"
    except ClawError as error:
        reached, browser = [], f"not available: {error.problem}; {error.fix}"
    except EpisodeFailed as failed:
        reached, browser = ["nothing"], str(failed)
    answers().print(f"browser: {browser}", soft_wrap=True)
    if bad or reached:
        raise typer.Exit(1)


def _judge_line(root: Path, ask: bool) -> str:
    """What the run's judge got on the planted turns: now, or when it was last asked."""
    import asyncio

    from clawctl.config import load_recipe
    from clawctl.run.directory import open_run, recipe_file
    from clawctl.run.fitness import read_fitness

    opened = open_run(root, create=False)
    if not ask:
        recorded = read_fitness(opened)
        return "not checked; `clawctl doctor --judge` asks it twelve planted turns" if recorded is None else recorded.line
    from clawctl.judge.worker import check_judge

    fitness = asyncio.run(check_judge(opened, load_recipe(recipe_file(root))))
    return "not checked, because it is a reward model or judge.fitness is skip" if fitness is None else fitness.line
