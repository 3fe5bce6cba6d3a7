"""`clawctl eval`."""

from typing import Annotated

import typer

from clawctl.cli.opening import open_stage
from clawctl.cli.options import DEFAULT_RUN, AsJson, LogLevel, Once, RecipeOption, RunOption


def evaluate(
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    version: Annotated[int | None, typer.Option(help="Measure this version, then exit. Unset: measure each new version.")] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks", "--eval-tasks", help="Suites instead of eval.suites, separated by commas: terminal,personalisation."
        ),
    ] = None,
    once: Once = False,
    as_json: AsJson = False,
    log_level: LogLevel = "info",
) -> None:
    """Measure versions; with a gate, decide what goes live. If the recipe has no gate, the trainer moves LIVE itself."""
    opened, resolved = open_stage("eval", run, recipe, {"eval.suites": _named(tasks)}, log_level)
    from clawctl.eval.worker import evaluate as work

    work(opened, resolved, version, once, as_json)


def _named(tasks: str | None) -> list[str] | None:
    names = [name.strip() for name in (tasks or "").split(",")]
    return [name for name in names if name] or None
