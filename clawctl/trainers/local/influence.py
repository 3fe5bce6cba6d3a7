"""Bounds the share of one turn in a step's gradient.

The gradient of a turn grows with its length, its advantage and 1 / temperature, and the client controls all three. The gradient of
each turn is therefore measured (`measuring`), and the weight of a turn is reduced so that it stays within `bound_of` the step.
The excess is computed again and subtracted.

The norm is measured in a pass that computes many turns together. A turn's own tokens are those that no other turn of the step
has, except its continuations (`trees.own_starts`). The gradient of a weight matrix W [E, D] is a sum over tokens, sum_t g_t
x_t^T, of its input x_t [D] and of the gradient g_t [E] at its output. The part over a turn's own tokens is available when W's
gradient is computed, and needs no extra pass. For each turn:

    size^2 = sum over matrices W of | sum over own tokens t of g_t x_t^T |^2

For few own tokens it is computed from products of tokens (Goodfellow, arXiv 1510.01799; Li et al., arXiv 2110.05679). It omits the
effect of a turn through shared tokens, and includes the effect of its continuations through its own tokens. The matrices are the
trained ones in LAYERS blocks of the model, and the input embedding.
"""

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clawctl.trainers.local.batches import Microbatch
from clawctl.trainers.local.model import PolicyModel
from clawctl.trainers.local.ranks import layers_of
from clawctl.vision.tower import language_of

ABSURD = 1e12  # its square is near the limit of float32; such a turn stays unbounded, so that it causes the step to be skipped
TOO_FAR = 1e-3  # smaller weights: a difference of float32 numbers would lose the other turns' part


def bound_of(sizes: Iterable[float], factor: float | None) -> float:
    """The largest size that a turn keeps: `factor` times the mean of the other turns of the step, themselves bounded.

    It is never below the upper quartile, which is the fifth largest in a step of 16 turns. If a quarter of the turns has all of the
    gradient, no single one dominates the step. Turns without gradient do not count. Infinite if fewer than two have one.
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


def weight_of(size: float, bound: float) -> float:
    """At most 1, rounded to three digits, because the last bits of sizes depend on the packing of a step. It is 1 for a size that
    is not finite; the step is then skipped because of this turn."""
    return min(1.0, float(f"{bound / size:.3g}")) if 0 < size < ABSURD else 1.0


_AT_ONCE = 2**25  # numbers of gathered tokens in memory at a time
LAYERS = 4  # the first, the last, and equally spaced ones between; sizes differ by at most a third from those over all layers


@contextlib.contextmanager
def measuring(policy: PolicyModel, batch: Microbatch, turns: int) -> Iterator[Tensor]:
    """The squared sizes of the first `turns` branches of `batch`: [turns]. They are 0 until a backward pass is made inside this
    context."""
    squares = torch.zeros(turns, device=policy.device)
    positions = _Own.of(batch, turns)
    hooks = [module.register_forward_hook(functools.partial(_watch, positions, squares)) for module in _measured(policy)]
    try:
        yield squares
    finally:
        for hook in hooks:
            hook.remove()


def _measured(policy: PolicyModel) -> list[nn.Module]:
    layers = layers_of(language_of(policy.causal))
    positions = sorted({round(at * (len(layers) - 1) / max(1, LAYERS - 1)) for at in range(LAYERS)}) if layers else []
    modules = [policy.causal.get_input_embeddings(), *(module for index in positions for module in layers[index].modules())]
    kinds = (nn.Linear, nn.Embedding)
    return [module for module in modules if isinstance(module, kinds) and module.weight.requires_grad]


@dataclass(frozen=True, slots=True)
class _Own:
    """The positions of the K turns' own tokens, padded to S, in all tokens of a microbatch and in those of its last layer."""

    index_KS: Tensor
    mask_KS: Tensor
    tokens: int  # of the microbatch
    last: "_Own | None" = None  # the last layer of a trie computes only some tokens

    @classmethod
    def of(cls, batch: Microbatch, turns: int) -> "_Own":
        positions = batch.own_positions[:turns]
        index_KS = nn.utils.rnn.pad_sequence(positions, batch_first=True)
        lengths_K = torch.tensor([len(of_turn) for of_turn in positions], device=index_KS.device)
        mask_KS = torch.arange(index_KS.shape[1], device=index_KS.device) < lengths_K[:, None]
        last = None
        if batch.visible is not None:
            kept_M = batch.visible.queries_M
            place_KS = torch.searchsorted(kept_M, index_KS).clamp(max=len(kept_M) - 1)
            last = cls(place_KS, mask_KS & (kept_M[place_KS] == index_KS), len(kept_M))
        return cls(index_KS, mask_KS, batch.ids_BT.numel(), last)


def _watch(positions: _Own, squares: Tensor, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
    if torch.is_grad_enabled() and output.requires_grad:
        output.register_hook(functools.partial(_note, positions, squares, inputs[0].detach()))


@torch.no_grad()
def _note(positions: _Own, squares: Tensor, given: Tensor, gradient: Tensor) -> None:
    """Add one module's part of each turn's gradient. `given` are its inputs: states, or the ids of an embedding."""
    gradient_TE = gradient.flatten(0, -2)
    given_T = given.flatten() if not given.is_floating_point() else given.flatten(0, -2)
    if len(gradient_TE) != positions.tokens:
        if positions.last is None or len(gradient_TE) != positions.last.tokens:
            return
        positions = positions.last
    width = gradient_TE.shape[1] + (given_T.shape[1] if given_T.ndim > 1 else positions.index_KS.shape[1])
    turns = max(1, _AT_ONCE // (max(1, positions.index_KS.shape[1]) * width))
    parts = zip(positions.index_KS.split(turns), positions.mask_KS.split(turns), squares.split(turns), strict=True)
    for index_KS, mask_KS, squares_K in parts:
        gradient_KSE = gradient_TE[index_KS].float() * mask_KS[:, :, None]
        squares_K += _squares(given_T[index_KS], gradient_KSE)


def _squares(given_KS: Tensor, gradient_KSE: Tensor) -> Tensor:
    """|sum_s g_s x_s^T|^2 of each turn: [K], for states [K, S, D] or ids [K, S]. An id stands for a row of the identity matrix."""
    products_KSS = None
    if given_KS.ndim == 2:
        products_KSS = given_KS[:, :, None] == given_KS[:, None, :]
    else:
        given_KSD = given_KS.float()
        tokens, wide, high = given_KSD.shape[1], given_KSD.shape[2], gradient_KSE.shape[2]
        if tokens * (wide + high) >= wide * high:
            return (gradient_KSE.transpose(1, 2) @ given_KSD).square().sum((1, 2))
        products_KSS = given_KSD @ given_KSD.transpose(1, 2)
    return (products_KSS * (gradient_KSE @ gradient_KSE.transpose(1, 2))).sum((1, 2)).clamp(min=0)
