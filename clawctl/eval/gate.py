"""The gate: decides whether a candidate may replace the live policy.

Each row of the gate is a metric of a suite and a margin. A candidate is compared with the live version and with anchors: the base
version, and for each metric the best version so far. Without anchors, ten successive drops of 0.09 would each pass a limit of 0.10.

Two versions that did the same tasks are compared task by task (`sequential.py`). The candidate goes live if, against each
reference, each row is better or not worse by its margin. It is refused if a row is worse. Between these, the gate asks for more
comparisons. When the budget is used up, `gate.undecided` decides. If a suite has no more tasks or no values by task, the means
decide its rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from clawctl.config import GateConfig, GateLimit
from clawctl.eval.sequential import PairedEvidence

BEST = "the best so far"  # the name of an anchor
Scores = Mapping[tuple[str, str], float]  # {("ability", "correct"): 0.9, …}, all measured on the same tasks


@dataclass(frozen=True, slots=True)
class Decision:
    """The gate's decision. `promote` None: there was nothing to decide (there is no gate, or the version is already live)."""

    promote: bool | None
    reason: str
    against: int | None = None  # the live version that the candidate was compared with


@dataclass(frozen=True, slots=True)
class Anchor:
    """A score that a candidate must not fall too far below, whichever version is live."""

    what: str  # "the base", "the best so far"
    version: int
    suite: str  # "ability"
    metric: str  # "correctness"
    value: float


@dataclass(frozen=True, slots=True)
class Tested:
    """The evidence for one row of the gate against one reference version."""

    row: GateLimit
    what: str  # "the live version", "the base", "the best so far"
    version: int
    evidence: PairedEvidence
    more: bool  # whether the suite may have more tasks

    @property
    def name(self) -> str:
        return f"{self.row.suite} {self.row.metric}"

    @property
    def text(self) -> str:
        """The evidence as text: "12 won, 30 lost, 58 tied against the live version (version 3), e-value 48"."""
        evidence = self.evidence
        value = evidence.e_worse if evidence.verdict == "worse" else evidence.e_not_worse
        counts = f"{evidence.wins} won, {evidence.losses} lost, {evidence.ties} tied"
        return f"{counts} against {self.what} (version {self.version}), e-value {value:.3g}"

    def as_json(self) -> dict[str, Any]:
        named = {"suite": self.row.suite, "metric": self.row.metric, "margin": self.row.max_drop}
        return {**named, "what": self.what, "version": self.version, **self.evidence.as_json()}


Outcome = Literal["promote", "refuse", "more", "means"]


def settle(tested: Sequence[Tested], spent: str | None, gate: GateConfig) -> Outcome:
    """The next step according to the evidence so far.

    `spent`: the part of the budget that is used up, or None. The result "means" lets the means of the open rows decide.
    """
    if any(test.evidence.verdict == "worse" for test in tested):
        return "refuse"
    undecided = open_rows(tested, gate)
    if not undecided:
        return "promote"
    if not any(test.more for test in tested if test.evidence.verdict == "open"):
        return "means"
    if spent is None:
        return "more"
    by_default: dict[str, Outcome] = {"keep": "refuse", "promote": "promote", "estimate": "means"}
    return by_default[gate.undecided]


def open_rows(tested: Sequence[Tested], gate: GateConfig) -> list[GateLimit]:
    """The rows that are not decided against every reference."""
    decided = {(test.row.suite, test.row.metric) for test in tested}
    decided -= {(test.row.suite, test.row.metric) for test in tested if test.evidence.verdict == "open"}
    return [row for row in gate.rows if (row.suite, row.metric) not in decided]


def explain(tested: Sequence[Tested], promote: bool, spent: str | None, against: int) -> Decision:
    """The decision of `settle`, with the evidence for it."""
    if worse := [test for test in tested if test.evidence.verdict == "worse"]:
        return Decision(False, "; ".join(f"{test.name} is worse: {test.text}" for test in worse), against)
    if still := [test for test in tested if test.evidence.verdict == "open"]:
        follows = "promoted all the same" if promote else "the live version stays"
        rows = "; ".join(f"{test.name}: {test.text}" for test in still)
        return Decision(promote, f"not enough evidence within the budget of {spent}, so {follows}: {rows}", against)
    shown = [test for test in tested if test.version == against] or tested
    return Decision(True, "; ".join(f"{test.name} is {test.evidence.verdict}: {test.text}" for test in shown), against)


def by_comparisons(tested: Sequence[Tested]) -> str | None:
    """Why the mean of an open row's comparisons excludes the candidate, or None."""
    for test in tested:
        evidence = test.evidence
        if evidence.verdict == "open" and evidence.mean is not None and is_below(evidence.mean, 0.0, test.row.max_drop):
            allowed = f"more than the {test.row.max_drop:.2f} allowed"
            return f"{test.name} is lower by {-evidence.mean:.2f} on average, {allowed}: {test.text}"
    return None


def is_below(value: float, reference: float, allowed: float) -> bool:
    """Whether `value` fell by more than `allowed`."""
    return reference - value > allowed + 1e-9  # in floating point, 0.9 - 0.8 is slightly more than 0.1


def decide(
    candidate: Scores, live: Scores | None, rows: Sequence[GateLimit], against: int | None = None, anchors: Sequence[Anchor] = ()
) -> Decision:
    """Promote unless a mean fell by more than its row allows, compared with the live version or an anchor.

    `live` is None if the live version cannot be measured; then only the anchors decide. If the candidate has no number for a row,
    the gate refuses it.

    This decision is for suites that have no more tasks. With 36 answers, a test rarely finds enough evidence. Errors from noise do
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
    """Why this row excludes the candidate, or None."""
    metric, name = (row.suite, row.metric), f"{row.suite} {row.metric}"
    if metric not in candidate:
        names = ", ".join(sorted(metric for suite, metric in candidate if suite == row.suite)) or "nothing"
        return f"the suite {row.suite} does not report {row.metric}, which the gate compares; it reports {names}: correct the gate"
    value = candidate[metric]
    if live is not None and metric in live and is_below(value, live[metric], row.max_drop):
        return f"{name} fell from {live[metric]:.2f} to {value:.2f}, more than the {row.max_drop:.2f} allowed"
    for anchor in anchors:
        if (anchor.suite, anchor.metric) == metric and is_below(value, anchor.value, row.max_drop):
            where = f"{anchor.what} (version {anchor.version})"
            return f"{name} is {value:.2f}, more than {row.max_drop:.2f} below the {anchor.value:.2f} of {where}"
    return None
