"""Images in the batches of the embedded engine.

A prompt with images enters transformers' batching with ids above the vocabulary in place of its images, one id per image. Prefixes
in the cache therefore differ where images differ. When a batch reaches such a position, `Sight` computes the image with the current
weights, and passes embeddings and positions to the model in place of these ids.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from clawctl.vision import SentImage
from clawctl.vision.reader import ImageReader, Picture, UnreadableImage
from clawctl.vision.tower import ImageFeatures, ImageSpan, Ints, ShownImages, features_of, join, mrope_positions, prepare

_KEPT_BYTES = 256 << 20  # decoded pictures; an agent sends its whole history again with each turn
_KEPT_NUMBERS = 1 << 16  # images whose prefixes may still be in the cache; assigning a new number only loses a cached prefix
_KEY = "seen"  # the key of `SeenPrompt` in a request's settings


@dataclass(slots=True)
class _Placed:
    span: ImageSpan
    picture: Picture
    features: ImageFeatures | None = None  # present between the first and the last of its tokens


@dataclass(slots=True)
class SeenPrompt:
    """A prompt with images, ready for the engine."""

    ids: list[int]
    _positions_3P: Ints
    images: list[_Placed]
    _next_position: int = field(init=False)  # the position of the first token after the prompt

    def __post_init__(self) -> None:
        self._next_position = int(self._positions_3P.max()) + 1

    def __deepcopy__(self, memo: Any) -> "SeenPrompt":
        return self  # transformers copies the settings of a request that restarts

    def positions(self, start: int, stop: int) -> Ints:
        """The positions of the tokens start … stop - 1 of prompt and answer: [3, N]."""
        size = self._positions_3P.shape[1]
        later = np.arange(max(start, size), max(stop, size)) - size + self._next_position
        return np.concatenate([self._positions_3P[:, start:stop], np.repeat(later[None], 3, 0)], 1)


class Sight:
    """The images of one model's requests. `look` may be called in any thread."""

    def __init__(self, causal: Any, reader: ImageReader) -> None:
        self._causal, self._reader = causal, reader
        self._vocabulary = int(causal.config.get_text_config().vocab_size)
        self._numbers: OrderedDict[str, int] = OrderedDict()
        self._next = 0
        self._pictures: OrderedDict[str, Picture] = OrderedDict()
        self._lock = threading.Lock()
        prepare(causal)

    def prepare_images(self, prompt_ids: Sequence[int], images: Sequence[SentImage]) -> SeenPrompt:
        """Decode the images and prepare the prompt. Raises UnreadableImage."""
        ids, placed = list(prompt_ids), list[_Placed]()
        for image in images:
            picture = self._picture(image)
            if picture.tokens != image.tokens:
                raise UnreadableImage("an image has another size than its header says")
            ids[image.start : image.start + image.tokens] = [self._vocabulary + self._number(image.sha256)] * image.tokens
            placed.append(_Placed(ImageSpan(image.start, picture.rows, picture.columns), picture))
        depths = np.arange(len(ids))
        return SeenPrompt(ids, mrope_positions(depths, np.full(len(ids), len(ids)), [picture.span for picture in placed]), placed)

    def _picture(self, image: SentImage) -> Picture:
        with self._lock:
            picture = self._pictures.get(image.sha256)
            if picture is not None:
                self._pictures.move_to_end(image.sha256)
                return picture
        made = self._reader.picture(image.content)
        with self._lock:
            self._pictures[image.sha256] = made
            while sum(picture.pixels.nbytes for picture in self._pictures.values()) > _KEPT_BYTES:
                self._pictures.popitem(last=False)
        return made

    def _number(self, sha256: str) -> int:
        """A number for an image. Different images never share one."""
        with self._lock:
            if sha256 not in self._numbers:
                self._numbers[sha256], self._next = self._next, self._next + 1
                if len(self._numbers) > _KEPT_NUMBERS:
                    self._numbers.popitem(last=False)
            self._numbers.move_to_end(sha256)
            return self._numbers[sha256]

    def join(self, manager: Any) -> None:
        """Hook into the batches of transformers' manager, which has started."""
        self._causal.model.visual.set_attn_implementation("sdpa")  # the vision tower has no cache to attend to
        manager.logit_processor.supported_keys[_KEY] = SeenPrompt
        batches = manager.batch_processor.inputs_and_outputs
        batches.get_model_kwargs = partial(self._model_kwargs, batches, batches.get_model_kwargs)

    @staticmethod
    def settings(seen: SeenPrompt) -> dict[str, Any]:
        """The additional settings for a request with this prompt."""
        return {_KEY: seen}

    def _model_kwargs(self, batches: Any, of_text: Any, *arguments: Any, **settings: Any) -> Any:
        made, requests = of_text(*arguments, **settings), batches.requests_in_batch
        prompts = [request.state.logit_processor_kwargs.get(_KEY) for request in requests]
        return made if not any(prompts) else self._with_images(made, requests, prompts)

    @torch.no_grad()
    def _with_images(self, made: Any, requests: Sequence[Any], prompts: Sequence[SeenPrompt | None]) -> Any:
        plain_BT = made["position_ids"]
        positions = plain_BT.expand(4, *plain_BT.shape).clone()  # positions in text, time, height and width
        indices, parts, at = list[torch.Tensor](), list[ImageFeatures](), 0
        for request, prompt in zip(requests, prompts, strict=True):
            stop = request.state.position_offset  # end of the tokens of this batch
            start = stop - request.query_length
            if prompt is not None:
                placed_positions = torch.from_numpy(prompt.positions(start, stop)).to(positions)
                positions[1:, 0, at : at + request.query_length] = placed_positions
                for image in prompt.images:
                    begin, end = max(start, image.span.start), min(stop, image.span.stop)
                    if begin < end:
                        indices.append(torch.arange(begin, end) - start + at)
                        parts.append(self._features(image).part(begin - image.span.start, end - image.span.start))
                    if stop >= image.span.stop:
                        image.features = None
            at += request.query_length
        ids_BT = made["input_ids"]
        made["input_ids"] = ids_BT.masked_fill(ids_BT >= self._vocabulary, self._reader.placeholder)
        made["position_ids"] = positions
        if parts:
            made["shown"] = ShownImages(torch.cat(indices).to(ids_BT.device), join(parts))
        return made

    def _features(self, image: _Placed) -> ImageFeatures:
        if image.features is None:
            image.features = features_of(self._causal, self._reader, image.picture)
        return image.features
