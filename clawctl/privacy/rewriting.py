"""Rewrites files without some turns. The new file is written completely and then replaces the old one; files are never edited in
place.
"""

import fcntl
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from clawctl.errors import Damaged
from clawctl.run.checksums import read_sealed, sealed
from clawctl.run.directory import publish_bytes, remove, sync
from clawctl.run.shards import UnreadableShard, read_table, rewrite_shard

_REMOVED = object()
_SETTLE_S = 0.1
_IDS = ("turn_id", "exchange_id", "completion_id", "response_id", "id", "task_id")
# Letters and digits of an id made by clawctl; clients see it with a prefix, as `chatcmpl…`
_ID_LENGTH = 24


class Unreadable(Exception):
    """The content of the file cannot be determined."""


def rewrite_appended(path: Path, belongs: Callable[[dict[str, Any]], bool]) -> int:
    """Remove lines from a file that a running process may append to, and all torn lines with them. Returns how many.

    The remaining lines go to a new file. The old file is unlinked under the lock that capture writers take for each line. A writer
    whose file is gone opens a new one. A writer without the lock may still finish a line in the old file; it is read after a short
    delay.
    """
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        kept, removed = kept_lines(file.read(), belongs)
        if not removed:
            return 0
        new = path.with_name(f"{path.stem}-{secrets.token_hex(2)}.jsonl")
        if kept:
            publish_bytes(new, kept)
        remove(path)
        sync(path.parent)
        time.sleep(_SETTLE_S)
        late, more_removed = kept_lines(file.read(), belongs)
        if late:
            publish_bytes(new, kept + late)
        return removed + more_removed


def kept_lines(data: bytes, belongs: Callable[[dict[str, Any]], bool]) -> tuple[bytes, int]:
    """Return the lines for which `belongs` is false, and the number of the others, including torn lines."""
    kept, removed = [], 0
    for line in filter(None, data.split(b"\n")):
        row = _row(line)
        if row is None or belongs(row):
            removed += 1
        else:
            kept.append(line + b"\n")
    return b"".join(kept), removed


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = read_sealed(line)
    except Damaged:
        return None
    return row if isinstance(row, dict) else None


def rewrite_parquet(path: Path, turn_ids: set[str]) -> int:
    """Remove rows from one shard; delete a shard that becomes empty. Returns how many rows. Raises Unreadable."""
    removed_ids = pa.array(sorted(turn_ids), pa.string())
    try:
        ids = read_table(path, ["turn_id"]).column("turn_id")
        removed = int(pc.sum(pc.is_in(ids, value_set=removed_ids)).as_py() or 0)
        if 0 < removed < len(ids):
            rewrite_shard(path, lambda rows: rows.filter(pc.invert(pc.is_in(rows.column("turn_id"), value_set=removed_ids))))
    except (UnreadableShard, KeyError) as error:
        raise Unreadable from error
    if removed and removed == len(ids):
        remove(path)
        sync(path.parent)
    return removed


def rewrite_json(path: Path, turn_ids: set[str]) -> int:
    """Remove turns from a JSON or JSON Lines file. Returns the number of places. Raises Unreadable."""
    lines = [path.read_bytes()] if path.suffix == ".json" else path.read_bytes().split(b"\n")
    count = _Counter()
    kept = []
    for line in filter(bytes.strip, lines):
        try:
            value = without(read_sealed(line), turn_ids, count.increment)
        except Damaged as error:
            if any(turn_id.encode() in line for turn_id in turn_ids) or path.parent.name == "quarantine":
                raise Unreadable from error
            kept.append(line)
            continue
        if value is not _REMOVED:
            kept.append(_dumped(value, was_sealed=b'"crc32":' in line))
    if not count.removed:
        return 0
    end = b"" if path.suffix == ".json" else b"\n"
    if kept:
        publish_bytes(path, b"".join(line + end for line in kept), anew=True)
    else:
        remove(path)
        sync(path.parent)
    return count.removed


def _dumped(value: Any, was_sealed: bool) -> bytes:
    text = orjson.dumps(value)
    return sealed(text) if was_sealed and isinstance(value, dict) and value else text


def without(value: Any, turn_ids: set[str], count: Callable[[], None]) -> Any:
    """Return `value` without the data of these turns: objects with such an id, list items, and keys."""
    if isinstance(value, str) and _is_removed_id(value, turn_ids):
        count()
        return _REMOVED
    if isinstance(value, dict):
        if any(isinstance(value.get(name), str) and _is_removed_id(value[name], turn_ids) for name in _IDS):
            count()
            return _REMOVED
        pruned = {key: without(inner, turn_ids, count) for key, inner in value.items() if not _is_removed_id(key, turn_ids)}
        for _ in range(len(value) - len(pruned)):
            count()
        return {key: inner for key, inner in pruned.items() if inner is not _REMOVED}
    if isinstance(value, list):
        return [inner for inner in (without(item, turn_ids, count) for item in value) if inner is not _REMOVED]
    return value


def _is_removed_id(text: str, turn_ids: set[str]) -> bool:
    return text in turn_ids or text[-_ID_LENGTH:] in turn_ids


class _Counter:
    def __init__(self) -> None:
        self.removed = 0

    def increment(self) -> None:
        self.removed += 1
