"""The norm of each turn's gradient, measured in a pass that computes many turns together.

A turn's own tokens are those that no other turn of the step has, except its continuations (`trees.own_starts`). The gradient of a
weight matrix W [E, D] is a sum over tokens, sum_t g_t x_t^T, of its input x_t [D] and of the gradient g_t [E] at its output. The
part over a turn's own tokens is available when W's gradient is computed, and needs no extra pass. For each turn:

    size^2 = sum over matrices W of | sum over own tokens t of g_t x_t^T |^2

For few own tokens it is computed from products of tokens (Goodfellow, arXiv 1510.01799; Li et al., arXiv 2110.05679). It omits the
effect of a turn through shared tokens, and includes the effect of its continuations through its own tokens. The matrices are the
trained ones in LAYERS blocks of the model, and the input embedding.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from clawctl.trainers.local.batches import Microbatch
from clawctl.trainers.local.model import PolicyModel
from clawctl.trainers.local.sharding import layers_of
from clawctl.vision.tower import language_of

LAYERS = 4  # the first, the last, and equally spaced ones between; sizes differ by at most a third from those over all layers


@contextlib.contextmanager
def measuring(policy: PolicyModel, batch: Microbatch, turns: int) -> Iterator[Tensor]:
    """The squared sizes of the first `turns` branches of `batch`: [turns]. They are 0 until a backward pass is made inside this
    context."""
    squares = torch.zeros(turns, device=policy.device)
    hooks = [module.register_forward_hook(functools.partial(_watch, batch, squares)) for module in _measured(policy)]
    try:
        yield squares
    finally:
        for hook in hooks:
            hook.remove()


def _measured(policy: PolicyModel) -> list[nn.Module]:
    layers = layers_of(language_of(policy.causal))
    positions = sorted({round(at * (len(layers) - 1) / max(1, LAYERS - 1)) for at in range(LAYERS)}) if layers else []
    modules = [policy.causal.get_input_embeddings(), *(module for place in positions for module in layers[place].modules())]
    kinds = (nn.Linear, nn.Embedding)
    return [module for module in modules if isinstance(module, kinds) and module.weight.requires_grad]


def _watch(batch: Microbatch, squares: Tensor, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
    if torch.is_grad_enabled() and output.requires_grad:
        output.register_hook(functools.partial(_note, batch, squares, inputs[0].detach()))


@torch.no_grad()
def _note(batch: Microbatch, squares: Tensor, given: Tensor, gradient: Tensor) -> None:
    """Add one module's part of each turn's gradient. `given` are its inputs: states, or the ids of an embedding."""
    gradient_TE = gradient.flatten(0, -2)
    given_T = given.flatten() if not given.is_floating_point() else given.flatten(0, -2)
    kept_M = None
    if len(gradient_TE) != batch.ids_BT.numel():  # the last layer computes only the needed tokens
        if batch.visible is None or len(gradient_TE) != len(batch.visible.queries_M):
            return
        kept_M = batch.visible.queries_M
    for turn, own in enumerate(batch.own_positions[: len(squares)]):
        positions = own if kept_M is None else torch.isin(kept_M, own).nonzero().flatten()
        squares[turn] += _square(given_T[positions], gradient_TE[positions].float())


def _square(given_S: Tensor, gradient_SE: Tensor) -> Tensor:
    """|sum_s g_s x_s^T|^2, for states [S, D] or for ids [S]; an id stands for a row of the identity matrix."""
    if given_S.ndim == 1:
        kinds, kind_S = given_S.unique(return_inverse=True)
        return gradient_SE.new_zeros(len(kinds), gradient_SE.shape[1]).index_add(0, kind_S, gradient_SE).square().sum()
    given_SD = given_S.float()
    tokens, wide, high = len(given_SD), given_SD.shape[1], gradient_SE.shape[1]
    if tokens * (wide + high) < wide * high:
        return ((given_SD @ given_SD.T) * (gradient_SE @ gradient_SE.T)).sum().clamp(min=0)
    return (gradient_SE.T @ given_SD).square().sum()
