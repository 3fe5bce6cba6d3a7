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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import orjson
from filelock import Timeout

from clawctl.errors import ClawError
from clawctl.extensions.bucket.announcements import Announcements
from clawctl.extensions.bucket.following import POLL_S, HostFollower
from clawctl.extensions.bucket.kinds import FOLDER, Kind, is_shared_lock
from clawctl.extensions.bucket.leases import Leases
from clawctl.extensions.bucket.local import FOREIGN, LocalFolder, drafted
from clawctl.extensions.bucket.objects import Objects, check_conditions, open_store
from clawctl.run.names import below
from clawctl.run.storage import DISK, Storage, StorageUnreachable

log = logging.getLogger(__name__)

_WITH_FOLDERS: Final = ("run/policies/", "run/train/", "run/quarantine/")
_LEFT_OVER_S: Final = 86400.0  # age after which unlisted parts and old leases are deleted
_INLINE: Final = ("policy.json", "READY", "state.json")  # small files of a folder that every host needs


def open_bucket(root: Path, url: str, host: str) -> "BucketStorage":
    """The storage of the run at `url`. Raises ClawError (exit code 2)."""
    objects = Objects(open_store(url))
    bucket = BucketStorage(root, objects, Leases(objects, host))
    try:
        bucket.refresh()
        if not (root / "run.json").exists():
            check_conditions(objects)
    except StorageUnreachable as error:
        problem = f"the bucket of this run cannot be used: {error}"
        raise ClawError(problem, "check its name, the credentials in the environment and the network", 2) from None
    return bucket


class BucketStorage(Storage):
    """The storage of one run, for one process of one host. `root` is the host's local folder."""

    in_bucket = True

    def __init__(self, root: Path, objects: Objects, leases: Leases, poll_s: float = POLL_S) -> None:
        self._local, self._objects, self._leases, self.host = LocalFolder(root), objects, leases, leases.host
        self._announcements = Announcements(objects, self._local.about / "due")
        self.follower = HostFollower(self._local, objects, self._announcements, poll_s)

    # ---- publishing ------------------------------------------------------------------------------------------------------

    def publish(self, draft: Path, path: Path) -> None:
        name, kind = self._local.named(path)
        if kind in (Kind.LOCAL, Kind.GROWING):
            return DISK.publish(draft, path)
        with self._changing(f"run/{name}"):
            tag = (self._objects.put if kind is Kind.CHANGING else self._objects.create)(f"run/{name}", draft)
            if tag is not None:
                os.replace(draft, path)
                self._local.store_tag(name, tag)
                return
            log.warning("%s was published by another worker; its content is kept", name)
            stored = self._objects.read(f"run/{name}")
            if stored is None:
                raise StorageUnreachable(f"{name} was listed but is gone")
            self._local.write(path, *stored)

    def replace(self, draft: Path, path: Path) -> None:
        name, kind = self._local.named(path)
        if (folder := self._folder_of(path)) is not None:
            self._replace_part(draft, path, folder)
        elif kind is Kind.ONCE:
            with self._changing(f"run/{name}"):
                tag = self._objects.put(f"run/{name}", draft)
                os.replace(draft, path)
                self._local.store_tag(name, tag)
        else:
            self.publish(draft, path)

    def _folder_of(self, path: Path) -> Path | None:
        """Return the published folder that contains the file, or None."""
        above = takewhile(lambda parent: parent != self._local.root, path.parents)
        return next((parent for parent in above if self._local.named(parent)[1] is Kind.FOLDER), None)

    def _replace_part(self, draft: Path | None, path: Path, folder: Path) -> None:
        """Replace or remove (`draft` None) a part of a folder: the content first, then the list of parts, which holds its size."""
        name, part = self._local.named(folder)[0] + FOLDER, path.relative_to(folder).as_posix()
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
            self._local.store_tag(name, tag, data)

    def publish_folder(self, draft: Path, path: Path) -> bool:
        name, kind = self._local.named(path)
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
                self._local.remove_folder(path)
                os.rename(draft, path)
                self._local.store_tag(name + FOLDER, tag, data)
                return True
        self._delete_parts(manifest)
        self.follower.fetch_folder(name)
        return False

    def complete(self, folder: Path, suffix: str = "") -> None:
        name, kind = self._local.named(folder)
        manifest = self._local.manifest(name) if kind is Kind.FOLDER else None
        if manifest is None:
            return
        for part, size in manifest["files"].items():
            file = below(folder, part)
            if not part.endswith(suffix) or (file.is_file() and file.stat().st_size == size):
                continue
            try:
                with drafted(file) as draft:
                    self._objects.download(f"parts/{manifest['parts']}/{part}", draft, size)
            except FileNotFoundError as error:
                raise StorageUnreachable(f"{name}/{part} is gone from the bucket") from error

    def append(self, path: Path, data: bytes, locally: Callable[[], None]) -> None:
        name, kind = self._local.named(path)
        if kind is not Kind.CHANGING:
            return locally()

        def appended(content: bytes) -> bytes:
            lines = content if not content or content.endswith(b"\n") else content + b"\n"
            # An earlier try whose answer was lost: each row has an id or a time of its own.
            return content if lines.startswith(data) or b"\n" + data in lines else lines + data

        with self._changing(f"run/{name}"):
            if (stored := self._objects.change(f"run/{name}", appended)) is not None:
                self._local.write(path, *stored)

    def move(self, source: Path, target: Path) -> None:
        name, kind = self._local.named(source)
        new_name, new_kind = self._local.named(target)
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
                    self._local.write(source, *stored)
                    log.error("the local copy of %s was damaged and is fetched again", name)

    def _move_object(self, name: str, new_name: str, source: Path, target: Path) -> None:
        """Move an object to another name. For a folder only its list of parts moves; the parts stay in place."""
        self._announcements.note(f"run/{name}", f"run/{new_name}")
        stored = self._objects.read(f"run/{name}")
        tag = None if stored is None else self._objects.put(f"run/{new_name}", stored[0])
        self._objects.delete(f"run/{name}")
        os.replace(source, target)
        self._local.store_tag(name, None)
        if stored is not None and tag is not None:
            self._local.store_tag(new_name, tag, stored[0] if name.endswith(FOLDER) else b"")

    def remove(self, path: Path) -> None:
        if (folder := self._folder_of(path)) is not None:
            return self._replace_part(None, path, folder)
        with self._changing(), self._deleted(*self._local.named(path)):
            DISK.remove(path)

    def exists(self, path: Path) -> bool:
        name, kind = self._local.named(path)
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
                (self._local.about / "sizes" / uploaded).unlink(missing_ok=True)
                self._local.store_tag(name, None)
            return
        manifest = self._local.manifest(name) if kind is Kind.FOLDER else None
        key = name + FOLDER if kind is Kind.FOLDER else name
        self._announcements.note(f"run/{key}")
        self._objects.delete(f"run/{key}")
        if manifest is not None:
            self._delete_parts(manifest)
        yield
        self._local.store_tag(key, None)

    def _delete_parts(self, manifest: dict[str, Any]) -> None:
        for part in manifest["files"]:
            self._objects.delete(f"parts/{manifest['parts']}/{part}")

    # ---- LIVE, and claims ------------------------------------------------------------------------------------------------

    def latest(self, path: Path) -> bytes | None:
        stored = self._objects.read(f"run/{self._local.named(path)[0]}")
        return None if stored is None else stored[0]

    def swap(self, path: Path, data: bytes, expected: bytes | None) -> bool:
        name, _ = self._local.named(path)
        with self._changing(f"run/{name}"):
            stored = self._objects.read(f"run/{name}")
            if (None if stored is None else stored[0]) != expected:
                return False
            tag = self._objects.swap(f"run/{name}", data, None if stored is None else stored[1])
            if tag is None:
                return False
            self._local.write(path, data, tag)
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
            (self._local.about / "shards").touch(mode=0o600)
        self.refresh()
        if not self.follower.is_polling:
            self.follower.start()
            atexit.register(self.close)

    def close(self) -> None:
        """Announce the last changes to other hosts and release the leases."""
        self.follower.stop()
        atexit.unregister(self.close)
        try:
            self.follower.upload()
            self.follower.announce()
            self._leases.close()
        except OSError as error:
            log.warning("changes are noticed late: %s", error)
        self.follower.poll_lock.release()

    def refresh(self) -> None:
        self.follower.refresh()

    # ---- data that every host must remove from its own files -------------------------------------------------------------

    def request_removal(self, name: str, request: bytes) -> None:
        with self._changing(f"forgotten/{name}"):
            self._objects.put(f"forgotten/{name}", request)
            self.follower.announce()
        self.refresh()

    def pending_removals(self) -> dict[str, bytes]:
        self.follower.bring_requests()
        return self._local.pending_removals()

    def complete_removal(self, name: str) -> None:
        self._local.write(self._local.about / "forgotten" / name, b"")

    def is_own(self, path: Path) -> bool:
        return self._local.tag(self._local.named(path)[0]) != FOREIGN

    def collecting_elsewhere(self) -> int:
        return len(self._leases.held_elsewhere("collect-"))

    def rewrite_copies(self, remove_lines: Callable[[bytes], bytes]) -> None:
        for prefix in ("captures/", "run/feedback/", "run/episodes/"):
            for stored in self._objects.list(prefix):
                with self._changing(stored.name):
                    self._objects.change(stored.name, remove_lines)

    def sweep(self) -> int:
        """See `Storage`: parts that no folder lists and leases of killed workers are deleted once they are a day old."""
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

    @contextmanager
    def _changing(self, *keys: str) -> Iterator[None]:
        """Note what is about to change, and announce it afterwards: the thread does so, or else this process at once."""
        with self._local.held():
            if keys:
                self._announcements.note(*keys)
            yield
        if not self.follower.is_polling:
            try:
                self.follower.announce()
            except StorageUnreachable as error:
                log.warning("other hosts notice a change late: %s", error)


def _uploaded_name(name: str, kind: Kind) -> str | None:
    """Return the name of the object to which a host uploads its own file, or None."""
    if kind is Kind.GROWING:
        return f"run/{name}"
    return name if name.startswith("captures/") and name.endswith(".jsonl") else None
