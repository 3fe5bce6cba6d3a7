"""The text of turns. It is read from shards when a page shows it, and kept in memory up to a limit so that it can be searched."""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clawctl.inspect.rows import message_text
from clawctl.run.columns import Hashes, Stamp, hashed
from clawctl.run.shards import UnreadableShard, read_pieces

_MAX_BYTES = 24 << 20  # kept in memory: texts, ids and titles
_TITLE_BYTES = 300  # about
_LONGEST = 20_000  # the number of characters of one text that are searched
_TITLE = 160  # characters of a title
_PATIENCE_S = 0.15  # the time limit of one search; the page then offers to search further back

Stamps = Mapping[Path, Stamp]


@dataclass(frozen=True, slots=True)
class _Shard:
    stamp: Stamp
    ids: Hashes
    texts: pa.Array  # the answer and the next state of each turn; for a first turn also its request
    titles: dict[str, str]  # the request of each turn that begins a conversation

    @property
    def nbytes(self) -> int:
        return int(self.texts.nbytes) + self.ids.nbytes + _TITLE_BYTES * len(self.titles)


@dataclass(frozen=True, slots=True)
class TextMatches:
    """The turns that contain a text, in the shards searched so far."""

    turns: Hashes
    left: int  # the number of shards that were not searched
    after: str | None  # the stem of the last searched shard, where the next search begins


class TextIndex:
    """The text of a run's turns."""

    def __init__(self) -> None:
        self._shards: dict[Path, _Shard] = {}
        self._lock = threading.Lock()

    def follow(self, stamps: Stamps) -> None:
        """Drop shards that were removed or published again, so that `forget` also takes effect in memory."""
        with self._lock:
            self._shards = {path: shard for path, shard in self._shards.items() if stamps.get(path) == shard.stamp}

    def read_ahead(self, stamps: Stamps, stop: threading.Event) -> None:
        """Read the newest shards up to the memory limit. Run this in a separate thread."""
        for path in sorted(stamps, reverse=True):
            if stop.is_set() or self._bytes() >= _MAX_BYTES:
                return
            self._shard(path, stamps)

    def _bytes(self) -> int:
        return sum(shard.nbytes for shard in list(self._shards.values()))  # a copy, because other threads add shards

    def _shard(self, path: Path, stamps: Stamps) -> _Shard | None:
        """The contents of a shard, kept in memory if there is room. None if the shard is removed or damaged."""
        kept = self._shards.get(path)
        if kept is not None:
            return kept
        try:
            shard = _read(path, stamps[path])
        except UnreadableShard:
            return None
        with self._lock:
            if self._bytes() + shard.nbytes <= _MAX_BYTES:
                self._shards[path] = shard
        return shard

    def titles(self, path: Path) -> Mapping[str, str]:
        """The titles of conversations that begin in a shard, by the id of their first turn, if they are in memory."""
        return self._shards[path].titles if path in self._shards else {}

    def search(self, text: str, stamps: Stamps, after: str | None = None) -> TextMatches:
        """Turns that contain `text`, newest shards first, within a time limit. Case matters if `text` has capital letters."""
        deadline = time.monotonic() + _PATIENCE_S
        order = [path for path in sorted(stamps, reverse=True) if after is None or path.stem < after]
        ids, ignore_case = [np.empty(0, np.uint64)], text == text.lower()
        for number, path in enumerate(order):
            if number and time.monotonic() > deadline:
                return TextMatches(np.concatenate(ids), len(order) - number, order[number - 1].stem)
            shard = self._shard(path, stamps)
            if shard is not None:
                hits = pc.match_substring(shard.texts, text, ignore_case=ignore_case).to_numpy(zero_copy_only=False)
                ids.append(shard.ids[hits])
        return TextMatches(np.concatenate(ids), 0, None)


def _read(path: Path, stamp: Stamp) -> _Shard:
    """The texts of a shard. Raises UnreadableShard."""
    ids, texts, titles = list[str](), list[str](), dict[str, str]()
    for piece in read_pieces(path):
        few = piece.rows("turns", ("turn_id", "parent_turn_id", "response", "next_state"))
        first = [index for index, row in enumerate(few) if row["parent_turn_id"] is None]
        requests = {row["turn_id"]: request_of(row["messages"]) for row in _first_turns(piece, first)}
        for row in few:
            request = requests.get(row["turn_id"])
            ids.append(row["turn_id"])
            texts.append(text_of(row, request)[:_LONGEST].encode(errors="replace").decode())  # valid Unicode
            if request is not None:
                titles[row["turn_id"]] = title_of(row, request)
    return _Shard(stamp, hashed(ids), pa.array(texts, pa.large_string()), titles)


def text_of(row: Mapping[str, Any], request: str | None) -> str:
    """The request, if there is one, the answer and the next state."""
    messages = [row["response"], *(row["next_state"] or ())]
    return "\n".join([*([] if request is None else [request]), *map(message_text, messages)])


def title_of(row: Mapping[str, Any], request: str | None) -> str:
    """The request of a turn that begins a conversation; without one, the beginning of its text."""
    return (request or text_of(row, request))[:_TITLE]


def _first_turns(piece: Any, indices: Sequence[int]) -> Iterable[dict[str, Any]]:
    return piece.some_rows("turns", ("turn_id", "messages"), indices) if indices else ()


def request_of(messages: Sequence[dict[str, Any]] | None) -> str:
    """The text of the user's last message; without one, of the last message."""
    valid = [message for message in messages or () if isinstance(message, dict)]
    of_user = [message for message in valid if message.get("role") == "user"]
    return message_text((of_user or valid)[-1]) if valid else ""
