"""`serve.sleep`: hours of the day in which the engine sleeps while nobody asks anything. A request wakes it."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from clawctl.engines.requests import Refusal
from clawctl.run.gaps import is_within
from clawctl.serve.versions import Versions

_log = logging.getLogger(__name__)
_LOOK_S = 1.0


class Sleeping:
    """Puts the engine to sleep and wakes it. Used on one event loop."""

    def __init__(self, hours: str | None, idle_s: float, versions: Versions, running: Callable[[], int]) -> None:
        self._hours, self._idle_s, self._versions, self._running = hours, idle_s, versions, running
        self._asking, self._asked_at = 0, time.monotonic()  # requests that have not begun yet; when the last one came
        self._changing = asyncio.Lock()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Within this context the engine does not fall asleep."""
        self._asking += 1
        try:
            yield
        finally:
            self._asking, self._asked_at = self._asking - 1, time.monotonic()

    async def keep(self) -> None:
        """Follow the hours, unless the engine cannot sleep."""
        said = None
        while self._hours is not None:
            await asyncio.sleep(_LOOK_S)
            night = is_within(self._hours, datetime.now().strftime("%H:%M"))
            is_idle = not self._asking and not self._running() and time.monotonic() - self._asked_at >= self._idle_s
            try:
                if not night:
                    await self.wake(f"it is not {self._hours}")
                elif is_idle and not self._versions.asleep and self._versions.live.waiting_for() is None:
                    await self._sleep()
                said = None
            except Refusal as refusal:
                if refusal.message != said:
                    _log.warning("serve.sleep: %s", refusal.message)
                said = refusal.message
                if not self._versions.asleep:
                    return

    async def _sleep(self) -> None:
        async with self._changing:
            self._versions.asleep = True  # before the engine is asked: a request from now on wakes it
            try:
                await self._versions.between_swaps(self._versions.live.sleep)
            except Refusal as refusal:
                self._versions.asleep = refusal.status == 503  # it did not answer, and may sleep all the same
                raise
        _log.info("the engine sleeps until a request comes, or %s ends", self._hours)

    async def wake(self, why: str = "a request came") -> None:
        """Wake the engine if it sleeps. Raises Refusal (503) if it does not wake; the next request tries again."""
        if not self._versions.asleep:
            return
        async with self._changing:
            if self._versions.asleep:
                try:
                    await self._versions.between_swaps(self._versions.live.wake)
                except Refusal as refusal:
                    raise Refusal(503, f"the engine does not wake: {refusal.message}") from refusal
                self._versions.asleep = False
                _log.info("the engine is awake: %s", why)
