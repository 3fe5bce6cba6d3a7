"""`clawctl eval --tasks … --version N --against M`: measures versions on chosen suites on request.

No record is written, and the gate's own measurements do not change.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from clawctl.config import Recipe, SuiteConfig
from clawctl.errors import ClawError
from clawctl.eval.comparisons import Comparison
from clawctl.eval.measuring import Stopped, measure, reachable, run_until
from clawctl.eval.results import as_tables
from clawctl.eval.suites import CannotMeasure
from clawctl.eval.suites.loading import LoadedSuite, load_suites
from clawctl.intervals import proportion
from clawctl.printing import answers, print_json
from clawctl.process import stop_on_signals
from clawctl.run.directory import RunDir
from clawctl.run.endpoint import Endpoint
from clawctl.run.policies import ensure_base_policy, list_versions, read_policy

# Names of abilities that a user can request, and the suites that measure them.
ALIASES: dict[str, dict[str, Any]] = {
    "conversation": {"name": "own"},
    "coding": {"name": "ability", "options": {"categories": ["code"]}},
    "tool-use": {"name": "ability", "options": {"categories": ["tools"]}},
}


def choose_suites(recipe: Recipe, tasks: str | None, files: Sequence[str]) -> Recipe:
    """The recipe, with its suites replaced by those that `--tasks` and `--suite` name.

    If several aliases name one suite, their categories are joined. A suite that the recipe contains keeps its settings there.
    """
    configured = {suite.name: suite for suite in recipe.eval.suites}
    chosen: dict[str, SuiteConfig] = {}
    for name in [*(part.strip() for part in (tasks or "").split(",") if part.strip()), *files]:
        wanted = SuiteConfig.model_validate(ALIASES.get(name, {"name": name}))
        earlier = chosen.get(wanted.name)
        if earlier is not None and earlier.options and wanted.options:
            joined = {**wanted.options, "categories": [*earlier.options["categories"], *wanted.options["categories"]]}
            wanted = wanted.model_copy(update={"options": joined})
        elif wanted.name in configured and name not in ALIASES:
            wanted = configured[wanted.name]
        chosen[wanted.name] = wanted
    if not chosen:
        return recipe
    return recipe.model_copy(update={"eval": recipe.eval.model_copy(update={"suites": list(chosen.values())})})


def evaluate_chosen(run: RunDir, recipe: Recipe, version: int | None, against: int | None, as_json: bool) -> None:
    """Measure `version` (default: the newest), or compare it with the version `against`, and print the result. Raises ClawError."""
    stop = stop_on_signals()
    ensure_base_policy(run, recipe.model.path)
    version = list_versions(run)[-1] if version is None else version
    for measured in (version, *([] if against is None else [against])):
        read_policy(run, measured)
    if version == against:
        raise ClawError(f"version {version} cannot be compared with itself", "choose two versions with --version and --against", 2)
    suites = load_suites(recipe.eval, run, recipe)
    try:
        if against is None:
            record = measure(run, recipe, suites, version, stop)
            if as_json:
                print_json(record)
            else:
                answers().print(*as_tables(record), sep="\n")
            return
        endpoints = [reachable(run, recipe, compared) for compared in (version, against)]
        comparisons = {suite.name: run_until(_compared(suite, endpoints), stop) for suite in suites}
    except CannotMeasure as error:
        raise ClawError(f"this cannot be measured: {error}", "check that `clawctl serve` is running on this run") from error
    except Stopped as error:
        raise ClawError("stopped before everything was measured", "start eval again") from error
    summaries = {name: summary(some) for name, some in comparisons.items()}
    if as_json:
        every = {name: [asdict(comparison) for comparison in some] for name, some in comparisons.items()}
        print_json({"version": version, "against": against, "suites": summaries, "comparisons": every})
        return
    for name, metrics in summaries.items():
        answers().print(_table(name, version, against, metrics))


async def _compared(suite: LoadedSuite, endpoints: Sequence[Endpoint]) -> list[Comparison]:
    """The suite's comparisons; if it cannot compare, pairs of values from measuring both versions. Raises CannotMeasure."""
    if suite.comparing is not None:
        return await suite.compare(endpoints[0], endpoints[1], 0, suite.settings.problems)
    new, old = [(await suite.measure(endpoint)).values for endpoint in endpoints]
    return [
        Comparison(metric, task, float(value), float(old[metric][task]))
        for metric, values in new.items()
        for task, value in values.items()
        if task in old.get(metric, {})
    ]


def summary(comparisons: Sequence[Comparison]) -> dict[str, dict[str, Any]]:
    """For each metric: the tasks that the version won, lost and tied, its share of the decided tasks, and both means."""
    summaries = {}
    for metric in dict.fromkeys(comparison.metric for comparison in comparisons):
        some = [comparison for comparison in comparisons if comparison.metric == metric]
        wins, losses = (sum(sign * (comparison.candidate - comparison.reference) > 0 for comparison in some) for sign in (1, -1))
        summaries[metric] = {
            "n": len(some), "wins": wins, "losses": losses, "ties": len(some) - wins - losses,
            "won": proportion([True] * wins + [False] * losses).as_json() if wins + losses else None,
            "mean": sum(comparison.candidate for comparison in some) / len(some),
            "mean_against": sum(comparison.reference for comparison in some) / len(some),
        }  # fmt: skip
    return summaries


def _table(suite: str, version: int, against: int, metrics: dict[str, dict[str, Any]]) -> Table:
    caption = "share of the decided tasks that the version won, with its 95 % interval" if metrics else "no task could be compared"
    table = Table("metric", "won", "lost", "tied", "share won", f"mean of {version}", f"mean of {against}", caption=caption)
    table.title = f"version {version} against {against}, {suite}"
    for metric, row in metrics.items():
        won = row["won"]
        share = "-" if won is None else f"{won['mean']:.2f} [{won['ci95'][0]:.2f}, {won['ci95'][1]:.2f}]"
        counts = (str(row[name]) for name in ("wins", "losses", "ties"))
        table.add_row(metric, *counts, share, f"{row['mean']:.3f}", f"{row['mean_against']:.3f}")
    return table
