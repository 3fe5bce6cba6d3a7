"""Usable turns that no step has used: their order, and whether there are enough."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from clawctl.config import TrainConfig
from clawctl.train.identical import Marks
from clawctl.train.sample import Sample

READ_AHEAD = 4096  # turns in memory; others wait on disk
READ_AHEAD_TOKENS = 4 << 20  # about 40 bytes each


@dataclass(frozen=True, slots=True)
class Waiting:
    """A usable turn that no step has used."""

    sample: Sample
    since: float  # unix seconds when its verdict was published
    unit: str | None = None  # the group or session that its reward is compared with
    key: str = ""  # name of the API key of the request
    marks: Marks = (0, 0)  # the hashes that it shares with identical turns
    asked_at: float = math.inf  # unix seconds of the request; inf: treated as newest

    @property
    def tokens(self) -> int:
        return len(self.sample.prompt_ids) + len(self.sample.completion_ids)


def in_order(waiting: list[Waiting], grouped: bool) -> list[Waiting]:
    """Return the turns in the order of their shards and, within a shard, in their previous order. `grouped`: keep groups
    together.
    """
    order = {stem: index for index, stem in enumerate(sorted({turn.sample.stem for turn in waiting}))}
    first: dict[str | None, int] = {}
    for turn in waiting:
        first[turn.unit] = min(first.get(turn.unit, len(order)), order[turn.sample.stem])

    def sort_key(turn: Waiting) -> tuple[int, str, int]:
        position = order[turn.sample.stem]
        return (first[turn.unit], turn.unit, position) if grouped and turn.unit is not None else (position, "", position)

    return sorted(waiting, key=sort_key)


def ready_turns(waiting: list[Waiting], config: TrainConfig, now: float) -> int:
    """Return the size of the next batch: a full batch, or the turns that have waited long enough, or 0. Groups are not split."""
    count = len(waiting)
    if count >= config.batch_turns:
        full = config.batch_turns
        while config.credit == "group" and full < count and waiting[full].unit == waiting[full - 1].unit is not None:
            full += 1
        return full
    oldest = min((turn.since for turn in waiting), default=now)
    return count if count and count >= config.batch_min_turns and now - oldest >= config.batch_wait_s else 0


def is_enough(waiting: Sequence[Waiting], config: TrainConfig, limit: int) -> bool:
    """Whether reading can stop: `limit` turns wait, or enough turns for two batches with READ_AHEAD_TOKENS tokens."""
    if len(waiting) >= limit:
        return True
    return len(waiting) >= 2 * config.batch_turns and sum(turn.tokens for turn in waiting) >= READ_AHEAD_TOKENS
