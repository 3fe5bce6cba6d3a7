"""The projection onto the vocabulary: logprobs of chosen tokens without storing all logits.

Logits are computed for a few positions at a time, reduced to the requested values, and recomputed in the backward pass. A tensor of
tokens by vocabulary never exists.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from clawctl.trainers.local.batches import Masks

LOGITS_AT_ONCE = 2**25  # float32 logits in memory at a time: 128 MiB
WIDENED = 2**22  # numbers of a head in 16 bits that are in float32 at a time: 16 MiB


def token_logprobs(
    hidden_ND: Tensor,
    head: nn.Module,
    ids: Tensor,
    temperature_N: Tensor,
    masks: Masks | None = None,
    at_once: int = LOGITS_AT_ONCE,
) -> Tensor:
    """log softmax(head(hidden) / temperature) of the tokens `ids`, in float32: [N] for [N] ids, [N, K] for [N, K]. With `masks` the
    softmax is over the allowed tokens, and the logprob of any other is about `HIDDEN`.

    `hidden_ND` are the states that *predict* the tokens. At most `at_once` logits exist at a time. The numbers and gradients equal
    those from complete logits, up to rounding.
    """
    ids_NK = ids.reshape(len(ids), -1)
    if type(head) is not nn.Linear:  # with an adapter or a wrapper, only the module itself can compute it
        logprobs_NK = _by_module(hidden_ND, head, ids_NK, temperature_N, masks, at_once)
    else:
        kind = hidden_ND.device.type
        wider = torch.promote_types(hidden_ND.dtype, head.weight.dtype)
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else wider
        size = max(1, at_once // len(head.weight))
        logprobs_NK = _ChunkedLogprobs.apply(hidden_ND.to(dtype), head.weight, head.bias, ids_NK, temperature_N, masks, size)
    return logprobs_NK.reshape(ids.shape)


@torch.no_grad()
def top_tokens(
    hidden_ND: Tensor, head: nn.Module, temperature_N: Tensor, k: int, masks: Masks | None = None, at_once: int = LOGITS_AT_ONCE
) -> tuple[Tensor, Tensor]:
    """Ids and logprobs of the `k` most likely tokens at each position, most likely first: [N, k] each, without gradient. If fewer
    tokens are allowed, the last ones have probability 0."""
    size = max(1, at_once // _vocabulary(head, hidden_ND))
    result = []
    for at in _slices(len(hidden_ND), size):
        logits = _allowed(head(hidden_ND[at]).float() / temperature_N[at, None], masks, at)
        values, ids = logits.topk(k, dim=1)
        result.append((ids, values - logits.logsumexp(1, keepdim=True)))
    return torch.cat([ids for ids, _ in result]), torch.cat([values for _, values in result])


class _ChunkedLogprobs(torch.autograd.Function):
    """d log p(id) / d logits = (onehot(id) - softmax) / temperature. Backward recomputes the softmax from its stored log-sum."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        ids_NK: Tensor,
        temperature_N: Tensor,
        masks: Masks | None,
        size: int,
    ) -> Tensor:
        ctx.size, ctx.masks, ctx.weight_dtype = size, masks, weight_VD.dtype
        used_VD, bias_V = _used(weight_VD, hidden_ND.dtype), None if bias_V is None else bias_V.to(hidden_ND.dtype)
        logprobs_NK = hidden_ND.new_empty(ids_NK.shape, dtype=torch.float32)
        total_N = hidden_ND.new_empty(len(hidden_ND), dtype=torch.float32)
        for at in _slices(len(hidden_ND), size):
            logits = _logits(hidden_ND[at], used_VD, bias_V, temperature_N[at], masks, at)
            total_N[at] = logits.logsumexp(1)
            logprobs_NK[at] = logits.gather(1, ids_NK[at]) - total_N[at, None]
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, ids_NK, temperature_N, total_N)
        return logprobs_NK

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V, ids_NK, temperature_N, total_N = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        weight_VD = _used(weight_VD, hidden_ND.dtype)
        d_hidden = torch.empty_like(hidden_ND) if wants_hidden else None
        d_weight = torch.zeros_like(weight_VD, dtype=torch.float32) if wants_weight else None  # chunks are summed in float32
        d_bias = torch.zeros_like(bias_V, dtype=torch.float32) if wants_bias else None
        for at in _slices(len(hidden_ND), ctx.size):
            chunk = _logits(hidden_ND[at], weight_VD, bias_V, temperature_N[at], ctx.masks, at)
            chunk.sub_(total_N[at, None]).exp_()  # the softmax, which becomes d logits in place
            scaled = gradients[0][at] / temperature_N[at, None]
            chunk.mul_(-scaled.sum(1, keepdim=True)).scatter_add_(1, ids_NK[at], scaled)
            if ctx.masks is not None:
                ctx.masks.fill_(chunk, at, 0.0)
            if d_bias is not None:
                d_bias += chunk.sum(0)
            chunk = chunk.to(hidden_ND.dtype)
            if d_hidden is not None:
                d_hidden[at] = sum(chunk[:, rows] @ weight_VD[rows].to(chunk.dtype) for rows in _rows(weight_VD, chunk.dtype))
            if d_weight is not None:
                _add_product(d_weight, chunk, hidden_ND[at])
        summed = (None if total is None else total.to(ctx.weight_dtype) for total in (d_weight, d_bias))
        return d_hidden, *summed, None, None, None, None


def _logits(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, temperature_N: Tensor, masks: Masks | None, at: slice
) -> Tensor:
    if weight_VD.dtype == hidden_ND.dtype:
        logits = nn.functional.linear(hidden_ND, weight_VD, bias_V)
    else:
        logits = hidden_ND.new_empty(len(hidden_ND), len(weight_VD))
        for rows in _rows(weight_VD, hidden_ND.dtype):
            bias = None if bias_V is None else bias_V[rows]
            logits[:, rows] = nn.functional.linear(hidden_ND, weight_VD[rows].to(hidden_ND.dtype), bias)
    logits = logits.float().div_(temperature_N[:, None])
    return logits if masks is None else masks.fill_(logits, at)


def _used(weight_VD: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix in the dtype of a product, unless that is larger: it is then widened piece by piece."""
    return weight_VD if dtype.itemsize > weight_VD.dtype.itemsize else weight_VD.to(dtype)


def _rows(weight_VD: Tensor, dtype: torch.dtype) -> Iterator[slice]:
    return _slices(len(weight_VD), len(weight_VD) if weight_VD.dtype == dtype else max(1, WIDENED // weight_VD.shape[1]))


def _allowed(logits_NV: Tensor, masks: Masks | None, at: slice) -> Tensor:
    return logits_NV if masks is None else masks.hide(logits_NV, at)


def _add_product(into_VD: Tensor, d_logits_NV: Tensor, hidden_ND: Tensor) -> None:
    if d_logits_NV.dtype == into_VD.dtype:
        into_VD.addmm_(d_logits_NV.T, hidden_ND)
    else:
        into_VD += d_logits_NV.T @ hidden_ND


def _slices(count: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, count, size))


def _by_module(
    hidden_ND: Tensor, head: nn.Module, ids_NK: Tensor, temperature_N: Tensor, masks: Masks | None, at_once: int
) -> Tensor:
    def project(hidden: Tensor, at: slice) -> Tensor:
        logits = _allowed(head(hidden).float() / temperature_N[at, None], masks, at)
        return logits.gather(1, ids_NK[at]) - logits.logsumexp(1, keepdim=True)

    size = max(1, at_once // _vocabulary(head, hidden_ND))
    pieces = [(hidden_ND[at], at) for at in _slices(len(hidden_ND), size)]
    if not torch.is_grad_enabled():
        return torch.cat([project(*piece) for piece in pieces])
    return torch.cat([checkpoint(project, *piece, use_reentrant=False) for piece in pieces])


def _vocabulary(head: nn.Module, hidden_ND: Tensor) -> int:
    return int(getattr(head, "out_features", 0) or head(hidden_ND[:1]).shape[-1])
