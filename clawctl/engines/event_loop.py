"""Runs work on the event loop for other threads."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import wait
from typing import Any, TypeVar

Done = TypeVar("Done")
_LOOK_S = 1.0  # the loop may end while a thread waits for it
_LONGEST_S = 30.0  # an event loop that does not respond for this long has ended


class OnLoop:
    """Runs work on the event loop for a thread that waits for the result."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def running(self) -> bool:
        return self._loop is not None and self._loop.is_running()

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call `function` on the event loop after all input that is available now has been read."""

        async def run() -> None:
            for _ in range(3):
                await asyncio.sleep(0)
            function(*arguments)

        self.wait(run(), _LONGEST_S)

    def wait(self, work: Coroutine[Any, Any, Done], longest_s: float) -> Done:
        """The result of `work`. Raises its exceptions, TimeoutError, and CancelledError once the event loop has ended."""
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        until = time.monotonic() + longest_s
        while not wait([future], min(_LOOK_S, max(0.0, until - time.monotonic()))).done:
            if not self._loop.is_running():
                future.cancel()
            elif time.monotonic() >= until:
                future.cancel()
                raise TimeoutError(f"no answer within {longest_s:g} s")
        return future.result()
