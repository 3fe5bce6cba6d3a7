"""Checks number, size and format of a request's images before they are decoded.

An image's size is read from its header. A small file may claim gigabytes of pixels, and some readers allocate that memory when they
open it.
"""

import binascii
from base64 import b64decode
from collections.abc import Sequence

from clawctl.engines.requests import Refusal
from clawctl.run.images import image_urls
from clawctl.run.rows import Message
from clawctl.vision.header import size_in_header

MAX_IMAGES = 64
MAX_BYTES = 10 << 20  # of one image
MAX_PIXELS = 16 << 20  # of one image
MAX_PIXELS_TOGETHER = 64 << 20
_REMOTE = "this server fetches no images: send the image itself, as a data: URL (data:image/png;base64,…)"
_NOT_READ = "an image must be PNG, JPEG, GIF or WebP, as a data: URL (data:image/png;base64,…)"


def check_images(messages: Sequence[Message]) -> None:
    """Raises Refusal for too many images, and for an image that is too large, is not a supported image, or would have to be
    fetched."""
    pixels = 0
    for number, url in enumerate(image_urls(messages), 1):
        if number > MAX_IMAGES:
            raise Refusal(400, f"a request may have at most {MAX_IMAGES} images", "messages")
        width, height = size_of(_content(url))
        pixels += width * height
        if width * height > MAX_PIXELS or pixels > MAX_PIXELS_TOGETHER:
            limits = f"an image may have at most {MAX_PIXELS:,} pixels, and all of a request {MAX_PIXELS_TOGETHER:,}"
            raise Refusal(400, f"{limits}; this one has {width} x {height}", "messages")


def _content(url: str) -> bytes:
    head, separator, data = url.partition(";base64,")
    if not separator or not head.startswith("data:image/"):
        raise Refusal(400, _REMOTE if url.lower().startswith(("http:", "https:")) else _NOT_READ, "messages")
    if len(data) * 3 // 4 > MAX_BYTES:
        raise Refusal(400, f"an image may have at most {MAX_BYTES >> 20} MB", "messages")
    try:
        return b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refusal(400, f"an image is not valid base64: {error}", "messages") from error


def size_of(content: bytes) -> tuple[int, int]:
    """Width and height in pixels, from the header of a PNG, JPEG, GIF or WebP file. Raises Refusal."""
    size = size_in_header(content)
    if size is None:
        raise Refusal(400, _NOT_READ, "messages")
    return size
