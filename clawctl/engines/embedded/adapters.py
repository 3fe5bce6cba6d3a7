"""LoRA adapters (https://arxiv.org/abs/2106.09685, §4.1) of a matrix: W x + B A x, for rows of one adapter or of several.

Adapters that are loaded at the same time lie in slots side by side, so one product adds those of all rows. A decoding step of 64
people then takes 395 ms of a core in place of 486 ms (SmolLM2, rank 16; 247 ms with one adapter). Most of the rest is reading them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import gcd
from typing import Any, NamedTuple, Protocol
from weakref import finalize

import torch
from torch import Tensor
from torch.nn.functional import linear

_FEW = 4  # rows of a run; a longer one, such as a prompt, has products of its own
_WASTED = 2  # so many times the rows, at most, are multiplied because slots lie between others


class Linear(Protocol):
    def __call__(self, rows_TI: Tensor, /) -> Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class Adapted:
    """A matrix with an adapter. The parts P of a fused matrix have an A each, and blocks B of equal width share the rows of its
    output, of which block i belongs to part `parts[i]`."""

    matrix: Linear
    a_PRI: Tensor
    b_BRO: Tensor  # includes the scaling
    parts: Sequence[int]
    parts_B: Tensor  # the same, on the device
    slot: int | None = None  # None: it lies alone

    def __call__(self, rows_TI: Tensor) -> Tensor:
        return self.add(rows_TI, self.matrix(rows_TI))

    def add(self, rows_TI: Tensor, out_TO: Tensor) -> Tensor:
        narrow_TX, (rank, width) = linear(rows_TI.to(self.a_PRI.dtype), self.a_PRI.flatten(0, 1)), self.b_BRO.shape[1:]
        for block, part in enumerate(self.parts):
            outputs_TO = out_TO[:, block * width : (block + 1) * width]
            outputs_TO.addmm_(narrow_TX[:, part * rank : (part + 1) * rank], self.b_BRO[block])
        return out_TO


class Slots:
    """Room for the matrices of adapters that are loaded at the same time. An adapter of another rank than the first lies alone."""

    def __init__(self, count: int) -> None:
        self._free, self._count = list(range(count)), count
        self.stacks: dict[Any, tuple[Tensor, Tensor]] = {}  # A and B of all slots by the place of the matrix

    def take(self, holder: object) -> int | None:
        """A slot until `holder` is gone; None if there is none."""
        if not self._free:
            return None
        slot = heappop(self._free)  # the lowest, so that those in use lie together
        finalize(holder, heappush, self._free, slot)
        return slot

    def adapted(self, place: Any, slot: int | None, matrix: Linear, parts: "Parts") -> Adapted:
        if slot is None:
            return Adapted(matrix, *parts)
        if place not in self.stacks:  # the system provides memory when it is written to
            a, b = (part.new_empty(self._count, *part.shape) for part in parts[:2])
            self.stacks[place] = a, b
        stacked = self.stacks[place]
        if stacked[0].shape[1:] != parts.a_PRI.shape or stacked[1].shape[1:] != parts.b_BRO.shape:
            return Adapted(matrix, *parts)
        return Adapted(
            matrix, stacked[0][slot].copy_(parts.a_PRI), stacked[1][slot].copy_(parts.b_BRO), parts.parts, parts.parts_B, slot
        )


class Parts(NamedTuple):
    a_PRI: Tensor
    b_BRO: Tensor
    parts: Sequence[int]
    parts_B: Tensor


def joined(pairs: Sequence[tuple[Tensor, Tensor] | None], widths: Sequence[int], like: Tensor) -> Parts:
    """The adapter of a fused matrix from A [R, I] and B [O, R] of its parts, which have `widths` outputs. A part without one, or
    with a smaller rank than others, gets zeros. `like`: its dtype and device."""
    given = [pair for pair in pairs if pair is not None]
    rank, block = max(len(a_RI) for a_RI, _ in given), gcd(*widths)
    a_PRI = like.new_zeros(len(pairs), rank, given[0][0].shape[1])
    b_BRO = like.new_zeros(sum(widths) // block, rank, block)
    blocks = [part for part, width in enumerate(widths) for _ in range(width // block)]
    for part, pair in enumerate(pairs):
        if pair is not None:
            a_PRI[part, : len(pair[0])] = pair[0]
            first, count = blocks.index(part), widths[part] // block
            b_BRO[first : first + count, : len(pair[0])] = pair[1].unflatten(0, (count, block)).transpose(1, 2)
    return Parts(a_PRI, b_BRO, blocks, torch.tensor(blocks, device=like.device))


class Lot(NamedTuple):
    """Rows of adapters in neighbouring slots S, with as many places M for each as the busiest needs: X = S * M places."""

    slots: slice
    rows_X: Tensor
    filled_N: Tensor | None  # the places with a row; None: all
    rows_N: Tensor  # the rows in these places


def lot_of(runs: Sequence[tuple[int, int, Adapted]], device: torch.device) -> Lot | None:
    """The rows of all runs; None if too many places would be empty. `runs`: first row, the row after the last, and the adapter."""
    rows: dict[int, list[int]] = {}
    for start, stop, adapted in runs:
        assert adapted.slot is not None
        rows.setdefault(adapted.slot, []).extend(range(start, stop))
    if len(rows) < 2:
        return None
    slots, places = slice(min(rows), max(rows) + 1), max(map(len, rows.values()))
    empty = [-1] * places
    rows_X = torch.tensor([row for slot in range(slots.start, slots.stop) for row in [*rows.get(slot, ()), *empty][:places]])
    filled_N = (rows_X >= 0).nonzero().squeeze(1)
    if len(rows_X) > _WASTED * len(filled_N):
        return None
    rows_N = rows_X[filled_N].to(device)
    return Lot(slots, rows_X.clamp(min=0).to(device), None if len(rows_X) == len(filled_N) else filled_N.to(device), rows_N)


@dataclass(frozen=True, slots=True, eq=False)
class AdaptedRows:
    """A matrix whose rows T belong to several adapters. `runs`: first row, the row after the last, and the adapter."""

    matrix: Linear
    runs: Sequence[tuple[int, int, Adapted]]

    def __call__(self, rows_TI: Tensor) -> Tensor:
        out_TO = self.matrix(rows_TI)
        for start, stop, adapted in self.runs:
            adapted.add(rows_TI[start:stop], out_TO[start:stop])
        return out_TO


@dataclass(frozen=True, slots=True, eq=False)
class AdaptedLot:
    """A matrix whose rows in a lot belong to adapters in neighbouring slots."""

    matrix: Linear
    lot: Lot
    a_SPRI: Tensor
    b_SBRO: Tensor
    parts_B: Tensor

    def __call__(self, rows_TI: Tensor) -> Tensor:
        out_TO, lot, a_SPRI, b_SBRO = self.matrix(rows_TI), self.lot, self.a_SPRI, self.b_SBRO
        rows_SMI = rows_TI.index_select(0, lot.rows_X).unflatten(0, (len(a_SPRI), -1)).to(a_SPRI.dtype)
        narrow_XPR = torch.bmm(rows_SMI, a_SPRI.flatten(1, 2).transpose(1, 2)).flatten(0, 1).unflatten(1, a_SPRI.shape[1:3])
        if len(self.parts_B) > 1:
            narrow_XPR = narrow_XPR.index_select(1, self.parts_B)
        narrow_SBMR = narrow_XPR.unflatten(0, rows_SMI.shape[:2]).transpose(1, 2)
        added_ZMO = torch.bmm(narrow_SBMR.flatten(0, 1), b_SBRO.flatten(0, 1))
        added_XO = added_ZMO.unflatten(0, b_SBRO.shape[:2]).transpose(1, 2).flatten(2).flatten(0, 1)
        return out_TO.index_add_(0, lot.rows_N, added_XO if lot.filled_N is None else added_XO[lot.filled_N])


def mixed(
    matrix: Linear, runs: Sequence[tuple[int, int, Adapted]], stack: tuple[Tensor, Tensor] | None, lots: dict[Any, Lot | None]
) -> Linear:
    """The matrix for rows of several adapters. `stack`: A and B of all slots. `lots` keeps the lots of a step, by their rows."""
    few = [run for run in runs if run[2].slot is not None and run[1] - run[0] <= _FEW]
    key = tuple((start, stop, adapted.slot) for start, stop, adapted in few)
    if stack is None or not few:
        return AdaptedRows(matrix, runs)
    if key not in lots:
        lots[key] = lot_of(few, stack[0].device)
    if (lot := lots[key]) is None:
        return AdaptedRows(matrix, runs)
    together = AdaptedLot(matrix, lot, stack[0][lot.slots], stack[1][lot.slots], few[0][2].parts_B)
    longer = [run for run in runs if run[2].slot is None or run[1] - run[0] > _FEW]
    return AdaptedRows(together, longer) if longer else together
