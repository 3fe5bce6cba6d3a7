"""When work that nobody waits for may begin, on a machine that also answers people."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Gaps:
    """The gaps of `train.when` or `practice.when`: `always`, `idle`, or hours of the day."""

    when: str
    idle_s: float
    idle_for: Callable[[], float | None]  # seconds without a request; None: the server does not answer
    alone: bool = False  # whether work may begin while the server does not answer

    def why_not(self) -> str | None:
        """Why work may not begin now; None if it may."""
        if "-" in self.when:
            return None if is_within(self.when, datetime.now().strftime("%H:%M")) else f"it is not {self.when}"
        if self.when == "always" or not self.idle_s:
            return None
        idle_for = self.idle_for()
        if idle_for is None:
            return None if self.alone else "the server does not answer"
        return None if idle_for >= self.idle_s else f"{self.idle_s:g} s without a request have not passed"


def is_within(hours: str, now: str) -> bool:
    """Whether a time of day ("23:30") lies within hours ("22:00-06:00"), whose end is excluded."""
    begin, end = hours.split("-")
    return begin <= now < end if begin <= end else now >= begin or now < end
