"""`clawctl inspect sessions`: one line a session."""

import time
from typing import Any

from rich.table import Table

from clawctl.inspect.rows import Joined, Row, is_of_use, read_rows
from clawctl.inspect.tables import cut_to, problem_lines, since
from clawctl.printing import answers, one_line, print_json
from clawctl.run_dir import RunDir


def show_sessions(run: RunDir, as_json: bool) -> None:
    joined = read_rows(run)
    sessions = summarise(joined)
    if as_json:
        print_json({"sessions": sessions, "problems": joined.problems})
        return
    table = Table(title=f"{len(sessions)} sessions, {len(joined.rows)} turns")
    table.add_column("session", no_wrap=True)
    table.add_column("user")
    for heading in ("turns", "main", "side", "trainable", "judged", "trained", "mean reward", "last seen"):
        table.add_column(heading, justify="right")
    shown, left_out = cut_to(sessions)
    for session in shown:
        reward = "" if session["mean_reward"] is None else f"{session['mean_reward']:+.2f}"
        counts = [str(session[key]) for key in ("turns", "main", "side", "trainable", "judged", "trained")]
        ids = (one_line(session["session"], 40), one_line(session["user"], 20))
        table.add_row(*ids, *counts, reward, since(session["last_seen"], time.time()))
    answers().print(table, *left_out, *problem_lines(joined.problems), sep="\n")


def summarise(joined: Joined) -> list[dict[str, Any]]:
    """The sessions, the one that was seen last at the end. Two people may name a session alike: it is still two."""
    of_session: dict[tuple[str, str], list[Row]] = {}
    for row in joined.rows:
        of_session.setdefault((row.turn["session_id"], row.turn["user"]), []).append(row)
    sessions = [_summary(session, user, rows) for (session, user), rows in of_session.items()]
    return sorted(sessions, key=lambda session: session["last_seen"])


def _summary(session: str, user: str, rows: list[Row]) -> dict[str, Any]:
    rewards = [row.verdict["reward"] for row in rows if row.verdict and row.verdict["reward"] is not None]
    return {
        "session": session,
        "user": user,
        "turns": len(rows),
        "main": sum(row.turn["kind"] == "main" for row in rows),
        "side": sum(row.turn["kind"] == "side" for row in rows),
        "trainable": sum(is_of_use(row.turn) for row in rows),
        "judged": sum(row.verdict is not None and is_of_use(row.turn) for row in rows),
        "trained": sum(row.step is not None for row in rows),
        "mean_reward": sum(rewards) / len(rewards) if rewards else None,
        "first_seen": rows[0].turn["created_at"],
        "last_seen": rows[-1].turn["created_at"],
    }
