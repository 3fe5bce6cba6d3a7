"""Decompresses request bodies. The size is counted while decompressing, so that a small body never becomes a large one."""

import zlib
from collections.abc import Iterator
from typing import Any, Final

from clawctl.serve.dialects import Refusal
from clawctl.serve.measure import ValueCount, too_large, too_many_values

ENCODINGS: Final = ("gzip", "deflate", "zstd", "br")
_NAMES = {"x-gzip": "gzip", "zstandard": "zstd", "brotli": "br"}
_PYARROWS = {"zstd": "zstd", "br": "brotli"}
_PIECE = 1 << 20  # bytes that are unpacked at a time
_MOST_PARTS = 16  # of a gzip file
_GZIP = 16 + zlib.MAX_WBITS


def encoding_of(header: str) -> str | None:
    """The encoding of a `Content-Encoding` header; None if the body is not compressed. Raises Refusal."""
    named = [name for each in header.split(",") if (name := each.strip().lower()) not in ("", "identity")]
    if not named:
        return None
    name = _NAMES.get(named[0], named[0])
    if len(named) > 1 or name not in ENCODINGS:
        told = f"'Content-Encoding: {header[:100]}' is not supported: send the body uncompressed, or as {', '.join(ENCODINGS)}"
        raise Refusal(415, told, accept_encoding=", ".join(ENCODINGS))
    return name


def unpacked(encoding: str, packed: bytes, most_bytes: int, most_values: int) -> bytes:
    """The body. Raises Refusal as soon as it holds more than `most_bytes` or `most_values`. For a thread: it takes its time."""
    pieces = _by_arrow(encoding, packed) if encoding in _PYARROWS else _inflated(encoding, packed)
    found, size, count = list[bytes](), 0, ValueCount()
    try:
        for piece in pieces:
            size += len(piece)
            if size > most_bytes:
                raise too_large(most_bytes)
            if count.feed(piece) > most_values:
                raise too_many_values(most_values)
            found.append(piece)
    except (zlib.error, OSError, EOFError) as error:
        raise Refusal(400, f"the body is not complete {encoding}, although its 'Content-Encoding' says so") from error
    return b"".join(found)


def _inflated(encoding: str, packed: bytes) -> Iterator[bytes]:
    raw = encoding == "deflate" and (len(packed) < 2 or packed[0] & 15 != 8 or int.from_bytes(packed[:2]) % 31 != 0)
    window = _GZIP if encoding == "gzip" else -zlib.MAX_WBITS if raw else zlib.MAX_WBITS
    rest, parts = packed, 0
    while rest:
        inflating, parts = zlib.decompressobj(window), parts + 1
        if parts > _MOST_PARTS:
            raise EOFError
        while not inflating.eof:
            piece = inflating.decompress(rest, _PIECE)
            rest = inflating.unconsumed_tail
            if not piece and not rest and not inflating.eof:
                raise EOFError
            yield piece
        rest = inflating.unused_data if encoding == "gzip" else b""  # a file of gzip may have several parts


def _by_arrow(encoding: str, packed: bytes) -> Iterator[bytes]:
    import pyarrow as pa

    stream: Any = pa.CompressedInputStream(pa.BufferReader(packed), _PYARROWS[encoding])
    while piece := stream.read(_PIECE):
        yield piece
