"""How much of a step's gradient one turn may have.

The gradient of a turn grows with its length, with its advantage and with 1 / temperature, and all three are up to the client. The
size of a turn is an estimate of its gradient's norm from numbers that the step computes anyway:

    s_t = |dL / d log p_t| * max(1 - p_t, FLOOR) / temperature     of each sampled token t
    size = sqrt(sum_t s_t * sqrt(sum_t s_t^2))

(1 - p_t) / temperature is the norm of d log p_t / d logits, within a factor of sqrt(2). The sum is what the norm would be if all
tokens pushed one way, the root of the squares what it would be if they pushed at right angles; real turns lie between.

A turn whose size exceeds `bound_of` the step is weighed down to it. All sizes are of the step's own denominators, so the bound
depends neither on how the step is cut nor on the number of ranks.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

FLOOR = 0.01  # of 1 - p: turns of which the policy is certain must not make all others look large


def bound_of(sizes: Iterable[float], factor: float | None) -> float:
    """`factor` times the upper quartile of the sizes: in a step of 16 turns, of the fifth largest. Up to a quarter of the turns may
    be hostile and do not move it. Turns without gradient do not count. Infinite where a step has fewer than two others."""
    ordered = sorted((size for size in sizes if 0 < size < math.inf), reverse=True)
    if factor is None or len(ordered) < 2:
        return math.inf
    return factor * ordered[max(1, len(ordered) // 4)]


def size_of(tokens_T: Tensor) -> float:
    """The estimate, from the norm of each token's gradient with respect to the logits: [T]."""
    return float((tokens_T.sum() * tokens_T.square().sum().sqrt()).sqrt())


def sampled_norms(pushes_T: Tensor, logprobs_T: Tensor, temperature: float) -> Tensor:
    """Norm of the gradient with respect to the logits at each position: [T]. `pushes_T` is dL / d log p of the sampled tokens."""
    return pushes_T.abs() * (1 - logprobs_T.exp()).clamp(min=FLOOR * min(1.0, temperature)) / temperature


def likeliest_norms(pushes_TK: Tensor, logprobs_TK: Tensor, temperature: float) -> Tensor:
    """The same where K tokens are pushed at each position, as far as it lies on these K: [T]."""
    onto_TK = pushes_TK - logprobs_TK.exp() * pushes_TK.sum(-1, keepdim=True)
    return onto_TK.norm(dim=-1) / temperature


def weight_of(size: float, bound: float) -> float:
    """At most 1. A size that is not finite is left alone: the step is skipped and the turn blamed."""
    return min(1.0, bound / size) if 0 < size < math.inf else 1.0


def pushes(loss: Tensor, of: Tensor) -> Tensor:
    """dL / d `of`, which is a leaf."""
    return torch.autograd.grad(loss, of)[0]
