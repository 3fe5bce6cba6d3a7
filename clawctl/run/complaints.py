"""Detects whether users' preferences have changed: complaints that become frequent after they were rare.

Each judged turn is a complaint or not. A change is a split of the newest turns whose two sides differ by more than chance allows.
The test is the generalised likelihood ratio for Bernoulli variables, with the threshold of Besson and Kaufmann (arXiv 1902.01575,
§3). No rate counts as high or low by itself, and no number of complaints is fixed. After sixty turns with three complaints, six in
a row are enough; after twenty turns with ten, they are not.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

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
    return last_rises({
        key: (np.array([answer.at for answer in stream]), np.array([answer.complained for answer in stream], np.float64))
        for key, stream in streams.items()
    })  # fmt: skip


def last_rises(streams: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]) -> list[Rise]:
    """The same from the times of each key's first answers, and 1 for each complaint."""
    all_rises = [rise for key, stream in streams.items() if (rise := _last_rise(key, *stream)) is not None]
    return sorted(all_rises, key=lambda rise: -rise.since)


def first_answers(reactions: Iterable[JudgedAnswer]) -> list[JudgedAnswer]:
    """Return the reactions in order of time, without reactions to an answer that followed a complaint. Two complaints in a row in
    one conversation concern the same wish, so only the first one counts.
    """
    ordered = sorted(reactions, key=lambda reaction: reaction.at)
    complained = {reaction.turn_id for reaction in ordered if reaction.complained}
    return [reaction for reaction in ordered if reaction.parent_turn_id not in complained]


def _last_rise(key: str, at: NDArray[np.float64], complained: NDArray[np.float64]) -> Rise | None:
    rise: Rise | None = None
    begin = end = 0  # begin: index of the first turn after the last change
    sums, most = np.concatenate([[0], complained.cumsum()]).astype(np.int32), 1
    while end < len(at):
        quiet = _quiet_turns(sums, begin, end, most, *_COARSE)
        most = min(2 * most, _MOST_BLOCKS) if quiet else 1
        quiet = quiet or _quiet_turns(sums, begin, end, _COARSE[0], *_FINE)
        end += quiet or 1
        if quiet:
            continue
        begin = max(begin, end - MAX_TURNS)
        flags = complained[begin:end]
        split = change_point(flags)
        if split is None:
            continue
        before, after = float(flags[:split].mean()), float(flags[split:].mean())
        begin += split
        if after > before:
            rise = Rise(key, float(at[begin]), before, after, over=False)
        elif rise is not None:
            rise = Rise(key, rise.since, rise.before, rise.after, over=True)
    return rise


_COARSE, _FINE = (4, 4), (1, 1)  # how many turns, and how many splits of their windows, are ruled out together
_MOST_BLOCKS = 128


def _quiet_turns(sums: NDArray[np.int32], begin: int, end: int, most: int, block: int, stride: int) -> int:
    """How many turns after `end` cannot be the one at which `change_point` finds a change: whole blocks, at most `most` of them.

    `sums[i]` is the number of complaints among the first i turns. The windows of all turns of a block contain a core. A part's
    largest log-likelihood is at most that of a part of it. So no split of such a window has a ratio above that of the best split of
    the core minus the log-likelihood of the window, and a split of the core none above that of the nearest splits around it.
    """
    blocks = min(most, (len(sums) - 1 - end) // block)
    ends = (end + block * np.arange(blocks, dtype=np.int32))[:, None]  # [blocks, 1]
    core = np.maximum(begin, ends + block - MAX_TURNS)
    splits = np.minimum(core + np.arange(0, MAX_TURNS + stride, stride, dtype=np.int32), ends)  # [blocks, splits]
    best = _likelihood(sums, core, splits[:, :-1]) + _likelihood(sums, splits[:, 1:], ends)
    last = ends + np.arange(1, block + 1, dtype=np.int32)  # [blocks, turns]
    first = np.maximum(begin, last - MAX_TURNS)
    ratios = best.max(1, keepdims=True, initial=-math.inf) - _likelihood(sums, first, last)
    loud = (ratios > np.log(3 * (last - first) ** 1.5 / FALSE_ALARMS) - 1e-3).any(1)
    return block * (int(loud.argmax()) if loud.any() else blocks)


def _likelihood(sums: NDArray[np.int32], begin: NDArray[np.int32], end: NDArray[np.int32]) -> NDArray[np.float64]:
    """The largest log-likelihood of the turns from `begin` to `end` under one rate."""
    likelihoods: NDArray[np.float64] = _likelihoods()[(end - begin) * (MAX_TURNS + 1) + sums[end] - sums[begin]]
    return likelihoods


@cache
def _likelihoods() -> NDArray[np.float64]:
    """By number of turns, and within it by number of complaints."""
    x_log_x = np.array([0.0, *(x * math.log(x) for x in range(1, MAX_TURNS + 1))])
    of = np.arange(MAX_TURNS + 1)[:, None]
    likelihoods: NDArray[np.float64] = x_log_x[of.T] + x_log_x[np.abs(of - of.T)] - x_log_x[of]
    return likelihoods.ravel().astype(np.float32)


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
