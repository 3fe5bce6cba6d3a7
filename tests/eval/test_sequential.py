"""The gate's test: its error rates under any stopping, its symmetry, and the effect of ties, grades and keys."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clawctl.eval.comparisons import Comparison
from clawctl.eval.sequential import crossings, examine, interleave, interval, log_capital, weigh

MARGIN, ERROR = 0.1, 0.05


def compared(differences: list[float], keys: list[str] | None = None) -> list[Comparison]:
    keys = keys or [""] * len(differences)
    return [
        Comparison("m", str(n), (1 + x) / 2, (1 - x) / 2, key) for n, (x, key) in enumerate(zip(differences, keys, strict=True))
    ]


def drawn(effect: float, ties: float, count: int = 400, candidates: int = 2000, seed: int = 0) -> np.ndarray:
    """Differences [candidates, count]: wins minus losses are `effect` of all."""
    u = np.random.default_rng(seed).random((candidates, count))
    wins = (1 - ties + effect) / 2
    return np.where(u < wins, 1.0, np.where(u < 1 - ties, -1.0, 0.0))


def ever_reached(null: float, chances: dict[float, float], count: int) -> float:
    """The exact probability that the capital against `null` reaches 1/error within `count` comparisons whose differences have these
    `chances`. The capital depends on how often each difference came, so those counts are the state."""
    values = list(chances)
    states = {(0,) * len(values): 1.0}
    reached = 0.0
    for _ in range(count):
        after: dict[tuple[int, ...], float] = {}
        for state, probability in states.items():
            for index, value in enumerate(values):
                grown = tuple(number + (at == index) for at, number in enumerate(state))
                after[grown] = after.get(grown, 0.0) + probability * chances[value]
        states = {}
        for state, probability in after.items():
            path = np.repeat(np.array(values), state)
            if log_capital(path, np.ones(len(path)), null, MARGIN)[-1] >= math.log(1 / ERROR):
                reached += probability
            else:
                states[state] = probability
    return reached


def test_the_sign_test_errs_no_more_often_than_stated_however_often_it_is_looked_at() -> None:
    assert 0.005 < ever_reached(0.0, {1.0: 0.5, -1.0: 0.5}, 150) <= ERROR


@pytest.mark.parametrize("chances", [{1.0: 0.45, -1.0: 0.55}, {0.0: 0.9, -1.0: 0.1}, {0.4: 0.5, -0.6: 0.5}])
def test_a_candidate_that_is_worse_by_the_margin_passes_no_more_often_than_stated(chances: dict[float, float]) -> None:
    assert sum(value * chance for value, chance in chances.items()) == pytest.approx(-MARGIN)
    assert ever_reached(-MARGIN, chances, 120) <= ERROR


@pytest.mark.parametrize("ties", [0.0, 0.5, 0.8])
def test_both_errors_hold_with_ties_at_every_look(ties: float) -> None:
    at_margin = drawn(-MARGIN, ties)
    promising, worse = crossings(at_margin, np.ones(at_margin.shape[1]), MARGIN, ERROR)
    assert ((promising < worse).mean()) <= ERROR
    alike = drawn(0.0, ties, seed=1)
    promising, worse = crossings(alike, np.ones(alike.shape[1]), MARGIN, ERROR)
    assert ((worse < promising).mean()) <= ERROR


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=40))
@settings(max_examples=40, deadline=None)
def test_exchanging_the_versions_exchanges_better_and_worse(differences: list[float]) -> None:
    first, other = (examine(compared([sign * x for x in differences]), MARGIN, ERROR) for sign in (1, -1))
    assert (first.wins, first.losses, first.ties) == (other.losses, other.wins, other.ties)
    assert first.e_better == pytest.approx(other.e_worse)
    assert (first.low, first.high) == pytest.approx((-other.high, -other.low))


@given(st.lists(st.sampled_from([-1.0, 0.5, 1.0]), min_size=1, max_size=20), st.integers(0, 30))
@settings(max_examples=40, deadline=None)
def test_ties_change_nothing_about_better_and_worse_but_count_against_a_large_drop(differences: list[float], ties: int) -> None:
    without = examine(compared(differences), MARGIN, ERROR)
    with_ties = examine(compared([*differences, *[0.0] * ties]), MARGIN, ERROR)
    assert (with_ties.e_better, with_ties.e_worse) == pytest.approx((without.e_better, without.e_worse))
    assert with_ties.e_not_worse >= without.e_not_worse


def test_one_is_promoted_refused_or_left_open_by_the_first_bound_that_is_reached() -> None:
    assert examine(compared([1.0] * 20), MARGIN, ERROR).verdict == "better"
    assert examine(compared([0.0] * 70), MARGIN, ERROR).verdict == "not worse"
    assert examine(compared([-1.0] * 20 + [1.0] * 200), MARGIN, ERROR).verdict == "worse"
    assert examine(compared([1.0, -1.0] * 5), MARGIN, ERROR).verdict == "open"
    assert examine([], MARGIN, ERROR).verdict == "open"
    assert examine(compared([-1.0] * 8), MARGIN, ERROR, refusals=1000).verdict == "open"


def test_the_interval_contains_the_mean_at_every_look() -> None:
    missed = 0
    for row in drawn(0.1, 0.4, count=120, candidates=60, seed=3):
        low, high = interval(row, np.ones(len(row)), 0.1)  # the running intersection: a miss at any look stays
        missed += not low <= 0.1 <= high
    assert missed / 60 <= 0.1


def test_no_key_weighs_more_than_all_others_together() -> None:
    keys = ["loud"] * 200 + ["a", "b"] * 10 + ["loud"] * 100
    weights = weigh(keys)
    loud = sum(w for w, key in zip(weights, keys, strict=True) if key == "loud")
    assert loud <= 4 + 20
    assert weigh(["only"] * 30).sum() == 30, "with one key there is nobody else to decide"
    assert weigh([""] * 30 + ["a", "b"]).sum() == 32, "built-in tasks belong to no key"


def test_one_busy_key_cannot_promote_a_version_that_is_worse_for_the_others() -> None:
    mixed = interleave(compared([1.0] * 300 + [-1.0] * 40, ["loud"] * 300 + ["a", "b"] * 20))
    assert examine(compared([1.0] * 300), MARGIN, ERROR).verdict == "better"
    assert examine(mixed, MARGIN, ERROR).verdict == "open"


@pytest.mark.parametrize("margin", [0.999, 1.0, 5.0])
def test_a_margin_of_the_whole_range_lets_everything_in(margin: float) -> None:
    lost = [Comparison("correct", str(number), 0.0, 1.0 if number % 2 else 0.0) for number in range(48)]
    assert examine(lost, margin, ERROR).verdict == "not worse"
