"""The worth of a turn for every combination of ratings, outcomes, rules and judges, worked by hand."""

import math
from itertools import product

import pytest

from clawctl.run.reward import NOT_A_NUMBER, OUTCOME, RATING, signed, signs, worth

RULE, JUDGE = "rules 2: pytest", "crafts@0 prompt 1"

# rating, outcome, the verdict's judge and reward, what the turn is worth, who decided
TABLE = [
    # no source, or the judge alone
    (None, None, None, None, None, None),
    (None, None, JUDGE, None, None, None),
    (None, None, JUDGE, 1.0, 1.0, "judge"),
    (None, None, JUDGE, 0.0, 0.0, "judge"),
    (None, None, "custom rm.py:f", -0.25, -0.25, "judge"),
    (None, None, RULE, -1.0, -1.0, "rules"),
    # an outcome that decides: the verdict repeats it
    (None, 1.0, None, None, 1.0, "outcome"),
    (None, 1.0, OUTCOME, 1.0, 1.0, "outcome"),
    (None, -1.0, OUTCOME, -1.0, -1.0, "outcome"),
    (None, 0.0, OUTCOME, 0.0, 0.0, "outcome"),
    (None, 0.5, OUTCOME, 0.5, 0.5, "outcome"),
    (None, None, OUTCOME, 0.5, 0.5, "outcome"),
    # an outcome apart: the verdict is the step reward, and each counts once
    (None, 1.0, JUDGE, 1.0, 2.0, "outcome"),
    (None, 1.0, JUDGE, -1.0, 0.0, "outcome"),
    (None, -1.0, JUDGE, 0.0, -1.0, "outcome"),
    (None, -1.0, JUDGE, None, -1.0, "outcome"),
    (None, 0.0, RULE, 1.0, 1.0, "outcome"),
    (None, -0.5, RULE, 1.0, 0.5, "outcome"),
    # a rating outranks everything, including the verdict, and 0 is a rating
    (1.0, None, None, None, 1.0, "rating"),
    (1.0, -1.0, None, None, 1.0, "rating"),
    (1.0, -1.0, OUTCOME, -1.0, 1.0, "rating"),
    (1.0, -1.0, JUDGE, -1.0, 1.0, "rating"),
    (-1.0, 1.0, RULE, 1.0, -1.0, "rating"),
    (0.0, 1.0, OUTCOME, 1.0, 0.0, "rating"),
    (0.0, None, JUDGE, 1.0, 0.0, "rating"),
    (-0.5, None, RULE, 1.0, -0.5, "rating"),
    (0.25, 1.0, JUDGE, 1.0, 0.25, "rating"),
    # the verdict repeats a rating: the newest counts, and once
    (1.0, None, RATING, 1.0, 1.0, "rating"),
    (-1.0, None, RATING, 1.0, -1.0, "rating"),
    (1.0, -1.0, RATING, 1.0, 1.0, "rating"),
    (None, -1.0, RATING, 1.0, 1.0, "rating"),
    (None, None, RATING, 0.5, 0.5, "rating"),
    # a verdict without a reward, as when no vote was valid, leaves the turn to the others
    (None, None, RULE, None, None, None),
    (None, None, OUTCOME, None, None, None),
    (None, None, RATING, None, None, None),
    (None, -1.0, RULE, None, -1.0, "outcome"),
    (None, -1.0, OUTCOME, None, -1.0, "outcome"),
    (None, -1.0, RATING, None, -1.0, "outcome"),
    (1.0, None, JUDGE, None, 1.0, "rating"),
    (1.0, None, RULE, None, 1.0, "rating"),
    (1.0, None, OUTCOME, None, 1.0, "rating"),
    (1.0, None, OUTCOME, 0.5, 1.0, "rating"),
    (1.0, None, RATING, None, 1.0, "rating"),
    (1.0, -1.0, JUDGE, None, 1.0, "rating"),
    (1.0, -1.0, RULE, None, 1.0, "rating"),
    (1.0, -1.0, OUTCOME, None, 1.0, "rating"),
    (1.0, -1.0, RATING, None, 1.0, "rating"),
]


def test_the_table_has_every_combination() -> None:
    said = [(None, False), *product((JUDGE, RULE, OUTCOME, RATING), (False, True))]
    given = {(rating is not None, outcome is not None, judge, reward is not None) for rating, outcome, judge, reward, _, _ in TABLE}
    assert {(*others, *verdict) for others in product((False, True), repeat=2) for verdict in said} <= given


@pytest.mark.parametrize(("rating", "outcome", "judge", "reward", "value", "by"), TABLE)
def test_a_rating_outranks_an_outcome_that_outranks_rules_and_judge_and_nothing_counts_twice(
    rating, outcome, judge, reward, value, by
) -> None:
    result = worth(rating, outcome, judge, reward)
    assert (result.value, result.by) == (value, by)
    assert result.problem is None
    assert sum(part for _, part in result.parts) == (value or 0.0)
    assert len(result.parts) == (
        0 if value is None else 2 if by == "outcome" and judge in (JUDGE, RULE) and reward is not None else 1
    )


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_deciding_nan_gives_no_reward_and_hides_no_stronger_source(number) -> None:
    for said in (
        (number, 1.0, OUTCOME, 1.0),
        (None, number, JUDGE, 1.0),
        (None, number, OUTCOME, number),
        (None, None, JUDGE, number),
    ):
        result = worth(*said)
        assert (result.value, result.problem, result.has_signal) == (None, NOT_A_NUMBER, False)
    assert worth(1.0, number, OUTCOME, number).value == 1.0


def test_a_0_is_a_measurement_from_an_environment_and_no_opinion_from_other_sources() -> None:
    assert worth(None, 0.0, OUTCOME, 0.0).has_signal
    assert worth(None, 1.0, JUDGE, -1.0).has_signal
    assert not worth(0.0, -1.0, OUTCOME, -1.0).has_signal
    assert not worth(None, None, JUDGE, 0.0).has_signal
    assert not worth(None, None).has_signal


def test_the_sum_is_printed_as_text() -> None:
    assert worth(None, 1.0, RULE, -0.5).text == "+0.5 = outcome +1, rules 2: pytest -0.5"
    assert worth(0.5, 1.0, OUTCOME, 1.0).text == "+0.5 by rating"
    assert worth(None, None, JUDGE, 0.0).text == "0 by crafts@0 prompt 1"
    assert worth(None, math.nan).text == NOT_A_NUMBER
    assert worth(None, None).text == "not known"
    assert [signed(value) for value in (1.0, -0.25, 0.0)] == ["+1", "-0.25", "0"]


def test_signs_count_known_values() -> None:
    counts = signs([1.0, 0.1, 0.0, None, -0.5])
    assert (counts.good, counts.neutral, counts.bad) == (2, 1, 1)


def test_a_sum_that_is_not_finite_is_no_value_though_its_parts_are() -> None:
    assert worth(None, 1e308, "judge", 1e308).problem == NOT_A_NUMBER


def test_a_step_reward_of_the_environment_is_added_to_the_outcome_in_place_of_the_judges() -> None:
    assert worth(None, 1.0, "rules 2: pytest", -1.0, step=0.5).parts == (("outcome", 1.0), ("environment step", 0.5))
    assert worth(None, 1.0, OUTCOME, 1.0, step=-0.5).value == 0.5, "the verdict repeats the outcome, which counts once"
    alone = worth(None, None, step=-1.0)
    assert (alone.value, alone.by) == (-1.0, "step")
    assert worth(0.25, 1.0, step=-1.0).value == 0.25, "a rating outranks both"
