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
from typing import Any

import orjson
from filelock import FileLock, Timeout

from clawctl.errors import ClawError
from clawctl.run.names import draft_of, is_policy_name
from clawctl.run.rows import DEFAULT_POLICY, RUN_VERSION
from clawctl.run.storage import ABOUT, storage_of

_log = logging.getLogger(__name__)

FOLDERS = (
    "captures", "feedback", "notes", "episodes", "images", "trajectories", "verdicts", "policies", "train", "eval", "quarantine",
    "locks", "logs",
)  # fmt: skip

_ABANDONED_S = 86400.0


class _RunPath:
    """A path below the root. With `per_policy=True` it is below the folder of the run's policy."""

    def __init__(self, folder: str, *parts: str, per_policy: bool = False) -> None:
        self._folder, self._parts, self._per_policy = folder, parts, per_policy

    def __get__(self, run: "RunDir", owner: type) -> Path:
        folder = run.root / self._folder
        if self._per_policy and run.policy != DEFAULT_POLICY:
            folder = folder / run.policy
        return folder.joinpath(*self._parts)


@dataclass(frozen=True, slots=True)
class RunDir:
    """Every path of a run, for one policy: `RunDir(root).of("anna").live` is `policies/anna/LIVE`.

    The folders `policies/`, `train/` and `eval/` belong to the default policy. Any other policy has a subfolder with its name in
    each of them. Everything else is common to all policies.
    """

    root: Path
    policy: str = DEFAULT_POLICY

    marker = _RunPath("run.json")  # holds the schema version; a folder with this file is a run
    recipe = _RunPath("recipe.yaml")
    server = _RunPath("serve.json")  # the address of the run's server, for the other stages
    api_key = _RunPath("api_key")  # the server's own key
    api_keys = _RunPath("api_keys.json")  # the named keys, salted and hashed
    episode_key = _RunPath("episode_key")  # the secret that signs the capabilities of episodes
    captures = _RunPath("captures")  # `<writer>-<n>.jsonl`: serve appends, one exchange a line
    feedback = _RunPath("feedback")  # `<writer>-<n>.jsonl`: serve appends, one explicit rating a line
    notes = _RunPath("notes")  # `<key>/<id>.md`: what a person wants or told; people, serve and judge write it
    episodes = _RunPath("episodes")  # `<worker>-<n>.jsonl`: episodes; a worker appends a line before its episode begins
    images = _RunPath("images")  # `<sha256>`: serve stores each image of a captured message once
    position = _RunPath("collect.json")  # how far collect has read the captures
    holdout = _RunPath("holdout.json")  # the shares of held-out sessions, each with the time from which it counts
    trajectories = _RunPath("trajectories")  # `<stem>.parquet`: collect publishes, one row a turn
    verdicts = _RunPath("verdicts")  # `<stem>.parquet`: judge publishes, the same stem
    reward_range = _RunPath("verdicts", "custom-range.json")  # the scale of a custom reward model
    fitness = _RunPath("verdicts", "fitness.json")  # the judge's result on the planted turns
    columns = _RunPath("columns.npz")  # numbers of each turn and verdict for the tables; any reader may write or remove it
    quarantine = _RunPath("quarantine")  # files that could not be read, each with the reason next to it
    locks = _RunPath("locks")
    activity = _RunPath("locks", "serving")  # `<id>`: whether a server is answering somebody, for a trainer on the same machine
    logs = _RunPath("logs")
    page_link = _RunPath("logs", "page.html")  # leads a browser to the pages that `start` serves; their key ends with them
    page_address = _RunPath("logs", "page.url")  # where the pages are while they are served, without their key
    launch = _RunPath("launch.json")  # the jobs of `clawctl up --on` and their last known state
    job_output = _RunPath("logs", "jobs")  # the output of those jobs

    policies = _RunPath("policies", per_policy=True)  # `<version>/`: train publishes
    live = _RunPath("policies", "LIVE", per_policy=True)  # one line: the version that serves
    shared = _RunPath("policies", "SHARED", per_policy=True)  # the candidate that serves a share of the sessions, while it does
    moves = _RunPath("policies", "moves.jsonl", per_policy=True)  # who moved LIVE, when, and from where
    eval = _RunPath("eval", per_policy=True)  # `<version>.json`
    hint_place = _RunPath("hint_place.json")  # where the untrained model follows hints best
    train = _RunPath("train", per_policy=True)
    checkpoints = _RunPath("train", "checkpoints", per_policy=True)  # `<step>/`
    ledger = _RunPath("train", "ledger", per_policy=True)  # `<step>.json`: the turns of a step; train enters each once
    steps = _RunPath("train", "steps.jsonl", per_policy=True)  # the numbers of each step
    spending = _RunPath("train", "spending.jsonl")  # what each step costs at a training service
    records = _RunPath("train", "turns", per_policy=True)  # `<step>.parquet`: the numbers of each trained token
    feed_counts = _RunPath("train", "feed.json", per_policy=True)  # counts of the turns that the trainer read, by result
    progress = _RunPath("train", "progress.json")  # the microbatch that the running step computes, of any policy
    trained_marks = _RunPath("train", "identical.bin", per_policy=True)  # hashes of trained turns
    tensorboard = _RunPath("train", "tensorboard", per_policy=True)
    went_back = _RunPath("train", "back.jsonl", per_policy=True)  # each time that training continued from an older version
    refusals = _RunPath("train", "refusals.json", per_policy=True)  # whether training is paused
    abandoned = _RunPath("train", "abandoned.jsonl", per_policy=True)  # versions that a person abandoned
    # How many turns were forgotten, and which versions learned from them.
    forgotten = _RunPath("train", "forgotten.jsonl", per_policy=True)

    def of(self, policy: str) -> "RunDir":
        """Return the same run for another policy. Raises ClawError (exit code 2) if `policy` is not a valid name."""
        if not is_policy_name(policy):
            raise ClawError(f"{policy!r} is not a policy name", "use letters, digits, '.', '_' and '-', and not only digits", 2)
        return RunDir(self.root, policy)

    def folder(self, name: str) -> Path:
        """Return the folder of this name (one of FOLDERS), which holds the data of all policies."""
        return self.root / name

    def quarantined(self, name: str) -> Path:
        return self.quarantine / name

    def version_folder(self, version: int) -> Path:
        """The folder of one version: weights, `policy.json`, `READY`."""
        return self.policies / str(version)

    def eval_record(self, version: int) -> Path:
        return self.eval / f"{version}.json"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / str(step)

    def beside_checkpoints(self, step: int, what: str) -> Path:
        """Return a hidden folder beside the checkpoints, for a checkpoint that is being written or removed."""
        return self.checkpoints / f".{step}.{what}"

    def ledger_entry(self, name: int | str) -> Path:
        return self.ledger / f"{name}.json"

    def record(self, step: int) -> Path:
        return self.records / f"{step}.parquet"

    def turn_shard(self, stem: str) -> Path:
        return self.trajectories / f"{stem}.parquet"

    def verdict_shard(self, stem: str) -> Path:
        return self.verdicts / f"{stem}.parquet"

    def journal(self, stem: str) -> Path:
        """Return the file with the finished verdicts of a shard that judge is working on."""
        return self.verdicts / f"{stem}.jsonl"

    def log(self, stage: str) -> Path:
        return self.logs / f"{stage}.log"

    def lock(self, name: str) -> Path:
        """Return the lock of a stage, a shard or a file. Each policy has its own `train`, `eval` and `live` lock."""
        is_personal = self.policy != DEFAULT_POLICY and name in ("train", "eval", "live")
        return self.locks / (f"{name}-{self.policy}.lock" if is_personal else f"{name}.lock")

    def owner(self, stage: str) -> Path:
        """Return the file that names the current or last worker of a stage."""
        return self.lock(stage).with_suffix(".owner")


def open_run(root: Path, create: bool = True, policy: str = DEFAULT_POLICY, shards: bool = True) -> RunDir:
    """Open `root` for the policy of this name, creating it if `create`.

    Raises ClawError for a newer schema version or a filesystem without locks or rename. `shards`: whether the caller reads turns
    and verdicts, which a run in a bucket has to fetch.
    """
    # Everything that this process writes from now on, including logs and library files, is accessible to its owner only
    os.umask(0o077)
    run = RunDir(root.resolve()).of(policy)
    if not run.marker.exists():
        if not create:
            raise ClawError(f"{root} is not a run directory", "pass one with --run, or begin one: clawctl start", 2)
        if run.root.exists() and not run.root.is_dir():
            raise ClawError(f"{root} is a file", "choose an empty folder with --run", 2)
        if run.root.exists() and any(map(_is_foreign, run.root.iterdir())):
            raise ClawError(f"{root} contains files that do not belong to a run", "choose an empty folder with --run", 2)
        _make_folders(run)
        _write_marker(run, time.time())
        _check_filesystem(run)
    marker = _read_marker(run.marker)
    if create:
        if marker["schema_version"] != RUN_VERSION:
            _write_marker(run, marker.get("created_at"))
        _make_folders(run)  # folders that an older clawctl did not create
        _sweep(run)
    elif storage_of(run.root).in_bucket:
        _make_folders(run)  # this host opens a run in a bucket for the first time
    storage_of(run.root).follow(shards)
    return run


def _is_foreign(path: Path) -> bool:
    """Whether a file shows that a folder without `run.json` does not belong to a run. The marker itself may be incomplete."""
    return path.name not in (*FOLDERS, "recipe.yaml", ABOUT) and not path.name.startswith(".run.json.")


def _sweep(run: RunDir) -> None:
    """Remove incomplete files of killed processes that are at least a day old. No write takes that long."""
    for folder in (run.root, *(run.root / name for name in FOLDERS), run.ledger):
        for path in folder.glob(".*.tmp"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED_S:
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _make_folders(run: RunDir) -> None:
    try:
        run.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        run.root.chmod(0o700)  # the folder may have existed with other permissions
        for folder in (*(run.root / name for name in FOLDERS), run.policies, run.train, run.eval):
            folder.mkdir(exist_ok=True, mode=0o700)
    except OSError as error:
        raise ClawError(f"{run.root} cannot be written: {error}", "choose a writable folder with --run", 2) from error


def _write_marker(run: RunDir, created_at: float | None) -> None:
    publish_bytes(run.marker, orjson.dumps({"schema_version": RUN_VERSION, "created_at": created_at}))


def _read_marker(marker: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = orjson.loads(marker.read_bytes())
        version = content.get("schema_version")
    except (orjson.JSONDecodeError, OSError, AttributeError) as error:
        raise ClawError(f"{marker} cannot be read: {error}", "restore it, or start a new run with --run", 2) from error
    if version not in range(1, RUN_VERSION + 1):
        raise ClawError(
            f"{marker.parent} has schema version {version}, but this clawctl reads version 1 to {RUN_VERSION}",
            "use the clawctl version that wrote it, or start a new run with --run",
            2,
        )
    return content


def _check_filesystem(run: RunDir) -> None:
    """Try a lock and a rename once: a filesystem that lacks them would lose turns later, silently."""
    try:
        with FileLock(run.lock("probe"), timeout=5):
            publish_bytes(run.locks / "probe", b"ok")
        (run.locks / "probe").unlink()
    except (OSError, NotImplementedError, Timeout) as error:
        problem = f"{run.root} is on a filesystem without locks or rename: {error}"
        raise ClawError(problem, "use a local disk or NFSv4", 2) from error


# ---- publish whole -------------------------------------------------------------------------------------------------------


def publish(path: Path, write: Callable[[Path], object], anew: bool = False) -> None:
    """Let `write` fill a temporary file next to `path`, then rename it. Readers see the old file or the complete new one.

    `anew`: overwrite the content in a bucket as well, where files such as shards otherwise keep their first content.
    """
    path.parent.mkdir(mode=0o700, exist_ok=True)
    temporary = draft_of(path)
    try:
        write(temporary)
        os.chmod(temporary, 0o600)
        sync(temporary)
        storage = storage_of(path)
        (storage.replace if anew else storage.publish)(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def publish_bytes(path: Path, data: bytes, anew: bool = False) -> None:
    publish(path, lambda temporary: temporary.write_bytes(data), anew)


def publish_folder(path: Path, write: Callable[[Path], None]) -> bool:
    """Like `publish`, for a folder. Returns False if the folder exists: it is kept, because an earlier writer published the same
    content.
    """
    path.parent.mkdir(mode=0o700, exist_ok=True)
    temporary = draft_of(path)
    temporary.mkdir(mode=0o700)
    try:
        write(temporary)
        for file in (p for p in temporary.rglob("*") if p.is_file()):
            sync(file)
        sync(temporary)
        is_new = storage_of(path).publish_folder(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync(path.parent)
    return is_new


def move(source: Path, target: Path) -> None:
    """Rename a published file or folder in one step."""
    storage_of(source).move(source, target)


def link(source: Path, target: Path) -> None:
    """Create a hard link to a file, or a copy if the filesystem has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def remove(path: Path) -> None:
    """Remove a published file or folder if it exists. Raises OSError.

    A folder is renamed first, so that a partly deleted folder is never mistaken for a complete one.
    """
    storage_of(path).remove(path)


def is_published(path: Path) -> bool:
    """Whether any worker has published this file or folder so far. Raises OSError."""
    return storage_of(path).exists(path)


def sync(path: Path) -> None:
    """Flush the content of a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def published(folder: Path, suffix: str) -> list[Path]:
    """Return the published files of a folder, in name order. Names that start with a dot are temporary and ignored."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == suffix and not path.name.startswith("."))
    except FileNotFoundError:  # a copy of a run may leave out empty folders
        return []


def quarantine_bytes(run: RunDir, name: str, data: bytes, reason: bytes) -> None:
    """Keep a part of a file that could not be read, with the reason next to it. Raises OSError. The call may be repeated."""
    publish_bytes(run.quarantine / f"{name}.reason.txt", reason)
    publish_bytes(run.quarantine / name, data)


def quarantine(run: RunDir, path: Path, reason: str) -> Path:
    """Move an unreadable file or folder to quarantine, with the reason next to it. Nothing is deleted or replaced."""
    target = run.quarantine / f"{path.parent.name}-{path.name}"
    for number in itertools.count(2):
        if not target.exists():
            break
        target = run.quarantine / f"{path.parent.name}-{path.stem}~{number}{path.suffix}"
    move(path, target)
    try:
        publish_bytes(target.with_name(target.name + ".reason.txt"), f"{reason}\n".encode())
    except OSError as error:  # full disk: the damaged file is moved anyway
        _log.error("%s is in quarantine because %s; the reason could not be written next to it: %s", target.name, reason, error)
    return target


# ---- locks ---------------------------------------------------------------------------------------------------------------


@contextmanager
def claimed(run: RunDir, name: str) -> Iterator[bool]:
    """True while this process holds the lock `name`, False if another worker does. The lock of a dead worker is released."""
    with storage_of(run.root).claim(run.lock(name)) as acquired:
        yield acquired


@contextmanager
def sole_worker(run: RunDir, stage: str) -> Iterator[None]:
    """Hold the single worker lock of `stage` on this run, or raise ClawError with the name of its holder."""
    owner = run.owner(stage)
    with claimed(run, stage) as acquired:
        if not acquired:
            holder = owner.read_text(errors="replace").strip() if owner.exists() else "another process"
            raise ClawError(
                f"{holder} is already the {stage} worker of {run.root}", "stop that process first, or use another --run"
            )
        try:
            publish_bytes(owner, f"process {os.getpid()} on {socket.gethostname()}".encode())
        except OSError as error:  # the lock is what counts; this file only names its holder
            _log.error("%s cannot be written: %s", owner, error)
        yield


# ---- following -----------------------------------------------------------------------------------------------------------


def changes(folders: list[Path], stop: threading.Event, poll_s: float = 1.0, step_ms: int = 20) -> Iterator[None]:
    """Yield at once, then whenever something changed in `folders` and at least every `poll_s` seconds, until `stop` is set.
    `step_ms`: the time between looks at the events, of which each costs some processor time.

    Events only reduce the delay: a filesystem that sends none (NFS) is polled every `poll_s` seconds.
    """
    from watchfiles import watch  # imported late because it starts a thread

    yield
    if stop.is_set():
        return
    quick = {"step": step_ms, "debounce": 100, "rust_timeout": int(poll_s * 1000), "yield_on_timeout": True}
    try:
        for _ in watch(*folders, stop_event=stop, raise_interrupt=False, watch_filter=None, recursive=False, **quick):  # type: ignore[arg-type]
            yield
        return
    except (OSError, RuntimeError) as error:
        _log.warning("this filesystem sends no change events, so clawctl checks for changes every %g s: %s", poll_s, error)
    while not stop.wait(poll_s):
        yield


def recipe_file(root: Path, named: Path | None = None) -> Path | None:
    """Return the recipe file to load: `named`, else the recipe of the run at `root`, or None if neither exists."""
    stored = RunDir(root).recipe
    return named if named is not None else stored if stored.exists() else None
