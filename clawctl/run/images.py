"""Images of captured messages. Each is stored once, in `images/` under the SHA-256 of its bytes, and messages refer to it.

A message has `{"type": "image_url", "image_url": {"url": "image:<64 hexadecimal digits>"}}` in place of the bytes, so messages with
different images differ. The time of a file is when a captured request last used it.
"""

import os
import re
import time
from base64 import b64decode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from clawctl.run.directory import RunDir, publish_bytes, published
from clawctl.run.rows import Message
from clawctl.run.shards import UnreadableShard, read_columns

IMAGE = "image_url"  # the type of a message part with an image
NOT_STORED = "images are not stored"  # why a turn cannot be trained with `privacy.store_images: false`
_NAMED = re.compile(rb"image:([0-9a-f]{64})")
_NAME = re.compile("[0-9a-f]{64}")
_IN_FLIGHT_S = 5.0  # seconds; an image is stored just before the line that refers to it


def image_urls(messages: Sequence[Message]) -> Iterator[str]:
    """Yield the URL of each image: `data:…`, `image:…`."""
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            image = part.get(IMAGE) if isinstance(part, dict) and part.get("type") == IMAGE else None
            if image is not None:
                yield str(image.get("url", "")) if isinstance(image, dict) else str(image)


def has_images(messages: Sequence[Message]) -> bool:
    return next(image_urls(messages), None) is not None


def without_bytes(messages: Sequence[Message], folder: Path | None) -> list[Message]:
    """Return the messages with a reference in place of each image's bytes. `folder` stores the bytes; None: they are dropped.
    Raises OSError.
    """
    return [
        {**message, "content": [_with_reference(part, folder) for part in message["content"]]}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def _with_reference(part: Any, folder: Path | None) -> Any:
    if not isinstance(part, dict) or part.get("type") != IMAGE or not isinstance(part.get(IMAGE), dict):
        return part
    head, separator, data = str(part[IMAGE].get("url", "")).partition(";base64,")
    if not separator or not head.startswith("data:"):
        return part
    content = b64decode(data)
    name = sha256(content).hexdigest()
    if folder is not None:
        path = folder / name
        try:
            os.utime(path)
        except FileNotFoundError:
            publish_bytes(path, content)
    return {**part, IMAGE: {**part[IMAGE], "url": f"image:{name}"}}


def read_image(folder: Path, name: str) -> bytes:
    """Return the bytes of a stored image. Raises FileNotFoundError, OSError, and ValueError if the file has changed."""
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} names no image")
    content = (folder / name).read_bytes()
    if sha256(content).hexdigest() != name:
        raise ValueError(f"image {name} has changed")
    return content


def remove_unused(run: RunDir) -> list[Path]:
    """Delete the images that no stored message refers to.

    If such an image was used in the last few seconds, wait first: the line that refers to it may not be written yet.
    """
    if not any(run.images.glob("*")):
        return []
    unused = _unused(run)
    if any(time.time() - path.stat().st_mtime < _IN_FLIGHT_S for path in unused):
        time.sleep(_IN_FLIGHT_S)
        unused = _unused(run)
    for path in unused:
        path.unlink(missing_ok=True)
    return unused


def _unused(run: RunDir) -> list[Path]:
    # Listed before the references are read: images stored later are in use
    stored = [path for path in run.images.iterdir() if not path.name.startswith(".")]
    used = {name.decode() for content in _stored_content(run) for name in _NAMED.findall(content)}
    return [path for path in stored if path.name not in used]


def _stored_content(run: RunDir) -> Iterator[bytes]:
    for path in published(run.captures, ".jsonl"):
        with path.open("rb") as file:
            yield from file
    for path in published(run.trajectories, ".parquet"):
        try:
            for row in read_columns(path, "turns", ["messages", "next_state"]):
                yield str(row).encode(errors="replace")
        except (UnreadableShard, FileNotFoundError):
            continue
