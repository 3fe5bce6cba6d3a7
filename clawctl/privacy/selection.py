"""Finds the turns selected by `--session`, `--user` or `--before`: turns with a row, and turns that are only in captures so far."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clawctl.errors import Damaged
from clawctl.run.checksums import read_sealed
from clawctl.run.directory import RunDir, published
from clawctl.run.outcomes import scoped_id
from clawctl.run.shards import UnreadableShard, read_columns

_COLUMNS = ("turn_id", "session_id", "user", "created_at", "messages", "response")


@dataclass(frozen=True, slots=True)
class Selection:
    """What to forget: a session, a user or a time span."""

    session: str | None = None  # as `inspect sessions` shows it
    user: str | None = None  # the name of an API key
    before: float | None = None  # unix seconds: sessions that began earlier, as a whole
    until: float = float("inf")  # unix seconds: data of a user after this time is kept


@dataclass(slots=True)
class SelectedTurns:
    """The turns that a selection covers."""

    turn_ids: set[str] = field(default_factory=set)
    sessions: set[tuple[str, str]] = field(default_factory=set)  # (user, session id)
    stems: set[str] = field(default_factory=set)  # trajectory shards with such turns
    unreadable: list[Path] = field(default_factory=list)  # shards that may hold such turns but cannot be read


def select(run: RunDir, selection: Selection, earlier: SelectedTurns | None = None) -> SelectedTurns:
    """Return all turns of the run that `selection` covers, in addition to those of an `earlier` selection.

    Sessions are selected as a whole, because later turns of a session repeat the text of earlier ones.
    """
    chosen = earlier or SelectedTurns()
    rows: list[tuple[str, dict[str, Any]]] = []
    for path in published(run.trajectories, ".parquet"):
        try:
            rows += [(path.stem, row) for row in read_columns(path, "turns", _COLUMNS)]
        except UnreadableShard:
            chosen.unreadable.append(path)
    chosen.sessions |= {(row["user"], row["session_id"]) for _, row in rows if matches(selection, row)}
    endings = _Endings()
    for stem, row in rows:
        if (row["user"], row["session_id"]) in chosen.sessions:
            chosen.turn_ids.add(row["turn_id"])
            chosen.stems.add(stem)
            endings.add(row["user"], row["messages"], row["response"])
    _add_captured(run, selection, chosen, endings, {row["turn_id"] for _, row in rows})
    return chosen


def matches(selection: Selection, row: Mapping[str, Any]) -> bool:
    if selection.user is not None:
        return bool(row["user"] == selection.user and row["created_at"] <= selection.until)
    if selection.session is not None:
        return bool(row["session_id"] == selection.session)
    return selection.before is not None and bool(row["created_at"] < selection.before)


def _add_captured(run: RunDir, selection: Selection, chosen: SelectedTurns, endings: "_Endings", rows: set[str]) -> None:
    """Add turns that have no row yet: by user, by claimed session, by age, or because they continue a selected turn."""
    captures = (row for path in published(run.captures, ".jsonl") for row in captured_rows(path))
    unpublished = [row for row in captures if row["exchange_id"] not in rows]
    for row in sorted(unpublished, key=lambda row: row["created_at"]):
        user, session = row["key"], session_of(row)
        captured = {"user": user, "session_id": session, "created_at": row["created_at"]}
        if matches(selection, captured) or (user, session) in chosen.sessions or endings.continued_by(user, row["messages"]):
            chosen.turn_ids.add(row["exchange_id"])
            chosen.sessions.add((user, session))
            endings.add(user, row["messages"], row["response"])


def captured_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the exchanges of one capture file. Lines that are not exchanges are skipped."""
    with path.open("rb") as file:
        for line in file:
            row = readable(line)
            if row is not None:
                yield row


def readable(line: bytes) -> dict[str, Any] | None:
    """Parse one line of captures. Returns None if the line is torn or lacks a field that selection needs."""
    try:
        row = read_sealed(line)
    except Damaged:
        return None
    is_exchange = isinstance(row, dict) and isinstance(row.get("exchange_id"), str) and isinstance(row.get("messages"), list)
    return row if is_exchange and isinstance(row.get("key"), str) and isinstance(row.get("created_at"), int | float) else None


def session_of(row: Mapping[str, Any]) -> str:
    """Return the session that collect assigns to this exchange if only its claim indicates one (see `collect/sessions.py`)."""
    claim = (row.get("hints") or {}).get("session_id")
    if isinstance(claim, str | int) and not isinstance(claim, bool) and claim != "":
        return scoped_id(row["key"], str(claim))
    return f"s{row['exchange_id']}"


class _Endings:
    """The ends of the selected turns, to recognise exchanges that continue them: first user message and answer."""

    def __init__(self) -> None:
        self._selected: set[tuple[str, str, str]] = set()

    def add(self, user: str, messages: list[dict[str, Any]], response: dict[str, Any] | None) -> None:
        if response is not None:
            self._selected.add((user, _first_user_text(messages), _text(response)))

    def continued_by(self, user: str, messages: list[dict[str, Any]]) -> bool:
        first = _first_user_text(messages)
        return any(
            (user, first, _text(message)) in self._selected
            for message in messages
            if isinstance(message, dict) and message.get("role") == "assistant"
        )


def _first_user_text(messages: list[dict[str, Any]]) -> str:
    return next((_text(message) for message in messages if isinstance(message, dict) and message.get("role") == "user"), "")


def _text(message: Mapping[str, Any]) -> str:
    """Return the text of a message in any format, or its calls if it only calls tools."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    text = str(content or "").rpartition("</think>")[2].strip()
    return text or repr(
        [call.get("function", {}).get("name") for call in message.get("tool_calls") or [] if isinstance(call, dict)]
    )
