"""Counts identical turns once, even if the first one was trained long ago.

Two turns of one key are identical if they have the same completion, token by token, after the same prompt. Prompts are the same if
their tokens are equal, or if their messages differ only in system messages, white space and case, which are easy to vary. A number
in the prompt is just as easy to vary, but two real problems often differ only in a number. The shares of keys (`fair.py`) limit the
effect of that case.

The members of a group are sampled from one prompt on purpose, and their credits sum to zero, so all of them count. So do all turns
of episodes that clawctl plays: no client can repeat them, and a task that is played again is sampled again.
"""

import hashlib
import logging
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from clawctl.run.directory import publish_bytes
from clawctl.run.lines import append_bytes
from clawctl.run.rows import Turn

log = logging.getLogger("clawctl.train")

IDENTICAL = "identical to another turn of its key"
MAX_MARKS = 1 << 20  # maximum number of marks remembered: two per turn, 16 bytes each in memory and on disk
_RECENT = 4096
_SPACE = re.compile(r"(?:\s|\\[nrtf])+")  # including JSON escapes

Marks = tuple[int, int]
_Pairs = NDArray[np.uint64]  # [N, 2]: a mark and its owner
_HEADERS = ("system", "developer")  # roles of messages that clients add automatically: dates, session names


def marks_of(turn: Turn, prompt_ids: list[int], completion_ids: list[int]) -> Marks:
    """Return the two hashes of a turn. Identical turns share at least one of them."""
    common = [turn.user, completion_ids, *([turn.images] if turn.images else [])]
    messages = [[m.get("role"), m.get("content"), m.get("tool_calls")] for m in turn.messages if m.get("role") not in _HEADERS]
    prompt = _SPACE.sub(" ", orjson.dumps(messages, default=str).decode().casefold()).replace('" ', '"').replace(' "', '"')
    return _hash(orjson.dumps([*common, prompt_ids])), _hash(orjson.dumps([*common, prompt]))


class TrainedMarks:
    """The hashes of trained turns with their owners, in a file that grows until it is cut to its newer half.

    The hashes have 64 bits: among a million, a lookup is wrong once in 10^13. The file is a cache: if data in it is lost or
    damaged, the only effect is that a turn may be trained a second time.
    """

    def __init__(self, path: Path, given_back: Iterable[str] = ()) -> None:
        """`given_back`: owners whose version is dead. Their hashes exclude no turn until they are added again."""
        self._path = path
        self._given_back = {_hash(owner.encode()) for owner in given_back}
        self._marks, self._owners = np.empty(0, np.uint64), np.empty(0, np.uint64)
        self._recent: dict[int, int] = {}
        self._load()

    def has(self, marks: Marks, owner: str) -> bool:
        """Whether a turn of another owner with one of the marks was trained."""
        owner_hash = _hash(owner.encode())
        return any((result := self._owner(mark)) not in (None, owner_hash) and result not in self._given_back for mark in marks)

    def add(self, trained: Iterable[tuple[Marks, str]]) -> None:
        """Add the hashes of trained turns with their owners."""
        pairs = [(mark, _hash(owner.encode())) for marks, owner in trained for mark in marks]
        if not pairs:
            return
        self._recent.update(pairs)
        self._given_back.difference_update(owner for _, owner in pairs)
        try:
            append_bytes(self._path, np.array(pairs, np.uint64).tobytes())
        except OSError as error:
            log.warning("cannot write %s, so identical turns may be trained again after a restart: %s", self._path, error)
        if len(self._recent) >= _RECENT:
            self._load()

    def _owner(self, mark: int) -> int | None:
        if mark in self._recent:
            return self._recent[mark]
        index = int(self._marks.searchsorted(np.uint64(mark)))
        return int(self._owners[index]) if index < len(self._marks) and int(self._marks[index]) == mark else None

    def _load(self) -> None:
        """Read the newest hashes of the file, and cut the file if it is too long."""
        try:
            data = self._path.read_bytes()
            pairs: _Pairs = np.frombuffer(data[: len(data) // 16 * 16], np.uint64).reshape(-1, 2)
            if len(pairs) > MAX_MARKS or len(data) % 16:
                pairs = pairs[-MAX_MARKS // 2 :] if len(pairs) > MAX_MARKS else pairs
                publish_bytes(self._path, pairs.tobytes())
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("cannot read %s, so identical turns may be trained again: %s", self._path, error)
            return
        pairs = pairs[::-1]  # the newest owner of a mark counts; earlier owners were given back
        self._marks, first = np.unique(pairs[:, 0], return_index=True)
        self._owners = pairs[first, 1].copy()
        self._recent = {}


def _hash(text: bytes) -> int:
    """Return a 64-bit hash that is the same in every process, unlike `hash`."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
