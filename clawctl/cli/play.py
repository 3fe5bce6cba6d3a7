"""`clawctl play`, which is another spelling of `clawctl collect --env`."""

from inspect import isclass
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from clawctl.cli.opening import open_stage
from clawctl.cli.options import DEFAULT_RUN, AsJson, LogLevel, RecipeOption, RunOption
from clawctl.errors import ClawError

Tasks = Annotated[int | None, typer.Option("--tasks", "--episodes", min=1, help="Number of tasks, or of episodes with --generate.")]
Attempts = Annotated[int | None, typer.Option(min=1, help="Episodes per task. Several episodes form a group.")]
Parallel = Annotated[int | None, typer.Option(min=1, help="Number of episodes that run concurrently.")]
Seed = Annotated[int | None, typer.Option(help="Seed that selects the tasks.")]
Rounds = Annotated[int | None, typer.Option(min=0, help="How often all tasks are played. 0: until stopped.")]
Options = Annotated[list[str] | None, typer.Option("--option", help="An option of the environment, NAME=VALUE. May be repeated.")]
Worker = Annotated[bool, typer.Option("--worker", help="Skip tasks that other workers are playing, and exit when no task is free.")]
Server = Annotated[str | None, typer.Option("--server", help="URL of the run's server, for workers on other hosts.")]


def play(
    rollout: Annotated[
        str | None,
        typer.Argument(help="Environment: a built-in one, file.py:name, or one of an installed package. Unset: play.env."),
    ] = None,
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    generate: Annotated[
        str | None, typer.Option(help="Your own sampler: file.py:name. ROLLOUT is then a function that plays an episode with it.")
    ] = None,
    tasks: Tasks = None,
    attempts: Attempts = None,
    parallel: Parallel = None,
    seed: Seed = None,
    rounds: Rounds = None,
    option: Options = None,
    worker: Worker = False,
    server: Server = None,
    check: Annotated[
        bool, typer.Option("--check", help="Set up and grade the tasks of a folder, file or package (ROLLOUT). Play none.")
    ] = False,
    as_json: AsJson = False,
    log_level: LogLevel = "info",
) -> None:
    """Play an environment against this run's server. Episodes that were already played are skipped. `clawctl collect --env` does
    the same.

    Example: `clawctl play practice --option note="Answer in Spanish." --run runs/mine`
    """
    if check:
        from clawctl.environments import checking

        if rollout is None:
            raise ClawError("--check needs tasks to check", "write `clawctl play --check FOLDER`", 2)
        return checking.show(checking.check(rollout, _options(option) or {}), as_json)
    settings = {
        "play.env": rollout, "play.tasks": tasks, "play.attempts": attempts, "play.parallel": parallel, "play.seed": seed,
        "play.rounds": rounds, "play.options": _options(option),
    }  # fmt: skip
    if rollout is not None and (generate is not None or _is_rollout(rollout)):
        opened, resolved = open_stage("collect", run, recipe, {}, log_level, create=True)
        from clawctl.collect.custom_rollout import collect_custom

        collect_custom(opened, resolved, rollout, generate, tasks or 1)
        return
    play_environment(run, recipe, settings, worker, server, log_level)


def play_environment(
    run: Path, recipe: Path | None, settings: dict[str, Any], worker: bool, server: str | None, log_level: str
) -> None:
    """Open the run and play. Raises ClawError."""
    opened, resolved = open_stage("play", run, recipe, settings, log_level, create=True)
    from clawctl.environments.worker import play as work
    from clawctl.printing import answers

    answers().print(work(opened, resolved, worker, server).text)


def _is_rollout(name: str) -> bool:
    """Whether the file contains a function of `(episode, generate, config)`. It needs --generate, which the caller reports."""
    from clawctl.environments import ENVIRONMENTS, is_environment
    from clawctl.environments.rollouts import is_rollout

    loaded = ENVIRONMENTS.load(name, "play")
    return not isclass(loaded) and not is_environment(loaded) and not is_rollout(loaded)


def _options(given: list[str] | None) -> dict[str, Any] | None:
    """Parse `["max_turns=30"]` into `{"max_turns": 30}`. Raises ClawError (exit code 2)."""
    options = {}
    for option in given or ():
        name, equals, value = option.partition("=")
        if not equals or not name:
            raise ClawError(f"--option {option} has no value", "write --option NAME=VALUE", 2)
        options[name.replace("-", "_")] = _value(value)
    return options or None


def _value(text: str) -> Any:
    """Parse a number, a boolean, a list in brackets or a mapping in braces. Other values, such as commands, remain text."""
    try:
        parsed = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    is_plain = parsed is None or isinstance(parsed, bool | int | float)
    return parsed if is_plain or (isinstance(parsed, list | dict) and text.lstrip()[0] in "[{") else text
