"""Which of the turns that wait make the next step: each key gets an equal part, and a loud one fills only what others leave.

A key is the name of the API key that asked (`Turn.user`). All imported turns share the key `import`, all turns of a custom rollout
the key `custom`; an environment that plays against serve has the key that its client uses.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence

from clawctl.config import TrainConfig
from clawctl.train.waiting import Waiting, is_enough


def fair_batch(
    waiting: Sequence[Waiting], count: int, config: TrainConfig, version: int, served: Mapping[str, int]
) -> list[Waiting]:
    """At least `count` of the turns, in the order in which they wait. `served` is the last step that had a turn of a key.

    Turn by turn (in groups: group by group, none is torn) the key goes on that has the fewest turns in this step; among equals the
    one whose next turn goes stale first, then the one that was served longest ago, then the one that waits first.
    """
    queues = _queues(waiting, config)
    taken: list[int] = []
    turns: Counter[str] = Counter()

    def rank(key: str) -> tuple[int, int, int, int]:
        head = queues[key][0]
        return turns[key], min(_slack(waiting[place], config, version) for place in head), served.get(key, -1), head[0]

    while len(taken) < count and queues:
        key = min(queues, key=rank)
        unit = queues[key].popleft()
        taken += unit
        turns[key] += len(unit)
        if not queues[key]:
            del queues[key]
    return [waiting[place] for place in sorted(taken)]


def _queues(waiting: Sequence[Waiting], config: TrainConfig) -> dict[str, deque[list[int]]]:
    """By key (one for all, unless `train.fair_keys`): the places of its turns, those of a group together."""
    queues: defaultdict[str, deque[list[int]]] = defaultdict(deque)
    groups: dict[str, list[int]] = {}
    for place, turn in enumerate(waiting):
        unit = turn.unit if config.credit == "group" else None
        if unit is not None and unit in groups:
            groups[unit].append(place)
            continue
        places = [place]
        if unit is not None:
            groups[unit] = places
        queues[turn.key if config.fair_keys else ""].append(places)
    return dict(queues)


def _slack(turn: Waiting, config: TrainConfig, version: int) -> int:
    """How many steps the turn can still wait."""
    return config.max_staleness if turn.sample.imported else config.max_staleness - (version - turn.sample.policy_version)


def hungry(waiting: list[Waiting], config: TrainConfig, most: int) -> "Hunger":
    """Of which keys more turns are read."""
    return Hunger(is_enough(waiting, config, most), Counter(turn.key for turn in waiting), config)


class Hunger:
    """While enough turns wait, only keys are read that have less than a batch of their own among them."""

    def __init__(self, full: bool, turns: Counter[str], config: TrainConfig) -> None:
        self.full, self._turns, self._config = full, turns, config

    def wants(self, key: str) -> bool:
        return not self.full or (self._config.fair_keys and self._turns[key] < self._config.batch_turns)

    def fed(self, key: str) -> None:
        self._turns[key] += 1
