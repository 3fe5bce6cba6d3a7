"""How much of a step's gradient one turn may have.

The gradient of a turn grows with its length, with its advantage and with 1 / temperature, and all three are up to the client. The
norm of a turn's gradient is estimated from numbers that the step computes anyway. Of each token:

    s_t = |dL / d log p_t| * max(1 - p_t, FLOOR) / temperature

(1 - p_t) / temperature is the norm of d log p_t / d logits, within a factor of sqrt(2). Of each turn:

    reach   = sum_t s_t                     the norm if all tokens push one way
    typical = sqrt(reach * sqrt(sum_t s_t^2))    the geometric mean of that and of the norm if they push at right angles

A turn is weighed down so that its reach is at most `bound_of` the step: a factor times the upper quartile of what is typical of its
turns. Both are of the step's own denominators, so the bound depends neither on how the step is cut nor on the number of ranks.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

ABSURD = 1e12  # its square nears the end of float32: such a turn is left as it is, so that the step is skipped and the turn blamed
FLOOR = 0.01  # of 1 - p: turns of which the policy is certain must not make all others look large


@dataclass(frozen=True, slots=True)
class Size:
    """The estimated norm of a turn's gradient."""

    reach: float  # at most
    typical: float


def bound_of(sizes: Iterable[Size], factor: float | None) -> float:
    """`factor` times the upper quartile of what is typical: in a step of 16 turns, of the fifth largest. A quarter of the turns
    may be hostile and does not move it. Turns without gradient do not count. Infinite where fewer than two turns have one."""
    ordered = sorted((size.typical for size in sizes if 0 < size.typical < math.inf), reverse=True)
    if factor is None or len(ordered) < 2:
        return math.inf
    return factor * ordered[max(1, len(ordered) // 4)]


def size_of(tokens_T: Tensor) -> Size:
    """From the norm of each token's gradient with respect to the logits: [T]."""
    reach = float(tokens_T.sum())
    return Size(reach, math.sqrt(reach * float(tokens_T.norm())))


def sampled_norms(pushes_T: Tensor, logprobs_T: Tensor, temperature: float) -> Tensor:
    """Norm of the gradient with respect to the logits at each position: [T]. `pushes_T` is dL / d log p of the sampled tokens."""
    return pushes_T.abs() * (1 - logprobs_T.exp()).clamp(min=FLOOR * min(1.0, temperature)) / temperature


def likeliest_norms(pushes_TK: Tensor, logprobs_TK: Tensor, temperature: float) -> Tensor:
    """The same where K tokens are pushed at each position, as far as it lies on these K: [T]."""
    onto_TK = pushes_TK - logprobs_TK.exp() * pushes_TK.sum(-1, keepdim=True)
    return onto_TK.square().sum(-1).sqrt() / temperature


def weight_of(size: Size, bound: float) -> float:
    """At most 1, to three digits: sizes differ in their last bits where a step is cut in another way, weights do not. It is 1 for
    a size that is not finite: the step is skipped and the turn blamed."""
    return min(1.0, float(f"{bound / size.reach:.3g}")) if 0 < size.reach < ABSURD else 1.0


def pushes(loss: Tensor, of: Tensor) -> Tensor:
    """dL / d `of`, which is a leaf."""
    return torch.autograd.grad(loss, of)[0]
