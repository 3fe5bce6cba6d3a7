"""`clawctl doctor`."""

import itertools
from collections.abc import Callable, Iterable
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
        bool, typer.Option("--judge", help="Ask the judge the planted turns once more. In a run, the result is recorded.")
    ] = False,
) -> None:
    """Check this machine, each sandbox and the browser. The first lines are about what a recipe needs: GPU, engine, model, memory,
    ports, disk and judge, which is asked twelve planted turns if it has a server of its own. The sandboxes are checked with
    attempts to break out.

    Example: `clawctl doctor --recipe mine.yaml`
    """
    from clawctl.cli.judge_checks import check_judge_lines
    from clawctl.launch.box_checks import check_box
    from clawctl.printing import answers
    from clawctl.run.directory import recipe_file

    any_bad = False
    resolved = load_recipe(recipe_file(run, recipe))
    for line, is_bad in itertools.chain(check_box(resolved, run), check_judge_lines(resolved, run, judge)):
        answers().print(f"{'NOT ok' if is_bad else 'ok':<8}{line}", soft_wrap=True)
        any_bad |= is_bad
    for name in CHECKS.names():
        for line, is_bad in CHECKS.load(name, "doctor")():
            answers().print(line, soft_wrap=True)
            any_bad |= is_bad
    if any_bad:
        raise typer.Exit(1)
