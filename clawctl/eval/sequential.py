"""An anytime-valid test on paired differences. Its error rate holds even if the result is checked after each comparison.

A comparison gives a difference x in [-1, 1], candidate minus reference. The test bets against the hypothesis that the mean
difference is at most `null`. If the hypothesis is true, the capital of a fair bet is a supermartingale:

    K_n(b) = prod over i <= n of (1 + b w_i (x_i - null)),    E[K_n] <= 1 if every mean is at most `null`

By Ville's inequality, the capital ever reaches 1/error with a probability of at most `error`. This is the betting martingale of
Waudby-Smith and Ramdas (Estimating means of bounded random variables by betting, JRSS B 2024, section 4). A mixture over several
bets b is a martingale too (Robbins 1970; Howard et al., Annals of Statistics 2021, section 3.2). For wins and losses, with null 0,
K_n(b) is the likelihood ratio (1 + b)^wins (1 - b)^losses of the sign test on discordant pairs. The mixture over all b is the
beta-binomial martingale. Four bets near the margin need fewer comparisons.

- **Ties.** With null 0, a tie multiplies the capital by 1 and has no effect. With null -margin, a tie is evidence: "worse by the
  margin" is a claim about all comparisons, and each tie makes it less likely.
- **Graded differences** are used unchanged. The bet is fair for any difference in [-1, 1], so they need not be reduced to signs. A
  small difference has a small effect.
- **Keys.** If comparisons come from several API keys, no key weighs more than all others together. The weight of a comparison
  depends on the keys seen so far and not on its result, so the bet stays fair.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from clawctl.eval.comparisons import Comparison

Floats = NDArray[np.float64]
Verdict = Literal["better", "not worse", "worse", "open"]

_BETS = (1.2, 2.0, 3.5, 10.0)  # in units of the margin; 2 is the best bet for an unchanged candidate with half ties
_SHARES = (0.25, 0.45, 0.15, 0.15)  # shares of the capital
_MIN_UNIT = 0.05  # replaces a smaller margin
_LOWEST_NULL = -1 + 1e-6  # used for a margin of 1 or more; no mean difference can be so low
_LARGEST_BET = 0.95  # as a share of the bet that could lose the whole capital
_INTERVAL_BETS, _INTERVAL_SHARES = (0.05, 0.1, 0.2, 0.4, 0.8), (0.2,) * 5
_HEAD_START = 4.0  # the number of comparisons by which a key may outweigh all others together


@dataclass(frozen=True, slots=True)
class PairedEvidence:
    """The evidence from the comparisons with one reference on one metric."""

    wins: int
    losses: int
    ties: int
    mean: float | None  # weighted mean difference; None if there is no comparison
    low: float  # (1 - error) confidence sequence for the mean difference
    high: float
    e_better: float  # e-value against "no better"; each e-value is the largest so far
    e_not_worse: float  # e-value against "worse by the margin or more"
    e_worse: float  # e-value against "no worse"
    verdict: Verdict  # the verdict of the test that reached its bound first

    @property
    def comparisons(self) -> int:
        return self.wins + self.losses + self.ties

    def as_json(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in ("wins", "losses", "ties", "mean", "e_better", "e_not_worse", "e_worse")}
        return {**numbers, "interval": [self.low, self.high], "verdict": self.verdict}


def examine(comparisons: Sequence[Comparison], margin: float, error: float, refusals: int = 1) -> PairedEvidence:
    """The evidence from `comparisons`, in their order.

    For a candidate that is worse by `margin` or more, the probability of the verdict "not worse" is at most `error`. For a
    candidate that is no worse, the probability of the verdict "worse" in any of `refusals` such tests is at most `error`
    (Bonferroni).
    """
    if not comparisons:
        return PairedEvidence(0, 0, 0, None, -1.0, 1.0, 1.0, 1.0, 1.0, "open")
    differences = np.array([comparison.candidate - comparison.reference for comparison in comparisons])
    weights = weigh([comparison.key for comparison in comparisons])
    promising, worse = crossings(differences, weights, margin, error, refusals)
    better = log_capital(differences, weights, 0.0, margin)
    limit = len(comparisons)
    first = min(promising, worse)
    verdict: Verdict = "open"
    if first < limit:
        verdict = "worse" if worse < promising else "better" if better.max() >= math.log(1 / error) else "not worse"
    low, high = interval(differences, weights, error)
    return PairedEvidence(
        wins=int((differences > 0).sum()),
        losses=int((differences < 0).sum()),
        ties=int((differences == 0).sum()),
        mean=float((weights * differences).sum() / weights.sum()),
        low=low,
        high=high,
        e_better=_largest(better),
        e_not_worse=_largest(log_capital(differences, weights, -margin, margin)),
        e_worse=_largest(log_capital(-differences, weights, 0.0, margin)),
        verdict=verdict,
    )


def crossings(differences: Floats, weights: Floats, margin: float, error: float, refusals: int = 1) -> tuple[Any, Any]:
    """The numbers of comparisons before the one that rejected "worse by the margin", and before the one that rejected "no worse".

    A hypothesis that was not rejected gives N. `differences` has the shape [..., N], each result [...].
    """
    promising = log_capital(differences, weights, -margin, margin) >= math.log(1 / error)
    worse = log_capital(-differences, weights, 0.0, margin) >= math.log(refusals / error)
    return _first(promising), _first(worse)


def log_capital(differences: Floats, weights: Floats, null: float, margin: float) -> Floats:
    """The log of the capital after each comparison, betting against a mean of at most `null`: [..., N] -> [..., N]."""
    unit = max(margin, _MIN_UNIT)
    return _mixture(differences, weights, null, [unit * bet for bet in _BETS], _SHARES)


def interval(differences: Floats, weights: Floats, error: float) -> tuple[float, float]:
    """A confidence sequence for the mean difference. The probability that it ever misses the mean is at most `error`."""
    return _lower(differences, weights, error / 2), -_lower(-differences, weights, error / 2)


def weigh(keys: Sequence[str]) -> Floats:
    """The weight of each comparison, 0 to 1, by its key. Comparisons of built-in tasks ("") always have weight 1."""
    people = {key for key in keys if key}
    if len(people) < 2:
        return np.ones(len(keys))
    total, of = 0.0, dict.fromkeys(people, 0.0)
    weights = []
    for key in keys:
        weight = 1.0
        if key:
            allowed = _HEAD_START + total - of[key]
            weight = min(1.0, max(0.0, allowed - of[key]))
            total, of[key] = total + weight, of[key] + weight
        weights.append(weight)
    return np.array(weights)


def interleave(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Reorder comparisons of one round so that the keys take turns."""
    rank: dict[str, int] = {}
    placed = []
    for number, comparison in enumerate(comparisons):
        rank[comparison.key] = rank.get(comparison.key, -1) + 1
        placed.append((rank[comparison.key] if comparison.key else number, number, comparison))
    return [comparison for _, _, comparison in sorted(placed, key=lambda entry: entry[:2])]


def _mixture(differences: Floats, weights: Floats, null: float, bets: Sequence[float], shares: Sequence[float]) -> Floats:
    null = max(null, _LOWEST_NULL)
    largest_bet = _LARGEST_BET / (1 + null)  # because no difference is below -1
    logs = None
    for bet, share in zip(bets, shares, strict=True):
        term = math.log(share) + np.cumsum(np.log1p(min(bet, largest_bet) * weights * (differences - null)), axis=-1)
        logs = term if logs is None else np.logaddexp(logs, term)
    assert logs is not None
    return logs


def _lower(differences: Floats, weights: Floats, error: float) -> float:
    """The largest mean that is rejected as too low, found by bisection. The capital decreases as the null increases."""
    low, high = -1.0, 1.0
    for _ in range(24):
        null = (low + high) / 2
        if null > -1 and _mixture(differences, weights, null, _INTERVAL_BETS, _INTERVAL_SHARES).max() >= math.log(1 / error):
            low = null
        else:
            high = null
    return low


def _first(reached: NDArray[np.bool_]) -> Any:
    return np.where(reached.any(-1), reached.argmax(-1), reached.shape[-1])


def _largest(logs: Floats) -> float:
    return float(math.exp(min(700.0, max(0.0, float(logs.max())))))
