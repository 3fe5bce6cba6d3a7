"""The least comparisons that any sequential test needs at -5 points, with the errors of the test of fixed size.

Comparisons are wins, losses and ties, independent of one another, and the share of ties is known. A test may stop after any of
them. It promotes at most `error` of the candidates at -margin, and at least `power` of the unchanged ones. How few comparisons can
it need halfway between? This is the problem of Kiefer and Weiss (Annals of Mathematical Statistics 1957). It is solved exactly by
dynamic programming with Lagrange multipliers (Lorden, Annals of Statistics 1976). For any multipliers, the optimum of

    cost + multiplier_promoted x P(promoted | -margin) + multiplier_refused x P(refused | 0)

less both multipliers times the allowed errors bounds the cost of each such test from below.

With a known share of ties, a tie has no information. The state is the number of wins among the discordant pairs so far.
"""

import math

import numpy as np

from clawctl.eval.sequential import Floats

_CLOSE = 0.003  # both errors are that close to those allowed, relatively, when the search ends
_STEPS = 30


class Problem:
    """Candidates at -margin, 0 and halfway between; `ties` is the share of ties."""

    def __init__(self, margin: float, error: float, power: float, ties: float):
        self.promoted, self.refused = error, 1 - power  # the largest probabilities, at -margin and at 0
        self.per_pair = 1 / (1 - ties)  # comparisons for one discordant pair, on average
        self.half, self.bad, self.good = (0.5 + effect / (1 - ties) / 2 for effect in (-margin / 2, -margin, 0.0))

    def ratios(self, pairs: int) -> tuple[Floats, Floats]:
        """The likelihood of each number of wins at -margin and at 0, relative to halfway: two of [pairs + 1]."""
        wins = np.arange(pairs + 1)
        bad, good = (
            np.exp(wins * math.log(at / self.half) + (pairs - wins) * math.log((1 - at) / (1 - self.half)))
            for at in (self.bad, self.good)
        )
        return bad, good


def least_mean(problem: Problem, horizon: int = 2000) -> float:
    """The least mean number of comparisons halfway. `horizon`: discordant pairs; it is checked to be no restriction."""
    promoted, refused, bound = 500.0, 500.0, 0.0
    for _ in range(_STEPS):  # the errors of a discrete test may jump over those allowed
        value, errors = _optimum(problem, promoted, refused, horizon)
        bound = max(bound, value - promoted * problem.promoted - refused * problem.refused)
        if all(abs(error / most - 1) < _CLOSE for error, most in zip(errors, (problem.promoted, problem.refused), strict=True)):
            break
        promoted *= (errors[0] / problem.promoted) ** 0.8
        refused *= (errors[1] / problem.refused) ** 0.8
    return bound


def _optimum(problem: Problem, promoted: float, refused: float, horizon: int) -> tuple[float, tuple[float, float]]:
    """The least cost, and the errors at -margin and at 0 of the test that reaches it, by backward induction."""
    value = bad_error = good_error = np.zeros(0)
    for pairs in range(horizon, -1, -1):
        bad, good = problem.ratios(pairs)
        promote, refuse = promoted * bad, refused * good
        stop, promotes = np.minimum(promote, refuse), (promote < refuse).astype(float)
        if pairs == horizon:
            if stop.max() > problem.per_pair:
                return _optimum(problem, promoted, refused, 2 * horizon)  # some path would go on: look further ahead
            value, bad_error, good_error = stop, promotes, 1 - promotes
            continue
        go_on = problem.per_pair + _next(value, problem.half)
        goes = go_on < stop
        value = np.where(goes, go_on, stop)
        bad_error = np.where(goes, _next(bad_error, problem.bad), promotes)
        good_error = np.where(goes, _next(good_error, problem.good), 1 - promotes)
    return float(value[0]), (float(bad_error[0]), float(good_error[0]))


def _next(later: Floats, win: float) -> Floats:
    """The mean of `later` over the next pair: [pairs + 2] -> [pairs + 1]."""
    return win * later[1:] + (1 - win) * later[:-1]


def least_median(problem: Problem, budget: int) -> float:
    """The least median number of comparisons halfway, of tests that end within `budget` comparisons.

    A test that has stopped by some time loses nothing if it decides at that time. So the best one looks twice: then and at the end.
    The budget counts discordant pairs: as many as it has on average.
    """
    last = round(budget / problem.per_pair)
    low, high = 1, last  # one pair is too few, all are enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _stopped_by(problem, middle, last) >= 0.5 else (middle, high)
    return high * problem.per_pair


def _stopped_by(problem: Problem, first: int, last: int) -> float:
    """An upper bound of the probability halfway that a test with these errors stops by `first` of `last` discordant pairs."""
    early, late = problem.ratios(first), problem.ratios(last)
    more = [_binomial(last - first, at) for at in (problem.half, problem.bad, problem.good)]
    reached = [_binomial(first, at) for at in (problem.half, problem.bad, problem.good)]
    promoted, refused, bound = 1.0, 1.0, 0.0
    for _ in range(400):
        end = np.minimum(promoted * late[0], refused * late[1])
        promotes_late = (promoted * late[0] < refused * late[1]).astype(float)
        go_on = 1 + np.convolve(end, more[0][::-1], "valid")
        promote, refuse = promoted * early[0], refused * early[1]
        goes, promotes = go_on < np.minimum(promote, refuse), (promote < refuse).astype(float)
        value = np.minimum(go_on, np.minimum(promote, refuse)) @ reached[0]
        bound = max(bound, float(value) - promoted * problem.promoted - refused * problem.refused)
        bad_error = np.where(goes, np.convolve(promotes_late, more[1][::-1], "valid"), promotes) @ reached[1]
        good_error = np.where(goes, np.convolve(1 - promotes_late, more[2][::-1], "valid"), 1 - promotes) @ reached[2]
        promoted *= float(bad_error / problem.promoted) ** 0.3
        refused *= float(good_error / problem.refused) ** 0.3
    return 1 - bound


def _binomial(count: int, win: float) -> Floats:
    """The probability of each number of wins: [count + 1]."""
    logs = np.cumsum([0.0, *(math.log((count - n) / (n + 1) * win / (1 - win)) for n in range(count))])
    return np.exp(count * math.log(1 - win) + logs)
