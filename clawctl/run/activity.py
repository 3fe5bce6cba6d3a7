"""Whether this machine's servers are answering somebody: each writes a small file, which a trainer reads between two layers.

Files are read and written, not mapped. The page cache is shared memory as well, and a full disk or a truncated file ends in an
error, where a mapped file would end the process. Times are those of the machine's monotonic clock, which all of its processes
share. A file that another machine wrote is therefore out of date here.
"""

import logging
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

_log = logging.getLogger(__name__)
_FACTS = struct.Struct("=ddI")  # time of the last sign of life, time of the last request, running requests
_DEAD_S = 5.0  # a server that has given no sign of life for so long has ended, or runs on another machine
_OLD_S = 600.0  # age of a file that no server writes any more


@dataclass(slots=True)
class Activity:
    """One server's side. Errors of the disk are logged once; the server then looks ended to a trainer, which goes on."""

    folder: Path
    name: str = field(default_factory=lambda: uuid4().hex)  # process ids of two containers can be the same
    running: int = 0
    _people: int = 0  # running requests of people, which are captured
    _asked_at: float = field(default_factory=time.monotonic)  # when a request of a person last ran
    _failed: bool = False

    def __post_init__(self) -> None:
        """Remove the files of killed servers: a server that lives writes its own every second."""
        with suppress(OSError):
            for path in self.folder.iterdir():
                if time.time() - path.stat().st_mtime > _OLD_S:
                    path.unlink(missing_ok=True)

    @property
    def idle_s(self) -> float:
        if self._people:
            self._asked_at = time.monotonic()
        return time.monotonic() - self._asked_at

    @contextmanager
    def answering(self, person: bool) -> Iterator[None]:
        """Within this context a request is running. The file changes with the first and the last of several: a reader looks whether
        there are any."""
        self.running += 1
        self._people += person
        if self.running == 1 or (person and self._people == 1):
            self.write()
        try:
            yield
        finally:
            if person:
                self._asked_at = time.monotonic()
            self.running -= 1
            self._people -= person
            if not self.running or (person and not self._people):
                self.write()

    def write(self) -> None:
        """Give a sign of life, which is due every few seconds."""
        idle_s, now, path = self.idle_s, time.monotonic(), f"{self.folder}/{self.name}"
        try:
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            except FileNotFoundError:
                self.folder.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, _FACTS.pack(now, now - idle_s, self.running))
            finally:
                os.close(descriptor)
        except OSError as error:
            if not self._failed:
                _log.error("cannot write %s, so a trainer on this machine does not give way to requests: %s", path, error)
            self._failed = True

    def end(self) -> None:
        """The server has ended."""
        with suppress(OSError):
            (self.folder / self.name).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reader finds."""

    running: int  # requests at all servers: 0 if there are none, else not always the newest number
    idle_s: float  # seconds since a request of a person ran


def read_activity(folder: Path) -> Seen | None:
    """None: no server runs on this machine."""
    now, servers = time.monotonic(), list[Seen]()
    try:
        paths = list(folder.iterdir())
    except OSError:
        return None
    for path in paths:
        with suppress(OSError, struct.error):
            beat, last_request, running = _FACTS.unpack(path.read_bytes())
            if abs(now - beat) < _DEAD_S:
                servers.append(Seen(running, now - last_request))
    return Seen(sum(seen.running for seen in servers), min(seen.idle_s for seen in servers)) if servers else None
