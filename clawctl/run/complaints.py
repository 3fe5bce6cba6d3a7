"""Detects whether users' preferences have changed: complaints that become frequent after they were rare.

Each judged turn is a complaint or not. A change is a split of the newest turns whose two sides differ by more than chance allows.
The test is the generalised likelihood ratio for Bernoulli variables, with the threshold of Besson and Kaufmann (arXiv 1902.01575,
§3). No rate counts as high or low by itself, and no number of complaints is fixed. After sixty turns with three complaints, six in
a row are enough; after twenty turns with ten, they are not.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FALSE_ALARMS = 0.01  # probability of a false alarm in a stream with a constant rate
MAX_TURNS = 512  # turns compared; a change is detected long before that many


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """The user's reaction to a judged turn."""

    turn_id: str
    parent_turn_id: str | None
    key: str  # name of the API key
    at: float  # unix seconds of the request
    complained: bool


@dataclass(frozen=True, slots=True)
class Rise:
    """Complaints of a key rose. The rates are shares of first answers: 0.05 before, 0.9 after."""

    key: str
    since: float  # unix seconds of the first turn after the change
    before: float
    after: float
    over: bool  # they have fallen since


def rises(reactions: Iterable[JudgedAnswer]) -> list[Rise]:
    """Return the last rise of each key that had one, the newest first."""
    streams: dict[str, list[JudgedAnswer]] = {}
    for reaction in first_answers(reactions):
        streams.setdefault(reaction.key, []).append(reaction)
    all_rises = [rise for key, stream in streams.items() if (rise := _last_rise(key, stream)) is not None]
    return sorted(all_rises, key=lambda rise: -rise.since)


def first_answers(reactions: Iterable[JudgedAnswer]) -> list[JudgedAnswer]:
    """Return the reactions in order of time, without reactions to an answer that followed a complaint. Two complaints in a row in
    one conversation concern the same wish, so only the first one counts.
    """
    ordered = sorted(reactions, key=lambda reaction: reaction.at)
    complained = {reaction.turn_id for reaction in ordered if reaction.complained}
    return [reaction for reaction in ordered if reaction.parent_turn_id not in complained]


def _last_rise(key: str, stream: Sequence[JudgedAnswer]) -> Rise | None:
    rise: Rise | None = None
    begin = 0  # index of the first turn after the last change
    complained = np.array([reaction.complained for reaction in stream], dtype=np.float64)
    for end in range(1, len(stream) + 1):
        begin = max(begin, end - MAX_TURNS)
        flags = complained[begin:end]
        split = change_point(flags)
        if split is None:
            continue
        before, after = float(flags[:split].mean()), float(flags[split:].mean())
        begin += split
        if after > before:
            rise = Rise(key, stream[begin].at, before, after, over=False)
        elif rise is not None:
            rise = Rise(key, rise.since, rise.before, rise.after, over=True)
    return rise


def change_point(flags: NDArray[np.float64]) -> int | None:
    """Return the index of the first value after a change of rate in a stream of 0 and 1, or None if chance explains the difference.

    max over s of s kl(mean of the first s, mean of all) + (n - s) kl(mean of the others, mean of all) > ln(3 n^1.5 / FALSE_ALARMS)
    """
    n = len(flags)
    if n < 2:
        return None
    sums = flags.cumsum()
    first = np.arange(1, n)
    left, right, whole = sums[:-1] / first, (sums[-1] - sums[:-1]) / (n - first), sums[-1] / n
    ratios = first * _divergence(left, whole) + (n - first) * _divergence(right, whole)
    best = int(ratios.argmax())
    return best + 1 if ratios[best] > math.log(3 * n**1.5 / FALSE_ALARMS) else None


def _divergence(p: NDArray[np.float64], q: float) -> NDArray[np.float64]:
    """kl(Bernoulli(p), Bernoulli(q)) in nats, with 0 log 0 = 0."""
    if q in (0.0, 1.0):
        return np.zeros_like(p)  # all values are equal, so p is q
    ones, zeros = p * np.log(np.where(p > 0, p, 1) / q), (1 - p) * np.log(np.where(p < 1, 1 - p, 1) / (1 - q))
    total: NDArray[np.float64] = ones + zeros
    return total
