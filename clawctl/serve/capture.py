"""Writes exchanges to `captures/`. The kernel has an exchange before its client has the last byte; capture errors never break
serving.

Each API key has its own queue, whose exchanges are redacted and written in order. The threads of several keys take turns after each
piece of text (`FifoLock`). A text that takes long to check delays only the next answer of its own key.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from clawctl.config import PrivacyConfig
from clawctl.privacy.consent import may_capture
from clawctl.privacy.redaction import Decode, Redactor, redactor_of
from clawctl.run.checksums import sealed
from clawctl.run.images import NOT_STORED, has_images, without_bytes
from clawctl.run.lines import LineWriter
from clawctl.run.rows import Exchange

_log = logging.getLogger("clawctl.serve")
_ROTATE_BYTES = 64 << 20
_PATIENCE_S = 2.0  # an answer waits at most this long for a slow disk; the line is still written later
_LOG_EVERY_S = 5.0
_TURN_S = 0.0005  # a thread that ran for less does not yield: to pass the interpreter on and back takes 20 µs of processor time
_THREADS = 32  # keys whose exchanges are processed at the same time; further keys wait

_Waiting = tuple[Exchange, Any, asyncio.Future[bool]]  # the future's result: whether it was written in time


class FifoLock:
    """A lock that passes from thread to thread in the order in which they requested it."""

    def __init__(self) -> None:
        self._lock, self._locked = threading.Lock(), False
        self._waiting: deque[threading.Lock] = deque()
        self._held_since = 0.0

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self) -> None:
        with self._lock:
            if not self._locked:
                self._locked, self._held_since = True, time.monotonic()
                return
            ticket = threading.Lock()
            ticket.acquire()
            self._waiting.append(ticket)
        ticket.acquire()  # until `release` of the current holder releases it
        self._held_since = time.monotonic()

    def release(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()  # the lock stays held, now by the next thread
            else:
                self._locked = False

    def yield_to_waiting(self) -> None:
        """After `_TURN_S`, let all waiting threads run first. If there are none, yield the interpreter to other threads such as the
        event loop."""
        if time.monotonic() - self._held_since < _TURN_S:
            return
        if self._waiting:
            self.release()
            self.acquire()
        else:
            time.sleep(0)
        self._held_since = time.monotonic()


class Capture:
    """Writes to `folder`, one exchange per line. If `folder` is None, nothing is written."""

    def __init__(
        self, folder: Path | None, privacy: PrivacyConfig, decode: Decode | None = None, images: Path | None = None
    ) -> None:
        """`decode`: converts token ids to text, so that it is redacted as well; None if no tokenizer is known. `images`: the folder
        for images; None: only their hashes are kept."""
        self._images = images if privacy.store_images else None
        self._privacy = privacy
        self._lock, self._decode = FifoLock(), decode
        self._redactor = Redactor(()) if folder is None else redactor_of(privacy, decode, self._lock.yield_to_waiting)
        self._lines = None if folder is None else LineWriter(folder, _ROTATE_BYTES)
        self._threads = ThreadPoolExecutor(_THREADS, "capture")
        self._file = threading.Lock()
        # Per key that a thread works for. Later exchanges join its next batch, because waking a thread is the largest cost.
        self._waiting: dict[str, list[_Waiting]] = {}
        self._queue = threading.Lock()  # for `_waiting`
        self._logged_at = float("-inf")
        self.written = 0
        self.lost = 0
        self.failing = False  # the last exchange was lost
        self.last_error: str | None = None

    @property
    def enabled(self) -> bool:
        return self._lines is not None

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of token ids; "" if no tokenizer is known."""
        return "" if self._decode is None else self._decode(list(ids))

    async def write(self, exchange: Exchange, unwritten: Any = None) -> None:
        """Write one exchange. Returns when the kernel has it, when it is lost and counted, or after `_PATIENCE_S`. `unwritten`: see
        `Redactor.exchange`."""
        if self._lines is None or not may_capture(self._privacy, exchange.key, exchange.model):
            return
        loop = asyncio.get_running_loop()
        written = loop.create_future()
        with self._queue:
            active = exchange.key in self._waiting
            self._waiting.setdefault(exchange.key, []).append((exchange, unwritten, written))
        if not active:
            try:
                self._threads.submit(self._write_waiting, exchange.key, loop)
            except RuntimeError as error:  # no further thread can start; a running one takes the work
                self._log_problem(f"a capture waits for a thread: {error}")
        patience = loop.call_later(_PATIENCE_S, _resolve, written, False)
        if not await written:
            self._log_problem("the disk is slow or a text is very long: an answer was sent before its capture was written")
        patience.cancel()

    def _write_waiting(self, key: str, loop: asyncio.AbstractEventLoop) -> None:
        """Write all waiting exchanges of a key, in a thread, and those that arrive meanwhile. Further keys that wait for a
        thread go first."""
        while True:
            with self._queue:
                batch, self._waiting[key] = self._waiting[key], []
                if not batch:
                    del self._waiting[key]
                    return
            for exchange, unwritten, written in batch:
                self._redact_and_write(exchange, unwritten)
                with suppress(RuntimeError):  # the loop has ended, so nothing waits
                    loop.call_soon_threadsafe(_resolve, written, True)
            if len(self._waiting) > _THREADS:
                break
        with suppress(RuntimeError):  # `close` writes the rest
            self._threads.submit(self._write_waiting, key, loop)

    def close(self) -> None:
        """Finish running writes, and write the remaining exchanges."""
        self._threads.shutdown(wait=True)
        for waiting in self._waiting.values():
            for exchange, unwritten, _ in waiting:
                self._redact_and_write(exchange, unwritten)
        if self._lines is not None:
            self._lines.close()

    def _redact_and_write(self, exchange: Exchange, unwritten: Any) -> None:
        try:
            if has_images(exchange.messages):
                exchange = replace(exchange, messages=without_bytes(exchange.messages, self._images))
            if exchange.images and self._images is None:
                exchange = replace(exchange, untrainable_reason=exchange.untrainable_reason or NOT_STORED)
            with self._lock:
                redacted = self._redactor.exchange(exchange, unwritten)
            line = sealed(orjson.dumps(redacted))
            assert self._lines is not None
            with self._file:
                self._lines.append(line)
                self.written += 1
            if self.failing:
                self.failing = False
                _log.warning("captures work again; %d turns were lost", self.lost)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong here, the answer is sent; the problem is counted and logged
            self.lost += 1
            self.failing = True
            self._log_problem(f"a turn was not captured: {type(error).__name__}: {error}")

    def _log_problem(self, problem: str) -> None:
        self.last_error = problem
        if time.monotonic() - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = time.monotonic()
            _log.error("%s (%d lost so far)", problem, self.lost)


def _resolve(written: asyncio.Future[bool], in_time: bool) -> None:
    if not written.done():  # the waiting task may have been cancelled, or waits no longer
        written.set_result(in_time)
