"""What of a turn's row the judge stage reads: its words and ratings, not its token ids, which are most of a shard."""

from dataclasses import dataclass, fields
from pathlib import Path

from clawctl.shards import read_columns
from clawctl.types import Message, is_judged


@dataclass(frozen=True, slots=True)
class Evidence:
    """A turn as it stands before its judge; the fields are those of `clawctl.types.Turn`."""

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
        return is_judged(self.trainable, self.source, self.untrainable_reason)


_COLUMNS = [field.name for field in fields(Evidence)]


def read_evidence(path: Path) -> list[Evidence]:
    """Every turn of a shard, in its order. Raises UnreadableShard."""
    return [Evidence(**row) for row in read_columns(path, "turns", _COLUMNS)]
