"""The adapters that an upstream has loaded. Each has passed its canary check there, and unused ones are unloaded."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from clawctl.engines.upstream.tokens import Clock
from clawctl.errors import ClawError
from clawctl.run.policies import Version, number_in
from clawctl.serve.canary import CanaryFailure

_log = logging.getLogger("clawctl.serve")


@dataclass(slots=True)
class Target:
    """A model name to request from the upstream."""

    name: str
    clock: Clock
    steady: bool = True  # its weights never change; otherwise an answer may span two versions
    users: int = 0


class Adapters:
    """Used on one event loop; `load`, `verify` and `unload` are called in threads. `load` and `unload` raise ClawError; `verify`
    raises ClawError and CanaryFailure. At most `limit` adapters stay loaded in addition to the `live` one."""

    def __init__(
        self,
        name: Callable[[Version], str],
        load: Callable[[Version], None],
        verify: Callable[[Version], None],
        unload: Callable[[str], None],
        live: Callable[[], int],
        limit: int,
    ) -> None:
        self._name, self._load, self._verify, self._unload = name, load, verify, unload
        self._live, self._limit = live, limit
        self._changing = asyncio.Lock()  # held while the loaded adapters change, here or in the upstream
        self._unloading: asyncio.Future[None] | None = None
        self.loaded: OrderedDict[Version, Target] = OrderedDict()  # least recently used first

    def reset(self) -> None:
        """Clear the record, because the upstream has restarted without adapters."""
        self.loaded = OrderedDict()

    async def use(self, version: Version) -> tuple[Target, bool]:
        """Keep the adapter loaded for a new user until `release`. Returns whether this call loaded it. Raises like `load` and
        `verify`."""
        fresh = False
        while version not in self.loaded:
            # The client may disconnect, but a load must finish, because otherwise the upstream would have an unrecorded adapter.
            fresh = await asyncio.shield(asyncio.ensure_future(self._load_once(version)))
        self.loaded.move_to_end(version)
        target = self.loaded[version]
        target.users += 1
        return target, fresh

    async def _load_once(self, version: Version) -> bool:
        async with self._changing:
            if version in self.loaded:
                return False
            await asyncio.to_thread(self._load_and_verify, version)
            self.loaded[version] = Target(self._name(version), Clock(number_in(version)))
            return True

    def _load_and_verify(self, version: Version) -> None:
        """Load an adapter. It answers no request before its canary check passes."""
        self._load(version)
        try:
            self._verify(version)
        except (CanaryFailure, ClawError):
            self._drop(version, self._name(version))
            raise

    def release(self, target: Target) -> None:
        target.users -= 1
        self._unload_surplus_soon()

    async def forget(self, version: Version) -> None:
        """Unload the adapter, unless it is in use again."""
        async with self._changing:
            target = self.loaded.get(version)
            if target is None or target.users or version == self._live():
                return
            del self.loaded[version]
            await asyncio.to_thread(self._drop, version, target.name)

    def _drop(self, version: Version, name: str) -> None:
        try:
            self._unload(name)
        except ClawError as error:
            _log.warning("cannot unload version %s: %s", version, error.problem)

    async def settled(self) -> None:
        """Wait until running loads and unloads are done."""
        async with self._changing:
            pass

    def _unload_surplus_soon(self) -> None:
        """Unload unused adapters, except the most recent ones, in the background."""
        if self._surplus() is not None and (self._unloading is None or self._unloading.done()):
            self._unloading = asyncio.ensure_future(self._unload_surplus())

    async def _unload_surplus(self) -> None:
        while (old := self._surplus()) is not None:
            await self.forget(old)

    def _surplus(self) -> Version | None:
        if len(self.loaded) <= self._limit + 1:
            return None
        return next((old for old, target in self.loaded.items() if not target.users and old != self._live()), None)
