"""Which turns are meant by `--session`, `--user` or `--before`: those with a row, and those that only stand in captures yet."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from clawctl.errors import Damaged
from clawctl.run.checksums import read_sealed
from clawctl.run.directory import RunDir, published
from clawctl.run.shards import UnreadableShard, read_columns

_COLUMNS = ("turn_id", "session_id", "user", "created_at", "messages", "response")


@dataclass(frozen=True, slots=True)
class Selection:
    """What is to be forgotten; exactly one of them."""

    session: str | None = None  # as `inspect sessions` shows it
    user: str | None = None  # the name of an API key
    before: float | None = None  # unix seconds: whole sessions that began before


@dataclass(slots=True)
class SelectedTurns:
    """The turns that a wish means."""

    turn_ids: set[str] = field(default_factory=set)
    sessions: set[tuple[str, str]] = field(default_factory=set)  # (user, session id)
    stems: set[str] = field(default_factory=set)  # trajectory shards with such turns
    unreadable: list[Path] = field(default_factory=list)  # shards that may hold some: nobody can say


def select(run: RunDir, wish: Selection) -> SelectedTurns:
    """All turns of the run that `wish` means. Later turns of a session repeat its earlier words: a session goes as a whole."""
    chosen = SelectedTurns()
    rows: list[tuple[str, dict[str, Any]]] = []
    for path in published(run.trajectories, ".parquet"):
        try:
            rows += [(path.stem, row) for row in read_columns(path, "turns", _COLUMNS)]
        except UnreadableShard:
            chosen.unreadable.append(path)
    chosen.sessions = {(row["user"], row["session_id"]) for _, row in rows if _matches(wish, row)}
    endings = _Endings()
    for stem, row in rows:
        if (row["user"], row["session_id"]) in chosen.sessions:
            chosen.turn_ids.add(row["turn_id"])
            chosen.stems.add(stem)
            endings.add(row["user"], row["messages"], row["response"])
    _add_captured(run, wish, chosen, endings, {row["turn_id"] for _, row in rows})
    return chosen


def _matches(wish: Selection, row: Mapping[str, Any]) -> bool:
    if wish.user is not None:
        return bool(row["user"] == wish.user)
    if wish.session is not None:
        return bool(row["session_id"] == wish.session)
    return wish.before is not None and bool(row["created_at"] < wish.before)


def _add_captured(run: RunDir, wish: Selection, chosen: SelectedTurns, endings: "_Endings", rows: set[str]) -> None:
    """Turns without a row yet: of the user, of a session by its claim, too old, or continuing a turn that was chosen."""
    waiting = [row for path in published(run.captures, ".jsonl") for row in captured_rows(path) if row["exchange_id"] not in rows]
    for row in sorted(waiting, key=lambda row: row["created_at"]):
        user, session = row["key"], session_of(row)
        row_keys = {"user": user, "session_id": session, "created_at": row["created_at"]}
        if _matches(wish, row_keys) or (user, session) in chosen.sessions or endings.continued_by(user, row["messages"]):
            chosen.turn_ids.add(row["exchange_id"])
            chosen.sessions.add((user, session))
            endings.add(user, row["messages"], row["response"])


def captured_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The exchanges of one capture file; lines that are none are left out."""
    with path.open("rb") as file:
        for line in file:
            row = readable(line)
            if row is not None:
                yield row


def readable(line: bytes) -> dict[str, Any] | None:
    """One line of captures as far as choosing needs it, or None: torn, or no exchange."""
    try:
        row = read_sealed(line)
    except Damaged:
        return None
    shaped = isinstance(row, dict) and isinstance(row.get("exchange_id"), str) and isinstance(row.get("messages"), list)
    return row if shaped and isinstance(row.get("key"), str) and isinstance(row.get("created_at"), int | float) else None


def session_of(row: Mapping[str, Any]) -> str:
    """The session that collect gives this exchange if nothing but its claim speaks for one (see `collect/sessions.py`)."""
    claim = (row.get("hints") or {}).get("session_id")
    if isinstance(claim, str | int) and not isinstance(claim, bool) and claim != "":
        text = str(claim)
        return text if row["key"] == "default" and "/" not in text else f"{quote(row['key'], safe='')}/{text}"
    return f"s{row['exchange_id']}"


class _Endings:
    """How the chosen turns end, to know those that go on from there: the first words of the user, and the answer."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str, str]] = set()

    def add(self, user: str, messages: list[dict[str, Any]], response: dict[str, Any] | None) -> None:
        if response is not None:
            self._known.add((user, _first_words(messages), _text(response)))

    def continued_by(self, user: str, messages: list[dict[str, Any]]) -> bool:
        first = _first_words(messages)
        return any(
            (user, first, _text(message)) in self._known
            for message in messages
            if isinstance(message, dict) and message.get("role") == "assistant"
        )


def _first_words(messages: list[dict[str, Any]]) -> str:
    return next((_text(message) for message in messages if isinstance(message, dict) and message.get("role") == "user"), "")


def _text(message: Mapping[str, Any]) -> str:
    """What a message says, whatever form it comes in; of one that only calls tools, the calls."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    text = str(content or "").rpartition("</think>")[2].strip()
    return text or repr(
        [call.get("function", {}).get("name") for call in message.get("tool_calls") or [] if isinstance(call, dict)]
    )
