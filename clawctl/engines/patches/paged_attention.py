"""Attention over the paged cache on a CPU: each request attends to its own pages only.

Transformers' own CPU path (sdpa) puts all running requests in one row and masks the others. Every query is multiplied by every
request's keys, and the mask for 2048 query tokens over a cache of 131072 takes a gigabyte. Here single-token queries are computed
together, padded to whole pages, and longer ones (prompts) one by one. Results are equal up to rounding.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.functional import scaled_dot_product_attention

NAME = "clawctl_paged_cpu"
_WASTE = 1.5  # requests are computed together as long as the longest has at most this many times the pages of the others
_MASK_ELEMENTS = 1 << 24  # a prompt's queries are split so that no mask has more elements


@dataclass(slots=True)
class _Decodes:
    """Requests with one query token each, padded to the same number of pages."""

    rows_B: torch.Tensor  # positions of their queries in the packed sequence
    pages: torch.Tensor  # [B * P]
    mask: torch.Tensor  # [B, 1, 1, P * page], 0 or -inf


@dataclass(slots=True)
class _Prompt:
    """One request with several query tokens, after `past` tokens in the cache."""

    start: int
    stop: int
    past: int
    pages: torch.Tensor | None  # None: the cache is empty, and the keys are those of this pass


@dataclass(slots=True)
class _Plan:
    """Data that all layers of one engine step share."""

    decodes: list[_Decodes]
    prompts: list[_Prompt]


_plans: WeakKeyDictionary[Any, _Plan] = WeakKeyDictionary()  # one per cache, created by the first layer of each step


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, H, T, D], the query tokens of all requests in sequence
    key: torch.Tensor,  # [1, G, T, D]
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    cache: Any = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls in each layer. Without a paged `cache`: plain causal attention."""
    if cache is None:
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        return mixed.transpose(1, 2).contiguous(), None
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    allocator = cache.layer_to_allocator[layer]
    if layer == 0:
        _plans[cache] = _make_plan(kwargs, allocator, query)
    nothing = {**kwargs, "read_index": [index[:0] for index in kwargs["read_index"]]}
    cache.update(key, value, layer, nothing)  # this writes to the cache; without read indices it gathers nothing
    plan = _plans[cache]
    keys, values = allocator.get_cache_for_block_table(layer)  # [pages, page, G, D], views
    mixed_THD = query.new_empty(query.shape[2], query.shape[1], query.shape[3])
    for decodes in plan.decodes:
        mixed_THD[decodes.rows_B] = _decode(decodes, query, keys, values, scaling)
    for prompt in plan.prompts:
        mixed_THD[prompt.start : prompt.stop] = _prompt(prompt, (query, key, value), (keys, values), scaling)
    return mixed_THD.unsqueeze(0), None


def _decode(group: _Decodes, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None) -> torch.Tensor:
    batch, heads, width = len(group.rows_B), query.shape[1], query.shape[3]
    k = keys.index_select(0, group.pages).view(batch, -1, keys.shape[2], width).transpose(1, 2)  # [B, G, K, D]
    v = values.index_select(0, group.pages).view(batch, -1, keys.shape[2], width).transpose(1, 2)
    # Heads that share a key head are passed as that head's queries, so nothing has to be repeated.
    q = query[0].index_select(1, group.rows_B).transpose(0, 1).reshape(batch, keys.shape[2], -1, width)
    mixed = scaled_dot_product_attention(q, k, v, attn_mask=group.mask, scale=scaling)
    return mixed.reshape(batch, heads, width)


def _prompt(
    prompt: _Prompt, new: tuple[torch.Tensor, ...], cached: tuple[torch.Tensor, torch.Tensor], scaling: float | None
) -> torch.Tensor:
    """The attention of a prompt's tokens, [T, H, D]. `new`: their queries, keys and values; `cached`: the pages of all keys and
    values."""
    query, key, value = (part[:, :, prompt.start : prompt.stop] for part in new)
    if prompt.pages is None:
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        return mixed[0].transpose(0, 1)
    count = prompt.stop - prompt.start
    length = prompt.past + count
    k, v = (pages.index_select(0, prompt.pages).flatten(0, 1)[:length].transpose(0, 1).unsqueeze(0) for pages in cached)
    step, pieces = max(1, _MASK_ELEMENTS // length), list[torch.Tensor]()
    for start in range(0, count, step):
        stop = min(start + step, count)
        seen = torch.arange(length) <= torch.arange(start, stop).unsqueeze(1) + prompt.past
        mixed = scaled_dot_product_attention(query[:, :, start:stop], k, v, attn_mask=seen, scale=scaling, enable_gqa=True)
        pieces.append(mixed[0].transpose(0, 1))
    return torch.cat(pieces)


def _make_plan(kwargs: dict[str, Any], allocator: Any, query: torch.Tensor) -> _Plan:
    starts = kwargs["cu_seq_lens_q"].tolist()
    key_starts = kwargs["cu_seq_lens_k"][allocator.layer_type].tolist()
    read_index = kwargs["read_index"][allocator.index]
    page = allocator.tokens_per_page
    plan = _Plan([], [])
    singles: list[tuple[int, int, torch.Tensor]] = []  # (keys, row, pages)
    for i, (start, stop) in enumerate(pairwise(starts)):
        length = key_starts[i + 1] - key_starts[i]
        if not read_index.numel():
            plan.prompts.append(_Prompt(start, stop, 0, None))
            continue
        pages = read_index[key_starts[i] : key_starts[i + 1] : page] // page
        if stop - start == 1:
            singles.append((length, start, pages))
        else:
            past = length - (stop - start)
            plan.prompts.append(_Prompt(start, stop, past, pages if past else None))
    singles.sort(key=lambda single: single[0])
    while singles:
        widest = len(singles[-1][2])
        group = [single for single in singles if len(single[2]) * _WASTE >= widest]
        del singles[-len(group) :]
        plan.decodes.append(_pad(group, widest, page, query.dtype))
    return plan


def _pad(group: list[tuple[int, int, torch.Tensor]], widest: int, page: int, dtype: torch.dtype) -> _Decodes:
    pages = torch.zeros(len(group), widest, dtype=torch.int64)  # no request owns page 0; the mask hides it
    for i, (_, _, row_pages) in enumerate(group):
        pages[i, : len(row_pages)] = row_pages
    lengths_B = torch.tensor([length for length, _, _ in group])
    hidden = torch.arange(widest * page) >= lengths_B.unsqueeze(1)
    mask = torch.zeros(len(group), 1, 1, widest * page, dtype=dtype).masked_fill_(hidden[:, None, None], float("-inf"))
    return _Decodes(torch.tensor([row for _, row, _ in group]), pages.flatten(), mask)
