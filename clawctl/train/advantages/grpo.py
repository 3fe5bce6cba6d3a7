"""GRPO: each token of an episode's turns gets the episode's reward minus the mean reward of its group.

A_i = (r_i - mean(r)) / std(r) over the group (DeepSeekMath, arXiv 2402.03300, §4.1.2), with the population's std; without the
division as in Dr. GRPO (2503.20783, eq. 4). Step-wise: the same over the turns at one position in the episodes of a group
(OpenClaw-RL, 2603.10165). At a position that only one episode has, the reward is unchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass

EPSILON = 1e-6  # as OpenClaw-RL: keeps a tiny std from blowing rounding up


@dataclass(frozen=True, slots=True)
class Earned:
    """The reward of a turn and its place among other turns, from which credit is computed."""

    turn_id: str
    session_id: str
    parent_turn_id: str | None
    turn_index: int
    reward: float | None  # the turn's reward, including its part of `outcome`; None: not known
    outcome: float | None = None  # the part of `reward` that belongs to the whole episode


def group_credits(turns: Sequence[Earned], std: bool, step_wise: bool) -> dict[str, float]:
    """The advantage of each turn of a group. A missing turn has nothing to learn: all episodes have the same reward, there is no
    other episode, or its reward is not known."""
    return _by_step(turns, std) if step_wise else _by_episode(turns, std)


def _by_episode(turns: Sequence[Earned], std: bool) -> dict[str, float]:
    """Credit by episode. An episode's reward is the mean of its turns' rewards: their shared outcome plus the mean of their own
    rewards."""
    episodes: dict[str, list[float]] = {}
    for turn in turns:
        if turn.reward is not None:
            episodes.setdefault(turn.session_id, []).append(turn.reward)
    earned = {episode: sum(rewards) / len(rewards) for episode, rewards in episodes.items()}
    credits = _standardised(earned, std)
    return {turn.turn_id: credits[turn.session_id] for turn in turns if turn.session_id in credits and turn.reward is not None}


def _by_step(turns: Sequence[Earned], std: bool) -> dict[str, float]:
    steps: dict[int, dict[str, float]] = {}
    for turn in turns:
        if turn.reward is not None:
            steps.setdefault(turn.turn_index, {})[turn.turn_id] = turn.reward
    if len({turn.session_id for turn in turns if turn.reward is not None}) < 2:
        return {}  # no other episode to be compared with
    credits: dict[str, float] = {}
    for rewards in steps.values():
        credits |= rewards if len(rewards) == 1 else _standardised(rewards, std)
    return credits


def _standardised(rewards: dict[str, float], std: bool) -> dict[str, float]:
    """The values minus their mean, divided by their std; empty if all are equal."""
    if len(set(rewards.values())) < 2:
        return {}
    mean = sum(rewards.values()) / len(rewards)
    spread = (sum((reward - mean) ** 2 for reward in rewards.values()) / len(rewards)) ** 0.5 + EPSILON if std else 1.0
    return {name: (reward - mean) / spread for name, reward in rewards.items()}
