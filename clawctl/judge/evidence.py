"""The part of a turn's row that the judge stage reads: texts and ratings, but not token ids, which are most of a shard."""

from dataclasses import dataclass, fields
from pathlib import Path

from clawctl.run.rows import Message, is_judged
from clawctl.run.shards import read_columns


@dataclass(frozen=True, slots=True)
class Evidence:
    """A turn for its judge, with the fields of `clawctl.run.rows.Turn`."""

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
