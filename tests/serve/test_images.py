"""Images of requests: refusals before decoding, and how an image is stored, identified and deleted."""

import asyncio
import os
import time
from base64 import b64encode
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import orjson
import pytest
from PIL import Image

from clawctl.collect.canonical import text_of
from clawctl.collect.rows import IMAGES, untrainable_reason
from clawctl.config import PrivacyConfig, Recipe
from clawctl.engines.requests import Refusal
from clawctl.privacy.forget import forget
from clawctl.privacy.selection import Selection
from clawctl.run.directory import RunDir, open_run, published
from clawctl.run.images import has_images
from clawctl.run.retention import expire
from clawctl.run.rows import Exchange
from clawctl.serve.capture import Capture
from clawctl.serve.dialects import chat, messages, responses
from clawctl.serve.images import MAX_IMAGES, MAX_PIXELS, check_images, size_of
from tests.serve.test_capture import exchange


def picture(kind: str = "PNG", size: tuple[int, int] = (5, 3), colour: str = "red", **how: Any) -> bytes:
    file = BytesIO()
    Image.new("RGB", size, colour).save(file, kind, **how)
    return file.getvalue()


def url_of(content: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{b64encode(content).decode()}"


def user(*urls: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}} for url in urls]}]


# What is refused


@pytest.mark.parametrize(
    ("kind", "how"),
    [("PNG", {}), ("GIF", {}), ("JPEG", {}), ("JPEG", {"progressive": True}), ("WEBP", {}), ("WEBP", {"lossless": True}),
     ("WEBP", {"exif": b"Exif\x00\x00"})],
)  # fmt: skip
def test_the_size_of_a_picture_is_read_from_its_header(kind: str, how: dict[str, Any]) -> None:
    assert size_of(picture(kind, (301, 7), **how)) == (301, 7)


def bomb() -> bytes:
    """A PNG of 69 bytes that claims four billion pixels."""
    content = picture()
    return content[:16] + (65535).to_bytes(4, "big") * 2 + content[24:]


@pytest.mark.parametrize(
    ("urls", "problem"),
    [
        (["http://192.0.2.1/a.png"], "fetches no images"),
        (["https://example.com/a.png"], "fetches no images"),
        (["file:///etc/passwd"], "must be PNG, JPEG, GIF or WebP"),
        (["data:text/html;base64,aGVsbG8="], "must be PNG, JPEG, GIF or WebP"),
        ([url_of(b"<svg xmlns='http://www.w3.org/2000/svg'></svg>")], "must be PNG, JPEG, GIF or WebP"),
        ([url_of(b"")], "must be PNG, JPEG, GIF or WebP"),
        ([url_of(picture())[:-5] + "!!"], "not valid base64"),
        ([url_of(bomb())], f"at most {MAX_PIXELS:,} pixels"),
        ([url_of(picture(size=(4000, 4000)))] * 5, "all of a request"),
        (["data:image/png;base64," + "A" * (14 << 20)], "at most 10 MB"),
        ([url_of(picture())] * (MAX_IMAGES + 1), f"at most {MAX_IMAGES} images"),
    ],
)
def test_an_image_that_is_too_much_or_would_be_fetched_is_refused(urls: list[str], problem: str) -> None:
    with pytest.raises(Refusal, match=problem) as refused:
        check_images(user(*urls))
    assert refused.value.status == 400


def test_no_cut_of_a_picture_is_more_than_refused() -> None:
    for kind in ("PNG", "GIF", "JPEG", "WEBP"):
        content = picture(kind)
        for end in range(0, min(len(content), 700), 3):
            try:
                assert size_of(content[:end]) == (5, 3)
            except Refusal:
                continue


def test_all_three_apis_read_the_same_image() -> None:
    content, data = url_of(picture()), b64encode(picture()).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    asks = [
        chat.read({"messages": user(content)}, "m"),
        responses.read({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": content}]}]}, "m"),
        messages.read({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}, "m"),
    ]
    assert [ask.messages[-1]["content"][0]["image_url"]["url"] for ask in asks] == [content] * 3
    remote = {"type": "image", "source": {"type": "url", "url": "http://192.0.2.1/a.png"}}
    with pytest.raises(Refusal, match="fetches no images"):
        check_images(messages.read({"max_tokens": 1, "messages": [{"role": "user", "content": [remote]}]}, "m").messages)


# How it is stored


def seen(number: int, *contents: bytes, session: str = "s") -> Exchange:
    ids: dict[str, Any] = {"prompt_ids": [1, 2], "completion_ids": [3], "logprobs": [-0.1], "policy_version": 0, "response": {}}
    return replace(exchange(number), messages=user(*map(url_of, contents)), hints={"session_id": session}, **ids)


def capture(run: RunDir, *exchanges: Exchange, **privacy: Any) -> list[dict[str, Any]]:
    writer = Capture(run.captures, PrivacyConfig(**privacy), None, run.images)

    async def keep() -> None:
        for entry in exchanges:
            await writer.write(entry)

    asyncio.run(keep())
    writer.close()
    return [orjson.loads(line) for path in published(run.captures, ".jsonl") for line in path.read_bytes().splitlines()]


def test_an_image_is_stored_once_and_messages_refer_to_it(tmp_path: Path) -> None:
    run, red, blue = open_run(tmp_path / "run"), picture(colour="red"), picture(colour="blue")
    rows = capture(run, seen(1, red, blue), seen(2, red))
    assert sorted(path.read_bytes() for path in run.images.iterdir()) == sorted((red, blue))
    urls = [part["image_url"]["url"] for part in rows[0]["messages"][0]["content"]]
    assert all((run.images / url.removeprefix("image:")).exists() for url in urls)
    first, second = (text_of(capture_of[0]["content"]) for capture_of in (rows[0]["messages"], rows[1]["messages"]))
    assert first != second
    assert text_of(user(url_of(red))[0]["content"]) != text_of(user(url_of(blue))[0]["content"])
    assert rows[0]["untrainable_reason"] is None  # the reference is not taken for a secret


def test_images_can_be_left_out(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    rows = capture(run, seen(1, picture()), store_images=False)
    assert not list(run.images.iterdir())
    assert rows[0]["messages"][0]["content"][0]["image_url"]["url"].startswith("image:")


def test_a_turn_with_an_image_is_trained_only_where_its_place_and_its_file_are_known(tmp_path: Path) -> None:
    turn = seen(1, picture())
    assert has_images(turn.messages)
    assert untrainable_reason(turn, "main", True, False) == IMAGES
    assert untrainable_reason(replace(turn, messages=[{"role": "user", "content": "hi"}]), "main", True, False) is None
    placed = replace(turn, images=[{"sha256": "a", "start": 0, "tokens": 2}])
    assert untrainable_reason(placed, "main", True, False) is None
    (row,) = capture(open_run(tmp_path / "run"), placed, store_images=False)
    assert row["untrainable_reason"] == "images are not stored"


@pytest.mark.parametrize(
    "images", [[{"sha256": "a", "start": 1, "tokens": 2}], [{"sha256": "a", "start": 0, "tokens": 0}], [{"start": 0}], "a", [None]]
)
def test_an_exchange_whose_images_are_not_in_its_prompt_is_no_exchange(images: Any) -> None:
    with pytest.raises(ValueError, match="not in the prompt"):
        replace(seen(1), images=images)


def test_forget_deletes_images_that_nothing_else_refers_to(tmp_path: Path) -> None:
    run, red, blue = open_run(tmp_path / "run"), picture(colour="red"), picture(colour="blue")
    capture(run, seen(1, red, session="mine"), seen(2, blue, session="mine"), seen(3, blue, session="yours"))
    for path in run.images.iterdir():
        os.utime(path, (time.time() - 60,) * 2)
    done = forget(run, Selection(session="mine"), dry_run=False, retrain=False)
    assert done.files["images"] == 1
    assert [path.read_bytes() for path in run.images.iterdir()] == [blue]


def test_old_images_expire_with_their_conversations(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    capture(run, seen(1, picture(colour="red")), seen(2, picture(colour="blue")))
    old, _ = sorted(run.images.iterdir())
    os.utime(old, (time.time() - 3 * 86400,) * 2)
    recipe = Recipe.model_validate({"privacy": {"max_age_days": 2}})
    assert expire(run, recipe).files == [old]
    assert not old.exists()
