"""`clawctl inspect sessions`: one line per session."""

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import asdict
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from clawctl.inspect.joined import Joined, Row, Rows
from clawctl.inspect.rows import OpenTurns, is_of_use, read_open, read_rows
from clawctl.inspect.tables import cut_to, problem_lines, since
from clawctl.printing import Column, answers, counted, fitting, one_line, print_json
from clawctl.run.directory import RunDir

_COLUMNS = (
    Column("session"),
    Column("user", drop_order=1),
    Column("turns", right=True),
    Column("main", right=True, drop_order=5),
    Column("side", right=True, drop_order=4),
    Column("trainable", right=True, drop_order=2),
    Column("judged", right=True, drop_order=3),
    Column("trained", right=True),
    Column("reward", right=True),
    Column("last seen", right=True),
)


def show_sessions(run: RunDir, as_json: bool) -> None:
    joined = read_rows(run)
    sessions = SessionTable(joined)
    still_open = read_open(run, joined.problems)
    if as_json:
        print_json({"sessions": sessions[:], "open": asdict(still_open), "problems": joined.problems})
        return
    shown, left_out = cut_to(sessions)
    title = f"{counted(len(sessions), 'session')}, {counted(len(joined.rows), 'turn')}"
    page = answers()
    table = fitting(title, _COLUMNS, [_cells(session) for session in shown], page.width)
    page.print(table, *left_out, *_open_line(still_open), *problem_lines(joined.problems), sep="\n")


def _open_line(still_open: OpenTurns) -> list[Text]:
    """A line about turns in open sessions, which are not in the table yet."""
    if not still_open.turns:
        return []
    begun = "" if still_open.since is None else f", the oldest {since(still_open.since, time.time())}"
    return [
        Text(f"{counted(still_open.turns, 'turn')} in open sessions{begun}: listed here once they have a next state", style="dim")
    ]


def _cells(session: dict[str, Any]) -> list[Text]:
    reward = "" if session["mean_reward"] is None else f"{session['mean_reward']:+.2f}"
    counts = [str(session[key]) for key in ("turns", "main", "side", "trainable", "judged", "trained")]
    ids = (one_line(session["session"], 40), one_line(session["user"], 20))
    return [*ids, *map(Text, (*counts, reward, since(session["last_seen"], time.time())))]


class SessionTable(Sequence[dict[str, Any]]):
    """The sessions, ordered by the time when each was last seen. Their ids are read when they are listed.

    `for_pages`: newest first, each with the id of its first main turn as "first".
    """

    def __init__(self, joined: Joined, for_pages: bool = False) -> None:
        self.joined, self._for_pages, rows = joined, for_pages, joined.rows
        self._matches: NDArray[np.int64] | None = None
        self._count = len(joined.first)
        last = np.zeros(self._count, np.int64)
        last[joined.session] = np.arange(len(rows))
        at = joined.at
        self.first_seen, self.last_seen = at[joined.first], at[last]
        self.turns, self.main = self._sum(lambda row: 1), self._sum(lambda row: row.turn["kind"] == "main")
        self.usable, self.trained = self._sum(lambda row: is_of_use(row.turn)), self._sum(lambda row: row.step is not None)
        self._judged = self._sum(lambda row: row.verdict is not None and is_of_use(row.turn))
        self._valued = self._sum(lambda row: bool(row.verdict) and row.worth.value is not None)
        self._value = self._sum(lambda row: (row.worth.value or 0.0) if row.verdict else 0.0)
        self.order = np.lexsort((joined.first, self.last_seen))[:: -1 if for_pages else 1]

    def _sum(self, of: Callable[[Row], float]) -> NDArray[np.float64]:
        return np.asarray(np.bincount(self.joined.session, self.joined.rows.values(of), self._count), np.float64)

    def __len__(self) -> int:
        return len(self.order)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | Sequence[dict[str, Any]]:
        return self.summaries(self.order[index]) if isinstance(index, slice) else self.summaries(self.order[[index]])[0]

    def among(self, rows: Rows) -> "SessionTable":
        """The sessions of these turns, each with their number as "matches"."""
        some = copy(self)
        some._matches = np.bincount(self.joined.session[rows.indices], minlength=self._count)
        some.order = self.order[some._matches[self.order] > 0]
        return some

    def users(self) -> list[dict[str, Any]]:
        """The totals of each user's sessions, by name."""
        of = np.array([variant.turn["user"] for variant in self.joined.variants], np.object_)[
            self.joined.variant[self.joined.first]
        ]
        users = list[dict[str, Any]]()
        for name in sorted(set(of), key=str):
            mask = of == name
            counts = {"sessions": int(mask.sum()), "turns": int(self.turns[mask].sum()), "trained": int(self.trained[mask].sum())}
            span = {"first": float(self.first_seen[mask].min()), "last": float(self.last_seen[mask].max())}
            users.append({"user": name, **counts, **span})
        return users

    def user(self, number: int) -> str:
        user: str = self.joined.variants[self.joined.variant[self.joined.first[number]]].turn["user"]
        return user

    def summaries(self, numbers: NDArray[Any]) -> list[dict[str, Any]]:
        """The sessions of these numbers."""
        names = self.joined.ids(self.joined.first[numbers], "session_id")
        sessions = [self._summary(number, name) for number, name in zip(numbers.tolist(), names, strict=True)]
        if self._for_pages:
            ids = self.joined.ids(self.joined.first_main[numbers])
            sessions = [{**session, "first": turn_id} for session, turn_id in zip(sessions, ids, strict=True)]
        if (matches := self._matches) is not None:
            sessions = [{**session, "matches": int(matches[number])} for session, number in zip(sessions, numbers, strict=True)]
        return sessions

    def _summary(self, number: int, name: str) -> dict[str, Any]:
        turns, main, valued = int(self.turns[number]), int(self.main[number]), self._valued[number]
        return {
            "session": name,
            "user": self.user(number),
            "turns": turns,
            "main": main,
            "side": turns - main,
            "trainable": int(self.usable[number]),
            "judged": int(self._judged[number]),
            "trained": int(self.trained[number]),
            "mean_reward": float(self._value[number] / valued) if valued else None,
            "first_seen": float(self.first_seen[number]),
            "last_seen": float(self.last_seen[number]),
        }
