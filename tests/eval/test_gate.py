import pytest

from clawctl.config import GateConfig, GateLimit
from clawctl.eval.gate import Anchor, Scores, decide

GATE = GateConfig(
    limits=[
        GateLimit(suite="sums", metric="correctness", max_drop=0.10), GateLimit(suite="sums", metric="satisfaction", max_drop=0.05)
    ]
)  # fmt: skip


def scores(satisfaction: float, correctness: float) -> Scores:
    return {("sums", "satisfaction"): satisfaction, ("sums", "correctness"): correctness}


LIVE = scores(satisfaction=0.50, correctness=0.90)


@pytest.mark.parametrize(
    ("candidate", "promoted"),
    [
        (scores(0.80, 0.92), True),
        (scores(0.50, 0.90), True),  # no worse is good enough: an improvement may show later
        (scores(0.45, 0.80), True),  # exactly the allowed drop, although 0.9 - 0.8 > 0.1 in floating point
        (scores(0.44, 0.90), False),
        (scores(0.99, 0.79), False),  # no satisfaction buys back correctness
        (scores(0.00, 0.00), False),
    ],
)
def test_a_candidate_is_promoted_unless_it_lost_more_than_the_gate_allows(candidate: Scores, promoted: bool) -> None:
    assert decide(candidate, LIVE, GATE.rows).promote is promoted


def test_the_reason_names_the_metric_its_drop_and_the_allowed_drop() -> None:
    decision = decide(scores(0.20, 0.60), LIVE, GATE.rows, against=3)
    fallen = "sums correctness fell from 0.90 to 0.60, more than the 0.10 allowed"
    assert decision.reason == f"{fallen}; sums satisfaction fell from 0.50 to 0.20, more than the 0.05 allowed"
    assert decision.against == 3


def test_the_reason_of_a_promotion_names_both_numbers() -> None:
    reason = "sums correctness 0.90 -> 0.88, sums satisfaction 0.50 -> 0.75"
    assert decide(scores(0.75, 0.88), LIVE, GATE.rows).reason == reason


ROWS = GateConfig(
    limits=[
        GateLimit(suite="tools", metric="valid", max_drop=0.02),
        GateLimit(suite="speech", metric="polite", max_drop=0.5),
        GateLimit(suite="speech", metric="short", max_drop=0.1),
    ]
)
BEFORE: Scores = {("tools", "valid"): 0.99, ("speech", "polite"): 0.9, ("speech", "short"): 0.7, ("speech", "unused"): 1.0}


def test_any_metric_of_any_suite_can_keep_a_candidate_out_and_is_named() -> None:
    worse = {**BEFORE, ("tools", "valid"): 0.90, ("speech", "unused"): 0.0}
    assert decide(worse, BEFORE, ROWS.rows).reason == "tools valid fell from 0.99 to 0.90, more than the 0.02 allowed"
    assert decide({**BEFORE, ("speech", "unused"): 0.0}, BEFORE, ROWS.rows).promote is True, "no row compares it"


def test_an_anchor_counts_for_its_own_suite_and_metric_only() -> None:
    anchors = [Anchor("the base", 0, "speech", "short", 0.9), Anchor("the best so far", 4, "other", "valid", 1.0)]
    refused = decide(BEFORE, BEFORE, ROWS.rows, 5, anchors)
    assert refused.reason == "speech short is 0.70, more than 0.10 below the 0.90 of the base (version 0)"
    assert decide(BEFORE, BEFORE, ROWS.rows, 5, anchors[1:]).promote is True


def test_an_unreported_metric_keeps_every_candidate_out_with_the_cure() -> None:
    lacking = {metric: value for metric, value in BEFORE.items() if metric != ("speech", "polite")}
    decision = decide(lacking, lacking, ROWS.rows)
    assert decision.promote is False
    assert decision.reason == (
        "the suite speech does not report polite, which the gate compares; it reports short, unused: correct the gate"
    )


def test_a_metric_that_only_the_live_version_lacks_is_compared_with_the_anchors_alone() -> None:
    lacking = {metric: value for metric, value in BEFORE.items() if metric != ("tools", "valid")}
    assert decide(BEFORE, lacking, ROWS.rows).promote is True
    assert decide(BEFORE, lacking, ROWS.rows).reason.startswith("tools valid 0.99, speech polite 0.90 -> 0.90")
    assert decide(BEFORE, lacking, ROWS.rows, anchors=[Anchor("the base", 0, "tools", "valid", 1.02)]).promote is False
