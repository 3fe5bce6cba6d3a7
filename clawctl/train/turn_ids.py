"""A memory-efficient set of turn ids."""

from collections.abc import Iterable

import numpy as np

_RECENT = 4096


class TurnIds:
    """A growing set of turn ids, at 8 bytes each.

    It stores 64-bit hashes, so a lookup among a million ids is wrong about once in 10^13. Use it only where a false positive merely
    skips work.
    """

    def __init__(self, turn_ids: Iterable[str] = ()) -> None:
        self._sorted = np.empty(0, np.uint64)
        self._recent: set[int] = set()
        self.update(turn_ids)

    def update(self, turn_ids: Iterable[str]) -> None:
        for turn_id in turn_ids:
            if turn_id not in self:
                self._recent.add(_hash(turn_id))
                if len(self._recent) >= _RECENT:
                    self._merge_recent()

    def __contains__(self, turn_id: str) -> bool:
        key = _hash(turn_id)
        if key in self._recent:
            return True
        index = int(self._sorted.searchsorted(np.uint64(key)))
        return index < len(self._sorted) and int(self._sorted[index]) == key

    def __len__(self) -> int:
        return len(self._sorted) + len(self._recent)

    def _merge_recent(self) -> None:
        new = np.sort(np.fromiter(self._recent, np.uint64, len(self._recent)))
        self._sorted = np.insert(self._sorted, self._sorted.searchsorted(new), new)
        self._recent = set()


def _hash(turn_id: str) -> int:
    return hash(turn_id) & 0xFFFF_FFFF_FFFF_FFFF
