"""Holds turns until their group or session is complete, because the other turns determine their credit.

Every turn is added here, even one that is not trained itself, because its reward counts for the others.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from urllib.parse import quote

import orjson

from clawctl.config import TrainConfig
from clawctl.run.feedback import Ratings
from clawctl.run.rows import Turn
from clawctl.train.advantages.gae import session_credits
from clawctl.train.advantages.grpo import TurnReward, group_credits
from clawctl.train.waiting import Waiting

MAX_IDLE = 4096  # maximum number of groups or sessions without waiting turns that are remembered


@dataclass(slots=True)
class _Unit:
    """A group of episodes, or a session."""

    earned: list[TurnReward] = field(default_factory=list)  # every turn that was seen
    answered: set[str | None] = field(default_factory=set)  # turns with a known successor
    open_ends: set[str] = field(default_factory=set)  # turns with a next state, so that a successor may follow
    waiting: list[Waiting] = field(default_factory=list)
    seen: int = 0  # value of the turn counter when a turn of it was last seen
    group: tuple[str, str] = ("", "")  # the key and the group as its turns name them


def state_of(turn: Turn) -> bytes:
    """Return a digest of the agent's latest input: the messages after the last answer in its request, or all messages."""
    answered = max((index for index, message in enumerate(turn.messages) if message.get("role") == "assistant"), default=-1)
    shown = [(message.get("role"), message.get("content")) for message in turn.messages[answered + 1 :]]
    return blake2b(orjson.dumps(shown), digest_size=16).digest()


class Forming:
    """The complete and incomplete groups or sessions of a run."""

    def __init__(self, config: TrainConfig, refused: Counter[str], ratings: Ratings | None = None) -> None:
        """`refused` counts the reasons. `ratings` provides which episodes of a group have ended."""
        self.config, self.refused, self._ratings = config, refused, ratings
        self._units: dict[str, _Unit] = {}
        self._seen, self._forget_at = 0, 2 * MAX_IDLE

    @property
    def waiting(self) -> list[Waiting]:
        return [turn for unit in self._units.values() for turn in unit.waiting]

    def unit_of(self, turn: Turn) -> str | None:
        """Return the unit within which the turn's reward is compared, separate for each key, or None."""
        name = {"reward": None, "group": turn.group_id, "gae": turn.session_id}[self.config.credit]
        return name if name is None or (turn.user == "default" and "/" not in name) else f"{quote(turn.user, safe='')}/{name}"

    def add(self, turn: Turn, reward: float | None, outcome: float | None = None) -> None:
        """Add the reward of a turn, and the part of it that is the outcome of its episode."""
        name = self.unit_of(turn)
        if name is None:
            return
        unit = self._units.setdefault(name, _Unit())
        self._seen = unit.seen = self._seen + 1
        unit.group = turn.user, turn.group_id or ""
        state = state_of(turn) if self.config.groups.step_wise == "state" else None
        unit.earned.append(TurnReward(turn.turn_id, turn.session_id, turn.parent_turn_id, turn.turn_index, reward, outcome, state))
        unit.answered.add(turn.parent_turn_id)
        unit.open_ends.discard(turn.parent_turn_id or "")
        if turn.next_state is not None and turn.turn_id not in unit.answered:
            unit.open_ends.add(turn.turn_id)
        if len(self._units) > self._forget_at:
            self._forget_idle()

    def _forget_idle(self) -> None:
        """Drop the oldest groups without waiting turns, and keep equally many for each key. A later turn of a dropped group starts
        it anew.
        """
        idle = sorted(((unit.seen, name) for name, unit in self._units.items() if not unit.waiting), reverse=True)
        of_key: Counter[str] = Counter()
        ranks: list[tuple[int, int, str]] = []  # (number of newer groups of the same key, number of newer groups, name)
        for rank, (_, name) in enumerate(idle):
            key = name.partition("/")[0] if "/" in name else "default"
            ranks.append((of_key[key], rank, name))
            of_key[key] += 1
        for _, _, name in sorted(ranks)[MAX_IDLE:]:
            del self._units[name]
        self._forget_at = len(self._units) + MAX_IDLE

    def remove(self, turn: Turn) -> None:
        """Remove the reward of a turn that is about to be added again."""
        unit = self._units.get(self.unit_of(turn) or "")
        if unit is not None:
            unit.earned = [earned for earned in unit.earned if earned.turn_id != turn.turn_id]
            unit.waiting = [other for other in unit.waiting if other.sample.turn_id != turn.turn_id]

    def queue(self, turn: Waiting) -> None:
        """Keep a usable turn until `pop_ready`."""
        assert turn.unit is not None
        self._units[turn.unit].waiting.append(turn)

    def pop_ready(self, now: float) -> list[Waiting]:
        """Return the turns whose group or session is complete, or has waited long enough, with their credit.

        A group that clawctl plays is complete when all its episodes have ended, however long that takes. Any other group is
        complete with `group_size` episodes, and a session when none of its turns can be continued. Later turns get their credit
        from everything known by then.
        """
        released = []
        for unit in self._units.values():
            oldest = min((turn.since for turn in unit.waiting), default=now)
            if unit.waiting and self._is_ready(unit, now - oldest):
                credits = self._credits(unit)
                result = [self._credited(turn, credits.get(turn.sample.turn_id)) for turn in unit.waiting]
                released += [turn for turn in result if turn is not None]
                unit.waiting = []
        return released

    def drop_unless(self, fits: Callable[[Waiting], bool]) -> None:
        """Drop waiting turns that are no longer usable. Their rewards still count."""
        for unit in self._units.values():
            unit.waiting = [turn for turn in unit.waiting if fits(turn)]

    def _is_ready(self, unit: _Unit, waited_s: float) -> bool:
        if self.config.credit != "group":
            return not unit.open_ends or waited_s >= self.config.batch_wait_s
        sessions = {earned.session_id for earned in unit.earned}
        if self._ratings is not None:
            played = self._ratings.groups.is_complete(*unit.group, sessions, waited_s)
            if played is not None:
                return played
        return len(sessions) >= self.config.groups.group_size or waited_s >= self.config.batch_wait_s

    def _credits(self, unit: _Unit) -> dict[str, float]:
        groups, rewards = self.config.groups, self.config.rewards
        if self.config.credit == "group":
            return group_credits(unit.earned, groups.group_std, groups.step_wise, groups.gamma)
        return session_credits(unit.earned, rewards.gamma, rewards.gae_lambda)

    def _credited(self, turn: Waiting, credit: float | None) -> Waiting | None:
        """Return the turn with its credit, or None if there is nothing left to train, which is counted."""
        sample = turn.sample
        if credit is not None or sample.reward is None:
            return replace(turn, sample=replace(sample, credit=credit))
        if sample.teacher_prompt_ids is not None:
            return replace(turn, sample=replace(sample, reward=None))
        self.refused["no difference in its group" if self.config.credit == "group" else "no credit in its session"] += 1
        return None
