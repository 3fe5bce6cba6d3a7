"""What a method is made of."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from clawctl.train.sample import Sample


@dataclass(frozen=True, slots=True)
class Scores:
    """What an advantage may be made from, for one turn: streams over its T completion tokens, without gradient."""

    policy_T: Tensor  # logprobs of the policy as it is before this step
    teacher_T: Tensor | None  # logprobs of the same tokens by the teacher, who read the hint; None: this turn has no hint
    baseline: float  # what turns of this kind earned on average; 0.0 where the recipe wants none


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of the loss, with a denominator of its own: the completion tokens of all its turns in the step."""

    name: str  # "binary"
    weight: float
    trains: Callable[[Sample], bool]  # whether a turn has this term
    advantages: Callable[[Sample, Scores], Tensor]  # [T]
