"""Entry points of `clawctl forget` and `clawctl retention`: parse the options, confirm, run, report."""

import sys
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from clawctl.config import load_recipe
from clawctl.errors import ClawError
from clawctl.printing import answers, counted, one_line, print_json
from clawctl.privacy.forget import Forgotten
from clawctl.privacy.forget import forget as carry_out
from clawctl.privacy.selection import Selection
from clawctl.run.directory import RunDir, recipe_file
from clawctl.run.retention import expire as carry_out_retention
from clawctl.run.storage import storage_of

NO_TURN = "this run has no matching turn"
LISTS = "`clawctl inspect sessions` and `clawctl inspect data` list what it has"


def forget(
    run: RunDir, selection: Selection | None, retrain: bool, stop_workers: bool, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Raises ClawError if the user does not confirm, and (exit code 2) if a session or user has nothing here. That nothing is older
    than a date is no error.
    """
    if not dry_run and not yes:
        planned = carry_out(run, selection, dry_run=True, retrain=retrain)
        if _is_nothing(planned) and not storage_of(run.root).in_bucket:
            raise ClawError(NO_TURN, LISTS, 2)
        _report(planned, as_json=False)
        _confirm()
    result = carry_out(run, selection, dry_run, retrain, stop_workers)
    if _is_nothing(result) and selection is not None and selection.before is None:
        raise ClawError(NO_TURN, LISTS, 2)
    _report(result, as_json)


def _is_nothing(result: Forgotten) -> bool:
    affected = result.turns or result.policies or result.others or result.files or result.notes or result.other_plans
    return not affected and result.rollback_plan is None


def parse_selection(session: str | None, user: str | None, before: str | None, retrain: bool) -> Selection | None:
    """Parse the options. Returns None if only `--retrain` is given, which applies to data that was forgotten earlier.

    Raises ClawError unless exactly one of session, user and before is given.
    """
    given = [value for value in (session, user, before) if value is not None]
    if not given and retrain:
        return None
    if len(given) != 1:
        problem = "several selections are given" if given else "no data is selected"
        raise ClawError(problem, "use one of --session, --user and --before", 2)
    try:
        moment = None if before is None else datetime.fromisoformat(before).timestamp()  # without a zone: local time
    except ValueError as error:
        raise ClawError(f"--before {before!r} is not a day or time", "write it as 2026-11-30 or 2026-11-30T12:00", 2) from error
    return Selection(session, user, moment)


def expire(run: RunDir, recipe: Path | None, dry_run: bool, as_json: bool) -> None:
    """Delete the files that exceed the recipe's retention limits. Raises ClawError."""
    resolved = load_recipe(recipe_file(run.root, recipe))
    expired = carry_out_retention(run, resolved, dry_run=dry_run)
    names = [str(path.relative_to(run.root)) for path in expired.files]
    if as_json:
        print_json({"files": names, "bytes": expired.size, "dry_run": dry_run})
        return
    if resolved.privacy.max_age_days is None and resolved.privacy.max_gb is None:
        answers().print("nothing expires: privacy.max_age_days and privacy.max_gb are not set")
        return
    answers().print(
        f"{counted(len(names), 'file')}, {expired.size} bytes {'would be deleted' if dry_run else 'deleted'}", *names, sep="\n"
    )


def _confirm() -> None:
    if not sys.stdin.isatty():
        raise ClawError("clawctl cannot ask for confirmation without a terminal", "check it with --dry-run, then add --yes", 2)
    if input("delete this permanently? [y/N] ").strip().lower() not in ("y", "yes"):
        raise ClawError("nothing was changed", "answer y, or use --yes")


def _report(result: Forgotten, as_json: bool) -> None:
    if as_json:
        print_json(asdict(result))
        return
    table = Table(title="would be forgotten" if result.dry_run else "forgotten", show_header=False)
    for what, line in _lines(result).items():
        table.add_row(what, one_line(line, 400))
    answers().print(table)


def _lines(result: Forgotten) -> dict[str, Any]:
    if _is_nothing(result):
        return {"nothing": f"{NO_TURN}; {LISTS}"}
    lines = {
        "turns": f"{result.turns} of {counted(result.sessions, 'session')}",
        "policies that learned from them": _versions(result.policies),
    }
    if result.files:
        lines["rewritten"] = ", ".join(f"{name} ({rows})" for name, rows in result.files.items())
    if result.notes:
        lines["notes"] = ", ".join(result.notes)
    if result.removed_whole:
        lines["removed completely"] = f"{', '.join(result.removed_whole)}: could not be read, so their content is not known"
    if result.rollback_plan is not None:
        lines["training continues from"] = (
            f"version {result.rollback_plan.to_version}; {_versions(result.rollback_plan.removed_versions)} removed"
        )
        lines["live"] = f"version {result.rollback_plan.live}"
    for name, versions in result.others.items():
        lines[f"policy of {name}"] = _versions(versions)
        if (plan := result.other_plans.get(name)) is not None:
            begins = "begins again with the shared weights" if plan.to_version < 0 else f"goes back to version {plan.to_version}"
            lines[f"policy of {name}"] += f"; it {begins}"
    if result.rollback_plan is None and not result.other_plans and (result.policies or result.others):
        lines["policies stay"] = "add --retrain to go back to the last version that did not learn from it"
    return lines


def _versions(versions: list[int]) -> str:
    return ("policy " if len(versions) == 1 else "policies ") + ", ".join(map(str, versions)) if versions else "no policy"
