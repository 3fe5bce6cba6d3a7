"""The CPU's blocks of queries: they mask like a trie, waste little, and equal a dense mask."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clawctl.trainers.local.attention import QUERIES, TAIL, WASTE, Block, Blocks, ancestors, attend_by_blocks, make_blocks, visible
from clawctl.trainers.local.trees import Branch, Trie, build_trie, make_branch
from tests.trainers.local.test_trees import branches

CPU = torch.device("cpu")
SIZES = st.sampled_from([1, 2, 5, QUERIES])


def asked_of(tree: Trie) -> np.ndarray:
    return np.unique(np.concatenate(tree.before_scored))


def tries_of_many_blocks(seed: int = 0) -> list[Branch]:
    """Two roots, forks of forks, branches shorter and longer than a block."""
    rng = np.random.default_rng(seed)
    stems = [rng.integers(0, 9, 5 * QUERIES // 2).tolist(), [9, *rng.integers(0, 9, QUERIES // 3).tolist()]]
    branches = []
    for _ in range(14):
        stem = stems[rng.integers(len(stems))]
        head = stem[: rng.integers(2, len(stem) + 1)]
        stems.append(head + rng.integers(0, 9, rng.choice([3, 20, 60, QUERIES + 30])).tolist())
        branches.append(make_branch(head, stems[-1][len(head) :], 1.0))
    return branches


def keys_of(block: Block) -> list[int]:
    return [key for start, stop in block.ranges for key in range(start, stop)]


def seen_by_blocks(blocks: Blocks, tokens: int) -> Tensor:
    """[Q, T]"""
    sees = torch.zeros(blocks[-1].stop, tokens, dtype=torch.bool)
    for block in blocks:
        keys = keys_of(block)
        shown = torch.ones(block.stop - block.start, len(keys), dtype=torch.bool)
        last = block.hidden_NL.shape[1]
        shown[:, len(keys) - last :] = block.hidden_NL == 0
        assert torch.equal(block.hidden_NL == 0, ~block.hidden_NL.isneginf())
        sees[block.start : block.stop, keys] = shown
    return sees


def check_relation(tree: Trie, most: int) -> None:
    count, queries_M = len(tree.ids_T), asked_of(tree)
    at = torch.arange(count)
    by_mask = ancestors(torch.from_numpy(tree.ends_T))(at, at, at[:, None], at[None, :])
    for blocks, expected in ((make_blocks(tree, None, most), by_mask), (make_blocks(tree, queries_M, most), by_mask[queries_M])):
        assert [block.start for block in blocks] == [0, *(block.stop for block in blocks[:-1])]
        assert all(0 < block.stop - block.start <= most for block in blocks)
        assert all(left[1] < right[0] for block in blocks for left, right in pairwise(block.ranges))
        assert torch.equal(seen_by_blocks(blocks, count), expected)
        assert expected.any(1).all()  # each query sees itself, so no softmax is over nothing


def check_waste(tree: Trie, most: int) -> None:
    """A query's last key is itself, so a stretch of queries in one run needs as many keys as its last query is deep."""
    for queries_M, blocks in (
        (np.arange(len(tree.ids_T)), make_blocks(tree, None, most)),
        (asked_of(tree), make_blocks(tree, asked_of(tree), most)),
    ):
        run_of = np.searchsorted([run.start for run in tree.runs], queries_M, side="right")
        for block in blocks:
            queries, runs = queries_M[block.start : block.stop], run_of[block.start : block.stop]
            parts = np.split(queries, np.flatnonzero((np.diff(queries) != 1) | (np.diff(runs) != 0)) + 1)
            apart = sum(len(part) * (int(tree.positions_T[part[-1]]) + 1) for part in parts)
            assert len(queries) * len(keys_of(block)) <= (WASTE if len(parts) > 1 else 1) * apart
            assert block.hidden_NL.shape[1] <= TAIL


@settings(deadline=None)
@given(branches(), SIZES)
def test_blocks_show_each_query_its_ancestors_and_itself(branches: list[Branch], most: int) -> None:
    check_relation(build_trie(branches), most)


@settings(deadline=None)
@given(branches(), SIZES)
def test_blocks_waste_no_more_than_they_may(branches: list[Branch], most: int) -> None:
    check_waste(build_trie(branches), most)


@pytest.mark.parametrize("seed", range(4))
def test_blocks_of_long_tries_equal_the_cuda_mask_and_waste_little(seed: int) -> None:
    tree = build_trie(tries_of_many_blocks(seed))
    assert len(tree.ids_T) > 4 * QUERIES
    check_relation(tree, QUERIES)
    check_waste(tree, QUERIES)


def test_neighbours_that_share_nearly_all_they_see_are_one_block_and_others_are_not() -> None:
    stem = list(range(100, 140))

    def last_blocks(fork: int) -> list[Block]:
        tree = build_trie([make_branch(stem, [1, 2, 3], 1.0), make_branch(stem[:fork], [4, 5], 1.0)])
        return [block for block in make_blocks(tree, None, 5) if block.start >= 40]

    near = last_blocks(39)  # apart 3 * 43 + 2 * 41 = 211 pairs, together 5 * 45 = 225
    assert [(block.start, block.stop, block.ranges) for block in near] == [(40, 45, ((0, 45),))]
    hides = [[int(key < 0) for key in query] for query in near[0].hidden_NL.tolist()]
    #        the stem's last, 1, 2, 3, 4, 5
    assert hides == [[0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1], [1, 1, 1, 1, 0, 1], [1, 1, 1, 1, 0, 0]]
    far = last_blocks(10)  # apart 3 * 43 + 2 * 12 = 153 pairs, together 5 * 45 = 225
    assert [(block.start, block.stop, block.ranges) for block in far] == [(40, 43, ((0, 43),)), (43, 45, ((0, 10), (43, 45)))]


def test_masks_stay_small_though_a_branch_joins_that_left_long_ago() -> None:
    stem = list(range(100, 100 + 2 * TAIL))
    branches = [make_branch(stem, [1] * QUERIES, 1.0), make_branch(stem[: TAIL // 2], [2], 1.0)]
    # The lone token would add little work to the last block, but a mask of 1.5 TAIL keys
    blocks = make_blocks(build_trie(branches))
    assert blocks[-1].stop - blocks[-1].start == 1
    assert sum(block.hidden_NL.nbytes for block in blocks[-2:]) <= 2 * QUERIES * QUERIES


def dense(q_HQD: Tensor, k_KTD: Tensor, v_KTD: Tensor, sees_QT: Tensor, scale: float) -> Tensor:
    repeats = len(q_HQD) // len(k_KTD)
    k_HTD, v_HTD = k_KTD.repeat_interleave(repeats, 0), v_KTD.repeat_interleave(repeats, 0)
    scores_HQT = (q_HQD @ k_HTD.transpose(1, 2) * scale).masked_fill(~sees_QT, float("-inf"))
    return (scores_HQT.softmax(-1) @ v_HTD).transpose(0, 1)


def check_numbers(tree: Trie, most: int) -> None:
    """Outputs and gradients, of all queries and of those asked; heads in groups of two."""
    queries_M = asked_of(tree)
    for selected in (None, queries_M):
        queries = len(tree.ids_T) if selected is None else len(selected)
        blocks = make_blocks(tree, selected, most)
        leaves = [torch.randn(heads, count, 8, requires_grad=True) for heads, count in
                  ((4, queries), (2, len(tree.ids_T)), (2, len(tree.ids_T)))]  # fmt: skip
        towards = torch.randn(queries, 4, 8)
        ours = attend_by_blocks(*leaves, blocks, 0.4, torch.float32)
        expected = dense(*leaves, seen_by_blocks(blocks, len(tree.ids_T)), 0.4)
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
        for actual, reference in zip(
            torch.autograd.grad(ours, leaves, towards), torch.autograd.grad(expected, leaves, towards), strict=True
        ):
            torch.testing.assert_close(actual, reference, atol=1e-5 * max(1.0, float(reference.detach().abs().max())), rtol=1e-4)


@settings(deadline=None)
@given(branches(), SIZES)
def test_blocks_compute_the_same_as_a_dense_mask(branches: list[Branch], most: int) -> None:
    check_numbers(build_trie(branches), most)


def test_blocks_of_long_tries_compute_the_same_as_a_dense_mask() -> None:
    torch.manual_seed(0)
    check_numbers(build_trie(tries_of_many_blocks()), QUERIES)


def test_hidden_tokens_do_not_change_a_query() -> None:
    torch.manual_seed(0)
    tree = build_trie(tries_of_many_blocks())
    blocks, count = make_blocks(tree), len(tree.ids_T)
    sees_QT = seen_by_blocks(blocks, count)
    q, k, v = (torch.randn(heads, count, 8) for heads in (4, 2, 2))
    query = count // 2
    other_k, other_v = (torch.where(sees_QT[query][None, :, None], x, 50 * torch.randn_like(x)) for x in (k, v))
    before, after = (attend_by_blocks(q, *kv, blocks, 0.4, torch.float32) for kv in ((k, v), (other_k, other_v)))
    assert torch.equal(before[query], after[query])
    assert not torch.equal(before, after)


def test_bfloat16_equals_float32_up_to_rounding() -> None:
    torch.manual_seed(0)
    tree = build_trie(tries_of_many_blocks())
    blocks = make_blocks(tree)
    leaves = [torch.randn(heads, len(tree.ids_T), 8, requires_grad=True) for heads in (4, 2, 2)]
    towards = torch.randn(len(tree.ids_T), 4, 8)
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        output = attend_by_blocks(*leaves, blocks, 0.4, dtype)
        assert output.dtype == dtype
        results.append([output.detach().float(), *torch.autograd.grad(output, leaves, towards.to(dtype))])
    for wide, narrow in zip(*results, strict=True):
        assert float((wide - narrow).norm() / wide.norm()) < 0.02


def test_attention_is_the_same_whether_its_weights_wait_for_the_backward_pass_or_are_made_again() -> None:
    torch.manual_seed(0)
    stem = np.random.default_rng(0).integers(0, 9, QUERIES + 40).tolist()
    tree = build_trie([make_branch(stem[:cut], [9] * 20, 1.0) for cut in (30, len(stem))])
    leaves = [torch.randn(heads, len(tree.ids_T), 16, requires_grad=True) for heads in (4, 2, 2)]
    blocks = visible(tree, CPU).blocks
    sizes = [4 * 4 * (block.stop - block.start) * len(keys_of(block)) for block in blocks]
    held: list[int] = []

    def hold(tensor: torch.Tensor) -> torch.Tensor:
        held.append(tensor.nbytes)
        return tensor

    results = []
    for keep in (0, max(sizes), sum(sizes)):
        held.clear()
        with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
            output = attend_by_blocks(*leaves, blocks, 0.25, torch.float32, keep)
        assert sum(held) - sum(leaf.nbytes for leaf in leaves) <= keep
        results.append((output, *torch.autograd.grad(output.square().sum(), leaves)))
    assert sum(held) == sum(leaf.nbytes for leaf in leaves) + sum(sizes)
    for other in results[1:]:
        for ours, expected in zip(other, results[0], strict=True):
            assert torch.equal(ours, expected)
