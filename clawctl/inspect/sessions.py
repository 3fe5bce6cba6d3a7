"""`clawctl inspect sessions`: one line per session."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from rich.text import Text

from clawctl.inspect.rows import OpenTurns, Row, is_of_use, read_open, read_rows
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
    sessions = summarise(by_session(joined.rows))
    still_open = read_open(run, joined.problems)
    if as_json:
        print_json({"sessions": sessions, "open": asdict(still_open), "problems": joined.problems})
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


def by_session(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """The turns of each (session, user). Equal session names of two users are two sessions."""
    sessions: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        sessions.setdefault((row.turn["session_id"], row.turn["user"]), []).append(row)
    return sessions


def summarise(of_session: Mapping[tuple[str, str], list[Row]]) -> list[dict[str, Any]]:
    """The sessions, ordered by the time when each was last seen."""
    sessions = [_summary(session, user, rows) for (session, user), rows in of_session.items()]
    return sorted(sessions, key=lambda session: session["last_seen"])


def _summary(session: str, user: str, rows: list[Row]) -> dict[str, Any]:
    main = usable = judged = trained = known = 0
    total = 0.0
    for row in rows:  # a single pass, for runs with 100,000 turns
        main += row.turn["kind"] == "main"
        trained += row.step is not None
        if is_of_use(row.turn):
            usable += 1
            judged += row.verdict is not None
        if row.verdict and row.worth.value is not None:
            known += 1
            total += row.worth.value
    return {
        "session": session,
        "user": user,
        "turns": len(rows),
        "main": main,
        "side": len(rows) - main,
        "trainable": usable,
        "judged": judged,
        "trained": trained,
        "mean_reward": total / known if known else None,
        "first_seen": rows[0].turn["created_at"],
        "last_seen": rows[-1].turn["created_at"],
    }
