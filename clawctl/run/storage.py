"""Where the files of a run are published, claimed and swapped: one seam, two implementations.

`Disk` is a filesystem that all workers share. `clawctl/run/bucket.py` is an object store with a local folder on each host. The
functions of `directory.py`, `lines.py` and `policies.py` call the storage of a path; stages see paths only and read ordinary local
files in both cases.

A folder that belongs to a bucket is mounted by `bucket.mount`. All other paths are on `DISK`.
"""

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout


class StorageUnreachable(OSError):
    """The object store did not answer, or refused. The same call may work later."""


class Storage(Protocol):
    """What decides between workers. Every call raises OSError if the disk or the store fails; it may then be repeated."""

    def publish(self, draft: Path, path: Path) -> None:
        """Give a complete file its name. In a bucket a name that is published once keeps its first content, and `path` has that."""

    def publish_folder(self, draft: Path, path: Path) -> bool:
        """Give a complete folder its name. False if another worker published one: then `path` has that one."""

    def complete(self, folder: Path) -> None:
        """Make sure that a published folder has all of its files here."""

    def append(self, path: Path, data: bytes, locally: Callable[[], None]) -> None:
        """Append whole lines to a file that several workers may append to. `locally` does it on this host's disk."""

    def move(self, source: Path, target: Path) -> None:
        """Give a published file or folder another name."""

    def remove(self, path: Path) -> None:
        """Remove a published file or folder, if it is there. Half a folder never looks like a whole one."""

    def exists(self, path: Path) -> bool:
        """Whether a file or folder of this name is published, for all workers now."""

    def latest(self, path: Path) -> bytes | None:
        """What a small file contains now, for all workers; None if there is none."""

    def swap(self, path: Path, data: bytes, expected: bytes | None) -> bool:
        """Publish `data` if the file contains what was `seen`. Callers hold a claim (`exclusive`); a bucket does not rely on it."""

    def claim(self, lock: Path) -> AbstractContextManager[bool]:
        """True while this process holds the lock. The lock of a dead worker becomes free."""

    def exclusive(self, lock: Path, patience_s: float) -> AbstractContextManager[None]:
        """Hold the lock. Raises filelock.Timeout."""

    def follow(self, shards: bool) -> None:
        """Bring what other hosts have published up to now, and what they publish from now on. `shards`: turns and verdicts too."""


class Disk:
    """A filesystem with locks and rename, which all workers share."""

    def publish(self, draft: Path, path: Path) -> None:
        os.replace(draft, path)

    def publish_folder(self, draft: Path, path: Path) -> bool:
        if path.exists():
            return False
        os.rename(draft, path)
        return True

    def complete(self, folder: Path) -> None:
        """It is: it was published by a rename."""

    def append(self, path: Path, data: bytes, locally: Callable[[], None]) -> None:
        locally()

    def move(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        try:
            is_folder = stat.S_ISDIR(path.lstat().st_mode)
        except FileNotFoundError:
            return
        if not is_folder:
            path.unlink(missing_ok=True)
            return
        doomed = path.with_name(f".{path.name}.removed.tmp")
        os.replace(path, doomed)
        shutil.rmtree(doomed)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def latest(self, path: Path) -> bytes | None:
        with suppress(FileNotFoundError):
            return path.read_bytes()
        return None

    def swap(self, path: Path, data: bytes, expected: bytes | None) -> bool:
        if self.latest(path) != expected:
            return False
        draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        write_synced(draft, data)
        os.replace(draft, path)
        return True

    @contextmanager
    def claim(self, lock: Path) -> Iterator[bool]:
        held = FileLock(lock)
        try:
            held.acquire(timeout=0)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            held.release()

    @contextmanager
    def exclusive(self, lock: Path, patience_s: float) -> Iterator[None]:
        with FileLock(lock, timeout=patience_s):
            yield

    def follow(self, shards: bool) -> None:
        """Everybody sees the same files."""


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and flush it to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


DISK = Disk()
_mounted: dict[Path, Storage] = {}  # roots of runs that are elsewhere


def mount_at(root: Path, storage: Storage) -> None:
    """From now on `storage` is responsible for everything below `root`, which is a resolved path."""
    _mounted[root] = storage


def unmount(root: Path) -> None:
    _mounted.pop(root, None)


def storage_of(path: Path) -> Storage:
    """The storage that is responsible for a path."""
    if not _mounted:
        return DISK
    return next((_mounted[folder] for folder in (path, *path.parents) if folder in _mounted), DISK)
