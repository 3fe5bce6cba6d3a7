"""The number of ids of an image, before anything decodes it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clawctl.vision.header import size_in_header
from clawctl.vision.reader import ImageReader, UnreadableImage, expand, image_reader
from clawctl.vision.tower import ImageSpan, inputs_of, model_class, mrope_positions, prepare
from tests.named_models import TEXT_MODEL
from tests.vision.tiny import picture


@pytest.mark.parametrize("size", [(32, 24), (5, 3), (300, 7), (640, 480), (17, 60), (1, 1)])
def test_the_header_of_a_picture_gives_as_many_tokens_as_transformers_makes_of_its_pixels(
    reader: ImageReader, size: tuple[int, int]
) -> None:
    content = picture(0, *size)
    read_size = size_in_header(content)
    assert read_size == size
    made = reader.picture(content)
    assert (made.rows, made.columns) == reader.size(*read_size)
    assert len(made.pixels) == made.tokens * reader.merge**2


def test_a_picture_that_is_no_picture_or_too_long_is_refused(reader: ImageReader) -> None:
    with pytest.raises(UnreadableImage, match="200 times"):
        reader.size(1001, 5)
    with pytest.raises(UnreadableImage, match="decoded"):
        reader.picture(b"\x89PNG\r\n\x1a\n")


def test_a_text_model_has_no_reader() -> None:
    assert image_reader(str(TEXT_MODEL)) is None


def test_each_mark_becomes_the_placeholders_of_its_image() -> None:
    ids, images = expand([1, -1, 2, -1], -1, 9, [(b"a", 2), (b"b", 3)])
    assert ids == [1, 9, 9, 2, 9, 9, 9]
    assert [(image.start, image.tokens, image.content) for image in images] == [(1, 2, b"a"), (4, 3, b"b")]
    with pytest.raises(ValueError, match="1 of 2 images"):
        expand([-1], -1, 9, [(b"a", 2), (b"b", 3)])


def test_positions_in_a_trie_go_on_behind_an_image_on_every_branch() -> None:
    """Two branches behind a shared image: each continues at the same position, however many tokens the other has."""
    depths = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 7, 8])  # text, an image of 2 x 3, text | a branch of two | another
    ends = np.array([11, 11, 11, 11, 11, 11, 11, 9, 9, 11, 11])
    assert mrope_positions(depths, ends, [ImageSpan(1, 2, 3)]).tolist() == [
        [0, 1, 1, 1, 1, 1, 1, 4, 5, 4, 5],
        [0, 1, 1, 1, 2, 2, 2, 4, 5, 4, 5],
        [0, 1, 2, 3, 1, 2, 3, 4, 5, 4, 5],
    ]


@torch.no_grad()
def test_positions_and_logits_are_those_of_transformers(vision_path: Path, reader: ImageReader) -> None:
    model: Any = model_class(str(vision_path)).from_pretrained(vision_path, dtype=torch.float32, attn_implementation="sdpa").eval()
    prepare(model)
    pictures = [reader.picture(picture(1)), reader.picture(picture(2, 40, 16))]
    marked = [15, 16, reader.begin, -1, reader.end, 19, 10, reader.begin, -1, reader.end, 17]
    ids, images = expand(marked, -1, reader.placeholder, [(b"", picture.tokens) for picture in pictures])
    ours = inputs_of(model, reader, ids, [(image.start, picture) for image, picture in zip(images, pictures, strict=True)])
    theirs: dict[str, Any] = {
        "input_ids": torch.tensor([ids]),
        "image_grid_thw": torch.tensor([[1, 2 * picture.rows, 2 * picture.columns] for picture in pictures]),
        "mm_token_type_ids": torch.tensor([[int(token == reader.placeholder) for token in ids]]),
    }
    positions, _ = model.model.get_rope_index(**theirs)
    assert torch.equal(ours["position_ids"][1:], positions)
    pixels = torch.from_numpy(np.concatenate([picture.pixels for picture in pictures]))
    torch.testing.assert_close(model(**ours).logits, model(**theirs, pixel_values=pixels).logits)
