"""Checks long request bodies in a separate process before this one reads them.

Parsing, checking and counting tokens hold Python's interpreter lock, and would block all other requests here. The process starts
with the first long body and checks one body at a time; keys take turns.

The process runs `python -m clawctl.serve.long_bodies SETTINGS`. From standard input it reads two parts, each after its length (4
bytes, big-endian): {"api", "max_context", "images"}, and the body. It answers with one part in the same form: empty, or the refusal
as a JSON list. It exits at the end of its input.
"""

import asyncio
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from clawctl.run.images import has_images
from clawctl.serve.body_checks import CountTokens, check_request, parse
from clawctl.serve.dialects import GenerationRequest, Refusal, chat, completions, messages, responses
from clawctl.serve.dialects.fields import NO_IMAGES
from clawctl.serve.work_queues import KeyedLock

_log = logging.getLogger("clawctl.serve")
LONG_BODY: Final = 32 << 10  # bytes; shorter bodies are read directly
_LONGEST_S = 30.0  # time limit for one body; a legitimate one takes less than five seconds


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
        async with asyncio.timeout(_LONGEST_S):
            for part in (head, raw):
                stdin.write(len(part).to_bytes(4, "big"))
                stdin.write(part)
            await stdin.drain()
            return await stdout.readexactly(int.from_bytes(await stdout.readexactly(4), "big"))

    async def _start(self) -> asyncio.subprocess.Process:
        command = [sys.executable, "-P", "-m", "clawctl.serve.long_bodies", orjson.dumps(self._settings).decode()]
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, start_new_session=True)

    def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError, RuntimeError):  # the process or the event loop has ended
                self._process.kill()
                if self._process.stdin is not None:
                    self._process.stdin.close()
        self._process = None


_MAX_BYTES = 4 << 30  # address space; a body that needs more memory is refused, so it cannot exhaust the machine
READERS: Final[dict[str, Callable[[dict[str, Any], str], GenerationRequest]]] = {
    "chat": chat.read,
    "responses": responses.read,
    "messages": messages.read,
    "count_tokens": messages.read_count,
    "completions": completions.read,
}


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
        request = READERS[head["api"]](parse(raw), model)
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
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    main(orjson.loads(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)
