"""What may be rated: turns and sessions that this server answered lately, and those in the run's captures and shards."""

import threading
import time
from array import array
from bisect import bisect_left
from collections import OrderedDict
from contextlib import suppress
from hashlib import blake2b

import orjson

from clawctl.run.directory import RunDir, published
from clawctl.run.lines import Lines, Rewritten
from clawctl.run.outcomes import scoped
from clawctl.run.shards import UnreadableShard, read_columns

_LATELY = 1 << 16  # turns of this process
_LOOK_EVERY_S = 0.25  # for turns that others captured
_MERGE = 4096  # new numbers are kept outside the sorted ones up to here


class KnownTurns:
    """Remembers each turn in 8 bytes. `add` belongs to the event loop; `has` may read files, so it is called in a thread."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._lately: OrderedDict[int, None] = OrderedDict()
        self._reading = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._sorted, self._fresh = array("Q"), set[int]()
        self._lines, self._shards = Lines(self._run.captures), set[str]()
        self._looked_at = float("-inf")

    def add(self, key: str, turn_id: str, session: str | None = None) -> None:
        self._lately[_number(key, turn_id)] = None
        if session:
            self._lately[_session_number(key, scoped(key, session))] = None
        while len(self._lately) > _LATELY:
            self._lately.popitem(last=False)

    def has(self, key: str, turn_id: str) -> bool:
        """Whether the run holds this turn of `key`."""
        return self._has(_number(key, turn_id))

    def has_session(self, key: str, session_id: str) -> bool:
        """Whether the run holds turns of this session of `key`. `session_id` is in the key's name space."""
        return self._has(_session_number(key, session_id))

    def _has(self, number: int) -> bool:
        if number in self._lately:
            return True
        with self._reading:
            if not self._holds(number) and time.monotonic() - self._looked_at >= _LOOK_EVERY_S:
                self._look()
            return self._holds(number)

    def _holds(self, number: int) -> bool:
        at = bisect_left(self._sorted, number)
        return number in self._fresh or (at < len(self._sorted) and self._sorted[at] == number)

    def _look(self) -> None:
        try:
            grown = self._lines.grown()
        except Rewritten:  # turns were taken out of a file (`clawctl forget`): all are read again
            self._begin()
            grown = self._lines.grown()
        for path in grown:
            for _, line in self._lines.read(path):
                with suppress(orjson.JSONDecodeError, LookupError, TypeError):
                    told = orjson.loads(line)
                    self._take(_number(told["key"], told["exchange_id"]))
                    if isinstance(session := told["hints"].get("session_id"), str):
                        self._take(_session_number(told["key"], scoped(told["key"], session)))
        for path in published(self._run.trajectories, ".parquet"):
            if path.stem not in self._shards:
                self._shards.add(path.stem)
                with suppress(UnreadableShard):
                    for row in read_columns(path, "turns", ("user", "turn_id", "session_id")):
                        self._take(_number(row["user"], row["turn_id"]))
                        self._take(_session_number(row["user"], row["session_id"]))
        self._looked_at = time.monotonic()

    def _take(self, number: int) -> None:
        self._fresh.add(number)
        if len(self._fresh) > max(_MERGE, len(self._sorted) // 8):
            self._sorted = array("Q", sorted(self._fresh.union(self._sorted)))
            self._fresh = set()


def _number(key: str, turn_id: str) -> int:
    return int.from_bytes(blake2b(f"{key}\0{turn_id}".encode(), digest_size=8).digest(), "big")


def _session_number(key: str, session_id: str) -> int:
    return _number(key, f"session\0{session_id}")
