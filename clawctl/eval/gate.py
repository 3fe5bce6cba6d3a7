"""The gate: may a candidate take the place of the live policy?"""

from dataclasses import dataclass

from clawctl.config import GateConfig


@dataclass(frozen=True, slots=True)
class Scores:
    """What the gate compares: both were measured on the same tasks."""

    satisfaction: float
    correctness: float


@dataclass(frozen=True, slots=True)
class Decision:
    """`promote` None: there was nothing to decide (no gate, or the version serves already)."""

    promote: bool | None
    reason: str
    against: int | None = None  # the live version that the candidate was compared with


def decide(candidate: Scores, live: Scores, gate: GateConfig, against: int | None = None) -> Decision:
    """Promote unless correctness or satisfaction fell by more than the gate allows. Point estimates: a noisy gate that stays
    open loses little, since the next candidate is measured against what was let in; one that demands significance from
    36 answers would never open."""
    losses = [
        _loss("correctness", candidate.correctness, live.correctness, gate.max_correctness_drop),
        _loss("satisfaction", candidate.satisfaction, live.satisfaction, gate.max_satisfaction_drop),
    ]
    refused = [loss for loss in losses if loss]
    if refused:
        return Decision(False, "; ".join(refused), against)
    kept = (
        f"satisfaction {live.satisfaction:.2f} -> {candidate.satisfaction:.2f}, "
        f"correctness {live.correctness:.2f} -> {candidate.correctness:.2f}"
    )
    return Decision(True, kept, against)


def _loss(what: str, now: float, before: float, allowed: float) -> str | None:
    if before - now <= allowed + 1e-9:  # 0.9 - 0.8 is a little more than 0.1
        return None
    return f"{what} fell from {before:.2f} to {now:.2f}, more than the {allowed:.2f} allowed"
