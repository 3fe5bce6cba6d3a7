"""The answers of a candidate and its reference versions to the same tasks, as stored in their records.

A record holds the values of one version by task (`values`). A candidate's record also holds the comparisons with each reference
(`comparisons`). Both only grow, in the order of the tasks, so a gate that was killed resumes where it stopped.
"""

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from clawctl.config import EvalBudget, GateConfig, GateLimit
from clawctl.eval.comparisons import Comparison
from clawctl.eval.gate import BEST, Anchor, Tested
from clawctl.eval.sequential import examine, interleave
from clawctl.eval.suites import Measured
from clawctl.eval.suites.loading import LoadedSuite
from clawctl.intervals import estimate

ROUND = 48  # comparisons in one round
Record = dict[str, Any]


def weigh_rows(
    candidate: Record,
    references: Sequence[tuple[str, int, Record]],
    anchors: Sequence[Anchor],
    suites: Sequence[LoadedSuite],
    gate: GateConfig,
    budget: EvalBudget,
    exhausted: set[str],
) -> list[Tested]:
    """Each row of the gate against each reference ("the base", 0, its record). `exhausted`: suites without further tasks.

    The best version so far is a reference only after its second measurement, because its first one is biased upwards.
    """
    by_name = {suite.name: suite for suite in suites}
    pairs = []
    for row in gate.rows:
        suite = by_name[row.suite]
        best = {anchor.version for anchor in anchors if (anchor.suite, anchor.metric) == (row.suite, row.metric)}
        for what, version, record in references:
            if what == BEST and version not in best:
                continue
            comparisons = compared(candidate, version, record, row)
            if comparisons is None and suite.comparing is None:
                continue
            more = budget.comparisons is not None and row.suite not in exhausted
            more = more and (suite.comparing is not None or suite.environment is not None)
            if not comparisons and asked_so_far(candidate, row.suite, version) >= (budget.comparisons or 0):
                more = False  # no task has this metric: no turn calls a tool, or every turn does
            pairs.append((row, what, version, comparisons or [], more))
    return [
        Tested(row, what, version, examine(comparisons, row.max_drop, gate.error, len(pairs)), more)
        for row, what, version, comparisons, more in pairs
    ]


def compared(candidate: Record, version: int, reference: Record, row: GateLimit) -> list[Comparison] | None:
    """The comparisons on one row's metric, in the order of the tasks. None if the two versions have no values to pair."""
    stored = candidate.get("comparisons", {}).get(row.suite, {}).get(str(version), [])
    if comparisons := [Comparison(**stored_row) for stored_row in stored if stored_row["metric"] == row.metric]:
        return comparisons
    ours, theirs = (record.get("values", {}).get(row.suite, {}).get(row.metric, {}) for record in (candidate, reference))
    shared = [task for task in ours if task in theirs]
    if not shared:
        return None
    low = min(0.0, *(min(ours[task], theirs[task]) for task in shared))
    high = max(1.0, *(max(ours[task], theirs[task]) for task in shared))
    if low < -1 or high > 1:
        return None  # outside of [-1, 1], only the mean is compared
    scaled = (lambda value: (value + 1) / 2) if low < 0 else float
    return [Comparison(row.metric, task, scaled(ours[task]), scaled(theirs[task])) for task in shared]


def best_on_half(records: Mapping[int, Record], rows: Sequence[GateLimit]) -> list[tuple[Anchor, Record]]:
    """For each row the best of several versions, chosen on one half of its tasks, with its values on the other half.

    The highest of several noisy means is biased upwards. Its values on tasks that did not choose it are not.
    """
    halves = []
    for row in rows:
        values = {v: record.get("values", {}).get(row.suite, {}).get(row.metric, {}) for v, record in records.items()}
        chosen_on = {v: [value for task, value in of.items() if _is_first_half(task)] for v, of in values.items()}
        means = {v: sum(some) / len(some) for v, some in chosen_on.items() if some}
        if means:
            best = max(means, key=lambda v: (means[v], v))
            half = {task: value for task, value in values[best].items() if not _is_first_half(task)}
            anchor = Anchor(BEST, best, row.suite, row.metric, means[best])
            halves.append((anchor, {"values": {row.suite: {row.metric: half}}}))
    return halves


def _is_first_half(task: str) -> bool:
    return zlib.crc32(task.encode()) % 2 == 0


def add_values(record: Record, suite: str, measured: Measured) -> bool:
    """Add the values of further tasks to a record and update its means. Returns whether there were any values."""
    values = record.setdefault("values", {}).setdefault(suite, {})
    for metric, by_task in measured.values.items():
        values.setdefault(metric, {}).update(by_task)
        record["suites"].setdefault(suite, {})[metric] = estimate(list(values[metric].values())).as_json()
    return any(measured.values.values())


def add_comparisons(record: Record, suite: str, version: int, comparisons: Sequence[Comparison], count: int) -> None:
    """Add the comparisons of one round of `asked` tasks to a record."""
    stored = record.setdefault("comparisons", {}).setdefault(suite, {}).setdefault(str(version), [])
    stored += [asdict(comparison) for comparison in interleave(comparisons)]
    tasks = record.setdefault("asked", {}).setdefault(suite, {})
    tasks[str(version)] = tasks.get(str(version), 0) + count


def unreported(record: Record, tested: Sequence[Tested], declared: Mapping[str, Collection[str]]) -> str | None:
    """Why a row has no comparisons although its suite made some: the metric's name is wrong. None if there is no such row.

    `declared`: the metrics that each suite declares. Its tasks need not have all of them: `preferred` of turns that call tools.
    """
    for test in tested:
        stored = record.get("comparisons", {}).get(test.row.suite, {}).get(str(test.version), [])
        if stored and not test.evidence.comparisons and test.row.metric not in declared.get(test.row.suite, ()):
            names = ", ".join(sorted({comparison["metric"] for comparison in stored}))
            return f"the suite {test.row.suite} does not compare {test.row.metric}; it compares {names}: correct the gate"
    return None


def asked_so_far(record: Record, suite: str, version: int) -> int:
    return int(record.get("asked", {}).get(suite, {}).get(str(version), 0))


def add_spent(record: Record, seconds: float, calls: int, tokens: int) -> None:
    spent = record.setdefault("spent", {"seconds": 0.0, "calls": 0, "tokens": 0})
    spent["seconds"] += seconds
    spent["calls"] += calls
    spent["tokens"] += tokens


def spent_budget(record: Record, tested: Sequence[Tested], budget: EvalBudget) -> str | None:
    """The part of the budget that is used up: "600 comparisons". None if every part has some left."""
    spent = record.get("spent", {})
    for name in ("seconds", "calls", "tokens"):
        limit = getattr(budget, name)
        if limit is not None and spent.get(name, 0) >= limit:
            return f"{limit:g} {name}"
    if budget.comparisons is None:
        return None
    undecided = [test for test in tested if test.evidence.verdict == "open" and test.more]
    if undecided and all(test.evidence.comparisons >= budget.comparisons for test in undecided):
        return f"{budget.comparisons} comparisons"
    return None
