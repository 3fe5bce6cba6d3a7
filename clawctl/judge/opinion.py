"""The seam of the judge stage: whatever can say what a turn is worth."""

from dataclasses import dataclass
from typing import Protocol

from clawctl.errors import ClawError
from clawctl.judge.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a judge says of one turn: the parts of its verdict. Abstaining is reward None, with the reason."""

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
        """Raises ClawError where no turn can be judged and the user must mend it."""
        ...

    def doubt(self) -> ClawError | None:
        """Why the rewards that it gave cannot be believed yet; None where they can be."""
        ...

    async def close(self) -> None: ...
