"""When exchanges happened by one clock: ours, which does not jump. Those who wrote them may have others, and theirs may jump.

What was appended since the last look, to a file that had been read to its end, was written since then, whatever its writer's clock
says; by how much that clock is off is remembered for the file. Of what was there before, or lies in a new file, one thing alone is
known: it is not of the future.
"""

import time
from collections.abc import Callable


class Clocks:
    """The clock of this process and, by capture file, how far its writer's is behind it."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._steady = wall(), steady
        self._begun = steady()
        self._looked_at = self._before = float("-inf")  # this look, and the one before
        self._behind: dict[str, float] = {}
        self._followed: set[str] = set()  # files that were read to their end before this look

    def now(self) -> float:
        """Unix seconds, as the clock of this host said when we began; it never jumps."""
        return self._wall + self._steady() - self._begun

    def look(self, followed: set[str]) -> None:
        """A look at the captures begins; `followed` were read to their end at the one before."""
        self._before, self._looked_at = self._looked_at, self.now()
        self._followed = followed

    def behind(self, file: str, finished_at: float) -> float:
        """Seconds to add to the times of an exchange in `file` that its writer finished at `finished_at`."""
        behind = self._behind.get(file, 0.0)
        earliest = self._before if file in self._followed else float("-inf")
        moment = min(max(finished_at + behind, earliest), self.now())
        if moment != finished_at + behind:
            self._behind[file] = behind = moment - finished_at
        return behind
