"""The images of a step, in the trainer.

In the turns of a step, ids above the vocabulary replace the image tokens: a distinct id for each token of each image. Tries and
rows therefore merge exactly the identical parts. The ids also show which images a pass contains, and where.
"""

from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import torch

from clawctl.run.rows import PromptImage
from clawctl.train.sample import Batch, Sample
from clawctl.trainers.local.batches import Microbatch
from clawctl.vision.reader import ImageReader, Picture
from clawctl.vision.tower import ImageSpan, ShownImages, features_of, inputs_of, join, mrope_positions

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
        spans = [ImageSpan(start, (own := self._pictures[int(ids_N[start])]).rows, own.columns) for start in starts]
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

    def canary(self, causal: Any, words: Sequence[int]) -> tuple[list[int], int, bytes, dict[str, Any]]:
        """A prompt with a coloured test image before these words: its ids, the index of the image, its file, and the model's
        inputs."""
        content = _colours()
        picture = self.reader.picture(content)
        ids = [self.reader.begin, *[self.reader.placeholder] * picture.tokens, self.reader.end, *words]
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
