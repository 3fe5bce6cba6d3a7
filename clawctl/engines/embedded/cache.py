"""Room for keys and values, counted in tokens and shared by all versions that one engine serves.

A version that nobody asks for holds no room: what ended answers leave behind is dropped, oldest first, as soon as any version
needs it.
"""

import threading
from dataclasses import dataclass

from torch import Tensor

SHARED = 32  # a shorter common beginning is computed again


@dataclass(slots=True, eq=False)
class _Kept:
    """The keys and values of ids that no running request needs. Those of one model are of no use to another."""

    owner: object
    ids: list[int]
    kv: list[Tensor]


class KvCache:
    """May be used by the sampling threads of several models at once."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self._free, self._kept = tokens, list[_Kept]()  # least recently used first
        self._lock = threading.Lock()

    def take(self, tokens: int) -> bool:
        """Reserve room, of kept keys if necessary. Returns False if running requests hold too much."""
        with self._lock:
            return self._take(tokens)

    def _take(self, tokens: int) -> bool:
        while self._free < tokens and self._kept:
            self._free += len(self._kept.pop(0).ids)
        if self._free < tokens:
            return False
        self._free -= tokens
        return True

    def give(self, tokens: int) -> None:
        """Give back reserved room."""
        with self._lock:
            self._free += tokens

    def keep(self, owner: object, ids: list[int], kv: list[Tensor]) -> None:
        """Keep keys and values for later prompts that begin with `ids`, if there is room."""
        with self._lock:
            if not self._take(len(ids)):
                return
            for kept in [kept for kept in self._kept if kept.owner is owner and common(kept.ids, ids) == len(kept.ids)]:
                self._remove(kept)
            self._kept.append(_Kept(owner, ids, [part.clone() for part in kv]))

    def longest(self, owner: object, ids: list[int]) -> tuple[int, list[Tensor]]:
        """The keys and values of as many of the first ids as are kept, the last id excepted; 0 if fewer than `SHARED`."""
        with self._lock:
            best, used = SHARED - 1, None
            for kept in self._kept:
                if kept.owner is owner and (count := min(common(kept.ids, ids), len(ids) - 1)) > best:
                    best, used = count, kept
            if used is None:
                return 0, []
            self._kept.remove(used)
            self._kept.append(used)
            return best, [part[:, :, :best] for part in used.kv]

    def drop(self, owner: object) -> None:
        """Forget all that is kept for a model."""
        with self._lock:
            for kept in [kept for kept in self._kept if kept.owner is owner]:
                self._remove(kept)

    def _remove(self, kept: _Kept) -> None:
        self._kept.remove(kept)
        self._free += len(kept.ids)


def common(ids: list[int], others: list[int]) -> int:
    """The number of equal ids at the beginning."""
    low, high = 0, min(len(ids), len(others))
    while low < high:  # slices are compared much faster than single ids
        middle = (low + high + 1) // 2
        low, high = (middle, high) if ids[low:middle] == others[low:middle] else (low, middle - 1)
    return low
