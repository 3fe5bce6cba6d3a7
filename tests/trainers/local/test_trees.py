"""Tries: each distinct token once, at its depth, among its ancestors."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clawctl.trainers.local.attention import FLEX_BLOCK, ancestors, attend_by_blocks, attend_by_mask, block_mask, filled, visible
from clawctl.trainers.local.trees import Branch, build_trie, make_branch, own_starts, pack

CPU = torch.device("cpu")


@st.composite
def branches(draw: st.DrawFn, most: int = 8) -> list[Branch]:
    """Sequences that share prefixes: each continues an earlier one from some position, over an alphabet of three."""
    made: list[list[int]] = []
    for _ in range(draw(st.integers(1, most))):
        stem = draw(st.sampled_from(made)) if made else []
        head = stem[: draw(st.integers(0, len(stem)))]
        made.append(head + draw(st.lists(st.integers(0, 2), min_size=0 if len(head) > 1 else 2, max_size=9)))
    return [Branch(np.array(ids), draw(st.integers(1, len(ids) - 1)), draw(st.sampled_from([0.5, 1.0]))) for ids in made]


def prefixes(branches: list[Branch]) -> set[tuple[int, ...]]:
    return {tuple(branch.ids[:stop].tolist()) for branch in branches for stop in range(1, len(branch.ids) + 1)}


@given(branches())
def test_each_distinct_prefix_is_stored_once_and_attends_to_exactly_its_own_prefixes(branches: list[Branch]) -> None:
    tree = build_trie(branches)
    k, q = np.arange(len(tree.ids_T))[None, :], np.arange(len(tree.ids_T))[:, None]
    sees_QK = (k <= q) & (q < tree.ends_T[None, :])
    laid = [tuple(tree.ids_T[row].tolist()) for row in sees_QK]  # the ids that each token sees, from the root down
    assert len(set(laid)) == len(laid)
    assert set(laid) == prefixes(branches)
    assert tree.positions_T.tolist() == [len(seen) - 1 for seen in laid]
    for branch, positions in zip(branches, tree.before_scored, strict=True):
        assert [laid[at] for at in positions] == [
            tuple(branch.ids[:stop].tolist()) for stop in range(branch.scored, len(branch.ids))
        ]


@given(branches())
def test_runs_tile_the_layout_and_name_the_ranges_above_them(branches: list[Branch]) -> None:
    tree = build_trie(branches)
    assert [run.start for run in tree.runs] == [0, *(run.stop for run in tree.runs[:-1])]
    assert tree.runs[-1].stop == len(tree.ids_T)
    for run in tree.runs:
        above = [at for start, stop in run.context for at in range(start, stop)]
        assert above == [at for at in range(run.start) if run.start < tree.ends_T[at]]


@given(branches(), st.integers(1, 40), st.integers(1, 3))
def test_packed_groups_contain_each_branch_once_within_the_budget_and_cuts_report_their_cost(
    branches: list[Branch], tokens: int, parts: int
) -> None:
    packing = pack(branches, tokens, parts)
    assert sorted(index for group in packing.groups for index in group) == list(range(len(branches)))
    sizes = [len(prefixes([branches[index] for index in group])) for group in packing.groups]
    assert all(size <= tokens or len(group) == 1 for size, group in zip(sizes, packing.groups, strict=True))
    assert sum(sizes) == len(prefixes(branches)) + packing.recomputed
    assert (packing.cuts == 0) == (packing.recomputed == 0)


def test_a_trie_that_is_too_long_is_cut_between_turns_and_others_fill_the_room() -> None:
    session = [make_branch([1] * 10, [2] * 5, 1.0), make_branch([1] * 10 + [3] * 5, [4] * 5, 1.0), make_branch([9], [8, 8], 1.0)]
    assert pack(session, 28).groups == [[0, 1, 2]]  # 10 + 5 + 10, and 3
    assert pack(session, 27).groups == [[0, 1], [2]]
    cut = pack(session, 23)  # 20, and 15 + 3
    assert (cut.groups, cut.cuts, cut.recomputed) == ([[1, 2], [0]], 1, 10)


def test_ranks_are_not_idle_while_there_are_turns() -> None:
    session = [make_branch([1] * 10 + [2] * turn, [3] * 5, 1.0) for turn in range(4)]
    assert len(pack(session, 8192, 1).groups) == 1
    assert len(pack(session, 8192, 2).groups) >= 2


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_with_the_cuda_mask_equals_the_blocks() -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    stem = rng.integers(0, 9, 400).tolist()
    tree = build_trie([make_branch(stem[:cut], rng.integers(0, 9, 150).tolist(), 1.0) for cut in (3, 130, 256, 400)])
    seen, count = visible(tree, CPU), len(tree.ids_T)
    query, key, value = (torch.randn(1, heads, count, 16) for heads in (4, 2, 2))
    ends_T = torch.cat([seen.ends_T, torch.arange(count, filled(tree, torch.device("meta"))) + 1])
    mask = block_mask(ends_T)
    reference = create_block_mask(ancestors(seen.ends_T), None, None, count, count, device="cpu")
    assert torch.equal(mask.to_dense(), reference.to_dense())
    assert torch.equal(mask.full_kv_num_blocks, reference.full_kv_num_blocks)
    operands = (torch.nn.functional.pad(tensor, (0, 0, 0, -count % FLEX_BLOCK)) for tensor in (query, key, value))
    by_flex = attend_by_mask(*operands, mask, 0.25, eager=True)[:, :, :count]
    torch.testing.assert_close(
        attend_by_blocks(query[0], key[0], value[0], seen.blocks, 0.25, torch.float32), by_flex[0].transpose(0, 1)
    )


def test_a_branch_scores_at_least_one_token_that_has_one_before_it() -> None:
    for scored in (0, 3):
        with pytest.raises(ValueError, match="cannot be scored"):
            Branch(np.array([1, 2, 3]), scored, 1.0)


def shared(mine: list[int], its: list[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(mine, its, strict=False)))


@given(branches(), st.sampled_from([0, 1, 2, 256]))
def test_a_branch_owns_the_tokens_that_only_it_and_its_continuations_have(some: list[Branch], reach: int) -> None:
    ids = [branch.ids.tolist() for branch in some]
    for branch, mine, start in zip(some, ids, own_starts(some, reach), strict=True):
        others = [its for its in ids if its[: len(mine)] != mine]
        expected = max((shared(mine, its) for its in others), default=0)
        goes_on = any(mine[: len(its)] == its for its in ids if its != mine)
        is_gone_on_from = any(its[: len(mine)] == mine for its in ids if its != mine)
        equals = [other.scored for other, its in zip(some, ids, strict=True) if its == mine]
        if is_gone_on_from and not goes_on and len(equals) == 1:
            expected = max(expected, branch.scored - reach)
        assert start == expected or len(equals) > 1


@given(branches())
def test_own_tokens_are_at_the_positions_of_the_layout(some: list[Branch]) -> None:
    owned = [replace(branch, own_start=start) for branch, start in zip(some, own_starts(some), strict=True)]
    tree = build_trie(owned)
    for branch, places in zip(owned, tree.own_positions, strict=True):
        assert tree.ids_T[places].tolist() == branch.ids[branch.own_start :].tolist()
        assert tree.positions_T[places].tolist() == list(range(branch.own_start, len(branch.ids)))
