import pytest

from clawctl.config import GateConfig
from clawctl.eval.gate import Scores, decide

GATE = GateConfig(max_correctness_drop=0.10, max_satisfaction_drop=0.05)
LIVE = Scores(satisfaction=0.50, correctness=0.90)


@pytest.mark.parametrize(
    ("candidate", "promoted"),
    [
        (Scores(0.80, 0.92), True),
        (Scores(0.50, 0.90), True),  # no worse is good enough: what it learned may show later
        (Scores(0.45, 0.80), True),  # just what is allowed, though 0.9 - 0.8 > 0.1 in floating point
        (Scores(0.44, 0.90), False),
        (Scores(0.99, 0.79), False),  # no satisfaction buys back correctness
        (Scores(0.00, 0.00), False),
    ],
)
def test_a_candidate_is_promoted_unless_it_lost_more_than_the_gate_allows(candidate: Scores, promoted: bool) -> None:
    assert decide(candidate, LIVE, GATE).promote is promoted


def test_the_reason_names_what_fell_how_far_and_how_much_was_allowed() -> None:
    decision = decide(Scores(0.20, 0.60), LIVE, GATE, against=3)
    fallen = "correctness fell from 0.90 to 0.60, more than the 0.10 allowed"
    assert decision.reason == f"{fallen}; satisfaction fell from 0.50 to 0.20, more than the 0.05 allowed"
    assert decision.against == 3


def test_the_reason_of_a_promotion_names_both_numbers() -> None:
    assert decide(Scores(0.75, 0.88), LIVE, GATE).reason == "satisfaction 0.50 -> 0.75, correctness 0.90 -> 0.88"
