"""`clawctl notes list` and `show`: the notes of a run with their states."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from clawctl.printing import answers, counted, one_line, plain, print_json
from clawctl.run.directory import RunDir
from clawctl.run.notes import Note, find_note, keys_with_notes, read_notes

_LONGEST = 500  # characters of a cell


def show_notes(run: RunDir, key: str, as_json: bool) -> None:
    """Print the notes of `key`, or of all keys if it is empty."""
    problems: list[str] = []
    notes = [(name, note) for name in ([key] if key else keys_with_notes(run)) for note in read_notes(run, name, problems)]
    if as_json:
        print_json({"notes": [as_dict(name, note) for name, note in notes], "problems": problems})
        return
    table = Table("key", "id", "state", "note", title=counted(len(notes), "note"))
    for name, note in notes:
        table.add_row(name, note.id, one_line(_state(note), _LONGEST), one_line(note.text.partition("\n")[0], _LONGEST))
    answers().print(table, *(one_line(problem, _LONGEST) for problem in problems), sep="\n")


def show_note(run: RunDir, key: str, note_id: str, as_json: bool) -> None:
    """Print one note. Raises ClawError (exit code 2) if there is none with this id."""
    shown = as_dict(key, find_note(run, key, note_id))
    if as_json:
        print_json(shown)
        return
    table = Table(show_header=False)
    for name, value in shown.items():
        if value not in (None, [], 0):
            text = datetime.fromtimestamp(value, UTC).isoformat(" ", "seconds") if name == "created_at" else str(value)
            table.add_row(name, plain(text))
    answers().print(table)


def as_dict(key: str, note: Note) -> dict[str, Any]:
    """A note as JSON shows it."""
    until = None if note.until is None else note.until.isoformat()
    return {
        "key": key,
        **asdict(note),
        "state": note.shown_state,
        "words": list(note.words),
        "turns": list(note.turns),
        "until": until,
    }


def _state(note: Note) -> str:
    state = f"learned (version {note.learned})" if note.shown_state == "learned" and note.learned is not None else note.shown_state
    return state if note.reason is None else f"{state}: {note.reason}"
