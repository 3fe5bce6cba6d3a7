"""What the tables need of each turn and verdict, for all shards in one file: `RUN/columns.npz`.

Thousands of turns are equal in everything that decides their fate. Such turns share a variant, and a row is the number of its
variant, hashes of its ids, and its time. The file has no texts, no ids of turns or sessions, and no token ids: what a table shows
of them is read from the shards.

A reward model with a scale instead of 1, 0 and -1 makes about as many variants as turns. Such a run takes about as long, and as
much memory, as it did with a Python object for each turn: 3.9 s and 267 MB at 100,000 turns.

The file is a cache. Any reader replaces it whole, anybody may delete it, and entries of shards that have changed are ignored.

SQLite from the standard library was tried on a million turns (seconds of processor time): a count by variant takes 0.26 s, a sum by
session 0.89 s, the last 200 turns 0.66 s, and the judged turns in order 0.85 s, at 54 MB. NumPy loads all of it in 0.25 s (48 MB),
counts in 0.01 s and sums by session in 0.09 s, and the formulas of reward and fate stay in Python, once for each variant.
"""

import json
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clawctl.run.directory import RunDir, publish
from clawctl.run.names import stamp_of
from clawctl.run.shards import read_values

Hashes = NDArray[np.uint64]  # of ids. Two of a million are equal once in 37 million runs
Stamp = tuple[int, int]  # of a file: when it was written, and its inode

_NUMBERS = {
    "turns": np.dtype([("id", "u8"), ("parent", "u8"), ("session", "u8"), ("at", "f8"), ("variant", "u4")]),
    "verdicts": np.dtype([("id", "u8"), ("variant", "u4")]),
}
_SHARED = {  # the fields of a variant
    "turns": (
        "kind", "source", "user", "policy_name", "policy_version", "task_id", "group_id", "outcome_reward", "feedback", "trainable",
        "untrainable_reason", "redacted_by", "step_reward", "episode", "notes",
    ),
    "verdicts": ("reward", "votes", "hint", "hints", "judge", "reason"),
}  # fmt: skip
_FORMAT = repr((1, _NUMBERS, _SHARED))


def hashed(texts: Iterable[str]) -> Hashes:
    digests = (blake2b(text.encode(errors="replace"), digest_size=8).digest() for text in texts)
    return np.fromiter((int.from_bytes(digest) for digest in digests), np.uint64)


def session_key(session: str, user: str) -> str:
    """Equal session names of two users are two sessions."""
    return f"{user}\0{session}"


@dataclass(slots=True)
class ShardColumns:
    """The columns of the shards of one kind ("turns", "verdicts")."""

    kind: str
    variants: list[list[Any]] = field(default_factory=list)
    stored: dict[Path, tuple[Stamp, NDArray[Any]]] = field(default_factory=dict)  # by shard, as stored
    _numbers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._numbers = {repr(variant): number for number, variant in enumerate(self.variants)}

    def none(self) -> NDArray[Any]:
        return np.empty(0, _NUMBERS[self.kind])

    def of(self, variant: int) -> dict[str, Any]:
        return dict(zip(_SHARED[self.kind], self.variants[variant], strict=True))

    def read(self, path: Path) -> NDArray[Any]:
        """Read the columns of a shard. Raises UnreadableShard."""
        is_turns, shared = self.kind == "turns", _SHARED[self.kind]
        ids = ("turn_id", "parent_turn_id", "session_id", "created_at") if is_turns else ("turn_id",)
        of = read_values(path, self.kind, (*ids, *shared))
        rows = np.zeros(len(of["turn_id"]), _NUMBERS[self.kind])
        rows["id"] = hashed(of["turn_id"])
        if is_turns:
            rows["parent"] = [0 if parent is None else hashed([parent])[0] for parent in of["parent_turn_id"]]
            rows["session"], rows["at"] = hashed(map(session_key, of["session_id"], of["user"])), of["created_at"]
        of |= {name: [None if text is None else cut(text) for text in of[name]] for name, cut in _CUT.items() if name in of}
        rows["variant"] = [self._number(list(variant)) for variant in zip(*(of[name] for name in shared), strict=True)]
        return rows

    def _number(self, variant: list[Any]) -> int:
        number = self._numbers.setdefault(repr(variant), len(self.variants))
        if number == len(self.variants):
            self.variants.append(variant)
        return number


# What a variant keeps of texts: whether there is one
_CUT: dict[str, Callable[[Any], Any]] = {
    "hint": lambda hint: hint and "…", "hints": lambda hints: [], "notes": lambda notes: {},
    "episode": lambda episode: {
        "hint": episode.get("hint") and "…", "hint_place": episode.get("hint_place") and {}
    },
}  # fmt: skip


def load(run: RunDir) -> dict[str, ShardColumns]:
    """The stored columns by kind of shard, without any if there are none, or if they are damaged or of another clawctl."""
    try:
        with run.columns.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            header = json.loads(stored["header"].tobytes())
            if header["format"] != _FORMAT:
                raise ValueError
            return {kind: _restored(kind, run, header[kind], stored[kind]) for kind in _NUMBERS}
    except (OSError, ValueError, LookupError, TypeError, zipfile.BadZipFile, zlib.error, EOFError):
        return {kind: ShardColumns(kind) for kind in _NUMBERS}


def _restored(kind: str, run: RunDir, header: dict[str, Any], rows: NDArray[Any]) -> ShardColumns:
    columns, folder, begin = ShardColumns(kind, header["variants"]), run.trajectories if kind == "turns" else run.verdicts, 0
    if rows.dtype != _NUMBERS[kind] or sum(shard[-1] for shard in header["shards"]) != len(rows):
        raise ValueError
    if len(rows) and rows["variant"].max() >= len(columns.variants):
        raise ValueError
    for name, written, inode, count in header["shards"]:
        columns.stored[folder / name] = (written, inode), rows[begin : begin + count]
        begin += count
    return columns


def save(run: RunDir, columns: Iterable[ShardColumns]) -> None:
    """Write what is `stored`. A run that may only be read is left as it is."""
    arrays, header = dict[str, Any](), dict[str, Any](format=_FORMAT)
    for of in columns:
        rows = np.concatenate([of.none(), *(rows for _, rows in of.stored.values())])
        used, rows["variant"] = np.unique(rows["variant"], return_inverse=True)  # a forgotten person's variants go as well
        shards = [[path.name, *stamp, len(rows)] for path, (stamp, rows) in of.stored.items()]
        arrays[of.kind], header[of.kind] = rows, {"variants": [of.variants[number] for number in used], "shards": shards}

    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)

    with suppress(OSError):
        publish(run.columns, write)
        if any(stamp_of(path) != stamp for of in columns for path, (stamp, _) in of.stored.items()):
            run.columns.unlink(missing_ok=True)  # `forget` may have rewritten a shard before it looked here


def prune(run: RunDir) -> None:
    """Remove the columns of shards that have been deleted or rewritten."""
    if not run.columns.exists():
        return
    stored, pruned = load(run), False
    for of in stored.values():
        current = {path: entry for path, entry in of.stored.items() if stamp_of(path) == entry[0]}
        pruned, of.stored = pruned or len(current) < len(of.stored), current
    if not any(of.stored for of in stored.values()):
        run.columns.unlink(missing_ok=True)  # nothing is left, or it could not be read
    elif pruned:
        save(run, list(stored.values()))


def joined(parts: Sequence[NDArray[Any]], none: NDArray[Any]) -> NDArray[Any]:
    """The parts in one array, without a copy if they are all of a stored one."""
    whole = parts[0].base if parts else None
    is_whole = isinstance(whole, np.ndarray) and whole.dtype == none.dtype and sum(map(len, parts)) == len(whole)
    return whole if is_whole and all(part.base is whole for part in parts) else np.concatenate([none, *parts])  # type: ignore
