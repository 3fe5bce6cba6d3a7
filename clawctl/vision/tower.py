"""How a model computes prompts with images: the vision tower provides embeddings and positions; everything else works as for text.

In the engine and the trainer, an image's tokens have their own ids above the vocabulary. Two different images with the same number
of tokens then never share a prefix in a cache or a trie, and equal images do.

A position is not a depth: an image of 4 x 6 tokens moves the text after it by 6 positions, not by 24 (`mrope_positions`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clawctl.vision.reader import ImageReader, Picture, is_vision_model

Ints = NDArray[np.int64]


class ImageSpan(NamedTuple):
    """An image in a sequence or a layout of tokens."""

    start: int  # index of its first token
    rows: int
    columns: int

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.columns


def mrope_positions(depths_T: Ints, ends_T: Ints, spans: Iterable[ImageSpan]) -> Ints:
    """The positions in time, height and width of the tokens of a trie or a sequence: [3, T].

    `depths_T`: number of tokens before each token on its path. `ends_T`: one past its last descendant. The numbers are those of
    `get_rope_index` of transformers' Qwen3-VL.
    """
    spans = sorted(spans)
    saved_T = np.zeros_like(depths_T)  # positions that earlier images on the path save
    for span in spans:
        last = span.stop - 1
        saved_T[span.stop : ends_T[last]] += span.rows * span.columns - max(span.rows, span.columns)
    positions_3T = np.repeat((depths_T - saved_T)[None], 3, 0)
    for span in spans:
        begin, tokens = positions_3T[0, span.start], slice(span.start, span.stop)
        positions_3T[0, tokens] = begin
        positions_3T[1, tokens] = begin + np.repeat(np.arange(span.rows), span.columns)
        positions_3T[2, tokens] = begin + np.tile(np.arange(span.columns), span.rows)
    return positions_3T


@dataclass(frozen=True, slots=True)
class ImageFeatures:
    """The tower's output for M image tokens: their embeddings, and the features that are added after the first layers
    (DeepStack)."""

    embeddings_MD: Tensor
    deeper: list[Tensor]  # [M, D] each

    def part(self, begin: int, end: int) -> "ImageFeatures":
        return ImageFeatures(self.embeddings_MD[begin:end], [layer[begin:end] for layer in self.deeper])


def join(parts: Sequence[ImageFeatures]) -> ImageFeatures:
    deeper = [torch.cat(layers) for layers in zip(*(part.deeper for part in parts), strict=True)]
    return ImageFeatures(torch.cat([part.embeddings_MD for part in parts]), deeper)


@dataclass(frozen=True, slots=True)
class ShownImages:
    """The image tokens of one pass over a batch [B, T]."""

    positions_M: Tensor  # positions in the flattened B T, ascending
    features: ImageFeatures


def prepare(causal: Any) -> None:
    """Enable the argument `shown` for passes of this Qwen3-VL model."""
    causal.model.language_model.register_forward_pre_hook(_show, with_kwargs=True)


def _show(module: Any, arguments: tuple[Any, ...], settings: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Insert the features before the language model runs."""
    shown: ShownImages | None = settings.pop("shown", None)
    if shown is not None:
        plain_BTD = settings["inputs_embeds"]
        own_MD = shown.features.embeddings_MD.to(plain_BTD)
        settings["inputs_embeds"] = plain_BTD.flatten(0, 1).index_copy(0, shown.positions_M, own_MD).view_as(plain_BTD)
        mask_T = torch.zeros(plain_BTD.shape[:2].numel(), dtype=torch.bool, device=plain_BTD.device)
        mask_T[shown.positions_M] = True
        settings["visual_pos_masks"] = mask_T.view(plain_BTD.shape[:2])
        settings["deepstack_visual_embeds"] = shown.features.deeper
    return arguments, settings


def features_of(causal: Any, reader: ImageReader, picture: Picture) -> ImageFeatures:
    """The tower's output for an image, with gradient if the caller records one and the tower is trained."""
    visual = causal.model.visual
    pixels = torch.from_numpy(picture.pixels).to(visual.device)
    grid = torch.tensor([[1, picture.rows * reader.merge, picture.columns * reader.merge]], device=visual.device)
    output = causal.model.get_image_features(pixels, grid, return_dict=True)
    return ImageFeatures(torch.cat(output.pooler_output), [torch.cat(layer) for layer in output.deepstack_features])


def inputs_of(causal: Any, reader: ImageReader, ids: Sequence[int], images: Sequence[tuple[int, Picture]]) -> dict[str, Any]:
    """The inputs of a prepared model for one sequence. `images`: start index and picture of each image; at least one."""
    spans = [ImageSpan(start, picture.rows, picture.columns) for start, picture in images]
    depths_T = np.arange(len(ids))
    positions = np.concatenate([depths_T[None], mrope_positions(depths_T, np.full(len(ids), len(ids)), spans)])
    positions_M = np.concatenate([np.arange(span.start, span.stop) for span in spans])
    device, features = causal.device, join([features_of(causal, reader, picture) for _, picture in images])
    return {
        "input_ids": torch.tensor([list(ids)], device=device),
        "position_ids": torch.from_numpy(positions)[:, None].to(device),
        "shown": ShownImages(torch.from_numpy(positions_M).to(device), features),
    }


def language_of(causal: Any) -> Any:
    """The part of a model that reads tokens: everything except a vision tower."""
    return getattr(getattr(causal, causal.base_model_prefix), "language_model", causal)


def model_class(path: str) -> Any:
    """The transformers class that loads a model."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    return AutoModelForImageTextToText if is_vision_model(path) else AutoModelForCausalLM
