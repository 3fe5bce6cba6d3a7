"""Checks long request bodies in a separate process before this one reads them.

Parsing, checking and counting tokens hold Python's interpreter lock, and would block all other requests here. The process
(`clawctl.serve.inspector`) starts with the first long body and checks one at a time, and keys take turns.
"""

import asyncio
import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import orjson

from clawctl.serve.dialects import Refusal
from clawctl.serve.turns import Turns

_log = logging.getLogger("clawctl.serve")
LONG_BODY: Final = 32 << 10  # bytes; shorter bodies are read at once
_LONGEST_S = 30.0  # for one body; a legitimate one takes less than five


class Vetting:
    """`tokenizer`: a tokenizer.json to count tokens with, if there is one."""

    def __init__(self, model_name: str, tokenizer: Path | None) -> None:
        self._settings = {"model": model_name, "tokenizer": None if tokenizer is None else str(tokenizer)}
        self._turns = Turns()
        self._process: asyncio.subprocess.Process | None = None

    async def check(self, key: str, api: str, raw: bytes, max_context: int | None) -> None:
        """Raises Refusal for a body that cannot be understood or is too much. `api` names the dialect."""
        async with self._turns.of(key):
            try:
                told = await self._ask(orjson.dumps({"api": api, "max_context": max_context}), raw)
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                self.stop()
                _log.warning("cannot inspect a request body of %d bytes: %s", len(raw), type(error).__name__)
                raise Refusal(400, f"this request is too complex ({len(raw)} bytes)") from error
            except BaseException:  # its client is gone, so later output of the process belongs to no other body
                self.stop()
                raise
        if told:
            said = orjson.loads(told)
            raise Refusal(said["status"], said["message"], said["param"], said["code"])

    async def _ask(self, head: bytes, raw: bytes) -> bytes:
        if self._process is None or self._process.returncode is not None:
            self._process = await self._started()
        into, out = self._process.stdin, self._process.stdout
        assert into is not None
        assert out is not None
        async with asyncio.timeout(_LONGEST_S):
            for part in (head, raw):
                into.write(len(part).to_bytes(4, "big"))
                into.write(part)
            await into.drain()
            return await out.readexactly(int.from_bytes(await out.readexactly(4), "big"))

    async def _started(self) -> asyncio.subprocess.Process:
        command = [sys.executable, "-P", "-m", "clawctl.serve.inspector", orjson.dumps(self._settings).decode()]
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, start_new_session=True)

    def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError, RuntimeError):  # it has ended, or the event loop has
                self._process.kill()
                if self._process.stdin is not None:
                    self._process.stdin.close()
        self._process = None
