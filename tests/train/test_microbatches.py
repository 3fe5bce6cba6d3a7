"""Cutting, sharing and padding."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from clawctl.train.batches import cut, pad, share


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 120), st.integers(1, 4))
def test_each_sequence_is_in_one_group_within_the_budget_and_no_rank_is_idle(lengths: list[int], tokens: int, world: int) -> None:
    groups = cut(lengths, tokens, world)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[index] for index in group) <= tokens
    assert len(groups) >= min(world, len(lengths))
    dealt = [group for rank in range(world) for group in share(groups, rank, world)]
    assert sorted(dealt) == sorted(groups)


def test_padding_stands_behind_and_only_completions_are_marked() -> None:
    batch = pad([[5, 6], [7]], [[8], [9, 10, 11]], [1.0, 0.5], torch.device("cpu"))
    assert batch.ids_BT.tolist() == [[5, 6, 8, 0], [7, 9, 10, 11]]
    assert batch.where_BT.tolist() == [[False, False, True, False], [False, True, True, True]]
    assert batch.lengths == [1, 3]
