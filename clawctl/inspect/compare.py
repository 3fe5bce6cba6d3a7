"""`clawctl inspect compare`: two runs side by side, and which of their differences are larger than chance."""

from collections.abc import Callable
from typing import Any

from rich.text import Text

from clawctl.inspect.better import FEWEST, Rate, lower, rates
from clawctl.inspect.joined import Joined
from clawctl.inspect.policies import describe_policies, estimate, metrics_of
from clawctl.inspect.rows import read_rows
from clawctl.inspect.tables import problem_lines
from clawctl.printing import Column, answers, fitting, one_line, print_json
from clawctl.run.directory import RunDir

_CHANCE = "no difference larger than chance"


def show_comparison(first: RunDir, second: RunDir, as_json: bool) -> None:
    """Print the comparison. Raises ClawError if one of them is no run."""
    compared = compare([first, second])
    if as_json:
        return print_json(compared)
    rows = [[Text(str(row["what"])), *(Text(text) for text in row["shown"]), Text(row["differ"])] for row in compared["rows"]]
    columns = [Column(""), *(Column(one_line(run["run"], 40).plain, right=True) for run in compared["runs"]), Column("")]
    page = answers()
    problems = [problem for run in compared["runs"] for problem in run["problems"]]
    page.print(fitting("", columns, rows, page.width), *problem_lines(problems), sep="\n")


def compare(runs: list[RunDir], read: Callable[[RunDir], Joined] = read_rows) -> dict[str, Any]:
    """The two runs as data, and the rows of the table. Scores are those of each live version."""
    first, second = both = [_described(run, read(run)) for run in runs]
    rows = [_row(what, [run[key] for run in both]) for what, key in (("live version", "live"), ("versions", "versions"))]
    rows += [_row(what, [f"{run[key]:,}" for run in both]) for what, key in (("turns", "turns"), ("trained turns", "trained"))]
    for what, key in (("complaints per 100", "complaints"), ("of the live version", "complaints_live")):
        before, after = first[key], second[key]
        differ = f"too few to compare (at least {FEWEST} each)"
        if min(before.of, after.of) >= FEWEST:
            differ = {"better": "fewer in the second", "worse": "more in the second"}.get(lower(after, before), _CHANCE)
        rows.append(_row(what, [_shown(before), _shown(after)], differ))
    for suite, metric in metrics_of([run["live_policy"] for run in both]):
        values = [run["live_policy"]["metrics"].get(suite, {}).get(metric) for run in both]
        shown = [estimate(run["live_policy"], (suite, metric)) or "–" for run in both]
        rows.append(_row(f"{suite} {metric}", shown, "" if None in values else _differ(*values)))
    for run in both:
        del run["live_policy"]
        for key in ("complaints", "complaints_live"):
            rate = run[key]
            run[key] = {"bad": rate.bad, "of": rate.of, "per_100": rate.per_100, "ci95": rate.interval if rate.of else None}
    return {"runs": both, "rows": rows}


def _described(run: RunDir, joined: Joined) -> dict[str, Any]:
    problems = joined.problems.copy()
    policies = describe_policies(run, problems)
    live = next((policy for policy in policies if policy["live"]), None)
    by_version = rates(joined.rows)
    return {
        "run": str(run.root),
        "live": None if live is None else live["version"],
        "live_policy": live or {"metrics": {}},
        "versions": len(policies),
        "turns": len(joined.rows),
        "trained": len(joined.rows.where(lambda row: row.step is not None)),
        "complaints": Rate(sum(rate.bad for rate in by_version.values()), sum(rate.of for rate in by_version.values())),
        "complaints_live": by_version.get(-1 if live is None else live["version"], Rate(0, 0)),
        "metrics": {} if live is None else live["metrics"],
        "problems": problems,
    }


def _row(what: str, shown: list[Any], differ: str = "") -> dict[str, Any]:
    return {"what": what, "shown": ["–" if value is None else str(value) for value in shown], "differ": differ}


def _shown(rate: Rate) -> str:
    return f"{rate.per_100:.1f} [{rate.interval[0]:.1f}, {rate.interval[1]:.1f}] of {rate.of:,}" if rate.of else "–"


def _differ(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Two means differ if their 95 % intervals do not overlap, which is a cautious test."""
    if after["ci95"][0] > before["ci95"][1]:
        return "higher in the second"
    return "lower in the second" if after["ci95"][1] < before["ci95"][0] else _CHANCE
