"""From a thread to the event loop and back."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Done = TypeVar("Done")
_LONGEST_S = 30.0  # an event loop that does not come round for so long has ended


class OnLoop:
    """Runs functions on the event loop for a thread that waits for the result."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def running(self) -> bool:
        return self._loop is not None and self._loop.is_running()

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """After everything that could be read until now has been read."""

        async def run() -> None:
            for _ in range(3):
                await asyncio.sleep(0)
            function(*arguments)

        self.wait(run(), _LONGEST_S)

    def wait(self, work: Coroutine[Any, Any, Done], longest_s: float) -> Done:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(longest_s)
