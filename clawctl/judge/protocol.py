"""The interface of the judge stage: the input of a judge, its output, and the protocol that a judge implements."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from clawctl.errors import ClawError
from clawctl.run.holdout import HELD_OUT
from clawctl.run.rows import Message, is_judged
from clawctl.run.shards import read_columns


@dataclass(frozen=True, slots=True)
class Evidence:
    """The input of a judge: the fields of `clawctl.run.rows.Turn` that hold texts and ratings.

    It lacks the token ids, which are most of a shard.
    """

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
    episode: dict[str, Any] | None = None
    step_reward: float | None = None

    @property
    def judged(self) -> bool:
        """Whether the turn gets a verdict. Held-out turns do too, because `eval` needs the users' reaction to them."""
        if self.untrainable_reason == HELD_OUT:
            return self.next_state is not None or self.feedback is not None
        return is_judged(self.trainable, self.source, self.untrainable_reason)


_COLUMNS = [field.name for field in fields(Evidence)]


def read_evidence(path: Path) -> list[Evidence]:
    """All turns of a shard, in its order. Raises UnreadableShard."""
    return [Evidence(**row) for row in read_columns(path, "turns", _COLUMNS)]


@dataclass(frozen=True, slots=True)
class Opinion:
    """A judge's result for one turn. An abstention has the reward None and a reason."""

    judge: str  # "crafts@0 prompt 1", "rules 2: pytest", "user feedback"
    reward: float | None
    votes: tuple[int | None, ...] = ()
    hints: tuple[str, ...] = ()  # the selected hint comes first
    reason: str | None = None


class Judge(Protocol):
    """Judges trainable turns. The worker calls `judge` for several turns concurrently."""

    @property
    def name(self) -> str:
        """The name of the judge in verdicts."""
        ...

    async def judge(self, turn: Evidence) -> Opinion:
        """Judge one turn. Raises ClawError if no turn can be judged until the user fixes a problem."""
        ...

    def doubt(self) -> ClawError | None:
        """Why the judge's rewards are not reliable yet, or None if they are."""
        ...

    async def close(self) -> None: ...
