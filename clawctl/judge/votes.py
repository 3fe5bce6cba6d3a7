"""The results of several votes of a judge on one turn."""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from clawctl.judge.shares import ScoreShare

_SCORES = (1, 0, -1)


def majority(votes: Sequence[int | None], threshold: float = 0.5) -> float | None:
    """The most frequent score of the valid votes.

    None means that the judge abstains: there is no valid vote, there is a tie, or the winner has a share below `threshold`.

    OpenClaw-RL returns 0 for a tie. Here 0 means that the judge found the next state neutral, and a tie does not show that.
    """
    counts = Counter(vote for vote in votes if vote is not None)
    return _winner((counts[1], counts[0], counts[-1]), threshold)


def likeliest(share: ScoreShare, threshold: float = 0.5) -> float | None:
    """The score with the highest probability. None in a tie, or if its probability is below `threshold`."""
    highest = max(share)
    return None if share.count(highest) > 1 or highest < threshold else float(_SCORES[share.index(highest)])


def as_votes(share: ScoreShare, count: int) -> list[int | None]:
    """`count` votes in proportion to the probabilities, for the record of a verdict. None: the rest, which is no valid vote."""
    exact = [part * count for part in (*share, max(1.0 - sum(share), 0.0))]
    counts = [int(part) for part in exact]
    by_remainder = sorted(range(4), key=lambda at: counts[at] - exact[at])
    for at in by_remainder[: count - sum(counts)]:
        counts[at] += 1
    return [score for score, number in zip((*_SCORES, None), counts, strict=True) for _ in range(number)]


def why_none(votes: Sequence[int | None]) -> str:
    """The reason why `majority` returns None for these votes."""
    return "no consensus" if any(vote is not None for vote in votes) else "no valid vote"


def decided(votes: Sequence[int | None], votes_asked: int, threshold: float = 0.5) -> bool:
    """Whether no further votes, up to `votes_asked` in total, can change the result of `majority`."""
    counts = Counter(vote for vote in votes if vote is not None)
    return _decided((counts[1], counts[0], counts[-1]), max(votes_asked - len(votes), 0), threshold)


def first_round(votes_asked: int, threshold: float = 0.5) -> int:
    """The number of votes in the first round: the fewest that can decide if they agree. More are requested only otherwise."""
    return next(count for count in range(1, votes_asked + 1) if _decided((count, 0, 0), votes_asked - count, threshold))


def agreement(votes: Sequence[int | None]) -> float | None:
    """The share of pairs of valid votes with equal scores. None if there are fewer than two valid votes."""
    counts = Counter(vote for vote in votes if vote is not None)
    pairs = counts.total() * (counts.total() - 1)
    return sum(count * (count - 1) for count in counts.values()) / pairs if pairs else None


def _winner(counts: tuple[int, int, int], threshold: float) -> float | None:
    highest = max(counts)
    if highest == 0 or counts.count(highest) > 1 or highest / sum(counts) < threshold:
        return None
    return float(_SCORES[counts.index(highest)])


@lru_cache(maxsize=4096)
def _decided(counts: tuple[int, int, int], left: int, threshold: float) -> bool:
    """Whether all possible results of the remaining votes give the same winner."""
    good, neutral, bad = counts
    now = _winner(counts, threshold)
    ways = ((good + g, neutral + n, bad + b) for g in range(left + 1) for n in range(left - g + 1) for b in range(left - g - n + 1))
    return all(_winner(way, threshold) == now for way in ways)
