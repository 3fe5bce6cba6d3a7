"""`clawctl forget` and `clawctl retention`."""

from typing import Annotated

import typer

from clawctl.cli.options import DEFAULT_RUN, AsJson, RecipeOption, RunOption
from clawctl.run.directory import open_run


def forget(
    run: RunOption = DEFAULT_RUN,
    session: Annotated[str | None, typer.Option(help="Delete this session (its id in `inspect sessions`).")] = None,
    user: Annotated[str | None, typer.Option(help="Delete all requests that were made with the API key of this name.")] = None,
    before: Annotated[
        str | None, typer.Option(help="Delete sessions that began before this day or time (2026-11-30, 2026-11-30T12:00).")
    ] = None,
    retrain: Annotated[
        bool, typer.Option("--retrain", help="Go back to the last policy that was not trained on the deleted data.")
    ] = False,
    stop_workers: Annotated[
        bool,
        typer.Option("--stop-workers", help="First stop collect, train and practice on this machine; `clawctl up` restarts them."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the data of a session, a user or a period. All files are rewritten without it. Policies that were trained on it are
    listed.

    Example: `clawctl forget --user anna --dry-run --run runs/mine`
    """
    from clawctl.privacy.command import forget as work
    from clawctl.privacy.command import parse_selection

    opened, selection = open_run(run, create=False), parse_selection(session, user, before, retrain)
    work(opened, selection, retrain, stop_workers, dry_run, yes, as_json)


def retention(
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted; delete nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete conversations that have expired. The limits are `privacy.max_age_days` and `privacy.max_gb`.

    Example: `clawctl retention --dry-run --run runs/mine`
    """
    from clawctl.privacy.command import expire as work

    work(open_run(run, create=False), recipe, dry_run, as_json)
