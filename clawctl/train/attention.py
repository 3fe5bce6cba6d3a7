"""Attention over tries: each token sees its ancestors and itself.

A model asks for it by the name TREE and gets the layout as the keyword `tree`; without one it gets plain causal attention, so one
loaded model serves both. On CUDA a tree is a FlexAttention block mask. On the CPU it is a few blocks of queries, each
against the keys that all of them may see: no mask of tokens by tokens is ever made, and hidden pairs cost nothing.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clawctl.train.trees import Ints, Tree

TREE = "clawctl_tree"
FLEX_BLOCK = 128  # FlexAttention's own block size
QUERIES = 128  # in a block: its scores against a few thousand keys stay in the cache
KEPT_BYTES = 2**25  # of a layer's attention weights that wait for the backward pass; it makes the rest again


@dataclass(frozen=True, slots=True)
class Visible:
    """A tree as attention needs it."""

    ends_T: Tensor  # one past the last descendant
    asked_M: Tensor  # the tokens whose states predict a scored one, in order
    blocks: tuple["Block", ...]  # for the CPU
    asked: tuple["Block", ...]  # for the CPU, of the last layer: only the queries of asked tokens
    mask: Any = None  # FlexAttention's block mask, for CUDA


@dataclass(frozen=True, slots=True)
class Block:
    """Queries start..stop. They see all keys in `ranges`, but of the last range, their own, only what is not after them."""

    start: int
    stop: int
    ranges: tuple[tuple[int, int], ...]


def visible(tree: Tree, device: torch.device) -> Visible:
    """What attention on `device` needs of a tree."""
    ends_T = torch.from_numpy(tree.ends_T).to(device)
    asked_M = np.unique(np.concatenate(tree.places))
    seen = functools.partial(Visible, ends_T, torch.from_numpy(asked_M).to(device))
    if device.type != "cuda":
        return seen(tuple(_blocks(tree)), tuple(_asked_blocks(tree, asked_M)))
    return seen((), (), block_mask(ends_T))


def block_mask(ends_T: Tensor) -> Any:
    """FlexAttention's mask of a tree, from the least and the last `end` in each block: nothing of tokens by tokens is made."""
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
    """For each row how many columns are true, and the columns, the true ones first: [1, 1, rows], [1, 1, rows, columns]."""
    indices = relation.int().argsort(dim=1, descending=True, stable=True)
    return relation.sum(1, dtype=torch.int32)[None, None], indices.to(torch.int32)[None, None].contiguous()


def ancestors(ends_T: Tensor) -> Any:
    """The mask as FlexAttention asks for it: whether query q sees key k."""

    def sees(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q < ends_T[k])

    return sees


def _blocks(tree: Tree) -> Iterator[Block]:
    for run in tree.runs:
        for start in range(run.start, run.stop, QUERIES):
            stop = min(start + QUERIES, run.stop)
            yield Block(start, stop, (*run.context, (run.start, stop)))


def _asked_blocks(tree: Tree, asked_M: Ints) -> Iterator[Block]:
    asked_T = np.zeros(len(tree.ids_T), dtype=bool)
    asked_T[asked_M] = True
    for block in _blocks(tree):
        edges = np.flatnonzero(np.diff(asked_T[block.start : block.stop], prepend=False, append=False)) + block.start
        for start, stop in edges.reshape(-1, 2).tolist():
            yield Block(start, stop, (*block.ranges[:-1], (block.ranges[-1][0], stop)))


def register() -> None:
    """Make TREE known to transformers. It has no mask of its own: the tree says who sees whom."""
    from transformers import AttentionInterface

    AttentionInterface.register(TREE, _attend)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **settings: Any
) -> tuple[Tensor, None]:
    """The signature that transformers calls: [1, H, T, D] in, [1, T, H, D] out."""
    tree: Visible | None = settings.pop("tree", None)
    if tree is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
        return output, None
    scale = settings.get("scaling") or query.shape[-1] ** -0.5
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if query.device.type == "cuda":
        return _flex()(query, key, value, block_mask=tree.mask, scale=scale, enable_gqa=True).transpose(1, 2), None
    last = getattr(module, "layer_idx", None) == getattr(module.config, "num_hidden_layers", 0) - 1  # nobody attends to its output
    return attend_by_blocks(query[0], key[0], value[0], tree.asked if last else tree.blocks, scale).unsqueeze(0), None


def attend_by_blocks(
    q_HTD: Tensor, k_KTD: Tensor, v_KTD: Tensor, blocks: tuple[Block, ...], scale: float, keep: int = KEPT_BYTES
) -> Tensor:
    """Attention of a tree on the CPU: [T, H, D], zero for queries that are in no block. K key heads serve H query heads. At most
    `keep` bytes of its weights wait for the backward pass."""
    output_THD: Tensor = _TreeAttention.apply(q_HTD, k_KTD, v_KTD, blocks, scale, keep)
    return output_THD


def _flex() -> Any:
    """FlexAttention, compiled once a process."""
    global _compiled
    if _compiled is None:
        from torch.nn.attention.flex_attention import flex_attention

        _compiled = torch.compile(flex_attention, dynamic=True)
    return _compiled


_compiled: Any = None


class _TreeAttention(torch.autograd.Function):
    """softmax(q k' scale) v over each block's keys; K key heads serve G query heads each. Blocks for whose softmax there is room
    keep it for backward, which makes that of the others again."""

    @staticmethod
    def forward(
        ctx: Any, q_HTD: Tensor, k_KTD: Tensor, v_KTD: Tensor, blocks: tuple[Block, ...], scale: float, keep: int
    ) -> Tensor:
        heads, keys = q_HTD.shape[0], k_KTD.shape[0]
        room = keep if any(ctx.needs_input_grad) else 0
        kept: list[Tensor | None] = []
        q_KGTD = q_HTD.mul(scale).unflatten(0, (keys, heads // keys))
        out_TKGD = q_HTD.new_zeros(q_HTD.shape[1], keys, heads // keys, v_KTD.shape[-1])
        for block in blocks:
            p_KNM = _weights(_queries(q_KGTD, block), _gather(k_KTD, block), block)
            o_KND = p_KNM @ _gather(v_KTD, block)
            out_TKGD[block.start : block.stop] = o_KND.unflatten(1, (heads // keys, -1)).permute(2, 0, 1, 3)
            kept.append(p_KNM if p_KNM.nbytes <= room else None)
            room -= 0 if kept[-1] is None else p_KNM.nbytes
        ctx.save_for_backward(q_KGTD, k_KTD, v_KTD, *kept)  # through autograd, so that a checkpointed layer keeps nothing
        ctx.blocks, ctx.scale = blocks, scale
        return out_TKGD.flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q_KGTD, k_KTD, v_KTD, *kept = ctx.saved_tensors
        out_KGTD = gradients[0].unflatten(1, q_KGTD.shape[:2]).permute(1, 2, 0, 3)
        dq_KGTD = torch.zeros_like(q_KGTD)
        dk_KTD = torch.zeros_like(k_KTD, dtype=torch.float32)  # sums over many blocks: not in bfloat16
        dv_KTD = torch.zeros_like(v_KTD, dtype=torch.float32)
        for block, p_KNM in zip(ctx.blocks, kept, strict=True):
            q_KND, k_KMD, v_KMD = _queries(q_KGTD, block), _gather(k_KTD, block), _gather(v_KTD, block)
            do_KND = _queries(out_KGTD, block)
            p_KNM = _weights(q_KND, k_KMD, block) if p_KNM is None else p_KNM
            _scatter(dv_KTD, p_KNM.transpose(1, 2) @ do_KND, block)
            ds_KNM = torch._softmax_backward_data(do_KND @ v_KMD.transpose(1, 2), p_KNM, -1, p_KNM.dtype)
            dq_KND = ds_KNM @ k_KMD
            dq_KGTD[:, :, block.start : block.stop] = dq_KND.unflatten(1, (q_KGTD.shape[1], -1))
            _scatter(dk_KTD, ds_KNM.transpose(1, 2) @ q_KND, block)
        return dq_KGTD.flatten(0, 1).mul_(ctx.scale), dk_KTD.to(k_KTD.dtype), dv_KTD.to(v_KTD.dtype), None, None, None


def _queries(tensor_KGTD: Tensor, block: Block) -> Tensor:
    """A block's rows, all query heads of a key head one behind the other: [K, G N, D]."""
    return tensor_KGTD[:, :, block.start : block.stop].flatten(1, 2)


def _gather(tensor_KTD: Tensor, block: Block) -> Tensor:
    if len(block.ranges) == 1:
        return tensor_KTD[:, block.ranges[0][0] : block.ranges[0][1]]
    return torch.cat([tensor_KTD[:, start:stop] for start, stop in block.ranges], 1)


def _scatter(into_KTD: Tensor, values_KMD: Tensor, block: Block) -> None:
    """Add what `_gather` would have taken."""
    at = 0
    for start, stop in block.ranges:
        into_KTD[:, start:stop] += values_KMD[:, at : at + stop - start]
        at += stop - start


def _weights(q_KND: Tensor, k_KMD: Tensor, block: Block) -> Tensor:
    """[K, G N, M]; within the block itself a query sees no later key."""
    scores_KNM = q_KND @ k_KMD.transpose(1, 2)
    count = block.stop - block.start
    if count > 1:
        later = torch.full((count, count), float("-inf"), dtype=scores_KNM.dtype, device=scores_KNM.device).triu_(1)
        scores_KNM.unflatten(1, (-1, count))[..., -count:] += later
    return torch.softmax(scores_KNM, -1)
