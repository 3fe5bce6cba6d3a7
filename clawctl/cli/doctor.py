"""`clawctl doctor`."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from clawctl.cli.options import DEFAULT_RUN, RecipeOption, RunOption
from clawctl.config import load_recipe
from clawctl.registry import Registry

Check = Callable[[], Iterable[tuple[str, bool]]]  # a line for each thing that it checked, and whether this makes the command fail

CHECKS: Registry[Check] = Registry("check", "clawctl.checks", {})


def doctor(
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    judge: Annotated[
        bool, typer.Option("--judge", help="Ask the run's judge the planted turns now, and record the result.")
    ] = False,
) -> None:
    """Check this machine, each sandbox and the browser. The first lines are about what a recipe needs: GPU, engine, model, memory,
    port, disk and judge. The sandboxes are checked with attempts to break out.

    Example: `clawctl doctor --recipe mine.yaml`
    """
    from clawctl.launch.box_checks import check_box
    from clawctl.printing import answers
    from clawctl.run.directory import recipe_file
    from clawctl.shipped import find_recipe

    any_bad = False
    resolved = load_recipe(recipe_file(run, None if recipe is None else find_recipe(recipe)))
    for line, is_bad in check_box(resolved, run):
        answers().print(f"{'NOT ok' if is_bad else 'ok':<8}{line}", soft_wrap=True)
        any_bad |= is_bad
    if judge or (run / "run.json").exists():
        answers().print(f"judge: {_judge_line(run, judge)}", soft_wrap=True)
    for name in CHECKS.names():
        for line, is_bad in CHECKS.load(name, "doctor")():
            answers().print(line, soft_wrap=True)
            any_bad |= is_bad
    if any_bad:
        raise typer.Exit(1)


def _judge_line(root: Path, ask: bool) -> str:
    """What the run's judge got on the planted turns: now, or when it was last asked."""
    import asyncio

    from clawctl.run.directory import open_run, recipe_file
    from clawctl.run.fitness import read_fitness

    opened = open_run(root, create=False)
    if not ask:
        recorded = read_fitness(opened)
        return "not checked; `clawctl doctor --judge` asks it twelve planted turns" if recorded is None else recorded.line
    from clawctl.judge.worker import check_judge

    fitness = asyncio.run(check_judge(opened, load_recipe(recipe_file(root))))
    return "not checked, because it is a reward model or judge.fitness is skip" if fitness is None else fitness.line
