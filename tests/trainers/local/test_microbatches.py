"""Cutting, sharing and laying out microbatches."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clawctl.trainers.local.batches import cut, make_microbatch, share, share_out
from clawctl.trainers.local.model import why_not_rounding
from clawctl.trainers.local.trees import make_branch

CPU = torch.device("cpu")


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 120), st.integers(1, 4))
def test_each_sequence_is_in_one_group_within_the_budget_and_no_rank_is_idle(lengths: list[int], tokens: int, world: int) -> None:
    groups = cut(lengths, tokens, world)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[index] for index in group) <= tokens
    assert len(groups) >= min(world, len(lengths))
    dealt = [group for rank in range(world) for group in share(groups, rank, world)]
    assert sorted(dealt) == sorted(groups)


def test_padding_is_on_the_right_and_each_scored_token_has_the_position_of_its_predecessor() -> None:
    branches = [make_branch([5, 6], [8], 1.0), make_branch([7], [9, 10, 11], 0.5)]
    batch = make_microbatch(branches, "none", CPU)
    assert batch.ids_BT.tolist() == [[5, 6, 8, 0], [7, 9, 10, 11]]
    assert batch.before_N.tolist() == [1, 4, 5, 6]  # 6 in row 0; 7, 9 and 10 in row 1
    assert batch.targets_N.tolist() == [8, 9, 10, 11]
    assert batch.temperature_N.tolist() == [1.0, 0.5, 0.5, 0.5]
    assert (batch.lengths, batch.tokens) == ([1, 3], 7)


def test_a_whole_prefix_is_scored_on_the_row_of_its_continuation() -> None:
    branches = [make_branch([5], [6], 1.0), make_branch([5, 7], [8], 1.0), make_branch([5, 6, 7], [8, 9], 0.5)]
    batch = make_microbatch(branches, "prefix", CPU)
    assert batch.ids_BT.tolist() == [[5, 6, 7, 8, 9], [5, 7, 8, 0, 0]]
    assert batch.before_N.tolist() == [0, 6, 2, 3]
    assert batch.targets_N.tolist() == [6, 8, 8, 9]
    assert (batch.lengths, batch.tokens) == ([1, 1, 2], 8)
    assert share_out(branches, "prefix", 5).groups == [[2, 0], [1]]


def test_a_trie_lays_each_token_once_at_its_depth() -> None:
    branches = [make_branch([5], [6], 1.0), make_branch([5, 7], [8], 1.0), make_branch([5, 6, 7], [8, 9], 0.5)]
    batch = make_microbatch(branches, "tree", CPU)
    assert batch.ids_BT.tolist() == [[5, 6, 7, 8, 9, 7, 8]]
    assert batch.positions_BT is not None
    assert batch.positions_BT.tolist() == [[0, 1, 2, 3, 4, 1, 2]]
    assert batch.before_N.tolist() == [0, 5, 2, 3]
    assert batch.targets_N.tolist() == [6, 8, 8, 9]
    assert (batch.lengths, batch.tokens) == ([1, 1, 2], 7)


def test_the_noise_of_16_bits_is_not_taken_for_another_architecture() -> None:
    torch.manual_seed(0)
    separate = torch.randn(20, 8)

    def noisy(share: float) -> Tensor:
        noise = torch.randn(20, 8)
        return separate + noise * share * separate.norm() / noise.norm()

    assert why_not_rounding(noisy(0.04), separate, noisy(0.03)) is None  # as a single sequence, which needs no mask
    measured = why_not_rounding(noisy(0.04), separate, separate)
    assert measured is not None
    assert "a relative error of 0.0" in measured
    assert "limit 0.02; 0 with nothing merged" in measured
    assert why_not_rounding(separate.flip(0), separate, noisy(0.03)) is not None
