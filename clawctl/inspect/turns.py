"""`clawctl inspect turns`: one line per turn, or one session with its full text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from clawctl.errors import ClawError
from clawctl.inspect.joined import Joined, Row, Rows
from clawctl.inspect.rows import message_text, read_rows
from clawctl.inspect.tables import cut_to, problem_lines
from clawctl.printing import answers, counted, labelled, one_line, plain, print_json
from clawctl.run.directory import RunDir
from clawctl.run.reward import signed
from clawctl.run.rows import DEFAULT_POLICY


def show_turns(run: RunDir, session: str | None, as_json: bool) -> None:
    """Print the turns. Raises ClawError if `session` has none."""
    joined = read_rows(run)
    rows = joined.rows.with_texts() if session is None else _of_session(joined, session, run).with_texts()
    if as_json:
        print_json({"turns": [as_dict(row) for row in rows], "problems": joined.problems})
    elif session is None:
        of, left_out = cut_to(rows)
        shown = list(of)
        page = answers()
        narrow = page.width < _WIDTH_OF_TABLE
        parts = [line for row in shown for line in _block(row, page.width)] if narrow else [_table(shown, len(rows))]
        page.print(*parts, *left_out, *problem_lines(joined.problems), sep="\n")
        if narrow:
            page.print(counted(len(rows), "turn"))
    else:
        answers().print(*(part for row in rows for part in whole_turn(row)), *problem_lines(joined.problems), sep="\n")


def _of_session(joined: Joined, session: str, run: RunDir) -> Rows:
    """The turns of the session whose id is or begins with `session`. Raises ClawError if no session or several match."""
    ids = np.array(joined.ids(joined.first, "session_id"), np.object_)
    matches = {session} & set(ids) or {name for name in ids if name.startswith(session.rstrip("…"))}  # the table shortens ids
    if not matches:
        raise ClawError(f"{run.root} has no turn of session {session!r}", "`clawctl inspect sessions` lists the sessions", 2)
    if len(matches) > 1:
        raise ClawError(f"{len(matches)} sessions have an id that begins with {session!r}", "type more of the id", 2)
    return joined.rows.chosen((ids == matches.pop())[joined.session])


def as_dict(row: Row) -> dict[str, Any]:
    """One turn as plain data, with its full texts."""
    turn, verdict = row.turn, row.verdict or {}
    next_state = turn["next_state"]
    return {
        "turn": turn["turn_id"],
        "session": turn["session_id"],
        "parent": turn["parent_turn_id"],
        "parent_evidence": turn["parent_evidence"],
        "redacted_by": turn["redacted_by"],
        "images": turn["images"],
        "index": turn["turn_index"],
        "kind": turn["kind"],
        "user": turn["user"],
        "created_at": turn["created_at"],
        "policy": row.policy,
        "policy_version": turn["policy_version"],
        "asked": message_text(turn["messages"][-1] if turn["messages"] else None),
        "answered": message_text(turn["response"]),
        "came_back": None if next_state is None else "\n".join(message_text(message) for message in next_state),
        "reward": row.worth.value,
        "votes": verdict.get("votes"),
        "hint": verdict.get("hint"),
        "hints": verdict.get("hints"),
        "judge": verdict.get("judge"),
        "trained_in_step": row.step,
        "why_not_trained": row.why_not,
        "dead_steps": list(row.dead_steps),
    }


def _table(rows: Sequence[Row], count: int) -> Table:
    table = Table(title=counted(count, "turn"), expand=True)
    for heading, options in _COLUMNS.items():
        table.add_column(heading, **options)
    for row in rows:
        values = as_dict(row)  # the table cuts texts to the width of its columns
        version = "" if values["policy_version"] is None else str(values["policy_version"])
        table.add_row(
            one_line(values["turn"], 24),
            one_line(values["session"], 40),
            str(values["index"]),
            version,
            one_line(values["asked"], 200),
            one_line(values["answered"], 200),
            one_line(values["came_back"] or "", 200),
            _reward(values),
            one_line(values["hint"] or "", 200),
            one_line(_fate(row), 30),
        )
    return table


def _block(row: Row, width: int) -> list[Text]:
    """A turn for a terminal that is too narrow for the table: a line of numbers, then one line per text."""
    values = as_dict(row)
    head = (str(values["index"]), f"policy {values['policy_version']}", _reward(values), _fate(row))
    numbers = " · ".join(plain(part) for part in head if part)
    named = Text.assemble((plain(values["turn"], 8), "bold"), "  ", one_line(values["session"], 40))
    parts = [(name, values[key] or "") for name, key in (("request", "asked"), ("answer", "answered"), ("next state", "came_back"))]
    return [named, *labelled([("turn", numbers), *parts, ("hint", values["hint"] or "")], width), Text("")]


_WIDTH_OF_TABLE = 130  # in a narrower terminal, a text column would have room for one word only
_NARROW = {"no_wrap": True, "overflow": "ellipsis"}
_WIDE = {**_NARROW, "ratio": 1}
_COLUMNS: dict[str, dict[str, Any]] = {
    "turn": {**_NARROW, "max_width": 8},
    "session": {**_NARROW, "max_width": 14},
    "#": {"justify": "right"},
    "policy": {"justify": "right"},
    "request": _WIDE,
    "answer": _WIDE,
    "next state": _WIDE,
    "reward": _NARROW,
    "hint": _WIDE,
    "training": _NARROW,
}


def _reward(values: dict[str, Any]) -> str:
    """The reward and its votes: "+1 (1 1 ?)". "?" stands for an answer without a score."""
    if values["votes"] is None and values["reward"] is None:
        return ""
    reward = "-" if values["reward"] is None else signed(values["reward"])
    votes = " ".join("?" if vote is None else str(vote) for vote in values["votes"] or ())
    return f"{reward} ({votes})" if votes else reward


def _fate(row: Row) -> str:
    return trained_in(row) if row.step is not None else str(row.why_not)


def trained_in(row: Row) -> str:
    """The step that trained a turn: "step 3", or "step 3 of anna" if a person's own policy made it."""
    return f"step {row.step}" if row.policy == DEFAULT_POLICY else f"step {row.step} of {row.policy}"


def whole_turn(row: Row) -> list[Text]:
    """A turn with its full text."""
    values = as_dict(row)
    head = f"turn {values['index']} · {values['turn']} · {values['kind']} · policy {values['policy_version']} · {values['user']}"
    lines = [Text(plain(head), style="bold")]
    lines += [Text.assemble((f"{name}: ", "dim"), plain(text)) for name, text in _parts(values)]
    trained = f"trained in {trained_in(row)}" if row.step is not None else f"not trained: {row.why_not}"
    return [*lines, Text(plain(trained), style="dim"), Text("")]


def _parts(values: dict[str, Any]) -> list[tuple[str, str]]:
    next_state = values["came_back"]
    parts = [("request", values["asked"]), ("answer", values["answered"])]
    parts.append(("next state", "(none)" if next_state is None else next_state))
    if _reward(values):
        parts.append(("reward", _reward(values)))
    if values["hint"]:
        parts.append(("hint", values["hint"]))
    return parts
