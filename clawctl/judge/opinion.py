"""The interface of the judge stage: anything that can score a turn."""

from dataclasses import dataclass
from typing import Protocol

from clawctl.errors import ClawError
from clawctl.judge.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Opinion:
    """A judge's result for one turn: the parts of its verdict. To abstain is reward None, with the reason."""

    judge: str  # "demo@0 prompt 1", "rules 2: pytest", "user feedback"
    reward: float | None
    votes: tuple[int | None, ...] = ()
    hints: tuple[str, ...] = ()  # the chosen one first
    reason: str | None = None


class Judge(Protocol):
    """Judges turns that can be trained; several at a time are asked at the same time."""

    @property
    def name(self) -> str:
        """As the verdicts name it."""
        ...

    async def judge(self, turn: Evidence) -> Opinion:
        """Raises ClawError if no turn can be judged until the user fixes the problem."""
        ...

    def doubt(self) -> ClawError | None:
        """Why its rewards are not reliable yet; None if they are."""
        ...

    async def close(self) -> None: ...
