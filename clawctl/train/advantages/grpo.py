"""GRPO: each token of an episode's turns gets the episode's reward minus the mean reward of its group.

A_i = (r_i - mean(r)) / std(r) over the group (DeepSeekMath, arXiv 2402.03300, §4.1.2), with the population's std; without the
division as in Dr. GRPO (2503.20783, eq. 4). Step-wise: the same over the turns at one position in the episodes of a group
(OpenClaw-RL, 2603.10165). At a position that only one episode has, the reward is unchanged.

By state: turns at the same position may be in different states. GiGPO (2505.10978) adds a second advantage to that of the episode.
It compares the discounted returns of those turns of a group that were requested in the same state. The state is the agent's latest
input.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

EPSILON = 1e-6  # as in OpenClaw-RL: keeps a tiny std from amplifying rounding errors


@dataclass(frozen=True, slots=True)
class TurnReward:
    """The reward of a turn and its place among other turns, from which credit is computed."""

    turn_id: str
    session_id: str
    parent_turn_id: str | None
    turn_index: int
    reward: float | None  # the turn's reward, including its part of `outcome`; None: not known
    outcome: float | None = None  # the part of `reward` that belongs to the whole episode
    state: bytes | None = None  # digest of the agent's latest input; None: not compared by state


def group_credits(
    turns: Sequence[TurnReward], std: bool, step_wise: bool | Literal["state"], gamma: float = 1.0
) -> dict[str, float]:
    """Return the advantage of each turn of a group. `gamma` discounts returns (`step_wise` "state").

    A missing turn has nothing to learn: all episodes have the same reward, there is no other episode, or its reward is not known.
    """
    if step_wise == "state":
        by_episode, by_state = _by_episode(turns, std), _by_state(turns, std, gamma)
        return {name: by_episode.get(name, 0.0) + by_state.get(name, 0.0) for name in by_episode.keys() | by_state.keys()}
    return _by_step(turns, std) if step_wise else _by_episode(turns, std)


def _by_episode(turns: Sequence[TurnReward], std: bool) -> dict[str, float]:
    """Compute credit by episode. An episode's reward is the mean of its turns' rewards: their shared outcome plus the mean of their
    own rewards.
    """
    episodes: dict[str, list[float]] = {}
    for turn in turns:
        if turn.reward is not None:
            episodes.setdefault(turn.session_id, []).append(turn.reward)
    earned = {episode: sum(rewards) / len(rewards) for episode, rewards in episodes.items()}
    credits = _standardised(earned, std)
    return {turn.turn_id: credits[turn.session_id] for turn in turns if turn.session_id in credits and turn.reward is not None}


def _by_step(turns: Sequence[TurnReward], std: bool) -> dict[str, float]:
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


def _by_state(turns: Sequence[TurnReward], std: bool, gamma: float) -> dict[str, float]:
    """Compare the returns of turns that were requested in the same state, in one episode or several."""
    episodes: dict[str, list[TurnReward]] = {}
    for turn in turns:
        episodes.setdefault(turn.session_id, []).append(turn)
    returns = {name: value for session in episodes.values() for name, value in session_returns(session, gamma).items()}
    states: dict[bytes, dict[str, float]] = {}
    for turn in turns:
        if turn.state is not None and turn.turn_id in returns:
            states.setdefault(turn.state, {})[turn.turn_id] = returns[turn.turn_id]
    credits: dict[str, float] = {}
    for earned in states.values():
        credits |= _standardised(earned, std)
    return credits


def session_returns(turns: Sequence[TurnReward], gamma: float) -> dict[str, float]:
    """Return the discounted return of each turn with a known reward: G_k = r_k + gamma * G_{k+1}.

    A session is a tree; G_{k+1} is the mean over a turn's successors. The outcome of an episode is in each of its turns but
    occurred once, so it counts at the last turn that has it.
    """
    children: dict[str | None, list[TurnReward]] = {}
    for turn in turns:
        children.setdefault(turn.parent_turn_id, []).append(turn)
    worth: dict[str, float] = {}
    ended: set[str] = set()  # turns at or after which the outcome was counted
    for turn in sorted(turns, key=lambda turn: -turn.turn_index):  # a child's index is its parent's plus one
        followers = children.get(turn.turn_id, [])
        after = [worth[child.turn_id] for child in followers if child.turn_id in worth]
        reward = turn.reward or 0.0
        if any(child.turn_id in ended for child in followers):
            reward -= turn.outcome or 0.0
            ended.add(turn.turn_id)
        elif turn.outcome is not None:
            ended.add(turn.turn_id)
        worth[turn.turn_id] = reward + gamma * (sum(after) / len(after) if after else 0.0)
    return {turn.turn_id: worth[turn.turn_id] for turn in turns if turn.reward is not None}


def _standardised(rewards: dict[str, float], std: bool) -> dict[str, float]:
    """Return the values minus their mean, divided by their std if `std`; empty if all are equal."""
    if len(set(rewards.values())) < 2:
        return {}
    mean = sum(rewards.values()) / len(rewards)
    spread = (sum((reward - mean) ** 2 for reward in rewards.values()) / len(rewards)) ** 0.5 + EPSILON if std else 1.0
    return {name: (reward - mean) / spread for name, reward in rewards.items()}
