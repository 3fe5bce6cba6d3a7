"""Reads images for a model: the number of tokens of an image in a prompt, and the pixels for the vision tower. Needs no torch.

One architecture is supported: Qwen3-VL. Its processor scales an image so that both sides are multiples of a block of `merge *
patch` pixels, and each block is one token. A prompt contains the placeholder id once per token; `PromptImage` identifies the image.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from clawctl.run.model_files import model_file
from clawctl.vision import SentImage

_log = logging.getLogger("clawctl")
_KNOWN = "qwen3_vl"  # `model_type` in a model's config.json
_PROCESSOR = "preprocessor_config.json"
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")  # formats that serve accepts
_LONGEST = 200  # maximum ratio of the sides; transformers refuses longer images


class UnreadableImage(ValueError):
    """An image that this model cannot read. The message is for the client."""


@dataclass(frozen=True, slots=True)
class Picture:
    """An image in the form that the vision tower expects."""

    pixels: NDArray[np.float32]  # [patches, values of a patch]
    rows: int  # in tokens
    columns: int

    @property
    def tokens(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True, slots=True)
class ImageReader:
    """The image processor of a model."""

    folder: str
    placeholder: int  # the id in place of an image's tokens
    begin: int  # the ids before and after these tokens
    end: int
    patch: int  # pixels
    merge: int  # patches along one side of a token
    min_pixels: int  # limits in pixels for a scaled image
    max_pixels: int

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of tokens of an image (`smart_resize` of transformers' Qwen2-VL). Raises UnreadableImage."""
        if max(width, height) > _LONGEST * min(width, height):
            raise UnreadableImage(f"one side of an image may be at most {_LONGEST} times as long as the other")
        block = self.patch * self.merge
        high, wide = (round(side / block) * block for side in (height, width))
        if high * wide > self.max_pixels:
            scale = math.sqrt(height * width / self.max_pixels)
            high, wide = (max(block, math.floor(side / scale / block) * block) for side in (height, width))
        elif high * wide < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (height * width))
            high, wide = (math.ceil(side * scale / block) * block for side in (height, width))
        return high // block, wide // block

    def tokens(self, width: int, height: int) -> int:
        rows, columns = self.size(width, height)
        return rows * columns

    def picture(self, content: bytes) -> Picture:
        """The pixels of a PNG, JPEG, GIF or WebP file, from transformers' own image processor. Raises UnreadableImage."""
        from PIL import Image

        try:
            with Image.open(BytesIO(content), formats=_FORMATS) as opened:
                rgb = opened.convert("RGB")
            processed = _processor(self.folder)(rgb, return_tensors="np")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise UnreadableImage(f"an image cannot be decoded: {error}") from error
        _, high, wide = (int(count) for count in processed["image_grid_thw"][0])
        return Picture(np.asarray(processed["pixel_values"], dtype=np.float32), high // self.merge, wide // self.merge)


_processors: dict[str, Any] = {}


def _processor(folder: str) -> Any:
    """The processor that needs no torchvision, so that engine and trainer compute the same pixels with any installed packages."""
    if folder not in _processors:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        _processors[folder] = Qwen2VLImageProcessorPil.from_pretrained(folder)
    return _processors[folder]


def is_vision_model(model: str) -> bool:
    """Whether a model, in a folder or the download cache, has the supported vision architecture."""
    return _json(model_file(model, "config.json")).get("model_type") == _KNOWN


def image_reader(model: str) -> ImageReader | None:
    """The image reader of a model; None if it does not accept images."""
    config = _json(model_file(model, "config.json"))
    if config.get("model_type") != _KNOWN:
        return None
    file = model_file(model, _PROCESSOR)
    if file is None:
        _log.warning("%s has no %s, so it takes no images", model, _PROCESSOR)
        return None
    settings = _json(file)
    size = settings.get("size") or {}
    try:
        return ImageReader(
            folder=str(file.parent),
            placeholder=int(config["image_token_id"]),
            begin=int(config["vision_start_token_id"]),
            end=int(config["vision_end_token_id"]),
            patch=int(settings["patch_size"]),
            merge=int(settings["merge_size"]),
            min_pixels=int(settings.get("min_pixels") or size["shortest_edge"]),
            max_pixels=int(settings.get("max_pixels") or size["longest_edge"]),
        )
    except (LookupError, TypeError, ValueError) as error:
        _log.warning("%s cannot be used, so the model takes no images: %r", file, error)
        return None


def _json(path: Path | None) -> dict[str, Any]:
    try:
        settings = orjson.loads(path.read_bytes()) if path is not None else {}
    except (OSError, orjson.JSONDecodeError):
        return {}
    return settings if isinstance(settings, dict) else {}


def expand(
    ids: Sequence[int], mark: int, placeholder: int, images: Sequence[tuple[bytes, int]]
) -> tuple[list[int], list[SentImage]]:
    """The ids with the placeholders of an image in place of each `mark`. `images`: the file and number of tokens of each image.
    Raises ValueError if the numbers of marks and images differ."""
    marks = list(ids).count(mark)
    if marks != len(images):
        raise ValueError(f"it shows {marks} of {len(images)} images")
    expanded: list[int] = []
    sent: list[SentImage] = []
    for token in ids:
        if token == mark:
            content, tokens = images[len(sent)]
            sent.append(SentImage(sha256(content).hexdigest(), len(expanded), tokens, content))
            expanded += [placeholder] * tokens
        else:
            expanded.append(token)
    return expanded, sent
