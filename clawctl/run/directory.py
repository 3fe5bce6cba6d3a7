"""The layout of a run directory, and two operations on it: publish files by rename, and lock to show who is working.

Stages do not import each other; they exchange data here. Every folder has one kind of writer (`docs/run-directory.md`).
"""

import itertools
import logging
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import orjson
from filelock import FileLock, Timeout

from clawctl.errors import ClawError
from clawctl.run.rows import SCHEMA_VERSION

_log = logging.getLogger(__name__)

FOLDERS = ("captures", "feedback", "trajectories", "verdicts", "policies", "train", "eval", "quarantine", "locks", "logs")

_ABANDONED_S = 86400.0


@dataclass(frozen=True, slots=True)
class RunDir:
    root: Path

    @property
    def captures(self) -> Path:
        """`<writer>-<n>.jsonl`: serve appends, one exchange a line."""
        return self.root / "captures"

    @property
    def feedback(self) -> Path:
        """`<writer>-<n>.jsonl`: serve appends, one explicit rating a line."""
        return self.root / "feedback"

    @property
    def trajectories(self) -> Path:
        """`<stem>.parquet`: collect publishes, one row a turn."""
        return self.root / "trajectories"

    @property
    def verdicts(self) -> Path:
        """`<stem>.parquet`: judge publishes, the same stem."""
        return self.root / "verdicts"

    @property
    def policies(self) -> Path:
        """`<version>/` and `LIVE`."""
        return self.root / "policies"

    @property
    def train(self) -> Path:
        """Checkpoints, ledger, steps."""
        return self.root / "train"

    @property
    def eval(self) -> Path:
        """`<version>.json`."""
        return self.root / "eval"

    @property
    def quarantine(self) -> Path:
        """Files that could not be read, each with the reason next to it."""
        return self.root / "quarantine"

    @property
    def locks(self) -> Path:
        """The locks of the workers."""
        return self.root / "locks"

    @property
    def logs(self) -> Path:
        """One file a stage."""
        return self.root / "logs"


def open_run(root: Path, create: bool = True) -> RunDir:
    """Open `root`, making it if `create`. Refuses another schema version and a filesystem without locks or rename."""
    os.umask(0o077)  # everything that this process writes from now on, also logs and library files, is its owner's only
    run = RunDir(root.resolve())
    marker = run.root / "run.json"
    if not marker.exists():
        if not create:
            raise ClawError(f"{root} is not a run directory", "pass one with --run, or start `clawctl serve --intercept`", 2)
        if run.root.exists() and not run.root.is_dir():
            raise ClawError(f"{root} is a file", "choose an empty folder with --run", 2)
        if run.root.exists() and any(map(_is_foreign, run.root.iterdir())):
            raise ClawError(f"{root} contains files that do not belong to a run", "choose an empty folder with --run", 2)
        _make_folders(run)
        publish_bytes(marker, orjson.dumps({"schema_version": SCHEMA_VERSION, "created_at": time.time()}))
        _check_filesystem(run)
    _check_schema(marker)
    if create:
        _make_folders(run)  # fields that a newer clawctl knows
        _sweep(run)
    return run


def _is_foreign(path: Path) -> bool:
    """Whether a file shows that a folder without `run.json` does not belong to a run. The marker itself may be incomplete."""
    return path.name not in (*FOLDERS, "recipe.yaml") and not path.name.startswith(".run.json.")


def _sweep(run: RunDir) -> None:
    """Remove incomplete files of killed processes that are at least a day old. No write takes that long."""
    for folder in (run.root, *(run.root / name for name in FOLDERS), run.train / "ledger"):
        for path in folder.glob(".*.tmp"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED_S:
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _make_folders(run: RunDir) -> None:
    try:
        run.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        run.root.chmod(0o700)  # a folder that was made for us beforehand
        for name in FOLDERS:
            (run.root / name).mkdir(exist_ok=True, mode=0o700)
    except OSError as error:
        raise ClawError(f"cannot create the run directory {run.root}: {error}", "choose a writable folder with --run", 2) from error


def _check_schema(marker: Path) -> None:
    try:
        found = orjson.loads(marker.read_bytes()).get("schema_version")
    except (orjson.JSONDecodeError, OSError, AttributeError) as error:
        raise ClawError(f"{marker} cannot be read: {error}", "restore it, or start a new run with --run", 2) from error
    if found != SCHEMA_VERSION:
        raise ClawError(
            f"{marker.parent} has schema version {found}, but this clawctl reads version {SCHEMA_VERSION}",
            "use the clawctl version that wrote it, or start a new run with --run",
            2,
        )


def _check_filesystem(run: RunDir) -> None:
    """Try a lock and a rename once: a filesystem that lacks them would lose turns later, silently."""
    try:
        with FileLock(run.locks / "probe.lock", timeout=5):
            publish_bytes(run.locks / "probe", b"ok")
        (run.locks / "probe").unlink()
    except (OSError, NotImplementedError, Timeout) as error:
        problem = f"{run.root} is on a filesystem without locks or rename: {error}"
        raise ClawError(problem, "use a local disk or NFSv4", 2) from error


# ---- publish whole -------------------------------------------------------------------------------------------------------


def publish(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file next to `path`, then rename it. Readers see the old file or the complete new one."""
    temporary = _temporary(path)
    try:
        write(temporary)
        os.chmod(temporary, 0o600)
        sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def publish_bytes(path: Path, data: bytes) -> None:
    publish(path, lambda temporary: _write_bytes(temporary, data))


def _write_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def publish_folder(path: Path, write: Callable[[Path], None]) -> None:
    """Like `publish`, for a folder. An existing folder is kept, because an earlier writer published the same content."""
    temporary = _temporary(path)
    temporary.mkdir(mode=0o700)
    try:
        write(temporary)
        for file in (p for p in temporary.rglob("*") if p.is_file()):
            sync(file)
        sync(temporary)
        if not path.exists():
            os.rename(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync(path.parent)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{uuid4().hex[:8]}.tmp")


def sync(path: Path) -> None:
    """Flush the content of a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def published(folder: Path, suffix: str) -> list[Path]:
    """The published files of a folder, in name order. Names that start with a dot are temporary and ignored."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == suffix and not path.name.startswith("."))
    except FileNotFoundError:  # a copy of a run may leave out empty folders
        return []


def quarantine(run: RunDir, path: Path, reason: str) -> Path:
    """Move an unreadable file or folder to quarantine, with the reason next to it. Nothing is deleted or replaced."""
    target = run.quarantine / f"{path.parent.name}-{path.name}"
    for number in itertools.count(2):
        if not target.exists():
            break
        target = run.quarantine / f"{path.parent.name}-{path.stem}~{number}{path.suffix}"
    os.replace(path, target)
    try:
        publish_bytes(target.with_name(target.name + ".reason.txt"), f"{reason}\n".encode())
    except OSError as error:  # a full disk: the damaged file is moved anyway
        _log.error("%s is in quarantine because %s; the reason could not be written next to it: %s", target.name, reason, error)
    return target


# ---- locks ---------------------------------------------------------------------------------------------------------------


@contextmanager
def claimed(run: RunDir, name: str) -> Iterator[bool]:
    """True while this process holds the lock `name`, False if another worker does. The lock of a dead worker is released."""
    lock = FileLock(run.locks / f"{name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


@contextmanager
def sole_worker(run: RunDir, stage: str) -> Iterator[None]:
    """Hold the single worker lock of `stage` on this run, or raise ClawError with the name of its holder."""
    owner = run.locks / f"{stage}.owner"
    with claimed(run, stage) as mine:
        if not mine:
            who = owner.read_text(errors="replace").strip() if owner.exists() else "another process"
            raise ClawError(f"{who} is already the {stage} worker of {run.root}", "stop that process first, or use another --run")
        try:
            publish_bytes(owner, f"process {os.getpid()} on {socket.gethostname()}".encode())
        except OSError as error:  # the lock counts; this only names us
            _log.error("%s cannot be written: %s", owner, error)
        yield


# ---- following -----------------------------------------------------------------------------------------------------------


def changes(folders: list[Path], stop: threading.Event, poll_s: float = 1.0) -> Iterator[None]:
    """Yield at once, then whenever something changed in `folders` and at least every `poll_s`, until `stop` is set.

    Events only make it quick: a filesystem that sends none (NFS) is still looked at every `poll_s`.
    """
    from watchfiles import watch  # starts a thread of its own: not at import

    yield
    if stop.is_set():
        return
    quick = {"step": 20, "debounce": 100, "rust_timeout": int(poll_s * 1000), "yield_on_timeout": True}
    try:
        for _ in watch(*folders, stop_event=stop, raise_interrupt=False, watch_filter=None, recursive=False, **quick):  # type: ignore[arg-type]
            yield
        return
    except (OSError, RuntimeError) as error:
        _log.warning("this filesystem sends no change events, so clawctl checks for changes every %g s: %s", poll_s, error)
    while not stop.wait(poll_s):
        yield
