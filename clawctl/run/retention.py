"""Deletes old conversations by age and by size (`privacy.max_age_days`, `privacy.max_gb`).

The limits are guaranteed: data that exceeds them is deleted even if a stage still needs it. With `privacy.keep_untrained` the
limits are best effort, and data that a stage still needs is kept.

Whole files are deleted, oldest first. Serve starts a new capture file each day, so that files can expire. A trajectory shard is
deleted only after all captures it may come from, because collect rebuilds missing shards from captures. Policies, the ledger and
eval records are kept. The numbers in an eval record are kept as well, but not the texts of deleted turns.

In a bucket each host deletes its own captures and ratings with their copies in the bucket, and any host deletes shards. A shard
counts as a day younger than its name says, because captures of other hosts, which it may come from, span up to a day.
"""

import fcntl
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from clawctl.config import PrivacyConfig, Recipe
from clawctl.errors import Damaged
from clawctl.run import columns
from clawctl.run.checksums import read_sealed, sealed
from clawctl.run.directory import RunDir, publish_bytes, published, remove
from clawctl.run.finished_shards import FinishedShards
from clawctl.run.lines import whole_end
from clawctl.run.notes import BadNote, keys_with_notes, note_files, notes_folder, read_note
from clawctl.run.shards import UnreadableShard, merged_from, read_turn_ids
from clawctl.run.storage import storage_of

log = logging.getLogger(__name__)

_DAY_S = 86400.0
_INTERVAL_S = 600.0


@dataclass(frozen=True, slots=True)
class Stored:
    """Files that belong together: a capture file, a shard with its verdicts, a quarantined file with its reason."""

    paths: tuple[Path, ...]
    newest: float  # unix seconds of the last write to them
    size: int
    needed: bool = False  # whether a stage still needs it


@dataclass(frozen=True, slots=True)
class Expired:
    files: list[Path]
    size: int  # bytes


class Retention:
    """Runs `expire` regularly, for a worker with other main tasks."""

    def __init__(self, run: RunDir, recipe: Recipe) -> None:
        self._run, self._recipe = run, recipe
        self._next_at = float("-inf")

    def expire_due(self) -> None:
        """Delete expired files, at most every ten minutes. Disk errors are logged and retried."""
        if time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + _INTERVAL_S
        try:
            expired = expire(self._run, self._recipe)
            if deleted := storage_of(self._run.root).sweep():
                log.info("deleted %d objects that no version or lease uses any more", deleted)
        except OSError as error:
            log.error("expired conversations could not be deleted: %s", error)
            return
        if expired.files:
            log.info("deleted %d files (%d bytes) with expired conversations", len(expired.files), expired.size)


def expire(run: RunDir, recipe: Recipe, now: float | None = None, dry_run: bool = False) -> Expired:
    """Delete the files that exceed the recipe's limits. Any process may call this at any time; each file is deleted whole or not at
    all.
    """
    stored = _stored(run)
    if recipe.privacy.keep_untrained:
        stored = _mark_needed(run, recipe, stored)
    expired = choose(stored, recipe.privacy, time.time() if now is None else now)
    files = [path for entry in expired for path in entry.paths]
    if not dry_run:
        _remove_texts_of(run, {turn_id for path in files if path.parent == run.trajectories for turn_id in _turn_ids(path)})
    for entry in expired if not dry_run else []:
        for path in entry.paths:
            _remove(path, entry.newest)
    if expired and not dry_run:
        columns.prune(run)
    return Expired(files, sum(entry.size for entry in expired))


def choose(stored: Sequence[Stored], privacy: PrivacyConfig, now: float) -> list[Stored]:
    """Return the files to delete, oldest first. At equal age, captures precede the rows made from them."""
    oldest_first = sorted(stored, key=lambda entry: entry.newest)
    oldest_kept = now - privacy.max_age_days * _DAY_S if privacy.max_age_days is not None else float("-inf")
    size_limit = privacy.max_gb * 1e9 if privacy.max_gb is not None else float("inf")
    total_size = sum(entry.size for entry in oldest_first)
    expired = []
    for entry in oldest_first:
        if entry.newest >= oldest_kept and total_size <= size_limit:
            break
        if entry.needed:
            continue
        expired.append(entry)
        total_size -= entry.size
    return expired


def _stored(run: RunDir) -> list[Stored]:
    """Return the stored files, captures before rows of the same age. A shard is as young as the captures it may come from."""
    captures = {path: entry for path in published(run.captures, ".jsonl") if (entry := _entry(path))}
    first_requests = {path: _first_moment(path) for path in captures}
    shards = []
    for path in published(run.trajectories, ".parquet"):
        entry = _entry(path, run.verdicts / path.name)
        if entry is not None:
            entry = replace(entry, newest=_published_at(path, entry.newest, storage_of(path).in_bucket))
            sources = [captures[capture].newest for capture in captures if first_requests[capture] <= entry.newest]
            shards.append(replace(entry, newest=max([entry.newest, *sources])))
    quarantined = [
        _entry(path, path.with_name(path.name + ".reason.txt"))
        for path in run.quarantine.iterdir()
        if path.suffix != ".txt" and path.is_file()
    ]
    # A rating is given after its turn, so a rating file is at least as young as the turns it rates.
    ratings = [entry for path in _rating_files(run) if (entry := _entry(path))]
    images = [entry for path in run.images.glob("*") if not path.name.startswith(".") and (entry := _entry(path))]
    notes = [path for key in keys_with_notes(run) for path in note_files(notes_folder(run, key)) if _has_ended(path)]
    others = [*quarantined, *map(_entry, notes)]
    return [*captures.values(), *images, *ratings, *shards, *(entry for entry in others if entry is not None)]


def _has_ended(path: Path) -> bool:
    """Whether a note holds no longer, and is not to be practised away. A wish in force does not expire."""
    try:
        note = read_note(path)
    except (BadNote, OSError):
        return False
    return not note.in_force and not note.steps


def _rating_files(run: RunDir) -> list[Path]:
    storage = storage_of(run.root)
    files = [*published(run.feedback, ".jsonl"), *published(run.episodes, ".jsonl")]
    return [path for path in files if storage.is_own(path)]


def _mark_needed(run: RunDir, recipe: Recipe, stored: Sequence[Stored]) -> list[Stored]:
    """Return `stored`, with files that a stage still needs marked as needed."""
    finished, offsets = FinishedShards(run, recipe), _read_offsets(run)
    finished.poll()

    def is_needed(path: Path) -> bool:
        if path.parent == run.trajectories:
            return not finished.has(path.stem)
        return path.parent == run.captures and offsets.get(path.name) != whole_end(path)

    marked = [replace(entry, needed=any(is_needed(path) for path in entry.paths if path.exists())) for entry in stored]
    if any(entry.needed for entry in marked):  # a waiting turn may have been rated
        marked = [replace(entry, needed=True) if entry.paths[0].parent == run.feedback else entry for entry in marked]
    open_captures = [path for entry in marked if entry.needed for path in entry.paths if path.parent == run.captures]
    # Shards since then must be kept, because collect may read these captures again
    open_since = min(map(_first_moment, open_captures), default=float("inf"))
    return [replace(e, needed=True) if e.paths[0].parent == run.trajectories and e.newest >= open_since else e for e in marked]


def _read_offsets(run: RunDir) -> dict[str, int]:
    """Return for each capture file the offset before which all turns are published."""
    try:
        return dict(read_sealed(run.position.read_bytes())["offsets"])
    except (OSError, LookupError, TypeError, ValueError):
        return {}  # collect has not stored a position: everything may still be needed


def _published_at(path: Path, written: float, downloaded: bool) -> float:
    """Return when the newest rows of a shard were first published. Merging or downloading them does not make them younger."""
    try:
        parts = merged_from(path) or [path.stem] * downloaded
        published_at = int(max(parts)[:20]) / 1e9 if parts else written
        return min(written, published_at) + (_DAY_S if downloaded else 0.0)
    except (UnreadableShard, ValueError):
        return written


def _entry(*paths: Path) -> Stored | None:
    try:
        entries = {path: path.stat() for path in paths if path.exists()}
    except FileNotFoundError:
        return None  # its stage removed it meanwhile
    if not entries:
        return None
    return Stored(tuple(entries), max(entry.st_mtime for entry in entries.values()), sum(e.st_size for e in entries.values()))


def _first_moment(path: Path) -> float:
    """Return the time of the first request in a capture file. A file without a readable time may contain anything."""
    try:
        with path.open("rb") as file:
            return float(orjson.loads(file.readline())["created_at"])
    except (OSError, LookupError, TypeError, ValueError):
        return float("-inf")


def _turn_ids(path: Path) -> list[str]:
    try:
        return read_turn_ids(path)
    except (UnreadableShard, FileNotFoundError):
        return []


def _remove_texts_of(run: RunDir, turn_ids: set[str]) -> None:
    """Remove the texts of these turns from the eval records of all policies."""
    for path in sorted(run.folder("eval").rglob("*.json")) if turn_ids else []:
        data = path.read_bytes()
        if not any(turn_id.encode() in data for turn_id in turn_ids):
            continue
        try:
            publish_bytes(path, sealed(orjson.dumps(_without_texts(read_sealed(data), turn_ids))))
        except Damaged:
            remove(path)  # unreadable, and it names a deleted turn


def _without_texts(value: Any, turn_ids: set[str]) -> Any:
    """Return `value` with an empty object in place of each object whose `turn_id` is among these."""
    if isinstance(value, dict):
        if value.get("turn_id") in turn_ids:
            return {}
        return {key: _without_texts(inner, turn_ids) for key, inner in value.items()}
    if isinstance(value, list):
        return [cleaned for inner in value if (cleaned := _without_texts(inner, turn_ids)) != {}]
    return value


def _remove(path: Path, newest: float) -> None:
    """Remove a file under the lock that a capture's writer takes for each line.

    The writer then either writes before the removal, or finds its file gone and opens another one. A capture that was written to
    after it was selected is kept.
    """
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if path.suffix != ".jsonl" or path.stat().st_mtime <= newest:
                remove(path)
    except FileNotFoundError:
        return
