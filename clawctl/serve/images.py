"""Checks the images of a request before anything decodes them: how many, how large, of which kind.

The size of a picture is read from its header. A small file may claim a picture of gigabytes, and some readers reserve that memory
when they open it.
"""

import binascii
from base64 import b64decode
from collections.abc import Sequence

from clawctl.run.images import image_urls
from clawctl.run.rows import Message
from clawctl.serve.dialects import Refusal

MOST_IMAGES = 64
MOST_BYTES = 10 << 20  # of one image
MOST_PIXELS = 16 << 20  # of one image
MOST_PIXELS_TOGETHER = 64 << 20
_REMOTE = "this server fetches no images: send the image itself, as a data: URL (data:image/png;base64,…)"
_NOT_READ = "an image must be PNG, JPEG, GIF or WebP, as a data: URL (data:image/png;base64,…)"
_WITHOUT_SIZE = (*range(0xD0, 0xD8), 0x01)  # JPEG: markers without a length
_SIZES = (0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF)  # JPEG: begin of a frame


def check_images(messages: Sequence[Message]) -> None:
    """Raises Refusal for too many images, and for one that is too large, is no image, or would have to be fetched."""
    pixels = 0
    for number, url in enumerate(image_urls(messages), 1):
        if number > MOST_IMAGES:
            raise Refusal(400, f"a request may have at most {MOST_IMAGES} images", "messages")
        width, height = size_of(_content(url))
        pixels += width * height
        if width * height > MOST_PIXELS or pixels > MOST_PIXELS_TOGETHER:
            most = f"an image may have at most {MOST_PIXELS:,} pixels, and all of a request {MOST_PIXELS_TOGETHER:,}"
            raise Refusal(400, f"{most}; this one has {width} x {height}", "messages")


def _content(url: str) -> bytes:
    head, separator, data = url.partition(";base64,")
    if not separator or not head.startswith("data:image/"):
        raise Refusal(400, _REMOTE if url.lower().startswith(("http:", "https:")) else _NOT_READ, "messages")
    if len(data) * 3 // 4 > MOST_BYTES:
        raise Refusal(400, f"an image may have at most {MOST_BYTES >> 20} MB", "messages")
    try:
        return b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refusal(400, f"an image is not valid base64: {error}", "messages") from error


def size_of(content: bytes) -> tuple[int, int]:
    """Width and height by the header of a PNG, JPEG, GIF or WebP file. Raises Refusal."""
    size = None
    if content.startswith(b"\x89PNG\r\n\x1a\n") and content[12:16] == b"IHDR":
        size = _number(content[16:20]), _number(content[20:24])
    elif content.startswith((b"GIF87a", b"GIF89a")):
        size = int.from_bytes(content[6:8], "little"), int.from_bytes(content[8:10], "little")
    elif content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        size = _webp(content)
    elif content.startswith(b"\xff\xd8"):
        size = _jpeg(content)
    if size is None or not all(size) or len(content) < 20:
        raise Refusal(400, _NOT_READ, "messages")
    return size


def _number(part: bytes) -> int:
    return int.from_bytes(part, "big")


def _webp(content: bytes) -> tuple[int, int] | None:
    kind, rest = content[12:16], content[20:]
    if kind == b"VP8X" and len(rest) >= 10:
        return int.from_bytes(rest[4:7], "little") + 1, int.from_bytes(rest[7:10], "little") + 1
    if kind == b"VP8L" and len(rest) >= 5 and rest[0] == 0x2F:
        bits = int.from_bytes(rest[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and len(rest) >= 10 and rest[3:6] == b"\x9d\x01\x2a":
        return int.from_bytes(rest[6:8], "little") & 0x3FFF, int.from_bytes(rest[8:10], "little") & 0x3FFF
    return None


def _jpeg(content: bytes) -> tuple[int, int] | None:
    """The largest frame: a file may have several."""
    place, largest = 2, None
    while place + 9 <= len(content) and content[place] == 0xFF:
        marker = content[place + 1]
        if marker == 0xFF:
            place += 1
        elif marker in _WITHOUT_SIZE:
            place += 2
        elif marker == 0xDA:  # the picture itself follows
            break
        elif marker in _SIZES:
            size = _number(content[place + 7 : place + 9]), _number(content[place + 5 : place + 7])
            largest = size if largest is None else max(largest, size, key=lambda each: each[0] * each[1])
            place += 2 + _number(content[place + 2 : place + 4])
        else:
            place += 2 + max(2, _number(content[place + 2 : place + 4]))
    return largest
