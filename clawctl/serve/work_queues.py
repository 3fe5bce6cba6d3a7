"""Queues for work whose size a client controls: it runs off the event loop, one task at a time, and API keys take turns."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

Done = TypeVar("Done")
SHORT: Final = 4000  # characters or bytes; shorter work runs immediately
_LONG: Final = 128 << 10  # longer work waits in a separate queue, so that it does not delay ordinary requests


class KeyedLock:
    """A lock whose waiting keys take turns: each waiting key gets it once before any key gets it twice."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[None]:
        if self._taken:
            await self._wait(key)
        self._taken = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, key: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the lock was assigned before the cancellation
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            key, waiting = self._waiting.popitem(last=False)
            turn = waiting.popleft()
            if waiting:
                self._waiting[key] = waiting  # behind the other keys
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False


class WorkQueues:
    """Two queues for work in threads: one for ordinary requests, one for long ones."""

    def __init__(self) -> None:
        self._ordinary, self._long = KeyedLock(), KeyedLock()

    async def run(self, key: str, size: int, work: Callable[[], Done]) -> Done:
        """Run `work()` immediately if `size` (characters) is small, otherwise in a thread when it is the key's turn."""
        if size <= SHORT:
            return work()
        async with (self._long if size > _LONG else self._ordinary).of(key):
            working = asyncio.ensure_future(asyncio.to_thread(work))
            try:
                await asyncio.wait({working})
            except asyncio.CancelledError:  # the turn ends with the work, even if the client is gone
                await asyncio.wait({working})
                working.exception()
                raise
            return working.result()
