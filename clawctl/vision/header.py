"""Width and height of an image from the header of its file, without decoding it."""

_WITHOUT_SIZE = (*range(0xD0, 0xD8), 0x01)  # JPEG: markers without a length
_SIZES = (0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF)  # JPEG: start-of-frame markers


def size_in_header(content: bytes) -> tuple[int, int] | None:
    """Width and height in pixels of a PNG, JPEG, GIF or WebP file; None for anything else."""
    size = None
    if content.startswith(b"\x89PNG\r\n\x1a\n") and content[12:16] == b"IHDR":
        size = _number(content[16:20]), _number(content[20:24])
    elif content.startswith((b"GIF87a", b"GIF89a")):
        size = int.from_bytes(content[6:8], "little"), int.from_bytes(content[8:10], "little")
    elif content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        size = _webp(content)
    elif content.startswith(b"\xff\xd8"):
        size = _jpeg(content)
    return size if size is not None and all(size) and len(content) >= 20 else None


def _number(part: bytes) -> int:
    return int.from_bytes(part, "big")


def _webp(content: bytes) -> tuple[int, int] | None:
    kind, data = content[12:16], content[20:]
    if kind == b"VP8X" and len(data) >= 10:
        return int.from_bytes(data[4:7], "little") + 1, int.from_bytes(data[7:10], "little") + 1
    if kind == b"VP8L" and len(data) >= 5 and data[0] == 0x2F:
        bits = int.from_bytes(data[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and len(data) >= 10 and data[3:6] == b"\x9d\x01\x2a":
        return int.from_bytes(data[6:8], "little") & 0x3FFF, int.from_bytes(data[8:10], "little") & 0x3FFF
    return None


def _jpeg(content: bytes) -> tuple[int, int] | None:
    """The size of the largest frame, because a file may have several."""
    offset, largest = 2, None
    while offset + 9 <= len(content) and content[offset] == 0xFF:
        marker = content[offset + 1]
        if marker == 0xFF:
            offset += 1
        elif marker in _WITHOUT_SIZE:
            offset += 2
        elif marker == 0xDA:  # the image data follows
            break
        elif marker in _SIZES:
            size = _number(content[offset + 7 : offset + 9]), _number(content[offset + 5 : offset + 7])
            largest = size if largest is None else max(largest, size, key=lambda area: area[0] * area[1])
            offset += 2 + _number(content[offset + 2 : offset + 4])
        else:
            offset += 2 + max(2, _number(content[offset + 2 : offset + 4]))
    return largest
