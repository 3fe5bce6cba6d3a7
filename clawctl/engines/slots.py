"""Limits the pinned versions that are in use at the same time. Clients share `serve.pinned_versions` slots. The run's own key,
which judge (`NAME@0`) and gate (`NAME@7`) use, has slots that no client can take."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from clawctl.engines.requests import Refusal
from clawctl.run.keys import OWN
from clawctl.run.policies import Version

RESERVED: Final = 2  # slots of the run's own key: one for version 0, one for any version
_TURN_S = 5.0  # while others wait, a version accepts no new requests after this time
_PATIENCE_S = 120.0  # maximum time that a request waits for a slot


@dataclass(slots=True)
class _Usage:
    """A version in use."""

    since: float = field(default_factory=time.monotonic)
    users: Counter[str] = field(default_factory=Counter)  # by key: OWN, or "" for clients


class PinnedSlots:
    """The slots of one engine. Used on one event loop. Waiting requests get slots in the order of their arrival."""

    def __init__(self, limit: int, turn_s: float = _TURN_S, patience_s: float = _PATIENCE_S) -> None:
        self._limit, self._turn_s, self._patience_s = limit, turn_s, patience_s
        self._in_use: dict[Version, _Usage] = {}
        self._waiting: dict[int, str] = {}  # in order: number of a request → its kind, OWN or ""
        self._last_number = 0
        self._changed = asyncio.Event()  # replaced at each notification

    def at_once(self, version: Version, key: str) -> bool:
        """Whether a request of `key` for `version` gets a slot without waiting."""
        return self._may_begin(version, OWN if key == OWN else "", None)

    @asynccontextmanager
    async def acquire(self, version: Version, key: str) -> AsyncIterator[None]:
        """A slot for a request of `key` for `version`, held until the context ends. Raises Refusal if none becomes free in
        time."""
        kind = OWN if key == OWN else ""
        if not self._may_begin(version, kind, None):
            await self._wait(version, kind)
        usage = self._in_use.setdefault(version, _Usage())
        usage.users[kind] += 1
        self._wake()
        try:
            yield
        finally:
            usage.users[kind] -= 1
            if not usage.users.total():
                del self._in_use[version]
            self._wake()

    async def _wait(self, version: Version, kind: str) -> None:
        self._last_number += 1
        number = self._last_number
        self._waiting[number] = kind
        try:
            async with asyncio.timeout(self._patience_s):
                while not self._may_begin(version, kind, number):
                    await self._changed.wait()
        except TimeoutError as error:
            problem = f"version {version} could not be loaded within {self._patience_s:g} seconds: other pinned versions are in use"
            raise Refusal(503, f"{problem}; try again later", code="pinned_versions_busy", retry_after="10") from error
        finally:
            del self._waiting[number]
            self._wake()

    def _wake(self) -> None:
        """Make all waiting requests check again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _may_begin(self, version: Version, kind: str, number: int | None) -> bool:
        """Whether the request may begin: its version is in use within its time limit, or a slot is free and no earlier request of
        the same kind is waiting."""
        if kind == OWN and version == 0:
            return True
        earlier = any(other_kind == kind and (number is None or waiting < number) for waiting, other_kind in self._waiting.items())
        usage = self._in_use.get(version)
        if usage is not None and usage.users[kind]:
            return not earlier or time.monotonic() - usage.since < self._turn_s
        if earlier:
            return False
        used = sum(1 for usage in self._in_use.values() if usage.users[kind])
        if kind == OWN:
            other_pins = sum(1 for other, in_use in self._in_use.items() if in_use.users[OWN] and other != 0)
            return other_pins < 1 or len(self._in_use) < self._limit + 1
        return used < self._limit
