"""Following a folder of files that others append lines to: each whole line once, and no file stays open meanwhile."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from clawctl.run_dir import published

CHUNK = 1 << 18  # bytes read at a time


def whole_end(path: Path) -> int:
    """Where the last whole line of a file ends: behind it there is at most a line that is being written, or was torn."""
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
    """A file that is only ever appended to was replaced: what was read of it no longer holds."""


class Lines:
    """The lines of all `*.jsonl` in a folder, each file from `start` (byte offsets by name; else its beginning).

    A line without its newline waits until it has one: it is what its writer had not finished, and nobody was told of it.
    """

    def __init__(self, folder: Path, start: Mapping[str, int] | None = None) -> None:
        self.offsets = dict(start or {})  # how far each file was read, by name
        self._inodes: dict[str, int] = {}
        self._folder = folder

    def grown(self) -> list[Path]:
        """The files that have bytes we did not read. Raises Rewritten."""
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
        """(offset, line) for what was appended to one file since it was last read. A line counts as read when the next is asked for
        or the file ends: who stops in between gets it again."""
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
