"""Follows the changes of other hosts, and uploads what the writers of this host append."""

import logging
import os
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import orjson
from filelock import FileLock, Timeout

from clawctl.extensions.bucket.announcements import Announcements, Place
from clawctl.extensions.bucket.kinds import FOLDER, Kind, kind_of, order
from clawctl.extensions.bucket.local import FOREIGN, LocalFolder
from clawctl.extensions.bucket.objects import Objects, StoredObject
from clawctl.run.names import below, draft_of, number_of
from clawctl.run.storage import write_synced

log = logging.getLogger(__name__)

POLL_S: Final = 1.0
_LIST_S: Final = 30.0  # minimum time between two listings, which find what a lost host did not announce
_PAGE_S: Final = 6.0  # and for each thousand objects: a host lists with at most ten requests a minute
_SETTLED_S: Final = 600.0  # a capture file without writes for this long is uploaded even if it is its writer's newest


class HostFollower:
    """Keeps the local folder and the bucket alike, for one process. One process per host polls for all of them."""

    def __init__(self, local: LocalFolder, objects: Objects, announcements: Announcements, poll_s: float) -> None:
        self._local, self._objects, self._announcements, self._poll_s = local, objects, announcements, poll_s
        self.poll_lock = FileLock(local.about / "pulling.lock", thread_local=False)
        self._place = Place()
        self._listed_at, self.list_s = float("-inf"), _LIST_S
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_polling(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        """Poll from now on, in a thread."""
        self._thread = threading.Thread(target=self._poll, name="follow the bucket", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def _poll(self) -> None:
        failing = False
        while not self._stop.wait(self._poll_s):
            try:
                self.announce()
                self.poll_once()
            except OSError as error:
                if not failing:
                    log.error("the bucket is not up to date, trying again every second: %s", error)
                failing = True
            except Exception:  # the thread must survive a name or a manifest that cannot be read
                log.exception("the bucket could not be followed")
                failing = True
            else:
                if failing:
                    log.warning("the bucket is up to date again")
                failing = False

    def poll_once(self) -> None:
        """Fetch and upload changes. One process per host does this for all of them."""
        try:
            if not self.poll_lock.is_locked:
                self.poll_lock.acquire(timeout=0)
        except Timeout:
            return
        self._catch_up()
        self.upload()
        self.announce()

    def announce(self) -> None:
        """Announce what processes of this host have changed, killed ones included."""
        if self._announcements.are_due():
            with self._local.held():
                self._announcements.announce(self._local.known_tag)

    # ---- changes of other hosts ------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """List the store, copy missing files from it, and remove files that it no longer has.

        A file appears under its name once its content is complete. A listing of several pages may miss a merged shard and also its
        parts, which are removed later. So files are removed once a second listing has brought what replaces them.
        """
        local = self._local.tags()  # before the listing: files published from now on may be missing in it
        _, position = self._announcements.since(Place())
        listed = self._bring_listed()
        if gone := local - listed:
            listed = self._bring_listed()
        for name in sorted(gone - listed, key=order, reverse=True):
            self._remove_local(name)
        self.bring_requests()
        self._place, self._listed_at = position, time.monotonic()
        self.list_s = max(_LIST_S, _PAGE_S * len(listed) / 1000)

    def _bring_listed(self) -> set[str]:
        remote = {stored.name.removeprefix("run/"): stored for stored in self._objects.list("run/")}
        for name in sorted(remote, key=order):
            self._bring(name, remote[name])
        return set(remote)

    def _catch_up(self) -> None:
        """Do what `refresh` does for the names that were announced since the last look. If some were missed, list."""
        changed, position = self._announcements.since(self._place)
        if changed is None or time.monotonic() - self._listed_at >= self.list_s:
            return self.refresh()
        names = {key.removeprefix("run/"): tag for key, tag in changed.items() if key.startswith("run/")}
        gone = list[str]()  # removed after what replaces them is here, and turns before their verdicts
        for name in sorted(names, key=order):
            tag = self._local.tag(name)
            if (tag is None and not self._is_wanted(name)) or (tag is not None and tag == names[name]):
                continue
            stored = self._objects.describe(f"run/{name}")
            if stored is not None:
                self._bring(name, stored)
            elif self._local.tag(name) is not None:
                gone.append(name)
        for name in reversed(gone):
            with self._local.held():  # nothing is published on this host between the look and the removal
                if self._objects.describe(f"run/{name}") is None:
                    self._remove_local(name)
        for key in changed:
            if key.startswith("forgotten/"):
                self._bring_request(key)
        self._place = position

    def _bring(self, name: str, stored: StoredObject) -> None:
        if self._is_wanted(name) and self._local.tag(name) != stored.tag:
            with suppress(FileNotFoundError):  # removed since the listing
                self._fetch(name, stored)

    def bring_requests(self) -> None:
        """Fetch the requests to forget that were made until now."""
        for stored in self._objects.list("forgotten/"):
            self._bring_request(stored.name)

    def _bring_request(self, key: str) -> None:
        path = below(self._local.about, key)
        if not path.exists() and (request := self._objects.read(key)) is not None:
            self._local.write(path, request[0])

    def _is_wanted(self, name: str) -> bool:
        is_bulk = name.startswith(("trajectories/", "verdicts/", "train/")) and not name.endswith((".jsonl", ".json"))
        return not is_bulk or (self._local.about / "shards").exists()

    def _fetch(self, name: str, stored: StoredObject) -> None:
        if name.endswith(FOLDER):
            return self.fetch_folder(name.removesuffix(FOLDER))
        path = below(self._local.root, name)
        kind = kind_of(name)
        if kind is Kind.GROWING:
            return self._append_remote(path, stored)
        if kind is Kind.LOCAL:
            return
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if kind is Kind.ONCE:
            draft = draft_of(path)
            try:
                self._objects.download(stored.name, draft, stored.size)
                with self._local.held():
                    if self._local.tag(name) != stored.tag:
                        os.replace(draft, path)
                        self._local.store_tag(name, stored.tag)
            finally:
                draft.unlink(missing_ok=True)
            return
        with self._local.held():
            content = self._objects.read(stored.name)
            if content is not None:
                self._local.write(path, *content)

    def fetch_folder(self, name: str) -> None:
        """Create a folder with its small files; `complete` fetches the rest when it is needed."""
        stored = self._objects.read(f"run/{name}{FOLDER}")
        if stored is None:
            return
        path = below(self._local.root, name)
        manifest = orjson.loads(stored[0])
        draft = draft_of(path)
        draft.mkdir(parents=True, mode=0o700)
        try:
            for part, text in manifest["inline"].items():
                write_synced(below(draft, part), text.encode())
            with self._local.held():
                if self._local.tag(name + FOLDER) == stored[1]:
                    return  # this process has published the folder meanwhile, with all of its files
                self._local.remove_folder(path)
                os.rename(draft, path)
                self._local.store_tag(name + FOLDER, stored[1], stored[0])
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _append_remote(self, path: Path, stored: StoredObject) -> None:
        """Append the new data of a writer on another host. The longer version of such a file is the newer one."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._local.held():
            name = stored.name.removeprefix("run/")
            local_size = path.stat().st_size if path.exists() else 0
            if local_size > stored.size and self._local.tag(name) == FOREIGN:  # `forget` removed lines
                content = self._objects.read(stored.name)
                return None if content is None else self._local.write(path, content[0])
            if local_size >= stored.size:
                return
            data = self._objects.read_range(stored.name, local_size, stored.size)
            self._local.store_tag(name, FOREIGN)
            with path.open("ab") as file:
                os.chmod(path, 0o600)
                file.write(data)

    def _remove_local(self, name: str) -> None:
        """Remove a local file or folder that the store no longer has."""
        with self._local.held():
            if self._local.tag(name) is None:
                return  # this process has removed or moved it meanwhile
            if name.endswith(FOLDER):
                self._local.remove_folder(below(self._local.root, name.removesuffix(FOLDER)))
            else:
                below(self._local.root, name).unlink(missing_ok=True)
            self._local.store_tag(name, None)

    # ---- what this host appends ------------------------------------------------------------------------------------------

    def upload(self) -> None:
        """Upload what the writers of this host appended, and their rotated captures.

        A host never appends to a file of another host, so a file that is longer here than in the store belongs to this host.
        Nothing is uploaded before this host has carried out all requests to forget.
        """
        if self._local.pending_removals():
            return
        for folder in ("feedback", "episodes"):
            for path in _lines(self._local.root / folder):
                self._upload_if_longer(path, f"run/{folder}/{path.name}")
        captures = _lines(self._local.root / "captures")
        newest: dict[str, Path] = {}
        for path in sorted(captures, key=_file_number):
            newest[path.stem.rpartition("-")[0]] = path
        for path in captures:
            if path not in newest.values() or time.time() - path.stat().st_mtime > _SETTLED_S:
                self._upload_if_longer(path, f"captures/{path.name}")

    def _upload_if_longer(self, path: Path, key: str) -> None:
        mark = self._local.about / "sizes" / key
        size = path.stat().st_size
        if size <= (int(mark.read_text()) if mark.exists() else 0):
            return
        with self._local.held():
            if self._local.tag(key.removeprefix("run/")) == FOREIGN:
                return
            data = path.read_bytes()
            self._announcements.note(*[key] if key.startswith("run/") else [])
            self._objects.put(key, data[: data.rfind(b"\n") + 1])
        mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_synced(mark, str(size).encode())


def _lines(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.jsonl") if not path.name.startswith(".")) if folder.exists() else []


def _file_number(path: Path) -> int:
    return number_of(path.stem.rpartition("-")[2]) or 0
