"""A run in an object store: `--run s3://bucket/prefix` (also `gs://`, `az://`).

Each host has a local folder of the run. Stages read and write ordinary files there. What concerns other hosts goes through the
store at once: a file is published, removed or swapped in the store first and in the local folder second, and the store decides
between two workers. A thread looks about once a second and brings what others published into the local folder, whole.

    PREFIX/run/…           the files of the run under their own names; `policies/3.folder` lists the parts of a folder
    PREFIX/parts/<id>/…    the files of a published folder; it exists once its `.folder` object does
    PREFIX/captures/…      rotated captures of every host
    PREFIX/leases/…        who works on what (`leases.py`)
    PREFIX/changed         written after a change, so that the others look

In the local folder, `.bucket/about.json` names the bucket, and `.bucket/tags/` has the tag of each object that a local file equals.
"""

import atexit
import hashlib
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import orjson
from filelock import FileLock, Timeout

from clawctl.config import from_environment, state_folder
from clawctl.errors import ClawError
from clawctl.run.leases import Leases
from clawctl.run.names import below, number_of
from clawctl.run.objects import Objects, StoredObject, open_store
from clawctl.run.storage import DISK, StorageUnreachable, mount_at, storage_of, write_synced

log = logging.getLogger(__name__)

ABOUT: Final = ".bucket"  # the folder that marks a local folder of a bucket
_POLL_S: Final = 1.0
_LIST_S: Final = 30.0  # how long a change can stay unnoticed if the worker that made it was killed
_SETTLED_S: Final = 600.0  # a capture file that was not written to for so long goes up although it is its writer's last
_FOLDER: Final = ".folder"
_INLINE: Final = ("policy.json", "READY", "state.json")  # small files of a folder that everybody reads
_URL: Final = re.compile(r"(s3|gs|az)://([A-Za-z0-9][A-Za-z0-9._-]{1,62})(?:/([A-Za-z0-9._/=-]*))?")
_FOREIGN: Final = "another host's"  # in place of the tag of a growing file


class Kind(Enum):
    """What happens to a file of a run in a bucket."""

    LOCAL = "stays on its host"
    ONCE = "is published once and never changed"
    CHANGING = "is replaced as a whole"
    GROWING = "is appended to by its writer alone, on its host"
    FOLDER = "is a folder that is published once"


_CHANGING = {"run.json", "recipe.yaml", "serve.json", "holdout.json", "verdicts/custom-range.json"}
_CHANGING_BY_NAME = {
    "policies": {"LIVE", "SHARED", "moves.jsonl"},
    "train": {"steps.jsonl", "back.jsonl", "abandoned.jsonl", "refusals.json", "forgotten.jsonl", "feed.json"},
}


def kind_of(name: str) -> Kind:
    """The kind of a file, by its path below the run."""
    head, *rest = parts = name.split("/")
    if name in _CHANGING:
        return Kind.CHANGING
    if not rest or any(part.startswith(".") for part in parts):
        return Kind.LOCAL
    last = parts[-1]
    if head in ("feedback", "episodes") and last.endswith(".jsonl"):
        return Kind.GROWING
    if head == "quarantine":
        return Kind.ONCE
    if head in ("trajectories", "verdicts"):
        return Kind.ONCE if last.endswith(".parquet") else Kind.LOCAL
    if head == "eval":
        return Kind.CHANGING if last.endswith(".json") else Kind.LOCAL
    if last in _CHANGING_BY_NAME.get(head, ()):
        return Kind.CHANGING
    if (head == "policies" or (head == "train" and "checkpoints" in parts[:-1])) and number_of(last) is not None:
        return Kind.FOLDER
    if head == "train" and parts[-2] in ("ledger", "turns") and last.endswith((".json", ".parquet")):
        return Kind.ONCE
    return Kind.LOCAL


def _is_shared_lock(name: str) -> bool:
    """Whether a lock is between all hosts. Collect and `up` work for one host each."""
    return name.startswith("judge-") or name.split("-")[0] in ("train", "eval", "live")


# ---- the storage ---------------------------------------------------------------------------------------------------------


class BucketStorage:
    """The storage of one run, as one process of one host sees it. `root` is the host's local folder."""

    def __init__(self, root: Path, objects: Objects, leases: Leases | None = None, poll_s: float = _POLL_S) -> None:
        self._root, self._objects, self._poll_s = root, objects, poll_s
        self._about = root / ABOUT
        self._tags = self._about / "tags"
        self._tags.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._leases = leases or Leases(objects, host_of(root))
        self._writing = threading.RLock()
        self._between_processes = FileLock(self._about / "writing.lock")
        self._leading = FileLock(self._about / "pulling.lock", thread_local=False)
        self._changed: str | None = None  # tag of the object `changed`
        self._listed_at = float("-inf")
        self._told = threading.Event()  # something was published that the others have not been told of
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # ---- publishing ------------------------------------------------------------------------------------------------------

    def publish(self, draft: Path, path: Path) -> None:
        name, kind = self._name(path)
        if kind in (Kind.LOCAL, Kind.GROWING):
            return DISK.publish(draft, path)
        if kind is Kind.CHANGING:
            with self._local():
                tag = self._objects.put(f"run/{name}", draft)
                os.replace(draft, path)
                self._note(name, tag)
        else:
            self._publish_once(draft, path, name)
        self._told.set()

    def _publish_once(self, draft: Path, path: Path, name: str) -> None:
        created = self._objects.create(f"run/{name}", draft)
        if created is not None:
            with self._local():
                os.replace(draft, path)
                self._note(name, created)
            return
        log.warning("%s was published by another worker; its content is kept", name)
        found = self._objects.read(f"run/{name}")
        if found is None:
            raise StorageUnreachable(f"{name} was there and is gone")
        with self._local():
            self._write(path, found[0])
            self._note(name, found[1])

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
        listed = orjson.dumps(manifest)
        tag = self._objects.create(f"run/{name}{_FOLDER}", listed)
        self._told.set()
        if tag is None:
            self._delete_parts(manifest)
            self._bring_folder(name)
            return False
        with self._local():
            self._clear(path)
            os.rename(draft, path)
            self._note(name + _FOLDER, tag, listed)
        return True

    def complete(self, folder: Path) -> None:
        name, kind = self._name(folder)
        manifest = self._manifest(name) if kind is Kind.FOLDER else None
        if manifest is None:
            return
        for part, size in manifest["files"].items():
            file = below(folder, part)
            if file.is_file() and file.stat().st_size == size:
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
        with self._local():
            for _ in range(100):
                found = self._objects.read(f"run/{name}")
                before, tag = found or (b"", None)
                if before and not before.endswith(b"\n"):
                    before += b"\n"
                written = self._objects.swap(f"run/{name}", before + data, tag)
                if written is not None:
                    self._write(path, before + data)
                    self._note(name, written)
                    self._told.set()
                    return
        raise StorageUnreachable(f"{name}: others append all the time")

    def move(self, source: Path, target: Path) -> None:
        name, kind = self._name(source)
        new, new_kind = self._name(target)
        with self._local():
            if kind is Kind.LOCAL:
                os.replace(source, target)
            elif new_kind is Kind.LOCAL:
                with self._deleted(name, kind), suppress(FileNotFoundError):  # another host may have removed it as well
                    os.replace(source, target)
            elif kind is Kind.FOLDER:
                self._move_object(name + _FOLDER, new + _FOLDER, source, target)
            else:
                found = self._objects.read(f"run/{name}")
                if found is None or found[0] == source.read_bytes():
                    self._move_object(name, new, source, target)
                else:  # the damage is here, not in the store
                    os.replace(source, target)
                    self._write(source, found[0])
                    self._note(name, found[1])
                    log.error("the local copy of %s was damaged and is fetched again", name)

    def _move_object(self, name: str, new: str, source: Path, target: Path) -> None:
        """The parts of a folder stay where they are: its list of parts moves."""
        found = self._objects.read(f"run/{name}")
        tag = None if found is None else self._objects.put(f"run/{new}", found[0])
        self._objects.delete(f"run/{name}")
        os.replace(source, target)
        self._note(name, None)
        if found is not None and tag is not None:
            self._note(new, tag, found[0] if name.endswith(_FOLDER) else b"")
        self._told.set()

    def remove(self, path: Path) -> None:
        with self._local(), self._deleted(*self._name(path)):
            DISK.remove(path)

    def exists(self, path: Path) -> bool:
        name, kind = self._name(path)
        if kind in (Kind.LOCAL, Kind.GROWING):
            return path.exists()
        return self._objects.modified(f"run/{name}{_FOLDER if kind is Kind.FOLDER else ''}") is not None

    @contextmanager
    def _deleted(self, name: str, kind: Kind) -> Iterator[None]:
        """The name is removed from the store, then from here by the caller; last its tag. After a kill `refresh` does the rest."""
        if kind in (Kind.LOCAL, Kind.GROWING):
            yield
            return
        manifest = self._manifest(name) if kind is Kind.FOLDER else None
        key = name + _FOLDER if kind is Kind.FOLDER else name
        self._objects.delete(f"run/{key}")
        if manifest is not None:
            self._delete_parts(manifest)
        yield
        self._note(key, None)
        self._told.set()

    def _delete_parts(self, manifest: dict[str, Any]) -> None:
        for part in manifest["files"]:
            self._objects.delete(f"parts/{manifest['parts']}/{part}")

    # ---- LIVE, and claims ------------------------------------------------------------------------------------------------

    def latest(self, path: Path) -> bytes | None:
        found = self._objects.read(f"run/{self._name(path)[0]}")
        return None if found is None else found[0]

    def swap(self, path: Path, data: bytes, seen: bytes | None) -> bool:
        name, _ = self._name(path)
        with self._local():
            found = self._objects.read(f"run/{name}")
            if (None if found is None else found[0]) != seen:
                return False
            tag = self._objects.swap(f"run/{name}", data, None if found is None else found[1])
            if tag is None:
                return False
            self._write(path, data)
            self._note(name, tag)
        self._told.set()
        return True

    @contextmanager
    def claim(self, lock: Path) -> Iterator[bool]:
        with DISK.claim(lock) as mine:  # the processes of this host decide without a request
            shared = _is_shared_lock(lock.stem)
            if not mine or not shared:
                yield mine
                return
            leased = self._leases.acquire(lock.stem)
            try:
                if leased and lock.stem.split("-")[0] in ("train", "eval"):
                    self.refresh()  # the last worker's results are here before this one begins
                yield leased
            finally:
                if leased:
                    self._leases.release(lock.stem)

    @contextmanager
    def exclusive(self, lock: Path, patience_s: float) -> Iterator[None]:
        until = time.monotonic() + patience_s
        while True:
            with self.claim(lock) as mine:
                if mine:
                    yield
                    return
            if time.monotonic() > until:
                raise Timeout(str(lock))
            time.sleep(0.2)

    # ---- what others published -------------------------------------------------------------------------------------------

    def follow(self, shards: bool) -> None:
        if shards:
            (self._about / "shards").touch(mode=0o600)
        self.refresh()
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="follow the bucket", daemon=True)
            self._thread.start()
            atexit.register(self.close)

    def close(self) -> None:
        """Tell the others of the last changes, and give claims back."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
        atexit.unregister(self.close)
        try:
            self._upload()
            self._tell()
            self._leases.close()
        except OSError as error:
            log.warning("the last changes are noticed late: %s", error)
        self._leading.release()

    def refresh(self) -> None:
        """Bring what is in the store and not here, and remove what is gone there. A name is here once its content is here whole."""
        here = self._all_tags()  # before the listing: what is published from now on may be missing in it
        found = {stored.name.removeprefix("run/"): stored for stored in self._objects.list("run/")}
        for name in sorted(found, key=_order):
            if not self._is_wanted(name) or (name in here and self._tag(name) == found[name].tag):
                continue
            with suppress(FileNotFoundError):  # gone since the listing
                self._bring(name, found[name])
        for name in here - found.keys():
            self._drop(name)
        self._listed_at = time.monotonic()

    def _is_wanted(self, name: str) -> bool:
        is_bulk = name.startswith(("trajectories/", "verdicts/", "train/")) and not name.endswith((".jsonl", ".json"))
        return not is_bulk or (self._about / "shards").exists()

    def _bring(self, name: str, stored: StoredObject) -> None:
        if name.endswith(_FOLDER):
            return self._bring_folder(name.removesuffix(_FOLDER))
        path = below(self._root, name)
        kind = kind_of(name)
        if kind is Kind.GROWING:
            return self._grow(path, stored)
        if kind is Kind.LOCAL:
            return
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if kind is Kind.ONCE:
            draft = _draft(path)
            try:
                self._objects.download(stored.name, draft, stored.size)
                with self._local():
                    if self._tag(name) != stored.tag:
                        os.replace(draft, path)
                        self._note(name, stored.tag)
            finally:
                draft.unlink(missing_ok=True)
            return
        with self._local():
            content = self._objects.read(stored.name)
            if content is not None:
                self._write(path, content[0])
                self._note(name, content[1])

    def _bring_folder(self, name: str) -> None:
        """Make a folder with its small files; `complete` brings the rest when it is needed."""
        found = self._objects.read(f"run/{name}{_FOLDER}")
        if found is None:
            return
        path = below(self._root, name)
        manifest = orjson.loads(found[0])
        draft = _draft(path)
        draft.mkdir(parents=True, mode=0o700)
        try:
            for part, text in manifest["inline"].items():
                write_synced(below(draft, part), text.encode())
            with self._local():
                if self._tag(name + _FOLDER) == found[1]:
                    return  # this process has published it meanwhile, with all of its files
                self._clear(path)
                os.rename(draft, path)
                self._note(name + _FOLDER, found[1], found[0])
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _grow(self, path: Path, stored: StoredObject) -> None:
        """Append what the writer, on another host, has appended. Of such a file the longer one is newer."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._local():
            here = path.stat().st_size if path.exists() else 0
            if here >= stored.size:
                return
            data = self._objects.read_range(stored.name, here, stored.size)
            self._note(stored.name.removeprefix("run/"), _FOREIGN)
            with path.open("ab") as file:
                os.chmod(path, 0o600)
                file.write(data)

    def _drop(self, name: str) -> None:
        """Remove what the store no longer has."""
        if kind_of(name) is Kind.GROWING:
            return  # its writer brings it up again
        with self._local():
            if self._tag(name) is None:
                return  # this process has removed or moved it meanwhile
            if name.endswith(_FOLDER):
                self._clear(below(self._root, name.removesuffix(_FOLDER)))
            else:
                below(self._root, name).unlink(missing_ok=True)
            self._note(name, None)

    # ---- the thread ------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        failing = False
        while not self._stop.wait(self._poll_s):
            try:
                self._tell()
                self._look_once()
            except OSError as error:
                if not failing:
                    log.error("the bucket is not up to date, trying again every second: %s", error)
                failing = True
            except Exception:  # the thread must outlive a name or a manifest that cannot be read
                log.exception("the bucket could not be followed")
                failing = True
            else:
                if failing:
                    log.warning("the bucket is up to date again")
                failing = False

    def _look_once(self) -> None:
        """One process of a host brings and uploads for all of them."""
        try:
            if not self._leading.is_locked:
                self._leading.acquire(timeout=0)
        except Timeout:
            return
        self._upload()
        self._tell()
        changed = self._objects.read("changed", self._changed)
        if changed is not None or time.monotonic() - self._listed_at >= _LIST_S:
            self.refresh()
            self._changed = self._changed if changed is None else changed[1]

    def _tell(self) -> None:
        if self._told.is_set():
            self._told.clear()
            try:
                self._objects.put("changed", uuid4().bytes)
            except OSError:
                self._told.set()
                raise

    def _upload(self) -> None:
        """Upload what the writers of this host appended, and their rotated captures. A host never appends to another's file, so a
        file that is longer here than in the store is this host's."""
        for folder in ("feedback", "episodes"):
            for path in _lines(self._root / folder):
                self._upload_if_longer(path, f"run/{folder}/{path.name}")
        captures = _lines(self._root / "captures")
        newest: dict[str, Path] = {}
        for path in sorted(captures, key=_number_in):
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
        self._objects.put(key, data[: data.rfind(b"\n") + 1])
        mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_synced(mark, str(size).encode())
        self._told.set()

    # ---- the local folder ------------------------------------------------------------------------------------------------

    def _name(self, path: Path) -> tuple[str, Kind]:
        name = path.relative_to(self._root).as_posix()
        if name.startswith("quarantine/") and path.is_dir():
            return name, Kind.FOLDER
        return name, kind_of(name)

    @contextmanager
    def _local(self) -> Iterator[None]:
        """No other process or thread of this host changes a file and its tag meanwhile."""
        with self._writing, self._between_processes:
            yield

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = _draft(path)
        try:
            write_synced(draft, data)
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)

    def _clear(self, folder: Path) -> None:
        if folder.exists():
            doomed = _draft(folder)
            os.replace(folder, doomed)
            shutil.rmtree(doomed, ignore_errors=True)

    def _note(self, name: str, tag: str | None, manifest: bytes = b"") -> None:
        """Remember the tag of the object that a local file equals; None: there is no object."""
        place = below(self._tags, name)
        if tag is None:
            place.unlink(missing_ok=True)
            return
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = _draft(place)
        draft.write_bytes(tag.encode() + b"\n" + manifest)
        os.replace(draft, place)

    def _tag(self, name: str) -> str | None:
        """The tag of what is here. Another process of this host may have brought it."""
        try:
            return below(self._tags, name).read_bytes().partition(b"\n")[0].decode()
        except FileNotFoundError:
            return None

    def _all_tags(self) -> set[str]:
        found = (path for path in self._tags.rglob("*") if path.is_file())
        return {path.relative_to(self._tags).as_posix() for path in found if not path.name.endswith(".tmp")}

    def _manifest(self, name: str) -> dict[str, Any] | None:
        with suppress(FileNotFoundError):
            found: dict[str, Any] = orjson.loads(below(self._tags, name + _FOLDER).read_bytes().partition(b"\n")[2])
            return found
        return None


_RANKS = (  # what is read together arrives in this order: a version is here before LIVE names it
    re.compile(r"run\.json|recipe\.yaml|feedback/|episodes/"),
    re.compile(r"train/.*ledger/|verdicts/"),
    re.compile(r"trajectories/|eval/|quarantine/"),
    re.compile(r"train/.*\.folder$"),
    re.compile(r"policies/.*\.folder$"),
    re.compile(r"(?!policies/)"),
)


def _order(name: str) -> tuple[int, str]:
    return next((rank for rank, names in enumerate(_RANKS) if names.match(name)), len(_RANKS)), name


def _lines(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.jsonl") if not path.name.startswith(".")) if folder.exists() else []


def _number_in(path: Path) -> int:
    return number_of(path.stem.rpartition("-")[2]) or 0


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{uuid4().hex[:8]}.tmp")


# ---- which run -----------------------------------------------------------------------------------------------------------


def run_folder(text: str | Path) -> Path:
    """The folder that `--run` names: a path, or the local folder of a run in a bucket, with what the bucket has. Raises
    ClawError."""
    text = str(text)
    if "://" not in text:
        root = Path(text)
        if (root / ABOUT / "about.json").is_file():
            root = root.resolve()
            mount(root)
        return root
    found = _URL.fullmatch(text)
    if found is None:
        fix = "use s3://bucket/prefix, gs://bucket/prefix or az://container/prefix; credentials come from the environment"
        raise ClawError("--run is not the URL of a bucket", fix, 2)  # the text may contain a secret
    url = text.rstrip("/")
    root = (
        _state_folder()
        / f"{re.sub('[^A-Za-z0-9.-]+', '-', url.partition('://')[2])}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"
    )
    about = root / ABOUT / "about.json"
    if not about.exists():
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        about.parent.mkdir(exist_ok=True, mode=0o700)
        write_synced(about, orjson.dumps({"url": url, "host": uuid4().hex}))
    mount(root)
    return root


def _state_folder() -> Path:
    given, state = from_environment("RUN_CACHE"), state_folder()
    if given is None and state is None:
        raise ClawError("this user has no home folder for the local part of the run", "set CLAWCTL_RUN_CACHE to a folder", 2)
    return Path(given or state / "runs").absolute().resolve()  # type: ignore[operator]


def mount(root: Path, open_url: Callable[[str], Any] = open_store) -> BucketStorage:
    """Make the bucket that the local folder belongs to responsible for it. Raises ClawError (exit code 2)."""
    known = storage_of(root)
    if isinstance(known, BucketStorage):
        return known
    objects = Objects(open_url(about_of(root)["url"]))
    bucket = BucketStorage(root, objects)
    try:
        bucket.refresh()
        if not (root / "run.json").exists():
            _check_conditions(objects)
    except StorageUnreachable as error:
        problem = f"the bucket of this run cannot be used: {error}"
        raise ClawError(problem, "check its name, the credentials in the environment and the network", 2) from None
    mount_at(root, bucket)
    return bucket


def _check_conditions(objects: Objects) -> None:
    """Try create-if-absent and compare-and-swap once: a store that lacks them would train turns twice."""
    name = f"leases/.probe-{uuid4().hex}"
    try:
        first = objects.create(name, b"1")
        again, other = objects.create(name, b"2"), objects.swap(name, b"3", '"another"')
        if first is None or again is not None or other is not None or objects.swap(name, b"4", first) is None:
            raise ClawError("this object store ignores conditions on writes", "use one with If-None-Match and If-Match", 2)
    finally:
        objects.delete(name)


def about_of(root: Path) -> dict[str, str]:
    """The URL of the bucket that a local folder belongs to, and the id of this host's folder. Raises ClawError."""
    place = root / ABOUT / "about.json"
    try:
        found: dict[str, str] = orjson.loads(place.read_bytes())
        if not {"url", "host"} <= found.keys():
            raise ValueError("it has no URL")
        return found
    except (OSError, ValueError) as error:
        raise ClawError(f"{place} cannot be read: {error}", "delete it, and name the bucket with --run again", 2) from error


def host_of(root: Path) -> str:
    return about_of(root)["host"]


def is_in_bucket(root: Path) -> bool:
    """Whether a run is in a bucket."""
    return isinstance(storage_of(root.resolve()), BucketStorage)


def refuse_in_bucket(root: Path, what: str, fix: str) -> None:
    """Raises ClawError (exit code 2) if the run is in a bucket, where `what` does not work."""
    if is_in_bucket(root):
        raise ClawError(f"{what} does not work with a run in a bucket", fix, 2)
