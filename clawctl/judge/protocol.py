"""The interface of the judge stage: what a judge reads of a turn, what it answers, and what may be one."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol

from clawctl.errors import ClawError
from clawctl.run.holdout import HELD_OUT
from clawctl.run.rows import Message, is_judged
from clawctl.run.shards import read_columns


@dataclass(frozen=True, slots=True)
class Evidence:
    """A turn for its judge, with the fields of `clawctl.run.rows.Turn`: texts and ratings, but not token ids, which are most of a
    shard."""

    turn_id: str
    source: str
    user: str
    messages: list[Message]
    response: Message | None
    next_state: list[Message] | None
    outcome_reward: float | None
    feedback: float | None
    trainable: bool
    untrainable_reason: str | None

    @property
    def judged(self) -> bool:
        """Also what is held out: `eval` asks how such answers were received."""
        if self.untrainable_reason == HELD_OUT:
            return self.next_state is not None or self.feedback is not None
        return is_judged(self.trainable, self.source, self.untrainable_reason)


_COLUMNS = [field.name for field in fields(Evidence)]


def read_evidence(path: Path) -> list[Evidence]:
    """Every turn of a shard, in its order. Raises UnreadableShard."""
    return [Evidence(**row) for row in read_columns(path, "turns", _COLUMNS)]


@dataclass(frozen=True, slots=True)
class Opinion:
    """A judge's result for one turn: the parts of its verdict. To abstain is reward None, with the reason."""

    judge: str  # "demo@0 prompt 1", "rules 2: pytest", "user feedback"
    reward: float | None
    votes: tuple[int | None, ...] = ()
    hints: tuple[str, ...] = ()  # the chosen one first
    reason: str | None = None


class Judge(Protocol):
    """Judges turns that can be trained. The worker asks about several turns at a time."""

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
