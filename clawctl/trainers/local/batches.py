"""Splits the turns of a step into microbatches, distributes them to ranks, and builds their tensors.

`tree`: sequences with a shared prefix form one trie, and one row holds several tries. `prefix`, for architectures that are not pure
attention: a sequence that is a complete prefix of another is scored on the other's row. `none`: one row per sequence. Rows of
similar length are grouped and padded on the right. Under causal attention no token sees later ones, so padding needs no mask and
does not change results.

The one shift by a position is made here: `before_N` are the positions whose hidden states predict the scored tokens.

`Masks` are the sets of tokens that structured answers were drawn from. Logits of all other tokens are ignored.

Ids above the vocabulary replace the image tokens: a distinct id for each token of each image. Tries and rows therefore merge
exactly the identical parts. The ids also show which images a pass contains, and where.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from clawctl.run.allowed_tokens import Allowed
from clawctl.run.rows import PromptImage
from clawctl.train.sample import Batch, Sample
from clawctl.trainers.local.attention import Visible, filled, visible
from clawctl.trainers.local.trees import Branch, Ints, Packing, build_trie, pack, sort_branches
from clawctl.vision.reader import ImageReader, Picture
from clawctl.vision.tower import ImageSpan, ShownImages, features_of, inputs_of, join, mrope_positions

# A hidden logit. Its softmax is exactly 0 in float32, and the difference of two hidden logits is finite, unlike that of infinities.
HIDDEN = -1e6


@dataclass(frozen=True, slots=True)
class Masks:
    """The sets of N scored tokens over a vocabulary of V: M different sets."""

    which_N: Tensor  # index of each token's set; -1: any token could be drawn
    sets_MB: Tensor  # uint8, one bit per token of the vocabulary, lowest first

    def hide(self, logits_NV: Tensor, at: slice) -> Tensor:
        """The logits of the tokens `at`, with all tokens hidden that were not allowed there."""
        hidden_NV = self._hidden(at, logits_NV.shape[1])
        return logits_NV if hidden_NV is None else logits_NV.masked_fill(hidden_NV, HIDDEN)

    def fill_(self, values_NV: Tensor, at: slice, value: float = HIDDEN) -> Tensor:
        """Set `value` in place for all tokens that were not allowed: for logits without autograd, and for their gradients (0)."""
        hidden_NV = self._hidden(at, values_NV.shape[1])
        return values_NV if hidden_NV is None else values_NV.masked_fill_(hidden_NV, value)

    def _hidden(self, at: slice, vocabulary: int) -> Tensor | None:
        which_N = self.which_N[at]
        masked_N = which_N >= 0
        if not bool(masked_N.any()):
            return None
        sets_NB1 = self.sets_MB[which_N.clamp(min=0)].unsqueeze(-1)
        bits_NB8 = (sets_NB1 >> torch.arange(8, dtype=torch.uint8, device=sets_NB1.device)) & 1
        return (bits_NB8.flatten(1)[:, :vocabulary] == 0) & masked_N[:, None]


def masks_of(allowed: Sequence[Allowed | None], lengths: Sequence[int], device: torch.device) -> Masks | None:
    """The masks of branches with these sets and numbers of scored tokens; None if all tokens were allowed everywhere."""
    numbers: dict[bytes, int] = {}
    which: list[int] = []
    for masks, length in zip(allowed, lengths, strict=True):
        if masks is None:
            which += [-1] * length
            continue
        indices = [numbers.setdefault(bits, len(numbers)) for bits in masks.sets]
        which += [indices[index] if index >= 0 else -1 for index in masks.which]
    if not numbers:
        return None
    sets_MB = torch.from_numpy(np.frombuffer(b"".join(numbers), np.uint8).reshape(len(numbers), -1).copy())
    return Masks(torch.tensor(which, device=device), sets_MB.to(device))


Merge = Literal["tree", "prefix", "none"]


@dataclass(frozen=True, slots=True)
class Microbatch:
    """B rows of at most T tokens; a trie is one row. N of these tokens are scored."""

    ids_BT: Tensor
    positions_BT: Tensor | None  # None: each row counts from 0
    visible: Visible | None  # None: plain causal attention
    before_N: Tensor  # positions in the flattened B T of the tokens before the scored ones
    targets_N: Tensor  # the scored tokens, branch by branch
    temperature_N: Tensor
    lengths: list[int]  # scored tokens of each branch; splits a [N] stream into turns
    own_positions: list[Tensor]  # for each branch, the positions of its own tokens in the flattened B T
    tokens: int  # number of computed tokens, without padding
    masks: Masks | None = None  # the allowed tokens at the position of each scored token; None: any token everywhere


def share_out(branches: Sequence[Branch], merge: Merge, tokens: int, parts: int = 1) -> Packing:
    """Microbatches of at most `tokens` tokens including padding, or with a single longer branch. Makes at least `parts` if there
    are enough branches."""
    if merge == "tree":
        return pack(branches, tokens, parts)
    rows = _rows(branches, merge)
    groups = cut([len(branches[row[0]].ids) for row in rows], tokens, parts)
    return Packing([[index for row in group for index in rows[row]] for group in groups], 0, 0)


def make_microbatch(branches: Sequence[Branch], merge: Merge, device: torch.device) -> Microbatch:
    """The tensors of one microbatch."""
    return _as_tree(branches, device) if merge == "tree" else _as_rows(branches, merge, device)


def cut(lengths: Sequence[int], tokens: int, parts: int = 1) -> list[list[int]]:
    """Indices of `lengths` in groups, longest first. A padded group has at most `tokens` tokens, or a single longer sequence.

    Makes at least `parts` groups of similar size if there are enough sequences, so that no rank is idle.
    """
    budget = min(tokens, max(1, -(-sum(lengths) // parts)))
    max_rows = max(1, len(lengths) // parts)
    groups: list[list[int]] = []
    room = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if room == 0:
            groups.append([])
            room = min(max_rows, max(1, budget // max(1, lengths[index])))
        groups[-1].append(index)
        room -= 1
    return groups


def share(groups: list[list[int]], rank: int, world: int) -> list[list[int]]:
    """The groups of one rank: every world-th one, so that long and short groups are distributed evenly."""
    return groups[rank::world]


def _as_tree(branches: Sequence[Branch], device: torch.device) -> Microbatch:
    tree = build_trie(branches)
    filling = filled(tree, device) - len(tree.ids_T)  # tokens that nothing reads
    ids, positions = (torch.nn.functional.pad(torch.from_numpy(row)[None], (0, filling)) for row in (tree.ids_T, tree.positions_T))
    scored = _scored(branches, tree.before_scored, device)
    own_positions = [torch.from_numpy(places).to(device) for places in tree.own_positions]
    masks = masks_of([branch.allowed for branch in branches], scored[3], device)
    return Microbatch(ids.to(device), positions.to(device), visible(tree, device), *scored, own_positions, len(tree.ids_T), masks)


def _as_rows(branches: Sequence[Branch], merge: Merge, device: torch.device) -> Microbatch:
    """The branches as padded rows. A row's first branch is its longest. Padding is token 0 after the end, which nothing reads."""
    rows = _rows(branches, merge)
    width = max(len(branches[row[0]].ids) for row in rows)
    ids_BT = torch.zeros(len(rows), width, dtype=torch.long)
    places: dict[int, Ints] = {}
    parts: dict[int, Tensor] = {}
    for at, row in enumerate(rows):
        ids_BT[at, : len(branches[row[0]].ids)] = torch.from_numpy(branches[row[0]].ids)
        for index in row:
            branch = branches[index]
            places[index] = at * width + np.arange(branch.scored - 1, len(branch.ids) - 1)
            parts[index] = torch.arange(at * width + branch.own_start, at * width + len(branch.ids), device=device)
    scored = _scored(branches, [places[index] for index in range(len(branches))], device)
    tokens = sum(len(branches[row[0]].ids) for row in rows)
    masks = masks_of([branch.allowed for branch in branches], scored[3], device)
    return Microbatch(ids_BT.to(device), None, None, *scored, [parts[index] for index in range(len(branches))], tokens, masks)


def _rows(branches: Sequence[Branch], merge: Merge) -> list[list[int]]:
    """The branches of each row, the longest first. In sorted order, continuations directly follow a sequence."""
    if merge == "none":
        return [[index] for index in range(len(branches))]
    order, shared = sort_branches(branches)
    rows: list[list[int]] = []
    for index, common in zip(order, shared, strict=True):
        if rows and common == len(branches[rows[-1][0]].ids):
            rows[-1].insert(0, index)
        else:
            rows.append([index])
    return rows


def _scored(branches: Sequence[Branch], positions: list[Ints], device: torch.device) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    lengths = [len(branch_positions) for branch_positions in positions]
    before_N = torch.from_numpy(np.concatenate(positions)).to(device)
    targets_N = torch.from_numpy(np.concatenate([branch.ids[branch.scored :] for branch in branches])).to(device)
    temperature_N = torch.tensor([b.temperature for b in branches], dtype=torch.float32).repeat_interleave(torch.tensor(lengths))
    return before_N, targets_N, temperature_N.to(device), lengths


_CANARY_SIZE = (64, 48)  # pixels


class StepImages:
    """The images of one step at a time."""

    def __init__(self, reader: ImageReader, vocabulary: int) -> None:
        self.reader, self._vocabulary = reader, vocabulary
        self._first: dict[str, int] = {}  # id of each image's first token
        self._pictures: dict[int, Picture] = {}  # pictures by that id

    def with_image_ids(self, batch: Batch) -> Batch:
        """The batch with the ids of its images. These ids are valid until the next call."""
        self._first, self._pictures = {}, {}
        following = self._vocabulary
        for name, content in batch.images.items():
            picture = self.reader.picture(content)
            self._first[name], self._pictures[following] = following, picture
            following += picture.tokens
        return replace(batch, samples=[self._with_ids(sample) if sample.images else sample for sample in batch.samples])

    def _with_ids(self, sample: Sample) -> Sample:
        def own(ids: Sequence[int]) -> list[int]:
            return self._own_ids(ids, sample.images)

        teacher = None if sample.teacher_prompt_ids is None else own(sample.teacher_prompt_ids)
        other_prompts = tuple(tuple(own(ids)) for ids in sample.other_prompts)
        return replace(sample, prompt_ids=own(sample.prompt_ids), teacher_prompt_ids=teacher, other_prompts=other_prompts)

    def _own_ids(self, ids: Sequence[int], images: Sequence[PromptImage]) -> list[int]:
        changed = list(ids)
        for image in images:
            first, start = self._first[image["sha256"]], image["start"]
            changed[start : start + image["tokens"]] = range(first, first + image["tokens"])
        return changed

    def inputs(self, causal: Any, batch: Microbatch, layout: dict[str, Any]) -> dict[str, Any]:
        """The inputs of a prepared model for a microbatch; `layout` is that of a text model."""
        ids_BT = batch.ids_BT
        above = ids_BT >= self._vocabulary
        if not bool(above.any()):
            return {"input_ids": ids_BT, **layout}
        ids_N, (rows, width) = ids_BT.flatten().cpu().numpy(), ids_BT.shape
        if batch.visible is None or batch.positions_BT is None:
            depths_N, ends_N = np.tile(np.arange(width), rows), np.repeat(np.arange(1, rows + 1) * width, width)
        else:
            depths_N, ends_N = batch.positions_BT.flatten().cpu().numpy(), batch.visible.ends_T.cpu().numpy()
        starts = [int(start) for start in np.flatnonzero(np.isin(ids_N, list(self._pictures)))]
        spans = [ImageSpan(start, (picture := self._pictures[int(ids_N[start])]).rows, picture.columns) for start in starts]
        positions = np.concatenate([depths_N[None], mrope_positions(depths_N, ends_N, spans)]).reshape(4, rows, width)
        features = {
            first: features_of(causal, self.reader, self._pictures[first]) for first in {int(ids_N[start]) for start in starts}
        }
        shown = ShownImages(above.flatten().nonzero().flatten(), join([features[int(ids_N[start])] for start in starts]))
        return {
            **layout,
            "input_ids": ids_BT.masked_fill(above, self.reader.placeholder),
            "position_ids": torch.from_numpy(positions).to(ids_BT.device),
            "shown": shown,
        }

    def canary(self, causal: Any, text_ids: Sequence[int]) -> tuple[list[int], int, bytes, dict[str, Any]]:
        """A prompt with a coloured test image before these words: its ids, the index of the image, its file, and the model's
        inputs."""
        content = _colours()
        picture = self.reader.picture(content)
        ids = [self.reader.begin, *[self.reader.placeholder] * picture.tokens, self.reader.end, *text_ids]
        return ids, 1, content, inputs_of(causal, self.reader, ids, [(1, picture)])


def _colours() -> bytes:
    """A small PNG in which each pixel differs from its neighbours."""
    from PIL import Image

    wide, high = _CANARY_SIZE
    down, across = np.mgrid[:high, :wide]
    pixels = np.stack([down * 5, across * 4, down * across], -1).astype(np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
