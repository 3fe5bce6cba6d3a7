"""Merges sequences into tries: each distinct token, given its complete prefix, is stored and computed once.

An agent resends its history every turn, so the sequences of a session are mostly prefixes of one another. Sorted by their ids,
sequences with a shared prefix are neighbours, and a trie only adds the part that a sequence does not share with the previous one.
Packing is therefore a scan, and building uses a stack; only numpy works per token.

Tokens are stored in depth-first order, so the descendants of token k are those from k up to its `end`. Token q sees token k exactly
if k <= q < end[k]: q sees its ancestors and itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from clawctl.run.allowed_tokens import Allowed

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Branch:
    """A sequence with scored tokens: those of a turn's completion, after its prompt or the teacher's prompt."""

    ids: Ints  # [L]
    scored: int  # index of the first scored token, at least 1; all tokens from there on are scored
    temperature: float
    allowed: Allowed | None = None  # the tokens that could be drawn at the position of each scored token; None: any
    own_start: int = 0  # index of the first token that only this branch and its continuations have: see `own_starts`

    def __post_init__(self) -> None:
        if self.allowed is not None and len(self.allowed.which) != len(self.ids) - self.scored:
            raise ValueError(f"{len(self.allowed.which)} sets of tokens for {len(self.ids) - self.scored} scored tokens")
        if not 1 <= self.scored < len(self.ids):
            raise ValueError(f"tokens {self.scored} to {len(self.ids)} cannot be scored: each needs one before it")


def make_branch(
    prompt: list[int], completion: list[int], temperature: float, allowed: Allowed | None = None, own_start: int = 0
) -> Branch:
    return Branch(np.array(prompt + completion, dtype=np.int64), len(prompt), temperature, allowed, own_start)


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens start..stop of a layout, each the child of the previous one: a path down the trie, always into the largest child."""

    start: int
    stop: int
    context: tuple[tuple[int, int], ...]  # the ranges of its ancestors' tokens, from the root down


@dataclass(frozen=True, slots=True)
class Trie:
    """The tries of one microbatch, side by side: T tokens."""

    ids_T: Ints
    positions_T: Ints  # depth of each token
    ends_T: Ints  # one past the last descendant of each token
    runs: tuple[Run, ...]  # cover 0..T without gaps
    before_scored: list[Ints]  # for each branch, the positions of the tokens before its scored ones
    own_positions: list[Ints]  # for each branch, the positions of its own tokens


@dataclass(frozen=True, slots=True)
class Packing:
    """Branches distributed to microbatches."""

    groups: list[list[int]]
    cuts: int  # number of splits of tries that were too long for one microbatch
    recomputed: int  # tokens that are computed again because of splits


def sort_branches(branches: Sequence[Branch]) -> tuple[list[int], list[int]]:
    """The branches' order by their ids, and the number of tokens that each shares with its predecessor in that order."""
    keys = [branch.ids.astype(">u4").tobytes() for branch in branches]  # big-endian bytes sort in the same order as the ids
    order = sorted(range(len(branches)), key=lambda i: (keys[i], i))
    return order, [0, *(_shared(branches[a].ids, branches[b].ids) for a, b in pairwise(order))][: len(order)]


def own_starts(branches: Sequence[Branch], reach: int = 256) -> list[int]:
    """For each branch, the first token that no other branch has, except branches that continue or equal it.

    The first of several branches that continue each other owns the shared beginning: at most `reach` tokens of its prompt.
    """
    order, shared = sort_branches(branches)
    lengths = [len(branches[index].ids) for index in order]
    starts = [0] * len(order)
    above: list[int] = []  # indices in `order` of the branches that the current one continues or equals
    for position in range(len(order) + 1):
        common = shared[position] if position < len(order) else 0
        while above and lengths[above[-1]] > common:
            ended = order[above.pop()]
            starts[ended] = max(starts[ended], common)
        if position < len(order):
            equal = bool(above) and lengths[above[-1]] == lengths[position]
            starts[order[position]] = starts[order[above[-1]]] if equal else common
            if len(above) == 1 and not equal:
                first = order[above[0]]
                starts[first] = max(starts[first], branches[first].scored - reach)
            above.append(position)
    return starts


def pack(branches: Sequence[Branch], tokens: int, parts: int = 1) -> Packing:
    """Groups of branches whose tries have at most `tokens` tokens, or one longer branch; at least `parts` if there are enough
    branches.

    Tries that fit stay together and are packed, the largest first. A trie that does not fit is split between two turns, and the
    later piece recomputes the shared prefix.
    """
    order, shared = sort_branches(branches)
    sizes = [len(branches[index].ids) - common for index, common in zip(order, shared, strict=True)]
    room = min(tokens, max(1, -(-sum(sizes) // parts)))
    pieces: list[tuple[int, list[int]]] = []  # number of tokens, branches
    cuts = 0
    borders = [*(position for position, common in enumerate(shared) if common == 0), len(order)]
    for start, stop in pairwise(borders):
        size, last = 0, start
        for position in range(start, stop):
            if position > last and size + sizes[position] > room:
                pieces.append((size, order[last:position]))
                cuts += 1
                size, last = shared[position], position
            size += sizes[position]
        if stop > last:
            pieces.append((size, order[last:stop]))
    groups = _fit(pieces, room, parts)
    recomputed = sum(tokens_in([branches[index] for index in group]) for group in groups) - sum(sizes) if cuts else 0
    return Packing(groups, cuts if recomputed else 0, recomputed)


def tokens_in(branches: Sequence[Branch]) -> int:
    """Number of tokens in the tries of some branches."""
    return sum(len(branch.ids) for branch in branches) - sum(sort_branches(branches)[1])


def _fit(pieces: list[tuple[int, list[int]]], room: int, parts: int) -> list[list[int]]:
    """First-fit, longest first. Never makes fewer groups than `parts` while there are pieces."""
    groups: list[tuple[int, list[int]]] = []
    for size, members in sorted(pieces, key=lambda piece: (-piece[0], piece[1])):
        fits = (index for index, (used, _) in enumerate(groups) if used + size <= room)
        index = next(fits, None) if len(groups) >= parts else None
        if index is None:
            groups.append((size, list(members)))
        else:
            groups[index] = (groups[index][0] + size, groups[index][1] + members)
    return [members for _, members in groups]


@dataclass(slots=True)
class _Node:
    """Tokens first..last of branch `branch`, below the same branch's earlier ones."""

    branch: int
    first: int
    last: int
    parent: "_Node | None"
    children: list["_Node"] = field(default_factory=list)
    size: int = 0  # number of tokens of this node and all its descendants
    start: int = 0  # position in the layout


def build_trie(branches: Sequence[Branch]) -> Trie:
    """The tries of `branches`, in depth-first order, with the largest child first at each fork."""
    roots, bottoms = _grow(branches)
    ids, positions, ends = [], [], []
    runs: list[Run] = []
    position = 0
    stack: list[tuple[_Node, tuple[tuple[int, int], ...] | None]] = [(root, ()) for root in reversed(roots)]
    while stack:
        node, context = stack.pop()
        node.start, length = position, node.last - node.first
        ids.append(branches[node.branch].ids[node.first : node.last])
        positions.append(np.arange(node.first, node.last))
        ends.append(np.full(length, position + node.size))
        position += length
        if context is None:  # continues at the end of its parent
            runs[-1] = Run(runs[-1].start, position, runs[-1].context)
        else:
            runs.append(Run(position - length, position, context))
        branch_context = (*runs[-1].context, (runs[-1].start, position))
        largest_last = sorted(node.children, key=lambda child: child.size)
        stack += [(child, branch_context) for child in largest_last[:-1]] + [(child, None) for child in largest_last[-1:]]
    both = list(zip(branches, bottoms, strict=True))
    before_scored = [_positions(bottom, branch.scored - 1, len(branch.ids) - 1) for branch, bottom in both]
    own_positions = [_positions(bottom, branch.own_start, len(branch.ids)) for branch, bottom in both]
    return Trie(np.concatenate(ids), np.concatenate(positions), np.concatenate(ends), tuple(runs), before_scored, own_positions)


def _grow(branches: Sequence[Branch]) -> tuple[list[_Node], list[_Node]]:
    """The roots, and for each branch the node in which it ends. In sorted order a prefix precedes its continuations, so a branch
    always ends at the end of a node."""
    order, shared = sort_branches(branches)
    roots: list[_Node] = []
    bottoms: dict[int, _Node] = {}
    above: list[_Node] = []  # from the root down to the end of the previous branch
    for index, common in zip(order, shared, strict=True):
        while above and above[-1].first >= common:
            above.pop()
        if above and above[-1].last > common:
            above.append(_split(above.pop(), common, roots))
        if common < len(branches[index].ids):
            parent = above[-1] if above else None
            node = _Node(index, common, len(branches[index].ids), parent)
            (parent.children if parent else roots).append(node)
            above.append(node)
        bottoms[index] = above[-1]
    for root in roots:
        _weigh(root)
    return roots, [bottoms[index] for index in range(len(branches))]


def _split(node: _Node, index: int, roots: list[_Node]) -> _Node:
    """Cut `node` before token `index`. It keeps the lower part; the new node above it is returned."""
    upper = _Node(node.branch, node.first, index, node.parent, [node])
    siblings = node.parent.children if node.parent else roots
    siblings[siblings.index(node)] = upper
    node.first, node.parent = index, upper
    return upper


def _weigh(root: _Node) -> None:
    order = [root]
    for node in order:
        order += node.children
    for node in reversed(order):
        node.size = node.last - node.first + sum(child.size for child in node.children)


def _positions(bottom: _Node, first: int, last: int) -> Ints:
    """The positions of the tokens first … last - 1 of a branch that ends in `bottom`."""
    parts: list[Ints] = [np.arange(0)]
    node: _Node | None = bottom
    while node is not None and node.last > first:
        parts.append(np.arange(max(first, node.first), min(last, node.last)) + (node.start - node.first))
        node = node.parent
    return np.concatenate(parts[::-1])


def _shared(a: Ints, b: Ints) -> int:
    """Length of the common prefix of two sequences."""
    length = min(len(a), len(b))
    differ = a[:length] != b[:length]
    return int(differ.argmax()) if differ.any() else length
