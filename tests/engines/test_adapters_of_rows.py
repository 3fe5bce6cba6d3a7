"""Products of a matrix and the adapters of its rows, compared with W x + B A x in float64."""

import gc
from typing import Any

import pytest
import torch
from torch import Tensor

from clawctl.engines.embedded.adapters import Adapted, AdaptedLot, AdaptedRows, Slots, joined, mixed

INNER, WIDTHS, RANK = 24, (12, 4, 4), 3


class Holder:
    """What keeps a slot."""


class Fused:
    """A matrix of three parts, and adapters of which each has A and B for some of them."""

    def __init__(self, slots: int) -> None:
        torch.manual_seed(0)
        self.slots, self.weight_OI = Slots(slots), torch.randn(sum(WIDTHS), INNER)
        self.rows_TI = torch.randn(40, INNER)
        self.dense: list[Tensor] = []
        self.adapted: list[Adapted] = []

    def multiply(self, rows_TI: Tensor) -> Tensor:
        return rows_TI @ self.weight_OI.t()

    def add(self, rank: int = RANK, parts: tuple[int, ...] = (0, 1, 2), slot: int | None = None) -> None:
        pairs: list[Any] = [(torch.randn(rank, INNER), torch.randn(width, rank)) for width in WIDTHS]
        pairs = [pair if number in parts else None for number, pair in enumerate(pairs)]
        blocks = [torch.zeros(width, INNER) if p is None else p[1] @ p[0] for p, width in zip(pairs, WIDTHS, strict=True)]
        self.dense.append(torch.cat(blocks))
        self.adapted.append(self.slots.adapted("qkv", slot, self.multiply, joined(pairs, WIDTHS, torch.empty(0))))

    def mixed(self, rows: list[int | None]) -> tuple[Any, Tensor]:
        """The matrix for rows of these adapters, and what it should give; None: rows of the base model."""
        runs = [(t, t + 1, self.adapted[number]) for t, number in enumerate(rows) if number is not None]
        merged = list[tuple[int, int, Adapted]]()
        for start, stop, adapted in runs:
            if merged and merged[-1][1] == start and merged[-1][2] is adapted:
                merged[-1] = merged[-1][0], stop, adapted
            else:
                merged.append((start, stop, adapted))
        zero = torch.zeros_like(self.weight_OI)
        weights = [self.weight_OI + (zero if number is None else self.dense[number]) for number in rows]
        expected = torch.stack([weight.double() @ row.double() for weight, row in zip(weights, self.rows_TI, strict=False)])
        return mixed(self.multiply, merged, self.slots.stacks.get("qkv"), {}), expected


@pytest.fixture
def people() -> Fused:
    """Five adapters with slots, one of another rank, and one without a slot."""
    fused = Fused(6)
    for slot, parts in enumerate(((0, 1, 2), (0,), (1, 2), (0, 1, 2), (2,))):
        fused.add(parts=parts, slot=slot)
    fused.add(rank=RANK + 2, slot=5)
    fused.add()
    return fused


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([0, 1, 2, 3, 4], AdaptedLot),
        ([4, 2, 0, 3, 1], AdaptedLot),
        ([3, None, 1, 0, None, 2, 0, 1, 3], AdaptedLot),
        ([0, 0, 1, 1, 2, 2], AdaptedLot),
        ([0, 1, 5, 6, 2], AdaptedRows),  # two lie alone
        ([0, 1, 2, *[3] * 20, 4], AdaptedRows),  # one has a prompt
        ([0, *[None] * 3, 4], AdaptedRows),  # three of five slots between them would be multiplied for nothing
        ([3, 3], AdaptedRows),
    ],
)
def test_each_row_gets_its_own_adapter(people: Fused, rows: list[int | None], kind: type) -> None:
    matrix, expected = people.mixed(rows)
    assert type(matrix) is kind
    torch.testing.assert_close(matrix(people.rows_TI[: len(rows)]).double(), expected, atol=1e-4, rtol=1e-4)


def test_rows_of_one_adapter_have_its_product(people: Fused) -> None:
    for adapted, dense in zip(people.adapted, people.dense, strict=True):
        expected = people.rows_TI.double() @ (people.weight_OI + dense).double().t()
        torch.testing.assert_close(adapted(people.rows_TI).double(), expected, atol=1e-4, rtol=1e-4)
    assert [adapted.slot for adapted in people.adapted] == [0, 1, 2, 3, 4, None, None]


def test_a_slot_is_free_when_its_holder_is_gone() -> None:
    slots, holders = Slots(2), [Holder(), Holder(), Holder()]
    assert [slots.take(holder) for holder in holders] == [0, 1, None]
    del holders[0]
    gc.collect()
    assert slots.take(holders[1]) == 0
