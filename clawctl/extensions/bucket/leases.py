"""Locks in a bucket: an object that its holder rewrites regularly, and that others may take over once it is old.

The age is measured by the store's clock only. A worker that was paused for longer than a lease may still assume that it holds one.
Therefore a lease only avoids duplicate work. Correctness does not depend on it: publishing is create-if-absent, and moving LIVE is
compare-and-swap.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

import orjson

from clawctl.extensions.bucket.objects import Objects
from clawctl.run.storage import StorageUnreachable

log = logging.getLogger(__name__)

LEASE_S: Final = 30.0
_CLOCK_S: Final = 5.0  # seconds; minimum time between two queries of the store's clock


@dataclass(slots=True)
class Lease:
    """A lease that this process holds or has held."""

    name: str
    tag: str
    token: str = field(default_factory=lambda: uuid4().hex)  # makes the content of each lease unique
    renewed: float = field(default_factory=time.monotonic)


class Leases:
    """The leases of one process below `leases/`. `host` identifies the host's local folder."""

    def __init__(self, objects: Objects, host: str, clock: Callable[[], float | None] | None = None) -> None:
        self._objects, self.host = objects, host
        self._clock = clock or self._store_time
        # The store's time (unix seconds), and the monotonic time when it was read
        self._clock_reading: tuple[float, float] | None = None
        self._held: dict[str, Lease] = {}
        self._guard = threading.Lock()
        self._renewer: threading.Thread | None = None
        self._stop = threading.Event()

    def acquire(self, name: str) -> bool:
        """Take a lease that is free, expired, or held by a dead process of this host. Returns whether it was taken. Raises
        StorageUnreachable.

        The caller holds this host's own lock of the same name, so a lease of this host belongs to a dead process.
        """
        key, lease = f"leases/{name}", Lease(name, "")
        content = self._content(lease)
        tag = self._objects.create(key, content)
        if tag is None and (stored := self._objects.read(key)) is not None:
            if _host_of(stored[0]) != self.host and not self._is_old(key):
                return False
            tag = self._objects.swap(key, content, stored[1])
        if tag is None:
            return False
        lease.tag, lease.renewed = tag, time.monotonic()
        with self._guard:
            self._held[name] = lease
            if self._renewer is None:
                self._renewer = threading.Thread(target=self._renew_all, name="renew leases", daemon=True)
                self._renewer.start()
        return True

    def release(self, name: str) -> None:
        """Release a lease. A lease that another host may hold by now is left alone."""
        with self._guard:
            lease = self._held.pop(name, None)
        if lease is None or time.monotonic() - lease.renewed > LEASE_S / 2:
            return
        key = f"leases/{name}"
        try:
            stored = self._objects.read(key)
            if stored is not None and stored[1] == lease.tag:
                self._objects.delete(key)
        except StorageUnreachable as error:
            log.warning("a lease could not be released; it expires by itself: %s", error)

    def held_elsewhere(self, prefix: str) -> list[str]:
        """Return the leases with this name prefix that other hosts hold now. Raises StorageUnreachable."""
        names = []
        for stored in self._objects.list("leases/"):
            if stored.name.startswith(f"leases/{prefix}") and not self._is_old(stored.name):
                content = self._objects.read(stored.name)
                if content is not None and _host_of(content[0]) != self.host:
                    names.append(stored.name.removeprefix("leases/"))
        return names

    def now(self) -> float | None:
        """Return the time of the store's clock in unix seconds, or None if it is unknown."""
        return self._clock()

    def close(self) -> None:
        self._stop.set()
        for name in list(self._held):
            self.release(name)

    def _is_old(self, key: str) -> bool:
        stored, now = self._objects.describe(key), self._clock()
        return stored is None or (now is not None and now - stored.modified > LEASE_S + 1)  # stores round to seconds

    def _store_time(self) -> float | None:
        """Return the time of the store's clock in unix seconds. Between queries it is extrapolated."""
        if self._clock_reading is None or time.monotonic() - self._clock_reading[1] > _CLOCK_S:
            self._objects.put("leases/.clock", uuid4().bytes)
            written = self._objects.describe("leases/.clock")
            if written is None:
                return None
            self._clock_reading = written.modified, time.monotonic()
        return self._clock_reading[0] + time.monotonic() - self._clock_reading[1]

    def _content(self, lease: Lease) -> bytes:
        return orjson.dumps({"host": self.host, "token": lease.token})

    def _renew_all(self) -> None:
        while not self._stop.wait(LEASE_S / 3):
            with self._guard:
                leases = list(self._held.values())
            for lease in leases:
                self._renew(lease)

    def _renew(self, lease: Lease) -> None:
        started = time.monotonic()
        lease.token = uuid4().hex
        try:
            tag = self._objects.swap(f"leases/{lease.name}", self._content(lease), lease.tag)
        except StorageUnreachable as error:
            log.warning("a lease cannot be renewed: %s", error)
            return
        if tag is not None:
            lease.tag, lease.renewed = tag, started
            return
        with self._guard:
            lost = self._held.pop(lease.name, None)
        if lost is not None:
            log.warning("another worker took over %s, because this one did not renew its lease in time", lease.name)


def _host_of(content: bytes) -> str | None:
    try:
        return str(orjson.loads(content)["host"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
