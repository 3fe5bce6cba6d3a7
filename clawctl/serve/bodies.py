"""Reads request bodies. Size, speed and number of values are limited while a body arrives and while it is decompressed."""

import asyncio
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request

from clawctl.config import LimitsConfig
from clawctl.serve.body_checks import ValueCount, too_large, too_many_values
from clawctl.serve.dialects import Refusal
from clawctl.serve.limits import Concurrency
from clawctl.serve.work_queues import SHORT, WorkQueues

ENCODINGS: Final = ("gzip", "deflate", "zstd", "br")
_NAMES = {"x-gzip": "gzip", "zstandard": "zstd", "brotli": "br"}
_ARROW_CODECS = {"zstd": "zstd", "br": "brotli"}
_PIECE = 1 << 20  # bytes decompressed per step
_MAX_PARTS = 16  # members of a gzip file
_LARGE = 1 << 20  # bytes
_LARGE_PER_KEY = 16  # large requests that are read or answered at the same time
_DRAIN_S, _DRAIN_BYTES = 3.0, 256 << 20  # how much of a refused body is still read
_GZIP = 16 + zlib.MAX_WBITS


def encoding_of(header: str) -> str | None:
    """The encoding of a `Content-Encoding` header; None if the body is not compressed. Raises Refusal."""
    named = [name for each in header.split(",") if (name := each.strip().lower()) not in ("", "identity")]
    if not named:
        return None
    name = _NAMES.get(named[0], named[0])
    if len(named) > 1 or name not in ENCODINGS:
        problem = f"'Content-Encoding: {header[:100]}' is not supported: send the body uncompressed, or as {', '.join(ENCODINGS)}"
        raise Refusal(415, problem, accept_encoding=", ".join(ENCODINGS))
    return name


def unpacked(encoding: str, packed: bytes, max_bytes: int, max_values: int) -> bytes:
    """The decompressed body. Raises Refusal as soon as it holds more than `max_bytes` or `max_values`. Slow: run it in a
    thread."""
    pieces = _by_arrow(encoding, packed) if encoding in _ARROW_CODECS else _inflated(encoding, packed)
    raw, size, count = list[bytes](), 0, ValueCount()
    try:
        for piece in pieces:
            size += len(piece)
            if size > max_bytes:
                raise too_large(max_bytes)
            if count.feed(piece) > max_values:
                raise too_many_values(max_values)
            raw.append(piece)
    except (zlib.error, OSError, EOFError) as error:
        raise Refusal(400, f"the body is not complete {encoding}, which its 'Content-Encoding' names") from error
    return b"".join(raw)


def _inflated(encoding: str, packed: bytes) -> Iterator[bytes]:
    raw = encoding == "deflate" and (len(packed) < 2 or packed[0] & 15 != 8 or int.from_bytes(packed[:2]) % 31 != 0)
    window = _GZIP if encoding == "gzip" else -zlib.MAX_WBITS if raw else zlib.MAX_WBITS
    remaining, parts = packed, 0
    while remaining:
        inflating, parts = zlib.decompressobj(window), parts + 1
        if parts > _MAX_PARTS:
            raise EOFError
        while not inflating.eof:
            piece = inflating.decompress(remaining, _PIECE)
            remaining = inflating.unconsumed_tail
            if not piece and not remaining and not inflating.eof:
                raise EOFError
            yield piece
        remaining = inflating.unused_data if encoding == "gzip" else b""  # a gzip file may have several members


def _by_arrow(encoding: str, packed: bytes) -> Iterator[bytes]:
    import pyarrow as pa

    stream: Any = pa.CompressedInputStream(pa.BufferReader(packed), _ARROW_CODECS[encoding])
    while piece := stream.read(_PIECE):
        yield piece


class BodyReader:
    """Reads the bodies of requests, within the limits of the recipe."""

    def __init__(self, limits: LimitsConfig, queues: WorkQueues) -> None:
        self._limits, self._queues = limits, queues
        self._large = Concurrency(_LARGE_PER_KEY, "large requests")

    async def read(
        self, request: Request, key: str, max_bytes: int, max_values: int = 1 << 16, resources: ExitStack | None = None
    ) -> bytes:
        """The body, decompressed if needed. Raises Refusal if it is too large or too slow, before it is stored. With `resources`, a
        body of more than a megabyte counts as one of its key's large requests until `resources` ends."""

        def large() -> None:
            if resources is not None:
                resources.enter_context(self._large.count_request(key))

        encoding = encoding_of(request.headers.get("content-encoding", ""))
        if encoding is None:
            return await self._arrived(request, max_bytes, max_values, large)
        packed = await self._arrived(request, max_bytes, max_bytes, large)
        if not packed:
            return packed
        size = max(len(packed), SHORT + 1)  # never on the event loop, because the decompressed size is unknown
        raw = await self._queues.run(key, size, partial(unpacked, encoding, packed, max_bytes, max_values))
        if len(packed) <= _LARGE < len(raw):
            large()
        return raw

    async def _arrived(self, request: Request, max_bytes: int, max_values: int, large: Callable[[], None]) -> bytes:
        try:
            return await self._pieces(request, max_bytes, max_values, large)
        except Refusal as refusal:
            if refusal.status == 413:
                await _drain(request)
            raise

    async def _pieces(self, request: Request, max_bytes: int, max_values: int, large: Callable[[], None]) -> bytes:
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared[:18]) > max_bytes:
            raise too_large(max_bytes)
        pieces, size = list[bytes](), 0
        count, counted = ValueCount(), 0
        try:
            async with asyncio.timeout(self._limits.body_s):
                async for piece in request.stream():
                    size += len(piece)
                    if size > max_bytes:
                        raise too_large(max_bytes)
                    if size > _LARGE >= size - len(piece):
                        large()
                    pieces.append(piece)
                    if size > max_values:  # a shorter body cannot hold so many values
                        for uncounted in pieces[counted:]:
                            count.feed(uncounted)
                        counted = len(pieces)
                        if count.values > max_values:
                            raise too_many_values(max_values)
        except TimeoutError as error:
            raise Refusal(408, f"the body did not arrive within {self._limits.body_s:g} seconds") from error
        except ClientDisconnect as error:
            raise Refusal(400, "the body ended early") from error
        return b"".join(pieces)


async def _drain(request: Request) -> None:
    """Discard the rest of a refused body for a while. A client that still sends would see a reset connection, not its answer."""
    size = 0
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(_DRAIN_S):
            async for piece in request.stream():
                size += len(piece)
                if size > _DRAIN_BYTES:
                    return
