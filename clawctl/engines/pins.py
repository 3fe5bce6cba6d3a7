"""Engines that are pinned to a version: a few at a time, the one not used for longest makes room."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from clawctl.engines import Engine
from clawctl.engines.places import Places
from clawctl.engines.refusals import unproven
from clawctl.serve.canary import CanaryFailure
from clawctl.serve.dialects import Refusal

_log = logging.getLogger("clawctl.serve")


@dataclass(slots=True)
class _Pinned:
    engine: Engine
    users: int = 0


class Pins:
    """`make` starts an engine for a version, in a thread."""

    def __init__(self, make: Callable[[int], Engine], most: int) -> None:
        self._make, self._most = make, most
        self._places = Places(most)
        self._pinned: OrderedDict[int, _Pinned] = OrderedDict()  # least recently used first
        self._changing = asyncio.Lock()

    @asynccontextmanager
    async def lease(self, version: int, key: str = "") -> AsyncIterator[Engine]:
        """An engine that serves `version` and no other for as long as the lease lasts. Raises Refusal if it cannot be loaded."""
        async with self._places.one(version, key):
            pinned = await self._pin(version)
            try:
                yield pinned.engine
            finally:
                pinned.users -= 1

    def stop(self) -> None:
        for pinned in self._pinned.values():
            pinned.engine.stop()

    async def _pin(self, version: int) -> _Pinned:
        ready = self._pinned.get(version)
        if ready is not None and ready.engine.failure() is None:
            self._pinned.move_to_end(version)
            ready.users += 1
            return ready
        async with self._changing:  # one at a time: two requests for a new version load it once
            if version in self._pinned and self._pinned[version].engine.failure() is not None:
                del self._pinned[version]  # it died; its requests got an error
            while version not in self._pinned and (idle := self._one_too_many()) is not None:
                await asyncio.to_thread(self._pinned.pop(idle).engine.stop)
            if version not in self._pinned:
                await self._add(version)
            self._pinned.move_to_end(version)
            self._pinned[version].users += 1
            return self._pinned[version]

    def _one_too_many(self) -> int | None:
        """The version to unload before another is loaded. Version 0 stays, because judges request it repeatedly. If all are in use,
        `Places` has admitted one more than `most`."""
        others = [old for old in self._pinned if old != 0]
        if len(others) < self._most:
            return None
        return next((old for old in others if not self._pinned[old].users), None)

    async def _add(self, version: int) -> None:
        loading = asyncio.ensure_future(asyncio.to_thread(self._load, version))
        try:
            await asyncio.wait({loading})
        except asyncio.CancelledError:  # the requester went away; an unknown engine would never be stopped
            await asyncio.wait({loading})
            raise
        finally:
            if loading.done() and loading.exception() is None:
                self._pinned[version] = _Pinned(loading.result())
        loading.result()

    def _load(self, version: int) -> Engine:
        try:
            return self._make(version)
        except CanaryFailure as error:
            raise unproven(version, error) from error
        except Exception as error:  # a policy can be broken in many ways; the caller gets an error, the log has the rest
            _log.exception("cannot load version %d", version)
            raise Refusal(404, f"version {version} of this model cannot be loaded", "model", "model_not_found") from error
