"""Holds new requests back while an engine is paused or asleep."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from clawctl.engines.requests import Refusal

_PATIENCE_S = 300.0  # seconds that a request waits


class Halt:
    """The state of a pause or sleep. Used on one event loop."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._over = asyncio.Event()
        self._over.set()

    async def wait(self) -> None:
        """Wait until the engine samples. Raises Refusal if that takes too long."""
        if self._over.is_set():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await self._over.wait()
                return
        raise Refusal(503, f"{self.reason}; try again later", code="engine_paused")

    @asynccontextmanager
    async def beginning(self, reason: str) -> AsyncIterator[None]:
        """Make new requests wait from now on. If the block fails, the previous state is restored."""
        before, self.reason = self.reason, reason
        self._over.clear()
        try:
            yield
        except BaseException:
            self.reason = before
            if before is None:
                self._over.set()
            raise

    def end(self) -> None:
        self.reason = None
        self._over.set()
