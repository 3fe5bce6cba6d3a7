"""Which rows of a user's file are for training, and which are held out."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from clawctl.environments import Split

Row = TypeVar("Row")
_FEWEST = 5  # rows of which some can be held out


def rows_of(found: Sequence[Row], digest: Callable[[Row], int], split: Split, count: int, seed: int) -> list[Row]:
    """At most `count` rows of the split, from a place that the seed selects.

    A fifth is held out, by a row's content: what is added to a file later moves no row. Fewer than five rows are all for training.
    """
    held_out = [len(found) >= _FEWEST and digest(row) % _FEWEST == 0 for row in found]
    rows = [row for row, out in zip(found, held_out, strict=True) if out == (split == "eval")]
    start = seed % len(rows) if rows else 0
    return [*rows[start:], *rows[:start]][:count]
