"""The parts of a method."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from clawctl.train.sample import Sample


@dataclass(frozen=True, slots=True)
class Scores:
    """The inputs of an advantage for one turn: streams over its T completion tokens, without gradient."""

    policy_T: Tensor  # logprobs by the policy before this step
    teacher_T: Tensor | None  # logprobs of the same tokens by the teacher with the hint; None: this turn has no hint
    baseline: float  # mean reward of turns of this kind; 0.0 if the recipe uses no baseline


@dataclass(frozen=True, slots=True)
class Tops:
    """The inputs of a comparison over the likeliest tokens, for one turn: K tokens' logprobs at each of its T positions.

    The K tokens are the policy's own likeliest before this step. Each of the H teachers has one hint.
    """

    policy_TK: Tensor  # with gradient
    before_TK: Tensor  # by the policy before this step
    teacher_HTK: Tensor
    overlap_HT: Tensor  # how many of the K tokens are among the K likeliest of the teacher as well


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of the loss, with its own denominator: the completion tokens of all its turns in the step.

    It has either advantages, which go into the one policy loss, or a loss over the likeliest tokens.
    """

    name: str  # "binary"
    weight: float
    trains: Callable[[Sample], bool]  # whether a turn has this term
    advantages: Callable[[Sample, Scores], Tensor] | None = None  # [T]
    divergence: Callable[[Tops], Tensor] | None = None  # [T], with gradient


@dataclass(frozen=True, slots=True)
class Earned:
    """The reward of a turn and its place among other turns, from which credit is computed."""

    turn_id: str
    session_id: str
    parent_turn_id: str | None
    turn_index: int
    reward: float | None  # the turn's reward, including its part of `outcome`; None: not known
    outcome: float | None = None  # the part of `reward` that belongs to the whole episode
