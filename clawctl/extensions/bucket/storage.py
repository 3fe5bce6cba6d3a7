"""A run in an object store: `--run s3://bucket/prefix` (also `gs://`, `az://`).

Each host has a local folder of the run, in which stages read and write ordinary files. Changes that concern other hosts go through
the store at once: a file is published, removed or swapped in the store first and in the local folder second. The store decides
between two workers. A thread polls about once a second and copies what other hosts published into the local folder, as whole files.

    PREFIX/run/…           the files of the run under their own names; `policies/3.folder` lists the parts of a folder
    PREFIX/parts/<id>/…    the files of a published folder; it exists once its `.folder` object does
    PREFIX/captures/…      rotated captures of every host
    PREFIX/leases/…        locks that workers hold across hosts (`leases.py`)
    PREFIX/forgotten/…     requests to each host to remove data from its own files (`clawctl/privacy/elsewhere.py`)
    PREFIX/changed         the names that changed last (`announcements.py`), so that other hosts fetch them without a listing

In the local folder, `.bucket/about.json` names the bucket. `.bucket/tags/` holds the tag of each object that a local file equals,
and `.bucket/due` the names that this host has not announced yet.
"""

import atexit
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import orjson
from filelock import FileLock, Timeout

from clawctl.errors import ClawError
from clawctl.extensions.bucket.announcements import Announcements, Place
from clawctl.extensions.bucket.kinds import FOLDER, Kind, is_shared_lock, kind_of, order
from clawctl.extensions.bucket.leases import Leases
from clawctl.extensions.bucket.objects import Objects, StoredObject, open_store
from clawctl.run.names import below, draft_of, number_of
from clawctl.run.storage import ABOUT, DISK, Storage, StorageUnreachable, write_synced

log = logging.getLogger(__name__)

_POLL_S: Final = 1.0
_LIST_S: Final = 30.0  # minimum time between two listings, which find what a lost host did not announce
_PAGE_S: Final = 6.0  # and for each thousand objects: a host lists with at most ten requests a minute
_SETTLED_S: Final = 600.0  # a capture file without writes for this long is uploaded even if it is its writer's newest
_INLINE: Final = ("policy.json", "READY", "state.json")  # small files of a folder that every host needs
_FOREIGN: Final = "another host's"  # stands for the tag of a growing file that another host writes
_WITH_FOLDERS: Final = ("run/policies/", "run/train/", "run/quarantine/")
_LEFT_OVER_S: Final = 86400.0  # age after which unlisted parts and old leases are deleted


def open_bucket(root: Path, url: str, host: str) -> "BucketStorage":
    """The storage of the run at `url`. Raises ClawError (exit code 2)."""
    objects = Objects(open_store(url))
    bucket = BucketStorage(root, objects, Leases(objects, host))
    try:
        bucket.refresh()
        if not (root / "run.json").exists():
            _check_conditions(objects)
    except StorageUnreachable as error:
        problem = f"the bucket of this run cannot be used: {error}"
        raise ClawError(problem, "check its name, the credentials in the environment and the network", 2) from None
    return bucket


def _has_lines(content: bytes, lines: bytes) -> bool:
    """Whether a file already has these whole lines."""
    return content.startswith(lines) or b"\n" + lines in content


def _check_conditions(objects: Objects) -> None:
    """Try create-if-absent and compare-and-swap once: with a store that lacks them, turns could be trained twice."""
    name = f"leases/.probe-{uuid4().hex}"
    try:
        first = objects.create(name, b"1")
        second, mismatched = objects.create(name, b"2"), objects.swap(name, b"3", '"another"')
        if first is None or second is not None or mismatched is not None or objects.swap(name, b"4", first) is None:
            raise ClawError("this object store ignores conditions on writes", "use one with If-None-Match and If-Match", 2)
    finally:
        objects.delete(name)


# ---- the storage ---------------------------------------------------------------------------------------------------------


class BucketStorage(Storage):
    """The storage of one run, for one process of one host. `root` is the host's local folder."""

    in_bucket = True

    def __init__(self, root: Path, objects: Objects, leases: Leases, poll_s: float = _POLL_S) -> None:
        self._root, self._objects, self._poll_s = root, objects, poll_s
        self._about = root / ABOUT
        self._tags = self._about / "tags"
        self._tags.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._leases = leases
        self._writing = threading.RLock()
        self._between_processes = FileLock(self._about / "writing.lock")
        self._poll_lock = FileLock(self._about / "pulling.lock", thread_local=False)
        self._announcements, self._place = Announcements(objects, self._about / "due"), Place()
        self._listed_at, self._list_s = float("-inf"), _LIST_S
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # ---- publishing ------------------------------------------------------------------------------------------------------

    def publish(self, draft: Path, path: Path) -> None:
        name, kind = self._name(path)
        if kind in (Kind.LOCAL, Kind.GROWING):
            return DISK.publish(draft, path)
        with self._changing(f"run/{name}"):
            tag = (self._objects.put if kind is Kind.CHANGING else self._objects.create)(f"run/{name}", draft)
            if tag is not None:
                os.replace(draft, path)
                self._store_tag(name, tag)
                return
            log.warning("%s was published by another worker; its content is kept", name)
            stored = self._objects.read(f"run/{name}")
            if stored is None:
                raise StorageUnreachable(f"{name} was listed but is gone")
            self._write(path, stored[0])
            self._store_tag(name, stored[1])

    def replace(self, draft: Path, path: Path) -> None:
        name, kind = self._name(path)
        if (folder := self._folder_of(path)) is not None:
            self._replace_part(draft, path, folder)
        elif kind is Kind.ONCE:
            with self._changing(f"run/{name}"):
                tag = self._objects.put(f"run/{name}", draft)
                os.replace(draft, path)
                self._store_tag(name, tag)
        else:
            self.publish(draft, path)

    def _folder_of(self, path: Path) -> Path | None:
        """Return the published folder that contains the file, or None."""
        above = takewhile(lambda parent: parent != self._root, path.parents)
        return next((parent for parent in above if self._name(parent)[1] is Kind.FOLDER), None)

    def _replace_part(self, draft: Path | None, path: Path, folder: Path) -> None:
        """Replace or remove (`draft` None) a part of a folder: the content first, then the list of parts, which holds its size."""
        name, part = self._name(folder)[0] + FOLDER, path.relative_to(folder).as_posix()
        with self._changing(f"run/{name}"):
            stored = self._objects.read(f"run/{name}")
            if stored is None:
                raise StorageUnreachable(f"{name} is gone from the bucket")
            manifest = orjson.loads(stored[0])
            key = f"parts/{manifest['parts']}/{part}"
            if draft is None:
                self._objects.delete(key)
                manifest["files"].pop(part, None)
            else:
                self._objects.put(key, draft)
                manifest["files"][part] = draft.stat().st_size
            data = orjson.dumps(manifest)
            tag = self._objects.put(f"run/{name}", data)
            if draft is None:
                path.unlink(missing_ok=True)
            else:
                os.replace(draft, path)
            self._store_tag(name, tag, data)

    def publish_folder(self, draft: Path, path: Path) -> bool:
        name, kind = self._name(path)
        if kind is not Kind.FOLDER:
            return DISK.publish_folder(draft, path)
        files = {str(file.relative_to(draft)): file for file in sorted(draft.rglob("*")) if file.is_file()}
        parts = uuid4().hex
        for part, file in files.items():
            self._objects.put(f"parts/{parts}/{part}", file)
        manifest = {
            "parts": parts,
            "files": {part: file.stat().st_size for part, file in files.items()},
            "inline": {part: files[part].read_text() for part in _INLINE if part in files},
        }
        data = orjson.dumps(manifest)
        with self._changing(f"run/{name}{FOLDER}"):
            tag = self._objects.create(f"run/{name}{FOLDER}", data)
            if tag is not None:
                self._remove_folder(path)
                os.rename(draft, path)
                self._store_tag(name + FOLDER, tag, data)
                return True
        self._delete_parts(manifest)
        self._fetch_folder(name)
        return False

    def complete(self, folder: Path, suffix: str = "") -> None:
        name, kind = self._name(folder)
        manifest = self._manifest(name) if kind is Kind.FOLDER else None
        if manifest is None:
            return
        for part, size in manifest["files"].items():
            file = below(folder, part)
            if not part.endswith(suffix) or (file.is_file() and file.stat().st_size == size):
                continue
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft = file.with_name(f".{file.name}.{uuid4().hex[:8]}.tmp")
            try:
                self._objects.download(f"parts/{manifest['parts']}/{part}", draft, size)
                os.replace(draft, file)
            except FileNotFoundError as error:
                raise StorageUnreachable(f"{name}/{part} is gone from the bucket") from error
            finally:
                draft.unlink(missing_ok=True)

    def append(self, path: Path, data: bytes, locally: Callable[[], None]) -> None:
        name, kind = self._name(path)
        if kind is not Kind.CHANGING:
            return locally()
        with self._changing(f"run/{name}"):
            for _ in range(100):
                stored = self._objects.read(f"run/{name}")
                before, tag = stored or (b"", None)
                if before and not before.endswith(b"\n"):
                    before += b"\n"
                if _has_lines(before, data):  # an earlier try whose answer was lost; each row has an id or a time of its own
                    self._write(path, before)
                    self._store_tag(name, str(tag))
                    return
                written = self._objects.swap(f"run/{name}", before + data, tag)
                if written is not None:
                    self._write(path, before + data)
                    self._store_tag(name, written)
                    return
        raise StorageUnreachable(f"{name} changed at each of 100 attempts to append to it")

    def move(self, source: Path, target: Path) -> None:
        name, kind = self._name(source)
        new_name, new_kind = self._name(target)
        with self._changing():
            if kind is Kind.LOCAL:
                os.replace(source, target)
            elif new_kind is Kind.LOCAL:
                with self._deleted(name, kind), suppress(FileNotFoundError):  # another host may also have removed it
                    os.replace(source, target)
            elif kind is Kind.FOLDER:
                self._move_object(name + FOLDER, new_name + FOLDER, source, target)
            else:
                stored = self._objects.read(f"run/{name}")
                if stored is None or stored[0] == source.read_bytes():
                    self._move_object(name, new_name, source, target)
                else:  # the local copy is damaged, not the object in the store
                    os.replace(source, target)
                    self._write(source, stored[0])
                    self._store_tag(name, stored[1])
                    log.error("the local copy of %s was damaged and is fetched again", name)

    def _move_object(self, name: str, new_name: str, source: Path, target: Path) -> None:
        """Move an object to another name. For a folder only its list of parts moves; the parts stay in place."""
        self._announcements.note(f"run/{name}", f"run/{new_name}")
        stored = self._objects.read(f"run/{name}")
        tag = None if stored is None else self._objects.put(f"run/{new_name}", stored[0])
        self._objects.delete(f"run/{name}")
        os.replace(source, target)
        self._store_tag(name, None)
        if stored is not None and tag is not None:
            self._store_tag(new_name, tag, stored[0] if name.endswith(FOLDER) else b"")

    def remove(self, path: Path) -> None:
        if (folder := self._folder_of(path)) is not None:
            return self._replace_part(None, path, folder)
        with self._changing(), self._deleted(*self._name(path)):
            DISK.remove(path)

    def exists(self, path: Path) -> bool:
        name, kind = self._name(path)
        if kind in (Kind.LOCAL, Kind.GROWING):
            return path.exists()
        return self._objects.describe(f"run/{name}{FOLDER if kind is Kind.FOLDER else ''}") is not None

    @contextmanager
    def _deleted(self, name: str, kind: Kind) -> Iterator[None]:
        """Delete the object from the store, let the caller delete the local file, then delete the tag. After a kill `refresh`
        completes this.
        """
        if kind in (Kind.LOCAL, Kind.GROWING):
            uploaded = _uploaded_name(name, kind)
            if uploaded is not None:
                self._announcements.note(uploaded)
                self._objects.delete(uploaded)
            yield
            if uploaded is not None:
                (self._about / "sizes" / uploaded).unlink(missing_ok=True)
                self._store_tag(name, None)
            return
        manifest = self._manifest(name) if kind is Kind.FOLDER else None
        key = name + FOLDER if kind is Kind.FOLDER else name
        self._announcements.note(f"run/{key}")
        self._objects.delete(f"run/{key}")
        if manifest is not None:
            self._delete_parts(manifest)
        yield
        self._store_tag(key, None)

    def _delete_parts(self, manifest: dict[str, Any]) -> None:
        for part in manifest["files"]:
            self._objects.delete(f"parts/{manifest['parts']}/{part}")

    # ---- LIVE, and claims ------------------------------------------------------------------------------------------------

    def latest(self, path: Path) -> bytes | None:
        stored = self._objects.read(f"run/{self._name(path)[0]}")
        return None if stored is None else stored[0]

    def swap(self, path: Path, data: bytes, expected: bytes | None) -> bool:
        name, _ = self._name(path)
        with self._changing(f"run/{name}"):
            stored = self._objects.read(f"run/{name}")
            if (None if stored is None else stored[0]) != expected:
                return False
            tag = self._objects.swap(f"run/{name}", data, None if stored is None else stored[1])
            if tag is None:
                return False
            self._write(path, data)
            self._store_tag(name, tag)
        return True

    @contextmanager
    def claim(self, lock: Path) -> Iterator[bool]:
        with DISK.claim(lock) as acquired:  # processes of this host are resolved without a request to the store
            of_this_host = lock.stem == "collect"
            if not acquired or not (of_this_host or is_shared_lock(lock.stem)):
                yield acquired
                return
            name = f"{lock.stem}-{self._leases.host}" if of_this_host else lock.stem
            leased = self._leases.acquire(name)
            try:
                if leased and lock.stem.split("-")[0] in ("train", "eval", "forget"):
                    self.refresh()  # the results of the previous worker are here before this one starts
                # `forget` checks for collect workers after it has its lease, and collect checks for `forget` after it has its own.
                yield leased and not (of_this_host and self._leases.held_elsewhere("forget"))
            finally:
                if leased:
                    self._leases.release(name)

    @contextmanager
    def exclusive(self, lock: Path, patience_s: float) -> Iterator[None]:
        deadline = time.monotonic() + patience_s
        while True:
            with self.claim(lock) as acquired:
                if acquired:
                    yield
                    return
            if time.monotonic() > deadline:
                raise Timeout(str(lock))
            time.sleep(0.2)

    # ---- changes by other hosts ------------------------------------------------------------------------------------------

    def follow(self, shards: bool) -> None:
        if shards:
            (self._about / "shards").touch(mode=0o600)
        self.refresh()
        if self._thread is None:
            self._thread = threading.Thread(target=self._poll, name="follow the bucket", daemon=True)
            self._thread.start()
            atexit.register(self.close)

    def close(self) -> None:
        """Announce the last changes to other hosts and release the leases."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
        atexit.unregister(self.close)
        try:
            self._upload()
            self._announce()
            self._leases.close()
        except OSError as error:
            log.warning("changes are noticed late: %s", error)
        self._poll_lock.release()

    def refresh(self) -> None:
        """List the store, copy missing files from it, and remove files that it no longer has.

        A file appears under its name once its content is complete.
        """
        local = self._all_tags()  # before the listing: files published from now on may be missing in it
        _, place = self._announcements.since(Place())
        remote = {stored.name.removeprefix("run/"): stored for stored in self._objects.list("run/")}
        for name in sorted(remote, key=order):
            self._bring(name, remote[name])
        for name in local - remote.keys():
            self._remove_local(name)
        for stored in self._objects.list("forgotten/"):
            self._bring_request(stored.name)
        self._place, self._listed_at = place, time.monotonic()
        self._list_s = max(_LIST_S, _PAGE_S * len(remote) / 1000)

    def _catch_up(self) -> None:
        """Do what `refresh` does for the names that were announced since the last look. If some were missed, list."""
        changed, place = self._announcements.since(self._place)
        if changed is None or time.monotonic() - self._listed_at >= self._list_s:
            return self.refresh()
        names = {key.removeprefix("run/"): tag for key, tag in changed.items() if key.startswith("run/")}
        for name in sorted(names, key=order):
            own = self._tag(name)
            if (own is None and not self._is_wanted(name)) or (own is not None and own == names[name]):
                continue
            with self._local():  # nothing is published on this host between the look and the removal
                stored = self._objects.describe(f"run/{name}")
                if stored is None:
                    self._remove_local(name)
            if stored is not None:
                self._bring(name, stored)
        for key in changed:
            if key.startswith("forgotten/"):
                self._bring_request(key)
        self._place = place

    def _bring(self, name: str, stored: StoredObject) -> None:
        if self._is_wanted(name) and self._tag(name) != stored.tag:
            with suppress(FileNotFoundError):  # removed since the listing
                self._fetch(name, stored)

    def _bring_request(self, key: str) -> None:
        path = below(self._about, key)
        if not path.exists() and (request := self._objects.read(key)) is not None:
            self._write(path, request[0])

    def _is_wanted(self, name: str) -> bool:
        is_bulk = name.startswith(("trajectories/", "verdicts/", "train/")) and not name.endswith((".jsonl", ".json"))
        return not is_bulk or (self._about / "shards").exists()

    def _fetch(self, name: str, stored: StoredObject) -> None:
        if name.endswith(FOLDER):
            return self._fetch_folder(name.removesuffix(FOLDER))
        path = below(self._root, name)
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
                with self._local():
                    if self._tag(name) != stored.tag:
                        os.replace(draft, path)
                        self._store_tag(name, stored.tag)
            finally:
                draft.unlink(missing_ok=True)
            return
        with self._local():
            content = self._objects.read(stored.name)
            if content is not None:
                self._write(path, content[0])
                self._store_tag(name, content[1])

    def _fetch_folder(self, name: str) -> None:
        """Create a folder with its small files; `complete` fetches the rest when it is needed."""
        stored = self._objects.read(f"run/{name}{FOLDER}")
        if stored is None:
            return
        path = below(self._root, name)
        manifest = orjson.loads(stored[0])
        draft = draft_of(path)
        draft.mkdir(parents=True, mode=0o700)
        try:
            for part, text in manifest["inline"].items():
                write_synced(below(draft, part), text.encode())
            with self._local():
                if self._tag(name + FOLDER) == stored[1]:
                    return  # this process has published the folder meanwhile, with all of its files
                self._remove_folder(path)
                os.rename(draft, path)
                self._store_tag(name + FOLDER, stored[1], stored[0])
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _append_remote(self, path: Path, stored: StoredObject) -> None:
        """Append the new data of a writer on another host. The longer version of such a file is the newer one."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._local():
            name = stored.name.removeprefix("run/")
            local_size = path.stat().st_size if path.exists() else 0
            if local_size > stored.size and self._tag(name) == _FOREIGN:  # `forget` removed lines
                content = self._objects.read(stored.name)
                return None if content is None else self._write(path, content[0])
            if local_size >= stored.size:
                return
            data = self._objects.read_range(stored.name, local_size, stored.size)
            self._store_tag(name, _FOREIGN)
            with path.open("ab") as file:
                os.chmod(path, 0o600)
                file.write(data)

    def _remove_local(self, name: str) -> None:
        """Remove a local file or folder that the store no longer has."""
        with self._local():
            if self._tag(name) is None:
                return  # this process has removed or moved it meanwhile
            if name.endswith(FOLDER):
                self._remove_folder(below(self._root, name.removesuffix(FOLDER)))
            else:
                below(self._root, name).unlink(missing_ok=True)
            self._store_tag(name, None)

    # ---- data that every host must remove from its own files -------------------------------------------------------------

    def request_removal(self, name: str, request: bytes) -> None:
        with self._changing(f"forgotten/{name}"):
            self._objects.put(f"forgotten/{name}", request)
            self._announce()
        self.refresh()

    def pending_removals(self) -> dict[str, bytes]:
        files = sorted((self._about / "forgotten").glob("[!.]*"))
        return {path.name: data for path in files if (data := path.read_bytes())}

    def complete_removal(self, name: str) -> None:
        self._write(self._about / "forgotten" / name, b"")

    def is_own(self, path: Path) -> bool:
        return self._tag(self._name(path)[0]) != _FOREIGN

    def collecting_elsewhere(self) -> int:
        return len(self._leases.held_elsewhere("collect-"))

    def rewrite_copies(self, remove_lines: Callable[[bytes], bytes]) -> None:
        for prefix in ("captures/", "run/feedback/", "run/episodes/"):
            for stored in self._objects.list(prefix):
                with self._changing(stored.name):
                    self._rewrite_copy(stored.name, remove_lines)

    def _rewrite_copy(self, key: str, remove_lines: Callable[[bytes], bytes]) -> None:
        for _ in range(100):
            content = self._objects.read(key)
            kept = b"" if content is None else remove_lines(content[0])
            if content is None or kept == content[0]:
                return
            if not kept:
                return self._objects.delete(key)
            if self._objects.swap(key, kept, content[1]) is not None:
                return  # otherwise its host has just uploaded more: try again
        raise StorageUnreachable(f"{key} changed at each of 100 attempts to remove lines from it")

    def sweep(self) -> int:
        """Delete parts that no folder lists and leases of killed workers, once they are a day old. Returns how many were
        deleted.
        """
        now, used = self._leases.now(), set()
        old = [stored.name for prefix in ("parts/", "leases/") for stored in self._objects.list(prefix)
               if now is not None and now - stored.modified > _LEFT_OVER_S]  # fmt: skip
        if not old:
            return 0
        folders = (stored for prefix in _WITH_FOLDERS for stored in self._objects.list(prefix))
        for stored in folders:  # after listing the parts, so that folders published meanwhile are included
            if stored.name.endswith(FOLDER) and (content := self._objects.read(stored.name)) is not None:
                used.add(orjson.loads(content[0])["parts"])
        deleted = [name for name in old if name.split("/")[1] not in used]
        for name in deleted:
            self._objects.delete(name)
        return len(deleted)

    # ---- the thread ------------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        failing = False
        while not self._stop.wait(self._poll_s):
            try:
                self._announce()
                self._poll_once()
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

    def _poll_once(self) -> None:
        """Fetch and upload changes. One process per host does this for all of them."""
        try:
            if not self._poll_lock.is_locked:
                self._poll_lock.acquire(timeout=0)
        except Timeout:
            return
        self._catch_up()
        self._upload()
        self._announce()

    def _announce(self) -> None:
        """Announce what processes of this host have changed, killed ones included."""
        if self._announcements.are_due():
            with self._local():
                self._announcements.announce(self._known_tag)

    def _upload(self) -> None:
        """Upload what the writers of this host appended, and their rotated captures.

        A host never appends to a file of another host, so a file that is longer here than in the store belongs to this host.
        Nothing is uploaded before this host has carried out all requests to forget.
        """
        if self.pending_removals():
            return
        for folder in ("feedback", "episodes"):
            for path in _lines(self._root / folder):
                self._upload_if_longer(path, f"run/{folder}/{path.name}")
        captures = _lines(self._root / "captures")
        newest: dict[str, Path] = {}
        for path in sorted(captures, key=_file_number):
            newest[path.stem.rpartition("-")[0]] = path
        for path in captures:
            if path not in newest.values() or time.time() - path.stat().st_mtime > _SETTLED_S:
                self._upload_if_longer(path, f"captures/{path.name}")

    def _upload_if_longer(self, path: Path, key: str) -> None:
        mark = self._about / "sizes" / key
        size = path.stat().st_size
        if size <= (int(mark.read_text()) if mark.exists() else 0):
            return
        with self._local():
            if self._tag(key.removeprefix("run/")) == _FOREIGN:
                return
            data = path.read_bytes()
            self._announcements.note(*[key] if key.startswith("run/") else [])
            self._objects.put(key, data[: data.rfind(b"\n") + 1])
        mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_synced(mark, str(size).encode())

    # ---- the local folder ------------------------------------------------------------------------------------------------

    def _name(self, path: Path) -> tuple[str, Kind]:
        name = path.relative_to(self._root).as_posix()
        if name.startswith("quarantine/") and path.is_dir():
            return name, Kind.FOLDER
        return name, kind_of(name)

    @contextmanager
    def _local(self) -> Iterator[None]:
        """Prevent other processes and threads of this host from changing a file and its tag."""
        with self._writing, self._between_processes:
            yield

    @contextmanager
    def _changing(self, *keys: str) -> Iterator[None]:
        """Note what is about to change, and announce it afterwards: the thread does so, or else this process at once."""
        with self._local():
            if keys:
                self._announcements.note(*keys)
            yield
        if self._thread is None:
            try:
                self._announce()
            except StorageUnreachable as error:
                log.warning("other hosts notice a change late: %s", error)

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = draft_of(path)
        try:
            write_synced(draft, data)
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)

    def _remove_folder(self, folder: Path) -> None:
        if folder.exists():
            doomed = draft_of(folder)
            os.replace(folder, doomed)
            shutil.rmtree(doomed, ignore_errors=True)

    def _store_tag(self, name: str, tag: str | None, manifest: bytes = b"") -> None:
        """Store the tag of the object that a local file equals. None: there is no object."""
        path = below(self._tags, name)
        if tag is None:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = draft_of(path)
        draft.write_bytes(tag.encode() + b"\n" + manifest)
        os.replace(draft, path)

    def _tag(self, name: str) -> str | None:
        """Return the tag of the local copy. Another process of this host may have fetched it."""
        try:
            return below(self._tags, name).read_bytes().partition(b"\n")[0].decode()
        except FileNotFoundError:
            return None

    def _known_tag(self, key: str) -> str | None:
        """Return the tag of the object whose content this host has. Of a growing file the tag does not say how much is here."""
        tag = self._tag(key.removeprefix("run/")) if key.startswith("run/") else None
        return None if tag == _FOREIGN else tag

    def _all_tags(self) -> set[str]:
        tags = (path for path in self._tags.rglob("*") if path.is_file())
        return {path.relative_to(self._tags).as_posix() for path in tags if not path.name.endswith(".tmp")}

    def _manifest(self, name: str) -> dict[str, Any] | None:
        with suppress(FileNotFoundError):
            manifest: dict[str, Any] = orjson.loads(below(self._tags, name + FOLDER).read_bytes().partition(b"\n")[2])
            return manifest
        return None


def _uploaded_name(name: str, kind: Kind) -> str | None:
    """Return the name of the object to which a host uploads its own file, or None."""
    if kind is Kind.GROWING:
        return f"run/{name}"
    return name if name.startswith("captures/") and name.endswith(".jsonl") else None


def _lines(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.jsonl") if not path.name.startswith(".")) if folder.exists() else []


def _file_number(path: Path) -> int:
    return number_of(path.stem.rpartition("-")[2]) or 0
