"""Loaded models of pinned versions: a limited number, with the least recently used unloaded first."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from clawctl.engines.refusals import canary_refusal
from clawctl.engines.requests import Refusal
from clawctl.engines.slots import PinnedSlots
from clawctl.run.policies import Version
from clawctl.serve.canary import CanaryFailure

_log = logging.getLogger("clawctl.serve")


class Loaded(Protocol):
    """A version that is loaded in addition to the live model."""

    def failure(self) -> str | None:
        """Why the model cannot continue, or None."""
        ...

    def stop(self) -> None:
        """Unload the model. Called in a thread."""
        ...


@dataclass(slots=True)
class _Pin:
    model: Loaded
    users: int = 0


class Pins:
    """The pinned versions of an engine. `make` loads a version, in a thread; at most `limit` are loaded."""

    def __init__(self, make: Callable[[Version], Loaded], limit: int) -> None:
        self._make, self._limit = make, limit
        self._slots = PinnedSlots(limit)
        self._pinned: OrderedDict[Version, _Pin] = OrderedDict()  # least recently used first
        self._changing = asyncio.Lock()

    def at_once(self, version: Version, key: str) -> bool:
        """Whether `lease` returns without waiting."""
        pinned = self._pinned.get(version)
        return pinned is not None and pinned.model.failure() is None and self._slots.at_once(version, key)

    @asynccontextmanager
    async def lease(self, version: Version, key: str = "") -> AsyncIterator[Loaded]:
        """A model of exactly `version` for the duration of the lease. Raises Refusal if it cannot be loaded."""
        async with self._slots.acquire(version, key):
            pinned = await self._pin(version)
            try:
                yield pinned.model
            finally:
                pinned.users -= 1

    async def _pin(self, version: Version) -> _Pin:
        ready = self._pinned.get(version)
        if ready is not None and ready.model.failure() is None:
            self._pinned.move_to_end(version)
            ready.users += 1
            return ready
        async with self._changing:  # one change at a time, so that two requests for a new version load it once
            if version in self._pinned and self._pinned[version].model.failure() is not None:
                del self._pinned[version]  # the model died; its requests received an error
            while version not in self._pinned and (idle := self._one_too_many()) is not None:
                await asyncio.to_thread(self._pinned.pop(idle).model.stop)
            if version not in self._pinned:
                await self._add(version)
            self._pinned.move_to_end(version)
            self._pinned[version].users += 1
            return self._pinned[version]

    async def unload(self, version: Version) -> bool:
        """Unload a version. Returns whether it is unloaded; False while it is in use."""
        async with self._changing:
            pinned = self._pinned.get(version)
            if pinned is None or pinned.users:
                return pinned is None
            await asyncio.to_thread(self._pinned.pop(version).model.stop)
            return True

    async def unload_idle(self) -> None:
        for version in list(self._pinned):
            await self.unload(version)

    def _one_too_many(self) -> Version | None:
        """The version to unload before another one is loaded, or None. Version 0 stays, because judges request it repeatedly. If
        all are in use, `PinnedSlots` has admitted one more than `limit`."""
        others = [old for old in self._pinned if old != 0]
        if len(others) < self._limit:
            return None
        return next((old for old in others if not self._pinned[old].users), None)

    async def _add(self, version: Version) -> None:
        loading = asyncio.ensure_future(asyncio.to_thread(self._load, version))
        try:
            await asyncio.wait({loading})
        except asyncio.CancelledError:  # the client is gone, but a model that is not recorded would never be stopped
            await asyncio.wait({loading})
            raise
        finally:
            if loading.done() and loading.exception() is None:
                self._pinned[version] = _Pin(loading.result())
        loading.result()

    def _load(self, version: Version) -> Loaded:
        began = time.monotonic()
        try:
            loaded = self._make(version)
            _log.info("version %s is loaded beside the live one, in %.0f ms", version, 1000 * (time.monotonic() - began))
            return loaded
        except CanaryFailure as error:
            raise canary_refusal(version, error) from error
        except Exception as error:  # a policy can be broken in many ways; the client gets an error, the log has the details
            _log.exception("cannot load version %s", version)
            raise Refusal(404, f"version {version} of this model cannot be loaded", "model", "model_not_found") from error
