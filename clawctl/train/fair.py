"""Selects the waiting turns of the next step. Each key gets an equal share, and more only if others leave room.

A key is the name of the API key of the request (`Turn.user`). All imported turns share the key `import`, and all turns of a custom
rollout the key `custom`. Turns of an environment that uses serve have the key of its client.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence

from clawctl.config import TrainConfig
from clawctl.train.sample import Sample
from clawctl.train.waiting import Waiting, is_enough


def fair_batch(
    waiting: Sequence[Waiting], count: int, config: TrainConfig, staleness: Callable[[Sample], int], served: Mapping[str, int]
) -> list[Waiting]:
    """Return at least `count` of the turns, in the order in which they wait.

    `staleness` returns the number of updates since a turn was sampled. `served` holds the last step with a turn of each key. Turns
    (or whole groups) are taken one by one from the key with the fewest turns in this step. In a tie, the key whose next turn
    becomes stale first comes first, then the key that was served longest ago, then the key that has waited longest.
    """
    queues = _queues(waiting, config)
    taken: list[int] = []
    turns: Counter[str] = Counter()

    def rank(key: str) -> tuple[int, int, int, int]:
        head = queues[key][0]
        oldest = max(staleness(waiting[index].sample) for index in head)
        return turns[key], -oldest, served.get(key, -1), head[0]

    while len(taken) < count and queues:
        key = min(queues, key=rank)
        unit = queues[key].popleft()
        taken += unit
        turns[key] += len(unit)
        if not queues[key]:
            del queues[key]
    return [waiting[index] for index in sorted(taken)]


def _queues(waiting: Sequence[Waiting], config: TrainConfig) -> dict[str, deque[list[int]]]:
    """Return by key (one for all, unless `train.fair_keys`) the indices of its turns; turns of a group are together."""
    queues: defaultdict[str, deque[list[int]]] = defaultdict(deque)
    groups: dict[str, list[int]] = {}
    for index, turn in enumerate(waiting):
        unit = turn.unit if config.credit == "group" else None
        if unit is not None and unit in groups:
            groups[unit].append(index)
            continue
        indices = [index]
        if unit is not None:
            groups[unit] = indices
        queues[turn.key if config.fair_keys else ""].append(indices)
    return dict(queues)


def demand_of(waiting: Sequence[Waiting], config: TrainConfig, limit: int) -> "Demand":
    """Determine the keys for which more turns should be read."""
    return Demand(is_enough(waiting, config, limit), Counter(turn.key for turn in waiting), config)


class Demand:
    """Decides which turns to read. While enough turns wait, only keys with less than a batch of waiting turns need more."""

    def __init__(self, full: bool, turns: Counter[str], config: TrainConfig) -> None:
        self.full, self._turns, self._config = full, turns, config

    def wants(self, key: str) -> bool:
        return not self.full or (self._config.fair_keys and self._turns[key] < self._config.batch_turns)

    def count(self, key: str) -> None:
        self._turns[key] += 1
