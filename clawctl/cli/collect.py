"""`clawctl collect`."""

from typing import Annotated

import typer

from clawctl.cli import play
from clawctl.cli.opening import open_stage
from clawctl.cli.options import DEFAULT_RUN, AsJson, LogLevel, NumSamples, Once, RecipeOption, RunOption
from clawctl.config import load_recipe
from clawctl.errors import ClawError
from clawctl.run.directory import open_run, recipe_file


def collect(
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    once: Once = False,
    end_sessions: Annotated[
        bool, typer.Option("--end-sessions", help="With --once: treat every session as ended and publish its last turns.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which turns would be trained, and why others would not. Writes nothing.")
    ] = False,
    num_samples: NumSamples = 10,
    as_json: AsJson = False,
    env: Annotated[
        str | None,
        typer.Option("--env", help="Play this environment instead: a built-in one, file.py:name, or one of an installed package."),
    ] = None,
    tasks: play.Tasks = None,
    attempts: play.Attempts = None,
    parallel: play.Parallel = None,
    seed: play.Seed = None,
    rounds: play.Rounds = None,
    option: play.Options = None,
    worker: play.Worker = False,
    server: play.Server = None,
    log_level: LogLevel = "info",
) -> None:
    """Group captures into sessions and publish their turns. Each turn is published together with its next state. With --env, play
    the episodes of an environment against this run's server.

    Example: `clawctl collect --once --run runs/mine`
    """
    if end_sessions and not once:
        raise ClawError("--end-sessions needs --once", "add --once; without it, collect keeps waiting for next states", 2)
    if env is not None:
        return play.play(
            env, run, recipe, None, tasks, attempts, parallel, seed, rounds, option, worker, server, log_level=log_level
        )
    if dry_run:
        from clawctl.collect.dry_run import dry_run as show

        return show(open_run(run, create=False), load_recipe(recipe_file(run, recipe)), None, None, num_samples, as_json)
    opened, resolved = open_stage("collect", run, recipe, {}, log_level)
    from clawctl.collect.worker import collect as work

    work(opened, resolved, once, end_sessions)
