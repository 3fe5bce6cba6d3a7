"""The turns of a run with their verdicts and fates: columns to count, and rows that are read from their shards when shown."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from clawctl.run.columns import Hashes, ShardColumns, Stamp, hashed, session_key
from clawctl.run.reward import Worth
from clawctl.run.rows import DEFAULT_POLICY, Feedback
from clawctl.run.shards import UnreadableShard, read_turn_ids, rows_at

_FEW = (
    "turn_id", "session_id", "parent_turn_id", "parent_evidence", "turn_index", "kind", "source", "user", "created_at",
    "policy_name", "policy_version", "top_p", "top_k", "task_id", "group_id", "outcome_reward", "feedback", "trainable",
    "untrainable_reason", "redacted_by", "step_reward", "episode", "images", "notes",
)  # fmt: skip
_TEXTS = ("messages", "response", "next_state")
_VERDICT = ("turn_id", "reward", "votes", "hint", "hints", "judge", "reason")
_AT_ONCE = 1024  # rows that are read together

Indices = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """One turn with its verdict and its training result."""

    turn: Mapping[str, Any]  # the columns of a trajectory shard, without token ids
    verdict: Mapping[str, Any] | None  # None: not judged yet
    step: int | None  # the optimizer step of `policy` that trained it
    why_not: str | None  # why it has not been trained; None if it has been
    worth: Worth  # includes later ratings; for a trained turn, only ratings from before its policy
    dead_steps: tuple[int, ...] = ()  # steps that trained it into versions that are now dead
    rating: Feedback | None = None  # the newest rating that is not part of the row
    policy: str = DEFAULT_POLICY  # the policy that answered it, whose steps train it


@dataclass(frozen=True, slots=True, eq=False)
class Shards:
    """The columns of all shards of one kind ("turns", "verdicts") at one moment."""

    kind: str
    rows: NDArray[Any]
    stamps: dict[Path, Stamp]  # in the order of `rows`
    starts: Indices  # the index in `rows` of each shard's first row

    def read(self, places: Indices, columns: Sequence[str]) -> dict[int, dict[str, Any]]:
        """The rows at these places, without those of shards that have been removed or rewritten meanwhile."""
        by_index, paths = dict[int, dict[str, Any]](), list(self.stamps)
        places = np.unique(places[places >= 0])
        shards = np.searchsorted(self.starts, places, side="right") - 1
        for shard in np.unique(shards):
            wanted = places[shards == shard]
            with suppress(UnreadableShard):
                rows = rows_at(paths[shard], self.kind, columns, (wanted - self.starts[shard]).tolist())
                if np.array_equal(hashed(row["turn_id"] for row in rows), self.rows["id"][wanted]):
                    by_index.update(zip(wanted.tolist(), rows, strict=True))
        return by_index


MakeRow = Callable[[Mapping[str, Any], Mapping[str, Any] | None], Row]


class Joined:
    """The turns of a run, ordered by the time of the request.

    `variants[variant[i]]` has all that decides about turn i: a Row whose turn has no id, time or text. `rows[i]` reads the turn.
    """

    def __init__(self, turns: Shards, verdicts: Shards, make: MakeRow, problems: list[str]) -> None:
        self.turns, self.verdicts, self.problems = turns, verdicts, problems  # "trajectories/a-1.parquet: not a shard: …"
        self._make = make
        order: NDArray[np.int32] = np.argsort(turns.rows["at"], kind="stable").astype(np.int32)
        ids = turns.rows["id"][order]
        self._by_id = np.argsort(ids, kind="stable").astype(np.int32)
        again = ids[self._by_id][1:] == ids[self._by_id][:-1]  # a turn is in two shards while they are merged
        if again.any():
            order = np.delete(order, self._by_id[:-1][again])
            ids = turns.rows["id"][order]
            self._by_id = np.argsort(ids, kind="stable").astype(np.int32)
        self.place, self.id = order, ids
        self._verdict_place = self._find_verdicts()
        self.variants, self.variant = list[Row](), np.zeros(len(order), np.int32)

    def _find_verdicts(self) -> NDArray[np.int32]:
        """The place of each turn's verdict in `verdicts`; -1 without one."""
        places, ids = np.full(len(self.id), -1, np.int32), self.verdicts.rows["id"]
        if len(ids):
            order = np.argsort(ids, kind="stable").astype(np.int32)
            ids, wanted = ids[order], self.id[self._by_id]
            nearest = np.searchsorted(ids, wanted, side="right") - 1
            places[self._by_id] = np.where(ids[nearest] == wanted, order[nearest], -1)
        return places

    def decide(self, turns: ShardColumns, verdicts: ShardColumns, exceptions: Mapping[str, Any]) -> None:
        """Make the variants. `exceptions` has the turns about which more decides than their rows. Of two with equal values, more
        than their rows is equal as well; None is equal to nothing."""
        count, judged = len(verdicts.variants) + 1, self._verdict_place >= 0
        pairs = self.turns.rows["variant"][self.place].astype(np.int64) * count
        pairs[judged] += 1 + self.verdicts.rows["variant"][self._verdict_place[judged]]
        kinds, numbers = np.unique(pairs, return_inverse=True)
        self.variant = numbers.astype(np.int32)
        sources = [(turns.of(kind // count), verdicts.of(kind % count - 1) if kind % count else None) for kind in kinds.tolist()]
        self.variants, made = [self._make(*source) for source in sources], dict[Any, int]()
        for index, (turn_id, more) in zip(self.positions(list(exceptions)).tolist(), exceptions.items(), strict=True):
            if index < 0:
                continue
            kind = int(self.variant[index])
            number = made.setdefault(turn_id if more is None else (kind, more), len(self.variants))
            if number == len(self.variants):
                turn, verdict = sources[kind]
                self.variants.append(self._make({**turn, "turn_id": turn_id}, verdict))
            self.variant[index] = number
        first = _first_of(self.variant, len(self.variants))
        used = np.flatnonzero(first < len(self.variant))
        used = used[np.argsort(first[used])]  # in the order of their first turn, like the counts that are made of them
        number_of = np.zeros(len(self.variants), np.int32)
        number_of[used] = np.arange(len(used))
        self.variants, self.variant = [self.variants[kind] for kind in used], number_of[self.variant]

    # ---- rows --------------------------------------------------------------------------------------------------------------

    @property
    def at(self) -> NDArray[np.float64]:
        """The time of each request."""
        times: NDArray[np.float64] = self.turns.rows["at"][self.place]
        return times

    @property
    def rows(self) -> "Rows":
        return Rows(self, np.arange(len(self.place), dtype=np.int32))

    def positions(self, turn_ids: Sequence[str]) -> Indices:
        """The index of each of these turns; -1 for one that does not exist."""
        wanted = hashed(turn_ids)
        if not len(self.id):
            return np.full(len(wanted), -1, np.int32)
        nearest = self._by_id[np.minimum(np.searchsorted(self.id, wanted, sorter=self._by_id), len(self.id) - 1)]
        return np.where(self.id[nearest] == wanted, nearest, -1)

    def row(self, turn_id: str | None) -> Row | None:
        index = self.positions([] if turn_id is None else [turn_id])
        return next(iter(Rows(self, index[index >= 0])), None)

    def decided(self, turn_id: str) -> Row | None:
        """The variant of a turn, without reading it."""
        (index,) = self.positions([turn_id])
        return None if index < 0 else self.variants[self.variant[index]]

    def path_of(self, index: int) -> Path:
        """The shard of a turn."""
        return list(self.turns.stamps)[int(np.searchsorted(self.turns.starts, self.place[index], side="right")) - 1]

    def beginning_with(self, turn_id: str) -> "Rows":
        """The turns whose id begins with this. Reads the ids of all turns, unless one has exactly this id."""
        if (index := self.positions([turn_id]))[0] >= 0:
            return Rows(self, index)
        matches = list[str]()
        for path in self.turns.stamps:
            with suppress(UnreadableShard):
                matches += [name for name in read_turn_ids(path) if name.startswith(turn_id)]
        index = self.positions(list(dict.fromkeys(matches)))
        return Rows(self, np.sort(index[index >= 0]))

    def children(self, turn_id: str) -> "Rows":
        """The turns that continue a turn."""
        return Rows(self, np.flatnonzero(self.turns.rows["parent"][self.place] == hashed([turn_id])))

    def parents_of(self, indices: Indices) -> Hashes:
        return self.turns.rows["parent"][self.place[indices]]

    def read(self, indices: Indices, texts: Sequence[str]) -> Iterator[Row]:
        turns = self.turns.read(self.place[indices], (*_FEW, *texts))
        verdicts = self.verdicts.read(self._verdict_place[indices], _VERDICT)
        for index, verdict_place in zip(self.place[indices].tolist(), self._verdict_place[indices].tolist(), strict=True):
            if index in turns:
                yield self._make(turns[index], verdicts.get(verdict_place))

    # ---- sessions ----------------------------------------------------------------------------------------------------------

    @cached_property
    def _sessions(self) -> tuple[Hashes, NDArray[np.int32]]:
        names, numbers = np.unique(self.turns.rows["session"][self.place], return_inverse=True)
        return names, numbers.astype(np.int32)

    @property
    def session(self) -> NDArray[np.int32]:
        """The number of each turn's session."""
        return self._sessions[1]

    @cached_property
    def first(self) -> Indices:
        """The first turn of each session."""
        return _first_of(self.session, len(self._sessions[0]))

    @cached_property
    def first_main(self) -> Indices:
        """The first main turn of each session; without one, its first turn."""
        main = self.rows.where(lambda row: row.turn["kind"] == "main").indices
        first = _first_of(self.session[main], len(self.first))
        return np.where(first < len(main), main[np.minimum(first, len(main) - 1)], self.first) if len(main) else self.first

    def ids(self, indices: Indices, name: str = "turn_id") -> list[str]:
        """The ids of these turns or, as "session_id", of their sessions; "?" if they cannot be read any more."""
        places = self.place[indices]
        rows = self.turns.read(places, tuple({"turn_id", name}))
        return [rows[index][name] if index in rows else "?" for index in places.tolist()]

    def of_session(self, session: str, user: str) -> "Rows":
        (wanted,) = hashed([session_key(session, user)])
        number = int(np.searchsorted(self._sessions[0], wanted))
        is_known = number < len(self._sessions[0]) and self._sessions[0][number] == wanted
        return Rows(self, np.flatnonzero(self.session == (number if is_known else -1)))


def _first_of(numbers: NDArray[Any], count: int) -> Indices:
    """The index of the first occurrence of each number below `count`; the length of `numbers` if there is none."""
    first = np.full(count, len(numbers), np.int64)
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]
    return first


class Rows(Sequence[Row]):
    """Some turns of a run, in any order. They are counted by columns, and read from their shards when they are iterated over. Turns
    that cannot be read any more are then left out."""

    def __init__(self, joined: Joined, indices: Indices, texts: Sequence[str] = ()) -> None:
        self.joined, self.indices, self._texts = joined, indices, texts

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Row]:
        for begin in range(0, len(self.indices), _AT_ONCE):
            yield from self.joined.read(self.indices[begin : begin + _AT_ONCE], self._texts)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> "Rows": ...
    def __getitem__(self, index: int | slice) -> "Row | Rows":
        if isinstance(index, slice):
            return Rows(self.joined, self.indices[index], self._texts)
        return next(self.joined.read(self.indices[[index]], self._texts))

    def with_texts(self) -> "Rows":
        return Rows(self.joined, self.indices, _TEXTS)

    def where(self, test: Callable[[Row], object]) -> "Rows":
        """The turns whose variant passes the test."""
        return self.chosen(self.values(lambda row: bool(test(row)), np.bool_))

    def chosen(self, mask: NDArray[np.bool_]) -> "Rows":
        return Rows(self.joined, self.indices[mask], self._texts)

    def values(self, of: Callable[[Row], Any], kind: Any = np.float64) -> NDArray[Any]:
        """A value of each turn, from its variant."""
        return np.array([of(variant) for variant in self.joined.variants], kind)[self.joined.variant[self.indices]]

    def tally(self, of: Callable[[Row], Any]) -> Counter[Any]:
        """How often each value occurs, in the order of first occurrences. `of` looks at variants."""
        counts = Counter[Any]()
        times = np.bincount(self.joined.variant[self.indices], minlength=len(self.joined.variants))
        for variant, number in zip(self.joined.variants, times.tolist(), strict=True):
            if number:
                counts[of(variant)] += number
        return counts

    def sessions(self) -> int:
        return len(np.unique(self.joined.session[self.indices]))
