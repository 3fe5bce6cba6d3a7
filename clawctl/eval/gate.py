"""The gate: decides whether a candidate may replace the live policy.

A candidate is compared with the live version and with anchors: the base version, and for each metric the best version so far. With
the live version alone, ten drops of 0.09 would each pass a limit of 0.10.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from clawctl.config import GateConfig


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores that the gate compares; both were measured on the same tasks."""

    satisfaction: float
    correctness: float


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
    metric: str  # "correctness"
    value: float


def limit(gate: GateConfig, metric: str) -> float:
    """The largest drop that the gate allows."""
    return {"correctness": gate.max_correctness_drop, "satisfaction": gate.max_satisfaction_drop}[metric]


def is_below(value: float, reference: float, allowed: float) -> bool:
    """Whether `value` fell by more than `allowed`."""
    return reference - value > allowed + 1e-9  # 0.9 - 0.8 is a little more than 0.1


def decide(
    candidate: Scores, live: Scores | None, gate: GateConfig, against: int | None = None, anchors: Sequence[Anchor] = ()
) -> Decision:
    """Promote unless correctness or satisfaction fell by more than the gate allows, compared with the live version or an anchor.
    `live` is None if the live version cannot be measured; then only the anchors decide.

    It compares point estimates: with 36 answers, a test for significance would never let a candidate through. Errors from noise do
    not accumulate, because the anchors stay fixed.
    """
    losses: list[str | None] = []
    fallen = set()
    for metric in ("correctness", "satisfaction") if live is not None else ():
        losses.append(_loss(metric, getattr(candidate, metric), getattr(live, metric), limit(gate, metric)))
        fallen |= {metric} if losses[-1] else set()
    for anchor in anchors:
        if anchor.metric in fallen:
            continue  # the comparison with the live version covers it
        now, allowed = getattr(candidate, anchor.metric), limit(gate, anchor.metric)
        if is_below(now, anchor.value, allowed):
            where = f"{anchor.what} (version {anchor.version})"
            losses.append(f"{anchor.metric} is {now:.2f}, more than {allowed:.2f} below the {anchor.value:.2f} of {where}")
    refused = [loss for loss in losses if loss]
    if refused:
        return Decision(False, "; ".join(refused), against)
    if live is None:
        return Decision(True, "the live version cannot be measured", against)
    kept = (
        f"satisfaction {live.satisfaction:.2f} -> {candidate.satisfaction:.2f}, "
        f"correctness {live.correctness:.2f} -> {candidate.correctness:.2f}"
    )
    return Decision(True, kept, against)


def _loss(what: str, now: float, before: float, allowed: float) -> str | None:
    if not is_below(now, before, allowed):
        return None
    return f"{what} fell from {before:.2f} to {now:.2f}, more than the {allowed:.2f} allowed"
