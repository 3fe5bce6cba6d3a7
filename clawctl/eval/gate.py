"""The gate: decides whether a candidate may replace the live policy.

Each row of the gate is a metric of a suite and a margin. A candidate is compared with the live version and with anchors: the base
version, and for each metric the best version so far. With the live version alone, ten drops of 0.09 would each pass a limit of
0.10.

Two versions that did the same tasks are compared task by task (`sequential.py`). The candidate goes live when each row is better,
or not worse by its margin, than each reference. It is refused when a row is worse. In between the gate asks for more comparisons.
When the budget is spent, `gate.undecided` decides. A row whose suite has no more tasks, or no values by task, goes by the means.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from clawctl.config import GateConfig, GateLimit
from clawctl.eval.sequential import PairedEvidence

BEST = "the best so far"  # an anchor
Scores = Mapping[tuple[str, str], float]  # {("personalisation", "correctness"): 0.9, …}, all of the same tasks


@dataclass(frozen=True, slots=True)
class Decision:
    """`promote` None: there was nothing to decide (no gate, or the version serves already)."""

    promote: bool | None
    reason: str
    against: int | None = None  # the live version that the candidate was compared with


@dataclass(frozen=True, slots=True)
class Anchor:
    """One number that a candidate must not fall too far below, whatever is live now."""

    what: str  # "the base", "the best so far"
    version: int
    suite: str  # "personalisation"
    metric: str  # "correctness"
    value: float


@dataclass(frozen=True, slots=True)
class Tested:
    """One row of the gate, against one reference version."""

    row: GateLimit
    what: str  # "the live version", "the base", "the best so far"
    version: int
    evidence: PairedEvidence
    more: bool  # whether the suite may have more tasks

    @property
    def name(self) -> str:
        return f"{self.row.suite} {self.row.metric}"

    @property
    def words(self) -> str:
        """ "12 won, 30 lost, 58 tied against the live version 3, e-value 48"."""
        evidence = self.evidence
        value = evidence.e_worse if evidence.verdict == "worse" else evidence.e_not_worse
        counts = f"{evidence.wins} won, {evidence.losses} lost, {evidence.ties} tied"
        return f"{counts} against {self.what} (version {self.version}), e-value {value:.3g}"

    def as_json(self) -> dict[str, Any]:
        named = {"suite": self.row.suite, "metric": self.row.metric, "margin": self.row.max_drop}
        return {**named, "what": self.what, "version": self.version, **self.evidence.as_json()}


Outcome = Literal["promote", "refuse", "more", "means"]


def settle(tested: Sequence[Tested], spent: str | None, gate: GateConfig) -> Outcome:
    """What follows from the evidence so far. `spent`: which part of the budget is used up. "means": the means of the open rows
    decide."""
    if any(one.evidence.verdict == "worse" for one in tested):
        return "refuse"
    undecided = open_rows(tested, gate)
    if not undecided:
        return "promote"
    if not any(one.more for one in tested if one.evidence.verdict == "open"):
        return "means"
    if spent is None:
        return "more"
    by_default: dict[str, Outcome] = {"keep": "refuse", "promote": "promote", "estimate": "means"}
    return by_default[gate.undecided]


def open_rows(tested: Sequence[Tested], gate: GateConfig) -> list[GateLimit]:
    """The rows that the tests did not decide against every reference."""
    decided = {(one.row.suite, one.row.metric) for one in tested}
    decided -= {(one.row.suite, one.row.metric) for one in tested if one.evidence.verdict == "open"}
    return [row for row in gate.rows if (row.suite, row.metric) not in decided]


def explain(tested: Sequence[Tested], promote: bool, spent: str | None, against: int) -> Decision:
    """The decision of `settle` and the evidence for it."""
    if worse := [one for one in tested if one.evidence.verdict == "worse"]:
        return Decision(False, "; ".join(f"{one.name} is worse: {one.words}" for one in worse), against)
    if still := [one for one in tested if one.evidence.verdict == "open"]:
        follows = "promoted all the same" if promote else "the live version stays"
        rows = "; ".join(f"{one.name}: {one.words}" for one in still)
        return Decision(promote, f"not enough evidence within the budget of {spent}, so {follows}: {rows}", against)
    shown = [one for one in tested if one.version == against] or tested
    return Decision(True, "; ".join(f"{one.name} is {one.evidence.verdict}: {one.words}" for one in shown), against)


def by_comparisons(tested: Sequence[Tested]) -> str | None:
    """Why the mean of an open row's comparisons keeps the candidate out, or None."""
    for one in tested:
        evidence = one.evidence
        if evidence.verdict == "open" and evidence.mean is not None and is_below(evidence.mean, 0.0, one.row.max_drop):
            return (
                f"{one.name} is lower by {-evidence.mean:.2f} on average, more than the {one.row.max_drop:.2f} allowed: {one.words}"
            )
    return None


def is_below(value: float, reference: float, allowed: float) -> bool:
    """Whether `value` fell by more than `allowed`."""
    return reference - value > allowed + 1e-9  # 0.9 - 0.8 is a little more than 0.1


def decide(
    candidate: Scores,
    live: Scores | None,
    rows: Sequence[GateLimit],
    against: int | None = None,
    anchors: Sequence[Anchor] = (),
) -> Decision:
    """Promote unless a mean fell by more than its row allows, compared with the live version or an anchor. `live` is None if the
    live version cannot be measured; then only the anchors decide. Without a number for one of its rows, the gate refuses.

    It is for suites that cannot be asked for more. With 36 answers, a test hardly ever finds enough evidence. Errors from noise do
    not accumulate, because the anchors stay fixed.
    """
    refused = [why for row in rows if (why := _refusal(row, candidate, live, anchors))]
    if refused:
        return Decision(False, "; ".join(refused), against)
    if live is None:
        return Decision(True, "the live version cannot be measured", against)
    return Decision(True, ", ".join(_change(row, candidate, live) for row in rows), against)


def _change(row: GateLimit, candidate: Scores, live: Scores) -> str:
    now, before = candidate[row.suite, row.metric], live.get((row.suite, row.metric))
    return f"{row.suite} {row.metric} {'' if before is None else f'{before:.2f} -> '}{now:.2f}"


def _refusal(row: GateLimit, candidate: Scores, live: Scores | None, anchors: Sequence[Anchor]) -> str | None:
    """Why this row keeps the candidate out, or None."""
    metric, name = (row.suite, row.metric), f"{row.suite} {row.metric}"
    if metric not in candidate:
        known = ", ".join(sorted(metric for suite, metric in candidate if suite == row.suite)) or "nothing"
        return f"the suite {row.suite} does not report {row.metric}, which the gate compares; it reports {known}: correct the gate"
    value = candidate[metric]
    if live is not None and metric in live and is_below(value, live[metric], row.max_drop):
        return f"{name} fell from {live[metric]:.2f} to {value:.2f}, more than the {row.max_drop:.2f} allowed"
    for anchor in anchors:
        if (anchor.suite, anchor.metric) == metric and is_below(value, anchor.value, row.max_drop):
            where = f"{anchor.what} (version {anchor.version})"
            return f"{name} is {value:.2f}, more than {row.max_drop:.2f} below the {anchor.value:.2f} of {where}"
    return None
