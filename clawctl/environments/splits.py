"""The rows of a user's file: which can be read, which are for training, and which are held out."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from clawctl.environments import Split
from clawctl.errors import ClawError

log = logging.getLogger("play")

Given = TypeVar("Given")
Row = TypeVar("Row")
_FEWEST = 5  # rows of which some can be held out
_MOST_NAMED = 5  # rows that cannot be read


def read_each(given: Iterable[Given], read: Callable[[Given], Row]) -> list[Row]:
    """What can be read. A bad row stops no other one: it is named in the log. Raises ClawError if none can be read."""
    rows, troubles = list[Row](), list[ClawError]()
    for each in given:
        try:
            rows.append(read(each))
        except ClawError as error:
            troubles.append(error)
    if troubles and not rows:
        raise troubles[0]
    for trouble in troubles[:_MOST_NAMED]:
        log.warning("left out: %s: %s", trouble.problem, trouble.fix)
    if len(troubles) > _MOST_NAMED:
        log.warning("%d more are left out", len(troubles) - _MOST_NAMED)
    return rows


def rows_of(every: Sequence[Row], digest: Callable[[Row], int], split: Split, count: int, seed: int) -> list[Row]:
    """At most `count` rows of the split, from a place that the seed selects.

    A fifth is held out, by a row's content: what is added to a file later moves no row. Fewer than five rows are all for training.
    """
    held_out = [len(every) >= _FEWEST and digest(row) % _FEWEST == 0 for row in every]
    rows = [row for row, out in zip(every, held_out, strict=True) if out == (split == "eval")]
    start = seed % len(rows) if rows else 0
    return [*rows[start:], *rows[:start]][:count]
