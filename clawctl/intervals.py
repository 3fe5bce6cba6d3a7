"""95 % confidence intervals. `scipy.stats` has them too, but nothing else here needs scipy: a dependency for 80 lines."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_Z = 1.959963984540054  # 97.5 % point of the normal distribution
# The same point of Student's t for 1 … 10 degrees of freedom. From 11 on, the expansion below is accurate to three decimal places.
_T = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float
    n: int

    def as_json(self) -> dict[str, object]:
        return {"mean": self.mean, "ci95": [self.low, self.high], "n": self.n}


def proportion(outcomes: Sequence[bool]) -> Estimate:
    """Wilson's score interval (Wilson 1927). Unlike the textbook interval, it stays within 0 and 1."""
    n = len(outcomes)
    if n == 0:
        raise ValueError("no outcomes")
    share = sum(outcomes) / n
    low, high = wilson(share, n)
    return Estimate(share, low, high, n)


def mean(values: Sequence[float]) -> Estimate:
    """Student's t interval for values in [0, 1], cut to that range.

    If all values are equal, the t interval would have no width, so the Wilson interval for that share is used. It is never too
    narrow, because no variable in [0, 1] has a larger variance than a coin with the same mean.
    """
    n = len(values)
    if n == 0:
        raise ValueError("no values")
    average = math.fsum(values) / n
    variance = math.fsum((value - average) ** 2 for value in values) / (n - 1) if n > 1 else 0.0
    if variance == 0.0:
        low, high = wilson(average, n)
        return Estimate(average, low, high, n)
    half = _t(n - 1) * math.sqrt(variance / n)
    return Estimate(average, max(0.0, average - half), min(1.0, average + half), n)


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of a metric, with an interval that fits its values: booleans, numbers in [0, 1], or any numbers."""
    if all(isinstance(value, bool) for value in values):
        return proportion([bool(value) for value in values])
    if all(0 <= value <= 1 for value in values):
        return mean(values)
    low, high = (-1.0, 1.0) if all(-1 <= value <= 1 for value in values) else (min(values), max(values))
    scaled = mean([(value - low) / (high - low) if high > low else 0.5 for value in values])
    width = high - low
    return Estimate(low + width * scaled.mean, low + width * scaled.low, low + width * scaled.high, scaled.n)


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share of `n` (Wilson 1927), or (0, 1) if there is no data."""
    if n == 0:
        return 0.0, 1.0
    shrink = 1 + _Z**2 / n
    centre = (share + _Z**2 / (2 * n)) / shrink
    half = _Z / shrink * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def _t(freedom: int) -> float:
    """97.5 % point of Student's t: Cornish-Fisher expansion in 1/freedom (Abramowitz and Stegun 26.7.5)."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    first = (_Z**3 + _Z) / 4
    second = (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96
    third = (3 * _Z**7 + 19 * _Z**5 + 17 * _Z**3 - 15 * _Z) / 384
    return _Z + first / freedom + second / freedom**2 + third / freedom**3
