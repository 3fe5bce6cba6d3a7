"""`clawctl forget` and `clawctl retention`."""

from typing import Annotated

import typer

from clawctl.cli.options import DEFAULT_RUN, AsJson, RecipeOption, RunOption
from clawctl.run_dir import open_run


def forget(
    run: RunOption = DEFAULT_RUN,
    session: Annotated[str | None, typer.Option(help="This session, as `inspect sessions` names it.")] = None,
    user: Annotated[str | None, typer.Option(help="Everything asked with the API key of this name.")] = None,
    before: Annotated[
        str | None, typer.Option(help="Sessions that began before this day or time (2026-11-30, 2026-11-30T12:00).")
    ] = None,
    retrain: Annotated[bool, typer.Option("--retrain", help="Go back to the last policy that learned nothing of it.")] = False,
    stop_workers: Annotated[
        bool, typer.Option("--stop-workers", help="End collect and train of this machine first; `clawctl up` starts them again.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a session, a user or a time from a run. It leaves every file; the policies that learned from it are named."""
    from clawctl.privacy.door import forget as work

    work(open_run(run, create=False), session, user, before, retrain, stop_workers, dry_run, yes, as_json)


def retention(
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, delete nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete conversations whose time is over. That is what `privacy.max_age_days` and `privacy.max_gb` no longer allow."""
    from clawctl.privacy.door import expire as work

    work(open_run(run, create=False), recipe, dry_run, as_json)
