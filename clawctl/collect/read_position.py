"""`collect.json`: how far collect has read, so that a restart reads only open exchanges and not the complete history.

An exchange is done when its tree has ended and its row is published. Everything before the stored offset of a capture file is done.
All rows of later exchanges are in shards after `shards_after`. The file is published by rename after these shards. After a SIGKILL
it may be older, which only means that more is read again.
"""

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from clawctl.collect.captures import Captured
from clawctl.run.checksums import read_sealed, sealed
from clawctl.run.directory import RunDir, publish_bytes, published
from clawctl.run.lines import whole_end
from clawctl.run.rows import SCHEMA_VERSION

log = logging.getLogger(__name__)

Offsets = dict[str, int]  # byte offsets by file name


class ReadPosition:
    """The open exchanges, their positions, and the shards that may contain rows of them."""

    def __init__(self, run: RunDir, afresh: bool = False) -> None:
        self._run = run
        self._path = run.position
        record = self._load()
        if afresh or not self._is_valid(record):
            record = {}
        self.start: Offsets = record.get("offsets", {})
        self.shards_after: str = record.get("shards_after", "")
        self.done: Offsets = {}  # as last saved: everything before it is done
        self._open: dict[str, dict[int, None]] = {}  # file → offsets, ascending, because files are read from start to end
        self._positions: dict[str, tuple[str, int, float]] = {}
        self._ended: deque[tuple[int, list[str]]] = deque()  # (rows, turns): the turns are done once that many rows are published
        # Shards that existed at the start count as one. They are passed once all captures that existed then are done.
        newest_stem = [path.stem for path in published(run.trajectories, ".parquet")][-1:]
        ends = {path.name: whole_end(path) for path in published(run.captures, ".jsonl")}
        self._shards: deque[tuple[str, Offsets]] = deque((stem, ends) for stem in newest_stem if stem > self.shards_after)
        self._written = b""
        self._state: dict[str, Any] = {}

    def read(self, captured: Captured) -> None:
        """Record that an exchange was read. An exchange that is in the captures twice is tracked at its first position."""
        turn_id = captured.exchange.exchange_id
        if turn_id not in self._positions:
            self._positions[turn_id] = captured.file, captured.offset, captured.exchange.created_at
            self._open.setdefault(captured.file, {})[captured.offset] = None

    def ended(self, turn_ids: list[str], rows: int) -> None:
        """Record that these turns are done once `rows` rows in total are published."""
        if turn_ids:
            self._ended.append((rows, turn_ids))

    def shard(self, stem: str, turn_ids: Iterable[str]) -> None:
        """Record that a shard with the rows of these turns was published."""
        last: Offsets = {}
        for file, offset, _ in (self._positions[turn_id] for turn_id in turn_ids if turn_id in self._positions):
            last[file] = max(offset + 1, last.get(file, 0))
        self._shards.append((stem, last))

    def save(self, offsets: Offsets, rows: int, open_turns: int = 0) -> None:
        """Save the position.

        `offsets`: how far each file was read, in bytes. `rows`: number of published rows. `open_turns`: number of turns that were
        read and wait for their next state, stored for other stages.
        """
        while self._ended and self._ended[0][0] <= rows:
            for turn_id in self._ended.popleft()[1]:
                file, offset, _ = self._positions.pop(turn_id, ("", 0, 0.0))
                self._open.get(file, {}).pop(offset, None)
        done = {file: next(iter(self._open.get(file) or [offset])) for file, offset in offsets.items()}
        self.done = done
        while self._shards and all(done.get(file, 0) >= last for file, last in self._shards[0][1].items()):
            self.shards_after = self._shards.popleft()[0]
        files = {path.name: path.stat().st_ino for path in published(self._run.captures, ".jsonl")}
        self._state = {
            "schema_version": SCHEMA_VERSION,
            "offsets": {name: offset for name, offset in done.items() if name in files},
            "inodes": {name: inode for name, inode in files.items() if name in done},
            "shards_after": self.shards_after,
            "put_aside": quarantined_shards(self._run),
            "open": {"turns": open_turns, "since": self._open_since() if open_turns else None},
        }
        text = sealed(orjson.dumps(self._state, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))
        if text != self._written:
            publish_bytes(self._path, text)
            self._written = text

    def _open_since(self) -> float | None:
        """Return the request time of the oldest exchange in an open session, or None."""
        return min((created_at for _, _, created_at in self._positions.values()), default=None)

    def _load(self) -> dict[str, Any]:
        try:
            record = read_sealed(self._path.read_bytes())
            if record["schema_version"] != SCHEMA_VERSION:
                raise ValueError(f"schema version {record['schema_version']}")
            return dict(record)
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("collect.json cannot be used, so all captures are read again: %s", error)
            return {}

    def _is_valid(self, record: dict[str, Any]) -> bool:
        """Whether no capture file was rewritten and no shard was quarantined since the position was saved."""
        files = {path.name: path.stat() for path in published(self._run.captures, ".jsonl")}
        try:
            return bool(record["put_aside"] == quarantined_shards(self._run)) and all(
                name not in files or (files[name].st_ino == record["inodes"][name] and files[name].st_size >= offset)
                for name, offset in record["offsets"].items()
            )
        except (KeyError, TypeError, AttributeError):
            return False


def quarantined_shards(run: RunDir) -> Sequence[str]:
    """Return the trajectory shards in quarantine; their rows must be published again."""
    return sorted(path.name for path in run.quarantine.glob("trajectories-*.parquet"))
