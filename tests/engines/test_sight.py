"""The embedded engine serves a Qwen3-VL. Its samples after images equal those of transformers."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from decoding import sample
from transformers import AutoModelForImageTextToText

from clawctl.config import Recipe
from clawctl.engines.embedded.decoder import Decoder
from clawctl.engines.embedded.frames import Token
from clawctl.engines.embedded.weights import StagedWeights
from clawctl.run.directory import open_run
from clawctl.run.policies import ensure_base_policy
from clawctl.vision import SentImage
from clawctl.vision.reader import ImageReader, UnreadableImage, expand
from clawctl.vision.tower import prepare
from tests.serve.served import recipe_data
from tests.vision.tiny import logprobs_by_transformers, picture

TEXT = list(range(20, 60))


@pytest.fixture(scope="module")
def model(vision_path: Path) -> Any:
    return AutoModelForImageTextToText.from_pretrained(vision_path, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, vision_path: Path) -> Iterator[Decoder]:
    run = open_run(tmp_path_factory.mktemp("run") / "run")
    ensure_base_policy(run, str(vision_path))
    engine = Decoder(run, Recipe.model_validate(recipe_data(vision_path, max_batch_tokens=32)), 0)
    yield engine
    engine.stop()


def prompt_of(reader: ImageReader, *parts: "list[int] | bytes") -> tuple[list[int], list[SentImage]]:
    """The ids of text and pictures, one after the other."""
    files = [part for part in parts if isinstance(part, bytes)]
    marked = [token for part in parts for token in ([reader.begin, -1, reader.end] if isinstance(part, bytes) else part)]
    return expand(marked, -1, reader.placeholder, [(file, reader.picture(file).tokens) for file in files])


async def answer(engine: Decoder, prompt: tuple[list[int], list[SentImage]], **sampling: Any) -> list[Token]:
    ids, images = prompt
    # With this seed no answer contains a placeholder, at which transformers' own pass fails.
    seen = engine.prepare_images(ids, images) if images else None
    return await sample(engine, ids, longest=12, seen=seen, **{"seed": 7, **sampling})


def assert_exact(model: Any, reader: ImageReader, prompt: tuple[list[int], list[SentImage]], tokens: list[Token]) -> None:
    ids, images = prompt
    expected = logprobs_by_transformers(model, reader, ids, [image.content for image in images], [token.id for token in tokens])
    assert [token.logprob for token in tokens] == pytest.approx(expected, abs=1e-4)


def test_answers_to_images_have_the_logprobs_of_transformers_own_pass(engine: Decoder, model: Any, reader: ImageReader) -> None:
    """With text, cut by the engine's steps of 32 tokens, with a cached beginning, and with two pictures of the same size."""
    red, blue, large = picture(1), picture(2), picture(3, width=96, height=64)
    prompts = [
        prompt_of(reader, TEXT, red, TEXT[:9]),
        prompt_of(reader, TEXT),
        prompt_of(reader, TEXT, large, TEXT[:3], red, [20]),
        prompt_of(reader, red, [20]),
    ]
    later = [
        prompt_of(reader, TEXT, blue, TEXT[:9]),
        prompt_of(reader, TEXT, red, TEXT[:9], blue, TEXT),
        prompt_of(reader, TEXT, large, TEXT[:3], blue, [20]),
    ]

    async def main() -> None:
        for some in (prompts, later, later):
            answers = await asyncio.gather(*(answer(engine, prompt) for prompt in some))
            for prompt, tokens in zip(some, answers, strict=True):
                assert_exact(model, reader, prompt, tokens)

    asyncio.run(main())


def test_a_placeholder_without_an_image_is_an_ordinary_token(engine: Decoder, vision_path: Path, reader: ImageReader) -> None:
    """A client may send it as an id, and a model may sample it, beside a request with an image. Transformers would fail."""
    bare, file = [*TEXT[:5], reader.placeholder, *TEXT[:5]], picture(4)
    shown = prompt_of(reader, TEXT, file, [reader.placeholder, 20])

    async def main() -> tuple[list[Token], list[Token]]:
        return await asyncio.gather(answer(engine, (bare, [])), answer(engine, shown))

    plain, seen = asyncio.run(main())
    model = AutoModelForImageTextToText.from_pretrained(vision_path, dtype=torch.float32).eval()
    prepare(model)
    apart = StagedWeights(0, model)
    for tokens, expected in (
        (plain, apart.score([*bare, *(token.id for token in plain)])),
        (seen, apart.score_image(reader, [*shown[0], *(token.id for token in seen)], shown[1][0].start, file)),
    ):
        assert [token.logprob for token in tokens] == pytest.approx(expected[-len(tokens) :], abs=1e-4)


def test_a_picture_that_contradicts_its_header_is_refused(engine: Decoder, reader: ImageReader) -> None:
    ids, (image,) = prompt_of(reader, TEXT, picture(5), TEXT)
    with pytest.raises(UnreadableImage, match="header"):
        engine.prepare_images(ids, [image._replace(tokens=image.tokens + 1)])
    with pytest.raises(UnreadableImage, match="decoded"):
        engine.prepare_images(ids, [image._replace(content=image.content[:90], sha256="other")])
