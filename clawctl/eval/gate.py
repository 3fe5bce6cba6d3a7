"""The gate: decides whether a candidate may replace the live policy.

Each row of the gate is a metric of a suite and the largest drop that is allowed. A candidate is compared with the live version and
with anchors: the base version, and for each metric the best version so far. With the live version alone, ten drops of 0.09 would
each pass a limit of 0.10.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clawctl.config import GateConfig, GateLimit

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


def is_below(value: float, reference: float, allowed: float) -> bool:
    """Whether `value` fell by more than `allowed`."""
    return reference - value > allowed + 1e-9  # 0.9 - 0.8 is a little more than 0.1


def decide(
    candidate: Scores, live: Scores | None, gate: GateConfig, against: int | None = None, anchors: Sequence[Anchor] = ()
) -> Decision:
    """Promote unless a metric fell by more than the gate allows, compared with the live version or an anchor. `live` is None if the
    live version cannot be measured; then only the anchors decide. Without a number for one of its rows, the gate refuses.

    It compares point estimates: with 36 answers, a test for significance would never let a candidate through. Errors from noise do
    not accumulate, because the anchors stay fixed.
    """
    refused = [why for row in gate.rows if (why := _refusal(row, candidate, live, anchors))]
    if refused:
        return Decision(False, "; ".join(refused), against)
    if live is None:
        return Decision(True, "the live version cannot be measured", against)
    return Decision(True, ", ".join(_change(row, candidate, live) for row in gate.rows), against)


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
