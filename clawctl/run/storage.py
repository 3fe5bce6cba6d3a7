"""Publishing, locking and swapping of a run's files: one interface.

`Disk` is a file system that all workers share. `STORAGES` finds the storages of `--run SCHEME://…`, which extensions and other
packages add: object stores (buckets) with a local folder on each host. Functions of `directory.py`, `lines.py` and `policies.py`
call the storage of a path. Stages use paths only and read ordinary local files in all cases.

A folder that belongs to a bucket is mounted by `mounts.mount`. All other paths are on `DISK`.
"""

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from filelock import FileLock, Timeout

from clawctl.registry import Registry


class StorageUnreachable(OSError):
    """The object store did not answer or refused. The same call may succeed later."""


class Storage(Protocol):
    """The operations that decide between workers. Every call raises OSError if the disk or the store fails; it may then be
    repeated. A storage inherits from this class; the defaults are those of one shared file system.
    """

    in_bucket: bool = False  # whether each host has a local copy of the run, and captures that no other host can reach
    host: str = ""  # the id of this host's copy

    def publish(self, draft: Path, path: Path) -> None:
        """Publish a complete file under `path`. In a bucket, a file that is published once keeps its first content, which `path`
        then has.
        """

    def replace(self, draft: Path, path: Path) -> None:
        """Replace the file at `path`, even one that is published once or part of a published folder."""

    def publish_folder(self, draft: Path, path: Path) -> bool:
        """Publish a complete folder. Returns False if another worker published one: then `path` has that one."""

    def complete(self, folder: Path, suffix: str = "") -> None:
        """Fetch the missing files of a published folder, or only those whose names end with `suffix`."""
        return

    def append(self, path: Path, data: bytes, locally: Callable[[], None]) -> None:
        """Append complete lines to a file that several workers may append to. `locally` appends on this host's disk."""

    def move(self, source: Path, target: Path) -> None:
        """Rename a published file or folder."""

    def remove(self, path: Path) -> None:
        """Remove a published file or folder if it exists. A partly removed folder is never visible."""

    def exists(self, path: Path) -> bool:
        """Whether a file or folder of this name is currently published, for all workers."""

    def latest(self, path: Path) -> bytes | None:
        """Return the current content of a small file for all workers, or None if there is no file."""

    def swap(self, path: Path, data: bytes, expected: bytes | None) -> bool:
        """Publish `data` if the file's content is `expected`. Returns whether it was published.

        Callers hold a lock (`exclusive`); a bucket does not rely on it.
        """

    def claim(self, lock: Path) -> AbstractContextManager[bool]:
        """Yield True while this process holds the lock, else False. The lock of a dead worker is released."""

    def exclusive(self, lock: Path, patience_s: float) -> AbstractContextManager[None]:
        """Hold the lock. Raises filelock.Timeout after `patience_s` seconds."""

    def follow(self, shards: bool) -> None:
        """Fetch what other hosts have published, now and from now on. `shards`: turns and verdicts as well."""
        return

    def refresh(self) -> None:
        """Fetch what other hosts have published until now."""
        return

    def is_own(self, path: Path) -> bool:
        """Whether this host wrote the file. Only for files that hosts append to."""
        return True

    def sweep(self) -> int:
        """Delete what killed workers left in the store. Returns how many objects were deleted."""
        return 0

    def request_removal(self, name: str, request: bytes) -> None:
        """Ask every host, including this one, to carry out a request to forget (`clawctl/privacy/elsewhere.py`)."""
        return

    def pending_removals(self) -> dict[str, bytes]:
        """Return the requests made until now that this host has not carried out yet, by name."""
        return {}

    def complete_removal(self, name: str) -> None:
        """Record that this host has carried out the request."""
        return

    def rewrite_copies(self, remove_lines: Callable[[bytes], bytes]) -> None:
        """Let `remove_lines` remove lines from the copies of all files that hosts append to: captures, ratings, outcomes."""
        return

    def collecting_elsewhere(self) -> int:
        """Return the number of other hosts with a running collect worker."""
        return 0


class OpenStorage(Protocol):
    """The entry point of a scheme."""

    def __call__(self, root: Path, url: str, host: str) -> Storage:
        """The storage of the run at `url`, whose files on the host with the id `host` are in `root`. Raises ClawError."""


STORAGES: Registry[OpenStorage] = Registry("storage", "clawctl.storages", {})
ABOUT: Final = ".bucket"  # the folder that marks a local folder of a bucket, and holds what its storage notes


class Disk(Storage):
    """A file system with locks and rename that all workers share."""

    def publish(self, draft: Path, path: Path) -> None:
        os.replace(draft, path)

    def replace(self, draft: Path, path: Path) -> None:
        os.replace(draft, path)

    def publish_folder(self, draft: Path, path: Path) -> bool:
        if path.exists():
            return False
        os.rename(draft, path)
        return True

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
        file_lock = FileLock(lock)
        try:
            file_lock.acquire(timeout=0)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            file_lock.release()

    @contextmanager
    def exclusive(self, lock: Path, patience_s: float) -> Iterator[None]:
        with FileLock(lock, timeout=patience_s):
            yield


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and flush it to disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


DISK = Disk()
_mounted: dict[Path, Storage] = {}  # roots of runs that are not on a shared file system


def mount_at(root: Path, storage: Storage) -> None:
    """Make `storage` responsible for everything below `root`, a resolved path."""
    _mounted[root] = storage


def unmount(root: Path) -> None:
    _mounted.pop(root, None)


def storage_of(path: Path) -> Storage:
    """Return the storage that is responsible for a path."""
    if not _mounted:
        return DISK
    return next((_mounted[folder] for folder in (path, *path.parents) if folder in _mounted), DISK)
