"""Running requests, the blocks that their keys and values lie in, and the attention of a step over these blocks."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from clawctl.engines.embedded.frames import Sampling
from clawctl.engines.embedded.llama import Llama, attention

Fresh = tuple[int, float, int]  # a token, its logprob, and the version whose weights computed it


@dataclass(slots=True, eq=False)
class Served:
    """Weights that requests are sampled with. A change of the weights is an assignment."""

    model: Llama
    version: int


@dataclass(slots=True, eq=False)
class Request:
    """One request. `take` is called on the event loop with its new tokens, whether it has ended, and the error that ended it."""

    name: str
    ids: list[int]  # prompt and answer
    limit: int  # the answer ends at this length of both
    sampling: Sampling
    take: Callable[[list[Fresh], bool, str | None], None]
    served: Served | None = None
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    cached: int = 0  # number of ids whose keys are in `block`
    block: "KvBlock | None" = None
    row: int = 0
    mixed: bool = False  # its keys are of several versions
    cancelled: bool = False


class KvBlock:
    """Keys and values of running requests. Request i has row i."""

    def __init__(self, model: Llama, rows: int, capacity: int) -> None:
        self.rows, self.capacity, self.requests = rows, capacity, list[Request]()
        shape = rows, 2, model.groups, capacity, model.width
        # Zeros, because what is hidden by a mask must still be a number. The system provides memory when it is written to.
        like = torch.zeros(0, dtype=model.computed, device=model.device)
        self.kv = [like.new_zeros(shape) for _ in range(model.layer_count)]  # per layer [B, 2, G, K, D]

    def append(self, request: Request, kv: list[Tensor]) -> None:
        """Add a request with the keys and values of its first N ids: [2, G, N, D] for each layer."""
        request.block, request.row = self, len(self.requests)
        self.requests.append(request)
        for ours, theirs in zip(self.kv, kv, strict=True):
            ours[request.row, :, :, : theirs.shape[2]] = theirs

    def remove(self, request: Request, filler: Request) -> None:
        """Remove a request, and put `filler`, the last request of a block of the same capacity, in its row."""
        assert filler.block is not None
        filler.block.requests.pop()
        if filler is not request:
            for ours, theirs in zip(self.kv, filler.block.kv, strict=True):
                ours[request.row, :, :, : filler.cached] = theirs[filler.row, :, :, : filler.cached]
            filler.block, filler.row = self, request.row
            self.requests[request.row] = filler

    def kv_of(self, request: Request, count: int) -> list[Tensor]:
        return [kv[request.row, :, :, :count] for kv in self.kv]


@dataclass(slots=True)
class Part:
    """The rows of a step that belong to one block: one token for each of its requests, or several of its only one."""

    block: KvBlock
    start: int
    stop: int
    longest: int  # keys after this step
    mask: Tensor | None
    written: tuple[Tensor, Tensor] | None  # rows and positions of the new keys; None: one request, after `past` keys
    past: int = 0


def is_prompt(block: KvBlock) -> bool:
    """Whether the block's only request has more than one id to compute."""
    return len(block.requests) == 1 and len(block.requests[0].ids) - block.requests[0].cached > 1


def prompt_part(model: Llama, block: KvBlock, start: int, stop: int) -> Part:
    past, count = block.requests[0].cached, stop - start
    mask = torch.ones(count, past + count, dtype=torch.bool, device=model.device).tril(past) if past else None
    return Part(block, start, stop, past + count, mask, None, past)


def decode_part(model: Llama, block: KvBlock, start: int) -> Part:
    positions_B = torch.tensor([request.cached for request in block.requests])
    longest = int(positions_B.max()) + 1
    mask = None
    if int(positions_B.min()) + 1 < longest:
        hidden_BK = torch.arange(longest) > positions_B.unsqueeze(1)
        # Rows of a multiple of 8 numbers: kernels of GPUs copy others into such rows, in each layer.
        wide_BK = torch.zeros(len(positions_B), -(-longest // 8) * 8, dtype=model.computed, device=model.device)
        mask_BK = wide_BK[:, :longest].masked_fill_(hidden_BK.to(model.device), float("-inf"))
        mask = mask_BK[:, None, None].expand(-1, -1, model.heads // model.groups, -1)
    written = torch.stack([torch.arange(len(positions_B)), positions_B]).to(model.device)
    return Part(block, start, start + len(positions_B), longest, mask, (written[0], written[1]))


def attend(model: Llama, parts: list[Part]) -> Callable[[int, Tensor], Tensor]:
    """The attention of a step, see `Llama.forward`. It writes the new keys and values to the blocks first."""

    def mix(layer: int, qkv_THD: Tensor) -> Tensor:
        mixed = [_mixed(model, part, part.block.kv[layer], qkv_THD[part.start : part.stop]) for part in parts]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    return mix


def _mixed(model: Llama, part: Part, kv_B2GKD: Tensor, qkv_THD: Tensor) -> Tensor:
    queries, new_T2GD = qkv_THD[:, : model.heads], qkv_THD[:, model.heads :].unflatten(1, (2, -1))
    if part.written is None:
        kv_B2GKD[0, :, :, part.past : part.longest] = new_T2GD.permute(1, 2, 0, 3)
        k, v = kv_B2GKD[0, :, :, : part.longest]
        return attention(queries.transpose(0, 1), k, v, causal=part.mask is None, mask_TK=part.mask)
    rows_B, positions_B = part.written
    kv_B2GKD[rows_B, :, :, positions_B] = new_T2GD
    k, v = kv_B2GKD[: len(rows_B), :, :, : part.longest].unbind(1)
    # Heads that share a key head are that head's queries, so nothing is repeated.
    mixed = scaled_dot_product_attention(queries.unflatten(1, (model.groups, -1)), k, v, attn_mask=part.mask)
    return mixed.flatten(1)
