"""How much of a step's gradient one turn may have.

The gradient of a turn grows with its length, with its advantage and with 1 / temperature, and all three are up to the client. The
norm of a turn's gradient is estimated from numbers that the step computes anyway. Of each token:

    s_t = |dL / d log p_t| * max(1 - p_t, FLOOR) / temperature

(1 - p_t) / temperature is the norm of d log p_t / d logits, within a factor of sqrt(2). Of each turn:

    size^2 = (1 - ALIGNED) * sum_v (sum of s_t over the tokens t that are v)^2 + ALIGNED * (sum_t s_t)^2

The gradients of equal tokens point one way, those of different tokens nearly at right angles. The second part is what all have in
common. A turn is weighed down to `bound_of` the step. Sizes are of the step's own denominators, so the bound depends neither on how
the step is cut nor on the number of ranks.

The estimate does not see the layers: a single token can have ten times the gradient that its s_t says.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

ABSURD = 1e12  # its square nears the end of float32: such a turn is left as it is, so that the step is skipped and the turn blamed
FLOOR = 0.01  # of 1 - p: turns of which the policy is certain must not make all others look large
ALIGNED = 0.1  # fitted to gradients of the demo model, full weights and adapter


def bound_of(sizes: Iterable[float], factor: float | None) -> float:
    """The largest size that a turn keeps: `factor` times the mean of the other turns of the step, themselves bounded.

    It is never below the upper quartile, in a step of 16 turns the fifth largest: where a quarter of the turns has all of the
    gradient, none of them owns the step. Turns without gradient do not count. Infinite where fewer than two have one.
    """
    ordered = sorted((size for size in sizes if 0 < size < ABSURD), reverse=True)
    others = len(ordered) - 1
    if factor is None or others < 1:
        return math.inf
    rest = math.fsum(ordered)
    quartile = ordered[max(1, len(ordered) // 4)]
    for bounded, size in enumerate(
        ordered, 1
    ):  # the `bounded` largest have the bound b: b = factor * ((bounded - 1) b + rest) / others
        rest -= size
        share = 1 - factor * (bounded - 1) / others
        bound = factor * rest / others / share if share > 0 else 0.0
        following = ordered[bounded] if bounded <= others else 0.0
        if bound >= following or following <= quartile:
            return max(bound, quartile)
    return quartile


def size_of(tokens_T: Tensor, ids_T: Tensor) -> float:
    """From the norm of each token's gradient with respect to the logits: [T], and the tokens' ids: [T]."""
    kinds, kind_T = ids_T.unique(return_inverse=True)
    alike = tokens_T.new_zeros(len(kinds)).index_add(0, kind_T, tokens_T)
    return math.hypot(math.sqrt(1 - ALIGNED) * float(alike.norm()), math.sqrt(ALIGNED) * float(tokens_T.sum()))


def sampled_norms(pushes_T: Tensor, logprobs_T: Tensor, temperature: float) -> Tensor:
    """Norm of the gradient with respect to the logits at each position: [T]. `pushes_T` is dL / d log p of the sampled tokens."""
    return pushes_T.abs() * (1 - logprobs_T.exp()).clamp(min=FLOOR * min(1.0, temperature)) / temperature


def likeliest_norms(pushes_TK: Tensor, logprobs_TK: Tensor, temperature: float) -> Tensor:
    """The same where K tokens are pushed at each position, as far as it lies on these K: [T]."""
    onto_TK = pushes_TK - logprobs_TK.exp() * pushes_TK.sum(-1, keepdim=True)
    return onto_TK.square().sum(-1).sqrt() / temperature


def weight_of(size: float, bound: float) -> float:
    """At most 1, to three digits: sizes differ in their last bits where a step is cut in another way, weights do not. It is 1 for
    a size that is not finite: the step is skipped and the turn blamed."""
    return min(1.0, float(f"{bound / size:.3g}")) if 0 < size < ABSURD else 1.0


def pushes(loss: Tensor, of: Tensor) -> Tensor:
    """dL / d `of`, which is a leaf."""
    return torch.autograd.grad(loss, of)[0]
