"""What k answers of the judge amount to."""

from collections import Counter
from collections.abc import Sequence


def majority(votes: Sequence[int | None]) -> float | None:
    """The score that most valid votes name; 0.0 if two share the top; None if no vote is valid (as in OpenClaw-RL)."""
    counts = Counter(vote for vote in votes if vote is not None).most_common(2)
    if not counts:
        return None
    tie = len(counts) == 2 and counts[0][1] == counts[1][1]
    return 0.0 if tie else float(counts[0][0])


def decided(votes: Sequence[int | None], most: int) -> bool:
    """Whether no further votes, up to `most` in all, could change what `majority` says."""
    left = most - len(votes)
    if left <= 0:
        return True
    counts = [count for _, count in Counter(vote for vote in votes if vote is not None).most_common(2)] + [0, 0]
    return counts[0] - counts[1] > left


def first_round(most: int) -> int:
    """How many votes are asked at once: as few as can decide if they agree. The rest is only asked if they do not."""
    return most // 2 + 1
