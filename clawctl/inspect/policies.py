"""`clawctl inspect policies`: one line per version."""

import time
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from clawctl.errors import ClawError
from clawctl.inspect.rows import read_json, read_lines, read_policies
from clawctl.inspect.tables import cut_to, problem_lines, since
from clawctl.printing import Column, answers, counted, fitting, one_line, print_json
from clawctl.run.directory import RunDir
from clawctl.run.lineage import BUILT_ON, OVERTAKEN, read_lineage, why_dead
from clawctl.run.names import number_of
from clawctl.run.policies import live_version, read_moves

_EVIDENCE = ("evidence", "share", "watch", "spent")  # keys of a record: evidence from the gate, shared sessions, traffic; the cost
_MOVES_SHOWN = 5
_SHOWN_OF_LINEAGE = 12
_MAX_METRICS = 4  # the number of metrics that get a column
_BEFORE = (
    Column("version"),
    Column("parent", right=True, drop_order=3),
    Column("step", right=True, drop_order=5),
    Column("method"),
    Column("kind", drop_order=4),
    Column("turns", right=True, drop_order=1),
    Column("loss", right=True),
    Column("grad norm", right=True, drop_order=3),
    Column("KL from base", right=True, drop_order=4),
)
_COST = Column("cost", right=True)  # for versions trained by a service
_AFTER = (Column("gate", drop_order=1), Column("made", right=True, drop_order=2))


def show_policies(run: RunDir, as_json: bool) -> None:
    problems: list[str] = []
    policies = describe_policies(run, problems)
    if as_json:
        print_json({"policies": policies, "moves": read_moves(run), "problems": problems})
        return
    shown, left_out = cut_to(policies)
    live = next((index for index, row in enumerate(shown) if row["live"]), None)
    page = answers()
    title = counted(len(policies), "policy version")
    metrics = metrics_of(policies)[:_MAX_METRICS]
    priced = any(row["cost"] is not None for row in shown)
    columns = [*_BEFORE, *[_COST] * priced, *(Column(heading, right=True, drop_order=1) for heading in headings(metrics)), *_AFTER]
    table = fitting(title, columns, [_cells(row, metrics, priced) for row in shown], page.width, bold=live)
    page.print(table, *left_out, *_tree(policies), *_decisions(shown), *_moves(run), *problem_lines(problems), sep="\n")


def metrics_of(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """All (suite, metric) pairs measured on any of these versions, in the order of the records."""
    return list(dict.fromkeys((suite, name) for row in rows for suite, metrics in row["metrics"].items() for name in metrics))


def headings(metrics: Sequence[tuple[str, str]]) -> list[str]:
    """The name of each metric, preceded by its suite if there are several suites."""
    several = len({suite for suite, _ in metrics}) > 1
    return [f"{suite} {name}" if several else name for suite, name in metrics]


def _cells(row: dict[str, Any], metrics: Sequence[tuple[str, str]], priced: bool) -> list[Text]:
    version = f"{row['version']}{' ← live' if row['live'] else ''}"
    parent = "" if row["parent"] is None else str(row["parent"])
    cells = [version, parent, str(row["step"]), row["method"] or "", row["kind"], str(row["turns"])]
    cells += [_number(row["loss"]), _number(row["grad_norm"]), _number(row["kl_base"]), *[_number(row["cost"])] * priced]
    cells += [estimate(row, metric) for metric in metrics]
    return [one_line(cell, 40) for cell in (*cells, gate_of(row), since(row["created_at"], time.time()))]


def _tree(rows: Sequence[dict[str, Any]]) -> list[Text]:
    """The lineage that training continues from, and the newest dead versions with their reasons."""
    dead = [row for row in rows if row["dead"] is not None]
    if not dead:
        return []
    living = [str(row["version"]) for row in rows if row["dead"] is None]
    way = " → ".join((["…"] if len(living) > _SHOWN_OF_LINEAGE else []) + living[-_SHOWN_OF_LINEAGE:])
    lines = [Text(f"training continues from version {living[-1]}: {way}")]
    for row in dead[-_MOVES_SHOWN:]:
        lines.append(Text(f"version {row['version']} (from {row['parent']}) is dead: ", "dim") + one_line(row["dead"], 200))
    return lines


def _decisions(rows: Sequence[dict[str, Any]]) -> list[Text]:
    """The gate's latest decisions."""
    decided = [row for row in rows if gate_of(row)][-_MOVES_SHOWN:]
    return [
        Text(f"gate, version {row['version']}, {gate_of(row)}: ")
        + one_line(str(row["decision"].get("reason")), 200)
        + Text(_compared(row) + _cost(row), "dim")
        for row in decided
    ]


def _compared(row: dict[str, Any]) -> str:
    """The anchors that the gate used in addition to the live version."""
    anchors = [f"{other['what']} (version {other['version']}) {other['metric']} {other['value']:.2f}" for other in row["compared"]]
    against = row["decision"].get("against")
    return f" (against the live version {against}{''.join(f', {anchor}' for anchor in anchors)})" if anchors else ""


def _cost(row: dict[str, Any]) -> str:
    """The cost of the measurement and the comparisons."""
    spent = row["spent"]
    return f"; {spent['seconds']:.0f} s, {spent['calls']} calls, {spent['tokens']} tokens" if spent else ""


def _moves(run: RunDir) -> list[Text]:
    """The latest moves of LIVE."""
    return [
        Text(f"live {'none' if move['from'] is None else move['from']} → {move['to']}, {since(move['at'], time.time())}: ")
        + one_line(str(move["by"]), 80)
        for move in read_moves(run)[-_MOVES_SHOWN:]
    ]


def describe_policies(run: RunDir, problems: list[str]) -> list[dict[str, Any]]:
    """All data about each published version, in order."""
    live = read_live(run, problems)
    lineage = read_lineage(run)
    dead, tip = why_dead(run, lineage), lineage.tip
    steps = {row.get("step"): row for row in read_lines(run.steps, problems)}
    policies = []
    for policy in read_policies(run, problems):
        measured = read_eval(run, policy.version, problems)
        row = {**policy.metrics, **steps.get(policy.step, {})} if policy.version else policy.metrics
        policies.append({
            "version": policy.version,
            "live": policy.version == live,
            "parent": policy.parent,
            "dead": dead.get(policy.version),
            "trained_on": policy.version == tip,
            "step": policy.step,
            "method": policy.method,
            "kind": policy.kind,
            "turns": len(policy.turns),
            "loss": row.get("loss"),
            "grad_norm": row.get("grad_norm"),
            "kl_base": row.get("kl_base"),
            "cost": row.get("cost"),
            "metrics": measured_by(measured),
            "decision": measured["decision"],
            "compared": measured["compared"],
            **{name: measured[name] for name in _EVIDENCE},
            "comparisons": _tallies(measured),
            "created_at": policy.created_at,
        })  # fmt: skip
    return policies


def read_eval(run: RunDir, version: int, problems: list[str]) -> dict[str, Any]:
    """`eval/<version>.json`, or a record without numbers if the file does not exist or is unusable."""
    nothing: dict[str, Any] = {"version": version, "suites": {}, "decision": None, "examples": [], "compared": []}
    nothing |= dict.fromkeys(_EVIDENCE)
    return nothing | read_json(run.eval_record(version), problems, suites=dict)


def read_live(run: RunDir, problems: list[str]) -> int | None:
    try:
        return live_version(run)
    except ClawError as error:
        problems.append(error.problem)
        return None


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def measured_by(record: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """The metrics in an eval record, by suite: {"ability": {"correct": {"mean": 0.9, "ci95": [0.7, 1.0], "n": 36}}}."""
    return {
        suite: {name: metric for name, metric in numbers.items() if isinstance(metric, dict) and "mean" in metric}
        for suite, numbers in record["suites"].items()
        if isinstance(numbers, dict)
    }


def estimate(row: dict[str, Any], metric: tuple[str, str]) -> str:
    """An estimate as text: "0.90 [0.74, 0.97]". Empty if the metric was not measured."""
    value = row["metrics"].get(metric[0], {}).get(metric[1])
    if value is None:
        return ""
    low, high = value["ci95"]
    return f"{value['mean']:.2f} [{low:.2f}, {high:.2f}]"


def values_of(record: dict[str, Any], suite: str, metric: str) -> dict[str, float]:
    """The values of one metric by task, of which its mean is made. Empty if the record keeps none."""
    by_suite = record.get("values")
    of = by_suite.get(suite) if isinstance(by_suite, dict) else None
    by_task = of.get(metric) if isinstance(of, dict) else None
    values = by_task.items() if isinstance(by_task, dict) else ()
    return {str(task): float(value) for task, value in values if isinstance(value, int | float)}


def comparisons(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The comparisons in a candidate's eval record, each with its `suite` and the version `against` which it was made.

    The record stores them by suite and reference. Entries of another shape are skipped.
    """
    by_suite = record.get("comparisons")
    comparisons = []
    for suite, by_reference in by_suite.items() if isinstance(by_suite, dict) else ():
        for against, tasks in by_reference.items() if isinstance(by_reference, dict) else ():
            usable = [row for row in tasks if isinstance(row, dict) and _is_comparison(row)] if isinstance(tasks, list) else []
            comparisons += [{**comparison, "suite": suite, "against": number_of(against)} for comparison in usable]
    return comparisons


def _is_comparison(entry: dict[str, Any]) -> bool:
    return all(isinstance(entry.get(side), int | float) for side in ("candidate", "reference"))


Compared = dict[tuple[str, str, int | None], list[dict[str, Any]]]


def by_row(comparisons: Sequence[dict[str, Any]]) -> Compared:
    """The comparisons, grouped by suite, metric and reference version."""
    rows: Compared = {}
    for comparison in comparisons:
        rows.setdefault((comparison["suite"], str(comparison.get("metric")), comparison["against"]), []).append(comparison)
    return rows


def tally(comparisons: Sequence[dict[str, Any]]) -> tuple[int, int, int]:
    """The candidate's wins, ties and losses."""
    wins = sum(comparison["candidate"] > comparison["reference"] for comparison in comparisons)
    losses = sum(comparison["candidate"] < comparison["reference"] for comparison in comparisons)
    return wins, len(comparisons) - wins - losses, losses


def _tallies(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Wins, ties and losses by suite, metric and reference version."""
    return [
        {"suite": suite, "metric": metric, "against": against, **dict(zip(("wins", "ties", "losses"), tally(group), strict=True))}
        for (suite, metric, against), group in by_row(comparisons(record)).items()
    ]


def gate_of(row: dict[str, Any]) -> str:
    """The gate's decision in one or two words. Empty if there is none yet."""
    decision = row["decision"]
    if not decision or decision.get("promote") is None:
        return ""
    if decision["promote"]:
        return "promoted"
    return "passed over" if str(decision.get("reason")).startswith((OVERTAKEN, BUILT_ON)) else "refused"
