"""How a request's body comes in: read, decompressed, measured, and converted by its dialect. Every limit is named in its refusal.

A body is limited while it arrives: its size, its speed, and its number of values. Bodies of more than 32 KB are then checked in
another process, because parsing, checking and counting tokens hold Python's interpreter lock and would block all other requests.
That process starts with the first long body and checks one body at a time; keys take turns.

It runs `python -m clawctl.serve.intake SETTINGS`. From standard input it reads two parts, each after its length (4 bytes,
big-endian): {"api", "max_context", "images"}, and the body. It answers with one part in the same form: empty, or the refusal as a
JSON list. It exits at the end of its input.
"""

import asyncio
import logging
import os
import resource
import signal
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson
from starlette.requests import ClientDisconnect, Request

from clawctl.config import LimitsConfig
from clawctl.engines import Engine
from clawctl.engines.requests import GenerationRequest, Refusal
from clawctl.run.images import has_images
from clawctl.serve import request_sizes
from clawctl.serve.dialects import chat, completions, messages, responses
from clawctl.serve.dialects.fields import NO_IMAGES
from clawctl.serve.request_context import RequestContext
from clawctl.serve.request_sizes import CountTokens, ValueCount, check_request, largest_body, parse, too_large, too_many_values
from clawctl.serve.work_queues import SHORT, KeyedLock, WorkQueues

_log = logging.getLogger("clawctl.serve")
_LONG_BODY: Final = 32 << 10  # bytes; shorter bodies are read directly
_ENCODINGS: Final = ("gzip", "deflate", "zstd", "br")
_ENCODING_NAMES = {"x-gzip": "gzip", "zstandard": "zstd", "brotli": "br"}
_ARROW_CODECS = {"gzip": "gzip", "zstd": "zstd", "br": "brotli"}
_UNPACKED = 1 << 20  # bytes decompressed per step
_LARGE = 1 << 20  # bytes
_LARGE_PER_KEY = 16  # large requests that are read or answered at the same time
_DRAIN_S, _DRAIN_BYTES = 3.0, 256 << 20  # how much of a refused body is still read
_MOST_VALUES = 1 << 16  # of a body that is no request for an answer
_CHECK_S = 30.0  # time limit for the check of one long body; a legitimate one takes less than five seconds
_CHECK_BYTES = 4 << 30  # address space of the checking process; a body that needs more is refused, so it cannot exhaust the machine
_RETRY_AFTER_S = 1
_READERS: Final[dict[str, Callable[[dict[str, Any], str], GenerationRequest]]] = {
    "chat": chat.read, "responses": responses.read, "completions": completions.read, "messages": messages.read,
    "count_tokens": messages.read_count, "input_tokens": responses.read,
}  # fmt: skip


class Concurrency:
    """Counts and limits the running requests of each key."""

    def __init__(self, limit: int, what: str = "requests") -> None:
        self._limit, self._what = limit, what
        self._running: Counter[str] = Counter()

    @contextmanager
    def count_request(self, key: str) -> Iterator[None]:
        """Count one more running request until the context ends. Raises Refusal, which states when to retry."""
        if self._running[key] >= self._limit:
            problem = f"this API key already runs {self._limit} {self._what}; wait until one ends"
            raise Refusal(429, problem, code="rate_limit_exceeded", retry_after=str(_RETRY_AFTER_S))
        self._running[key] += 1
        try:
            yield
        finally:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]


class Intake:
    """Reads the bodies of requests, within the limits of the recipe. `tokenizer`: path of a tokenizer.json for counting tokens."""

    def __init__(self, limits: LimitsConfig, queues: WorkQueues, model_name: str, tokenizer: Path | None) -> None:
        self._limits, self._queues, self._model_name = limits, queues, model_name
        self._checker = LongBodyChecker(model_name, tokenizer)
        self._large = Concurrency(_LARGE_PER_KEY, "large requests")

    async def request(
        self,
        http_request: Request,
        context: RequestContext,
        live: Engine,
        resources: ExitStack,
        complete: Callable[[dict[str, Any]], dict[str, Any]],  # adds what the server has stored
    ) -> GenerationRequest:
        """The checked request for an answer. `resources` ends when it is answered or refused. Raises Refusal."""
        images, max_context, key = live.capabilities.images, live.max_context, context.key
        max_bytes = largest_body(self._limits.body_mb, max_context, images)
        raw = await self.raw(http_request, key, max_bytes, self._limits.body_values, resources)
        is_checked = len(raw) > _LONG_BODY and not request_sizes.is_plain(raw, max_context)
        if context.episode is not None:
            context.digest = blake2b(raw, digest_size=16).digest()
        if is_checked:
            await self._checker.check(key, context.api, raw, max_context, images)
            body = complete(await self._queues.run(key, len(raw), partial(parse, raw)))
            request = await self._queues.run(key, len(raw), partial(_READERS[context.api], body, self._model_name))
        else:  # it is read in a moment
            body = complete(parse(raw))
            request = _READERS[context.api](body, self._model_name)
        if images is False and has_images(request.messages):
            raise Refusal(400, NO_IMAGES, "messages")
        if not is_checked:
            check_request(request)
        return replace(request, key=context.key, size=len(raw))  # `complete` may have changed it

    async def raw(
        self, request: Request, key: str, max_bytes: int, max_values: int = _MOST_VALUES, resources: ExitStack | None = None
    ) -> bytes:
        """The body, decompressed if needed. Raises Refusal if it is too large or too slow, before it is stored. With `resources`, a
        body of more than a megabyte counts as one of its key's large requests until `resources` ends."""

        def large() -> None:
            if resources is not None:
                resources.enter_context(self._large.count_request(key))

        encoding = _encoding_of(request.headers.get("content-encoding", ""))
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

    def stop(self) -> None:
        """End the checking process."""
        self._checker.stop()


async def _drain(request: Request) -> None:
    """Discard the rest of a refused body for a while. A client that still sends would see a reset connection, not its answer."""
    size = 0
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(_DRAIN_S):
            async for piece in request.stream():
                size += len(piece)
                if size > _DRAIN_BYTES:
                    return


# ---- compressed bodies -----------------------------------------------------------------------------------------------------


def _encoding_of(header: str) -> str | None:
    """The encoding of a `Content-Encoding` header; None if the body is not compressed. Raises Refusal."""
    names = [name.strip().lower() for name in header.split(",")]
    named = [name for name in names if name not in ("", "identity")]
    if not named:
        return None
    name = _ENCODING_NAMES.get(named[0], named[0])
    if len(named) > 1 or name not in _ENCODINGS:
        problem = f"'Content-Encoding: {header[:100]}' is not supported: send the body uncompressed, or as {', '.join(_ENCODINGS)}"
        raise Refusal(415, problem, accept_encoding=", ".join(_ENCODINGS))
    return name


def unpacked(encoding: str, packed: bytes, max_bytes: int, max_values: int) -> bytes:
    """The decompressed body. Raises Refusal as soon as it holds more than `max_bytes` or `max_values`. Slow: run it in a
    thread."""
    pieces = _by_arrow(encoding, packed) if encoding in _ARROW_CODECS else _inflated(packed)
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


def _by_arrow(encoding: str, packed: bytes) -> Iterator[bytes]:
    import pyarrow as pa

    stream: Any = pa.CompressedInputStream(pa.BufferReader(packed), _ARROW_CODECS[encoding])
    while piece := stream.read(_UNPACKED):
        yield piece


def _inflated(packed: bytes) -> Iterator[bytes]:
    """Arrow has no deflate. Some clients send it without its header."""
    has_header = len(packed) >= 2 and packed[0] & 15 == 8 and int.from_bytes(packed[:2]) % 31 == 0
    inflating = zlib.decompressobj(zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)
    while not inflating.eof:
        piece = inflating.decompress(packed, _UNPACKED)
        packed = inflating.unconsumed_tail
        if not piece and not packed and not inflating.eof:
            raise EOFError
        yield piece


# ---- long bodies, in another process ---------------------------------------------------------------------------------------


class LongBodyChecker:
    """Runs the checks in another process. `tokenizer`: path of a tokenizer.json for counting tokens, if there is one."""

    def __init__(self, model_name: str, tokenizer: Path | None) -> None:
        self._settings = {"model": model_name, "tokenizer": None if tokenizer is None else str(tokenizer)}
        self._turns = KeyedLock()
        self._process: asyncio.subprocess.Process | None = None

    async def check(self, key: str, api: str, raw: bytes, max_context: int | None, images: bool | None = None) -> None:
        """Raises Refusal for a body that is invalid or too large. `api` names the dialect. `images`: whether the model accepts
        images."""
        async with self._turns.of(key):
            try:
                refusal = await self._exchange(orjson.dumps({"api": api, "max_context": max_context, "images": images}), raw)
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                self.stop()
                _log.warning("cannot inspect a request body of %d bytes: %s", len(raw), type(error).__name__)
                raise Refusal(400, f"this request is too complex ({len(raw)} bytes)") from error
            except BaseException:  # cancelled: the process's pending output must not be read as the answer for another body
                self.stop()
                raise
        if refusal:
            raise Refusal(*orjson.loads(refusal))

    async def _exchange(self, head: bytes, raw: bytes) -> bytes:
        if self._process is None or self._process.returncode is not None:
            self._process = await self._start()
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        async with asyncio.timeout(_CHECK_S):
            for part in (head, raw):
                stdin.write(len(part).to_bytes(4, "big"))
                stdin.write(part)
            await stdin.drain()
            return await stdout.readexactly(int.from_bytes(await stdout.readexactly(4), "big"))

    async def _start(self) -> asyncio.subprocess.Process:
        command = [sys.executable, "-P", "-m", "clawctl.serve.intake", orjson.dumps(self._settings).decode()]
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, start_new_session=True)

    def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError, RuntimeError):  # the process or the event loop has ended
                self._process.kill()
                if self._process.stdin is not None:
                    self._process.stdin.close()
        self._process = None


def main(settings: dict[str, Any], requests: BinaryIO, refusals: BinaryIO) -> None:
    count = None if settings["tokenizer"] is None else _counter(settings["tokenizer"])
    while len(length := requests.read(4)) == 4:
        head = orjson.loads(requests.read(int.from_bytes(length, "big")))
        raw = requests.read(int.from_bytes(requests.read(4), "big"))
        refusal = _refusal_of(head, raw, settings["model"], count)
        refusals.write(len(refusal).to_bytes(4, "big") + refusal)
        refusals.flush()


def _refusal_of(head: dict[str, Any], raw: bytes, model: str, count: CountTokens | None) -> bytes:
    try:
        request = _READERS[head["api"]](parse(raw), model)
        if head["images"] is False and has_images(request.messages):
            raise Refusal(400, NO_IMAGES, "messages")
        check_request(request, head["max_context"], count)
    except Refusal as refusal:
        return orjson.dumps([refusal.status, refusal.message, refusal.param, refusal.code])
    except (MemoryError, RecursionError):
        return orjson.dumps([400, "this request is too complex"])
    return b""


def _counter(path: str) -> CountTokens:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    return lambda text: len(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is meant for serve, and this process ends with it
    os.nice(5)  # give way to the serving process
    resource.setrlimit(resource.RLIMIT_AS, (_CHECK_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    main(orjson.loads(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)
