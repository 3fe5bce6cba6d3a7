"""`clawctl collect`."""

from pathlib import Path
from typing import Annotated

import typer

from clawctl.cli.opening import open_stage
from clawctl.cli.options import DEFAULT_RUN, AsJson, LogLevel, Once, RecipeOption, RunOption
from clawctl.config import load_recipe, recipe_file
from clawctl.errors import ClawError
from clawctl.run_dir import open_run


def collect(
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    once: Once = False,
    end_sessions: Annotated[
        bool, typer.Option("--end-sessions", help="With --once: treat every session as ended and publish its last turns.")
    ] = False,
    import_from: Annotated[Path | None, typer.Option("--import", help="Publish the turns in this file (JSONL), then exit.")] = None,
    rating: Annotated[float | None, typer.Option(help="With --import: rating (-1 to 1) for turns without one.")] = None,
    export_to: Annotated[Path | None, typer.Option("--export", help="Write all published turns to this file, then exit.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which turns would be trained, and why others would not. Writes nothing.")
    ] = False,
    num_samples: Annotated[int, typer.Option(min=0, help="With --dry-run: number of turns to show.")] = 10,
    as_json: AsJson = False,
    custom_rollout: Annotated[
        str | None,
        typer.Option(
            "--custom-rollout", "--rollout-function-path", help="Run episodes with your own code, then exit: file.py:name."
        ),
    ] = None,
    custom_generate: Annotated[
        str | None,
        typer.Option(
            "--custom-generate", "--custom-generate-function-path", help="With --custom-rollout: your own sampler: file.py:name."
        ),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="With --custom-rollout: number of episodes.")] = 1,
    log_level: LogLevel = "info",
) -> None:
    """Group captures into sessions and publish their turns. Each turn is published with its next state, which followed the
    answer."""
    if rating is not None and import_from is None:
        raise ClawError("--rating needs --import", "pass the file with --import; rate served turns over HTTP", 2)
    if custom_generate is not None and custom_rollout is None:
        raise ClawError("--custom-generate needs --custom-rollout", "add --custom-rollout file.py:name", 2)
    if end_sessions and not once:
        raise ClawError("--end-sessions needs --once", "add --once; without it, collect keeps waiting for next states", 2)
    if dry_run:
        from clawctl.collect.dry_run import dry_run as show

        settings = load_recipe(recipe_file(run, recipe))
        show(None if import_from else open_run(run, create=False), settings, import_from, rating, num_samples, as_json)
        return
    opened, resolved = open_stage(
        "collect", run, recipe, {}, log_level, create=import_from is not None or custom_rollout is not None
    )
    if import_from or export_to:
        from clawctl.collect.text_files import exchange_text

        exchange_text(opened, resolved.privacy, import_from, export_to, rating, as_json)
        return
    if custom_rollout is not None:
        from clawctl.collect.custom_rollout import collect_custom

        collect_custom(opened, resolved, custom_rollout, custom_generate, episodes)
        return
    from clawctl.collect.worker import collect as work

    work(opened, resolved, once, end_sessions)
