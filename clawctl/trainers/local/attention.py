"""Attention over tries: each token sees its ancestors and itself.

A model selects it by the name TREE and receives the layout as the keyword `tree`. Without that keyword it computes plain causal
attention, so one loaded model serves both. On CUDA a tree is a FlexAttention block mask, on the CPU a few blocks of queries. No
mask of tokens by tokens is ever created, and hidden pairs cost little or nothing.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clawctl.trainers.local.blockwise import Blocks, attend_by_blocks, make_blocks
from clawctl.trainers.local.trees import Trie

TREE = "clawctl_tree"
FLEX_BLOCK = 128  # FlexAttention's own block size


@dataclass(frozen=True, slots=True)
class Visible:
    """A tree in the form that attention needs."""

    ends_T: Tensor  # one past the last descendant
    queries_M: Tensor  # the tokens whose states predict a scored token, in order
    blocks: Blocks  # for the CPU
    query_blocks: Blocks  # for the last layer on the CPU: only the tokens in `queries_M` are queries
    mask: Any = None  # FlexAttention's block mask, for CUDA


def visible(tree: Trie, device: torch.device) -> Visible:
    """The attention data of a tree for `device`."""
    ends_T = torch.from_numpy(tree.ends_T).to(device)
    queries_M = np.unique(np.concatenate(tree.before_scored))
    seen = functools.partial(Visible, ends_T, torch.from_numpy(queries_M).to(device))
    if device.type != "cuda":
        return seen(make_blocks(tree), make_blocks(tree, queries_M))
    return seen((), (), block_mask(ends_T))


def block_mask(ends_T: Tensor) -> Any:
    """FlexAttention's mask of a tree, computed from the smallest and the largest `end` in each block. No mask of tokens by tokens
    is created."""
    from torch.nn.attention.flex_attention import BlockMask

    count, device = len(ends_T), ends_T.device
    blocks = -(-count // FLEX_BLOCK)
    padded = torch.nn.functional.pad(ends_T, (0, blocks * FLEX_BLOCK - count)).view(blocks, FLEX_BLOCK)  # padding sees nothing
    first = torch.arange(blocks, device=device) * FLEX_BLOCK
    before = first[None, :] < first[:, None]  # [query block, key block]
    whole = before & (padded.amin(1)[None, :] >= (first + FLEX_BLOCK)[:, None])
    some = (before | (first[None, :] == first[:, None])) & (padded.amax(1)[None, :] > first[:, None]) & ~whole
    counts, indices = zip(*(_listed(relation) for relation in (some, whole)), strict=True)
    lists = counts[0], indices[0], counts[1], indices[1]
    return BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=FLEX_BLOCK, mask_mod=ancestors(ends_T), seq_lengths=(count, count))


def _listed(relation: Tensor) -> tuple[Tensor, Tensor]:
    """For each row the number of true columns, and all columns with the true ones first: [1, 1, rows], [1, 1, rows, columns]."""
    indices = relation.int().argsort(dim=1, descending=True, stable=True)
    return relation.sum(1, dtype=torch.int32)[None, None], indices.to(torch.int32)[None, None].contiguous()


def ancestors(ends_T: Tensor) -> Any:
    """The mask function that FlexAttention calls: whether query q sees key k."""

    def sees(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q < ends_T[k])

    return sees


def register() -> None:
    """Register TREE with transformers. It has no mask; the tree defines which tokens are visible."""
    from transformers import AttentionInterface

    AttentionInterface.register(TREE, _attend)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **settings: Any
) -> tuple[Tensor, None]:
    """The attention function that transformers calls: [1, H, T, D] in, [1, T, H, D] out."""
    tree: Visible | None = settings.pop("tree", None)
    if tree is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
        return output, None
    scale = settings.get("scaling") or query.shape[-1] ** -0.5
    device = query.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype
    if device == "cuda":
        operands = query.to(dtype), key.to(dtype), value.to(dtype)
        return _flex()(*operands, block_mask=tree.mask, scale=scale, enable_gqa=True).transpose(1, 2), None
    # The other outputs of the last layer are not used.
    last = getattr(module, "layer_idx", None) == getattr(module.config, "num_hidden_layers", 0) - 1
    if not last:
        return attend_by_blocks(query[0], key[0], value[0], tree.blocks, scale, dtype).unsqueeze(0), None
    queries_HMD = query[0].transpose(0, 1).index_select(0, tree.queries_M).transpose(0, 1)
    output_MHD = attend_by_blocks(queries_HMD, key[0], value[0], tree.query_blocks, scale, dtype)
    output_THD = output_MHD.new_zeros(query.shape[2], *output_MHD.shape[1:]).index_copy(0, tree.queries_M, output_MHD)
    return output_THD.unsqueeze(0), None


def _flex() -> Any:
    """FlexAttention, compiled once per process."""
    global _compiled
    if _compiled is None:
        from torch.nn.attention.flex_attention import flex_attention

        _compiled = torch.compile(flex_attention, dynamic=True)
    return _compiled


_compiled: Any = None
