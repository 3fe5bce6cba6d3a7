import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawctl.intervals import mean, proportion


def test_wilson_interval_of_eight_right_answers_of_ten() -> None:
    """By hand, z = 1.96: centre (0.8 + 0.19208) / 1.38416 = 0.71674; half 1.96 / 1.38416 * sqrt(0.016 + 0.009604) = 0.22658."""
    interval = proportion([True] * 8 + [False] * 2)
    assert (interval.mean, interval.n) == (0.8, 10)
    assert (interval.low, interval.high) == (pytest.approx(0.4902, abs=2e-4), pytest.approx(0.9433, abs=2e-4))


def test_wilson_interval_stays_open_where_all_answers_were_right() -> None:
    """For p = 1 it is [n / (n + z²), 1]: 36 / 39.8415."""
    interval = proportion([True] * 36)
    assert (interval.low, interval.high) == (pytest.approx(0.90358, abs=1e-5), pytest.approx(1.0))


def test_t_interval_of_five_values() -> None:
    """Mean 0.5, sum of squares 0.5, variance 0.125, standard error 0.158114, t(4) = 2.7764: half 0.43899."""
    interval = mean([0.0, 0.25, 0.75, 0.75, 0.75])
    assert interval.mean == 0.5
    assert (interval.low, interval.high) == (pytest.approx(0.061013, abs=1e-4), pytest.approx(0.938987, abs=1e-4))


@pytest.mark.parametrize(("freedom", "t"), [(11, 2.20099), (15, 2.13145), (30, 2.04227), (35, 2.03011), (100, 1.98397)])
def test_t_is_that_of_the_tables(freedom: int, t: float) -> None:
    """n values half 0.25 and half 0.75 (n even) or one more of the former: the half width over the standard error is t."""
    n = freedom + 1
    values = [0.25] * (n - n // 2) + [0.75] * (n // 2)
    interval = mean(values)
    variance = math.fsum((value - interval.mean) ** 2 for value in values) / (n - 1)
    assert (interval.high - interval.low) / 2 / math.sqrt(variance / n) == pytest.approx(t, abs=1e-3)


def test_equal_values_are_not_taken_for_certainty() -> None:
    """t would give [1, 1]. A single value is little evidence: Wilson's interval of 1 of 1 is [1 / (1 + z²), 1]."""
    assert mean([1.0] * 36).low == pytest.approx(0.90358, abs=1e-5)
    assert mean([1.0]).low == pytest.approx(1 / 4.84146, abs=1e-5)
    assert (mean([0.5] * 4).low, mean([0.5] * 4).high) != (0.5, 0.5)


@pytest.mark.parametrize("estimate", [mean, proportion])
def test_nothing_has_no_mean(estimate: object) -> None:
    with pytest.raises(ValueError, match="no "):
        estimate([])  # type: ignore[operator]


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=60))
def test_the_mean_lies_in_its_interval_and_both_on_the_scale(values: list[float]) -> None:
    interval = mean(values)
    assert 0 <= interval.low <= interval.mean + 1e-12
    assert interval.mean - 1e-12 <= interval.high <= 1
