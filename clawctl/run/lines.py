"""Follows a folder of files that others append lines to. It reads each complete line once and keeps no file open."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from clawctl.run.directory import published

CHUNK = 1 << 18  # bytes read at a time


def whole_end(path: Path) -> int:
    """Offset after the last complete line of a file. Only a line that is being written, or was cut off, can follow."""
    with path.open("rb") as file:
        at = file.seek(0, 2)
        while at > 0:
            begin = max(0, at - CHUNK)
            file.seek(begin)
            found = file.read(at - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            at = begin
    return 0


class Rewritten(Exception):
    """An append-only file was replaced, so earlier reads of it are no longer valid."""


class Lines:
    """The lines of all `*.jsonl` in a folder, each file from `start` (byte offsets by name; by default its beginning).

    A line without its newline waits until it is complete, because its writer has not finished it and has not confirmed it to a
    client.
    """

    def __init__(self, folder: Path, start: Mapping[str, int] | None = None) -> None:
        self.offsets = dict(start or {})  # how far each file was read, by name
        self._inodes: dict[str, int] = {}
        self._folder = folder

    def grown(self) -> list[Path]:
        """The files with unread bytes. Raises Rewritten."""
        found = []
        for path in published(self._folder, ".jsonl") if self._folder.exists() else []:
            try:
                now = path.stat()
            except FileNotFoundError:
                continue  # taken away while we looked
            if self._inodes.setdefault(path.name, now.st_ino) != now.st_ino or now.st_size < self.offsets.get(path.name, 0):
                raise Rewritten(path.name)
            if now.st_size > self.offsets.get(path.name, 0):
                found.append(path)
        return found

    def read(self, path: Path) -> Iterator[tuple[int, bytes]]:
        """(offset, line) for each line appended to one file since the last read. A line counts as read when the next one is
        requested or the file ends. A caller that stops earlier gets it again."""
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
