"""Times of exchanges on one clock that does not jump. The clocks of their writers may differ and may jump.

New lines in a file that was previously read to its end were written after the previous poll, whatever the writer's clock says. The
difference is remembered for the file. For earlier lines, or lines in a new file, only one fact is known: they are not from the
future.
"""

import time
from collections.abc import Callable


class Clocks:
    """The clock of this process and, for each capture file, the offset of its writer's clock."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._steady = wall(), steady
        self._started = steady()
        self._polled_at = self._previous_poll = float("-inf")  # times of the current and the previous poll
        self._offsets: dict[str, float] = {}
        self._followed: set[str] = set()  # files that were read to their end before this poll

    def now(self) -> float:
        """Return unix seconds by this host's clock at the start plus the time since then. The result never jumps."""
        return self._wall + self._steady() - self._started

    def begin_poll(self, followed: set[str]) -> None:
        """Start a poll of the captures. `followed` are the files that the previous poll read to their end."""
        self._previous_poll, self._polled_at = self._polled_at, self.now()
        self._followed = followed

    def offset_of(self, file: str, finished_at: float) -> float:
        """Return the seconds to add to the times of an exchange in `file` that its writer finished at `finished_at`."""
        offset = self._offsets.get(file, 0.0)
        earliest = self._previous_poll if file in self._followed else float("-inf")
        moment = min(max(finished_at + offset, earliest), self.now())
        if moment != finished_at + offset:
            self._offsets[file] = offset = moment - finished_at
        return offset
