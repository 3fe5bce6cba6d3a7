"""Files of lines: appending whole lines, reading them, and following a folder of files that others append to."""

import fcntl
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from clawctl.errors import Damaged
from clawctl.run.checksums import read_sealed
from clawctl.run.directory import published
from clawctl.run.names import open_to_append
from clawctl.run.storage import storage_of

CHUNK = 1 << 18  # bytes read at a time
_ROTATE_S = 86400.0  # age at which a writer begins a new file


def append_lines(path: Path, lines: Sequence[bytes], to_disk: bool = True) -> None:
    """Append complete lines, given without their newlines, all or none. `to_disk`: also flush them to disk.

    An incomplete line that a killed writer left is cut off first. Raises OSError, also if the file is a link.
    """
    data = b"".join(line + b"\n" for line in lines)
    storage_of(path).append(path, data, partial(_append, path, data, to_disk))


def _append(path: Path, data: bytes, to_disk: bool) -> None:
    descriptor = open_to_append(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _end_line(path, descriptor)
        _write_whole(descriptor, data)
        if to_disk:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_bytes(path: Path, data: bytes) -> None:
    """Append to a file that is only a cache, all or nothing. Raises OSError, also if the file is a link."""
    descriptor = open_to_append(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _write_whole(descriptor, data)
    finally:
        os.close(descriptor)


def _end_line(path: Path, descriptor: int) -> None:
    """Make a file end with a newline: append one if the last line is complete, else cut that line off."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size == 0 or os.pread(file.fileno(), 1, size - 1) == b"\n":
            return
        end = file.seek(whole_end(path))
        try:
            read_sealed(file.read())
        except Damaged:
            os.ftruncate(descriptor, end)
        else:
            _write_whole(descriptor, b"\n")


def _write_whole(descriptor: int, data: bytes) -> None:
    """Append all of `data` to a locked file, or nothing. Raises OSError."""
    done = os.write(descriptor, data)
    try:
        while done < len(data):  # the disk is nearly full
            done += os.write(descriptor, data[done:])
    except OSError:
        os.ftruncate(descriptor, os.fstat(descriptor).st_size - done)
        raise


class LineWriter:
    """One writer of a folder: `<host>-<pid>-<random>-<n>.jsonl`. A line is in the kernel's page cache when `append` returns.

    Each line is written under a lock that others take to rewrite or delete the file. A new file is started when the current one is
    full, old or removed, because files expire as a whole (`clawctl/run/retention.py`).
    """

    def __init__(self, folder: Path, rotate_bytes: int) -> None:
        self._folder, self._rotate_bytes = folder, rotate_bytes
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._number = 0
        self._descriptor: int | None = None
        self._began = 0.0

    def append(self, line: bytes) -> None:
        """Append a complete line, given without its newline, or nothing. Raises OSError."""
        descriptor = self._locked()
        try:
            _write_whole(descriptor, line + b"\n")
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.close()

    def _locked(self) -> int:
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            stat, age = os.fstat(self._descriptor), time.monotonic() - self._began
            if stat.st_size >= self._rotate_bytes or age >= _ROTATE_S or stat.st_nlink == 0:
                self.close()
        if self._descriptor is None:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._descriptor = open_to_append(self._folder / f"{self._name}-{self._number}.jsonl")
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            self._number, self._began = self._number + 1, time.monotonic()
        return self._descriptor


def whole_end(path: Path) -> int:
    """Return the offset after the last complete line of a file. Only a line that is being written or was cut off can follow."""
    with path.open("rb") as file:
        end = file.seek(0, 2)
        while end > 0:
            begin = max(0, end - CHUNK)
            file.seek(begin)
            position = file.read(end - begin).rfind(b"\n")
            if position >= 0:
                return begin + position + 1
            end = begin
    return 0


def read_lines(path: Path, damaged: Callable[[int, Damaged], object] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file with one object per line, without their checksums. A missing file yields nothing.

    Damaged lines are skipped. `damaged` is called with the number of each, except for the last line, which may still be being
    written.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                value = read_sealed(line)
            except Damaged as error:
                if damaged is not None and number < len(lines):
                    damaged(number, error)
                continue
            if isinstance(value, dict):
                yield value


class Rewritten(Exception):
    """An append-only file was replaced, so earlier reads of it are no longer valid."""


class Lines:
    """The lines of all `*.jsonl` files in a folder, each from `start` (byte offsets by name; default: the beginning).

    A line without a newline is not returned until it is complete: its writer has not finished it and has not confirmed it to a
    client.
    """

    def __init__(self, folder: Path, start: Mapping[str, int] | None = None) -> None:
        self.offsets = dict(start or {})  # how far each file was read, in bytes, by name
        self._inodes: dict[str, int] = {}
        self._folder = folder

    def grown(self) -> list[Path]:
        """Return the files with unread bytes. Raises Rewritten."""
        grown = []
        for path in published(self._folder, ".jsonl") if self._folder.exists() else []:
            try:
                now = path.stat()
            except FileNotFoundError:
                continue  # removed meanwhile
            if self._inodes.setdefault(path.name, now.st_ino) != now.st_ino or now.st_size < self.offsets.get(path.name, 0):
                raise Rewritten(path.name)
            if now.st_size > self.offsets.get(path.name, 0):
                grown.append(path)
        return grown

    def read(self, path: Path) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, line) for each line appended to one file since the last read.

        A line counts as read when the next one is requested or the file ends. A caller that stops earlier receives it again.
        """
        size = CHUNK
        while True:
            offset = self.offsets.get(path.name, 0)
            with path.open("rb") as file:
                file.seek(offset)
                chunk = file.read(size)
            if b"\n" not in chunk:
                if len(chunk) < size:
                    return
                size *= 2  # a line longer than a chunk
                continue
            for line in chunk[: chunk.rindex(b"\n")].split(b"\n"):
                yield offset, line
                offset += len(line) + 1
                self.offsets[path.name] = offset


class CountedLines:
    """Counts the complete lines of a folder's files that contain a text. Each `poll` reads only appended data."""

    def __init__(self, folder: Path, text: bytes = b"\n") -> None:
        self._folder, self._text = folder, text
        self._ends: dict[Path, tuple[int, int]] = {}  # inode and size
        self.counts: dict[Path, int] = {}

    def poll(self) -> int:
        ends, counts = {}, {}
        for path in published(self._folder, ".jsonl"):
            with suppress(FileNotFoundError), path.open("rb") as file:
                status = os.fstat(file.fileno())
                inode, end = self._ends.get(path, (status.st_ino, 0))
                is_same = inode == status.st_ino and end <= status.st_size
                counts[path], end = (self.counts.get(path, 0), end) if is_same else (0, 0)
                file.seek(end)
                for line in file:
                    if line.endswith(b"\n"):
                        counts[path] += self._text in line
                        end += len(line)
                ends[path] = status.st_ino, end
        self._ends, self.counts = ends, counts
        return sum(counts.values())
