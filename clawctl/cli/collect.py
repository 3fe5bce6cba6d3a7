"""`clawctl collect`, and the old spellings of `clawctl import`, `export` and `play`."""

from pathlib import Path
from typing import Annotated

import typer

from clawctl.cli import data, play
from clawctl.cli.opening import open_stage
from clawctl.cli.options import DEFAULT_RUN, AsJson, LogLevel, NumSamples, Once, RecipeOption, RunOption, warn_of_old_spelling
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
    import_from: Annotated[Path | None, typer.Option("--import", hidden=True)] = None,
    rating: Annotated[float | None, typer.Option(hidden=True)] = None,
    export_to: Annotated[Path | None, typer.Option("--export", hidden=True)] = None,
    custom_rollout: Annotated[str | None, typer.Option("--custom-rollout", "--rollout-function-path", hidden=True)] = None,
    custom_generate: Annotated[
        str | None, typer.Option("--custom-generate", "--custom-generate-function-path", hidden=True)
    ] = None,
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
    the episodes of an environment against this run's server."""
    if rating is not None and import_from is None:
        raise ClawError("--rating needs --import", "import with `clawctl import FILE --rating N`; rate served turns over HTTP", 2)
    if custom_generate is not None and custom_rollout is None:
        raise ClawError("--custom-generate needs --custom-rollout", "use `clawctl play ROLLOUT --generate file.py:name`", 2)
    if end_sessions and not once:
        raise ClawError("--end-sessions needs --once", "add --once; without it, collect keeps waiting for next states", 2)
    if import_from is not None and export_to is not None:
        raise ClawError("--import and --export are separate commands", "run `clawctl import FILE`, then `clawctl export FILE`", 2)
    if import_from is not None:
        warn_of_old_spelling("collect --import", f"import {import_from}")
        data.import_turns(import_from, run, recipe, rating, dry_run, num_samples, as_json, log_level)
    if export_to is not None and not dry_run:
        warn_of_old_spelling("collect --export", f"export {export_to}")
        data.export_turns(export_to, run, recipe, as_json, log_level)
    if custom_rollout is not None and not dry_run:
        warn_of_old_spelling("collect --custom-rollout", f"play {custom_rollout}")
        play.play(custom_rollout, run, recipe, custom_generate, tasks, log_level=log_level)
    if env is not None:
        play.play(env, run, recipe, None, tasks, attempts, parallel, seed, rounds, option, worker, server, log_level)
    if import_from or export_to or custom_rollout or env:
        return
    if dry_run:
        from clawctl.collect.dry_run import dry_run as show

        return show(open_run(run, create=False), load_recipe(recipe_file(run, recipe)), None, None, num_samples, as_json)
    opened, resolved = open_stage("collect", run, recipe, {}, log_level)
    from clawctl.collect.worker import collect as work

    work(opened, resolved, once, end_sessions)
