"""`clawctl eval`."""

from typing import Annotated

import typer

from clawctl.cli.opening import of_policy, open_stage
from clawctl.cli.options import DEFAULT_RUN, AsJson, LogLevel, Once, PolicyOption, RecipeOption, RunOption
from clawctl.errors import ClawError
from clawctl.run.rows import DEFAULT_POLICY


def evaluate(
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    version: Annotated[int | None, typer.Option(help="Measure this version, then exit. Unset: measure each new version.")] = None,
    against: Annotated[
        int | None, typer.Option(help="Compare `--version`, by default the newest, with this version task by task, then exit.")
    ] = None,
    policy: PolicyOption = DEFAULT_POLICY,
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks",
            "--eval-tasks",
            help="Measure on these suites, separated by commas, then exit. `conversation` means `own`; `coding` and `tool-use` are "
            "parts of `ability`.",
        ),
    ] = None,
    suite: Annotated[
        list[str] | None, typer.Option(help="A suite, written as in `--tasks`, such as `file.py:name`. May be repeated.")
    ] = None,
    once: Once = False,
    as_json: AsJson = False,
    log_level: LogLevel = "info",
) -> None:
    """Measure versions; with a gate, decide which one goes live. If the recipe has no gate, the trainer moves LIVE itself.

    Example: `clawctl eval --version 3 --against 0 --run runs/mine`
    """
    if policy != DEFAULT_POLICY and version is None and against is None:
        raise ClawError("--policy needs a version to measure", "add --version; without it every policy is measured", 2)
    opened, resolved = open_stage("eval", run, recipe, {}, log_level)
    measured = of_policy(opened, policy)
    if against is None and tasks is None and not suite:
        from clawctl.eval.worker import evaluate as work

        work(measured, resolved, version, once, as_json)
        return
    from clawctl.eval.pairs import choose_suites, evaluate_chosen
    from clawctl.named_code import check_named_code

    chosen = choose_suites(resolved, tasks, suite or [])
    check_named_code("eval", opened.root, chosen, recipe, {"eval.suites": suite or None})
    evaluate_chosen(measured, chosen, version, against, as_json)
