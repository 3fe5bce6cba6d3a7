"""The local folder of a run in a bucket: its files, and the tag of the object that each of them equals."""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import orjson
from filelock import FileLock

from clawctl.extensions.bucket.kinds import FOLDER, Kind, kind_of
from clawctl.run.names import below, draft_of
from clawctl.run.storage import ABOUT, write_synced

FOREIGN: Final = "another host's"  # stands for the tag of a growing file that another host writes


@contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """Yield a path to write a file to, which then becomes `path`."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = draft_of(path)
    try:
        yield draft
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


class LocalFolder:
    """The folder `root` of one host, for one of its processes. Names are paths below it, as in the bucket below `run/`."""

    def __init__(self, root: Path) -> None:
        self.root, self.about = root, root / ABOUT
        self._tags = self.about / "tags"
        self._tags.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._writing = threading.RLock()
        self._between_processes = FileLock(self.about / "writing.lock")

    def named(self, path: Path) -> tuple[str, Kind]:
        name = path.relative_to(self.root).as_posix()
        if name.startswith("quarantine/") and path.is_dir():
            return name, Kind.FOLDER
        return name, kind_of(name)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Prevent other processes and threads of this host from changing a file and its tag."""
        with self._writing, self._between_processes:
            yield

    def write(self, path: Path, data: bytes, tag: str | None = None) -> None:
        """Replace a file, and store the tag of the object that it then equals."""
        with drafted(path) as draft:
            write_synced(draft, data)
        if tag is not None:
            self.store_tag(self.named(path)[0], tag)

    def remove_folder(self, folder: Path) -> None:
        if folder.exists():
            doomed = draft_of(folder)
            os.replace(folder, doomed)
            shutil.rmtree(doomed, ignore_errors=True)

    def store_tag(self, name: str, tag: str | None, manifest: bytes = b"") -> None:
        """Store the tag of the object that a local file equals. None: there is no object."""
        path = below(self._tags, name)
        if tag is None:
            path.unlink(missing_ok=True)
            return
        with drafted(path) as draft:
            draft.write_bytes(tag.encode() + b"\n" + manifest)

    def tag(self, name: str) -> str | None:
        """Return the tag of the local copy. Another process of this host may have fetched it."""
        try:
            return below(self._tags, name).read_bytes().partition(b"\n")[0].decode()
        except FileNotFoundError:
            return None

    def known_tag(self, key: str) -> str | None:
        """Return the tag of the object whose content this host has. Of a growing file the tag does not say how much is here."""
        tag = self.tag(key.removeprefix("run/")) if key.startswith("run/") else None
        return None if tag == FOREIGN else tag

    def tags(self) -> set[str]:
        tags = (path for path in self._tags.rglob("*") if path.is_file())
        return {path.relative_to(self._tags).as_posix() for path in tags if not path.name.endswith(".tmp")}

    def manifest(self, name: str) -> dict[str, Any] | None:
        with suppress(FileNotFoundError):
            manifest: dict[str, Any] = orjson.loads(below(self._tags, name + FOLDER).read_bytes().partition(b"\n")[2])
            return manifest
        return None

    def pending_removals(self) -> dict[str, bytes]:
        files = sorted((self.about / "forgotten").glob("[!.]*"))
        return {path.name: data for path in files if (data := path.read_bytes())}
