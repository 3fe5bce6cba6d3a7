"""`clawctl export FILE`: writes all published turns as text, one session per line, in the format that `clawctl import` reads
(`turns`).
"""

import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson

from clawctl.collect.rows import SIDE_TURN
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, publish_bytes
from clawctl.run.rows import NO_NEXT_STATE, TEXT_ONLY
from clawctl.run.shards import UnreadableShard, read_columns, read_each

_EXPORTED = (
    "turn_id", "session_id", "turn_index", "kind", "created_at", "messages", "tools", "response", "next_state", "feedback",
    "trainable", "untrainable_reason",
)  # fmt: skip


def export_file(run: RunDir, file: Path) -> tuple[int, int]:
    """Write the turns and return the number of sessions and turns. Token ids are not exported. Raises ClawError."""
    try:
        shards = read_each(run.trajectories, lambda path: read_columns(path, "turns", _EXPORTED))
        rows = list({row["turn_id"]: row for _, shard in shards for row in shard}.values())
    except UnreadableShard as error:
        raise ClawError(
            f"a shard cannot be read: {error}", "run `clawctl judge --once`, which quarantines it, and export again"
        ) from error
    rows = [row for row in rows if row["response"] is not None]  # a failed request has no answer
    rows.sort(key=lambda row: (row["session_id"], row["turn_index"], row["created_at"]))
    lines = []
    for session_id, turns in groupby(rows, key=lambda row: row["session_id"]):
        lines.append(orjson.dumps({"session_id": session_id, "turns": [_message_row(turn) for turn in turns]}))
    text = b"".join(line + b"\n" for line in lines)
    try:
        if file.exists() and not file.is_file() and not file.is_dir():
            file.write_bytes(text)  # a rename would replace a device or a pipe
        else:
            publish_bytes(file.resolve(), text)
    except OSError as error:
        raise ClawError(f"{file} cannot be written: {error}", "choose a file in a writable folder", 2) from error
    return len(lines), len(rows)


def _message_row(row: dict[str, Any]) -> dict[str, Any]:
    message = {
        "turn_id": row["turn_id"], "type": row["kind"], "created_at": row["created_at"], "prompt": row["messages"],
        "response": row["response"], "next_state": row["next_state"], "rating": row["feedback"], "tools": row["tools"],
        "trainable": row["trainable"] or row["untrainable_reason"] in (TEXT_ONLY, NO_NEXT_STATE, SIDE_TURN),
        "untrainable_reason": row["untrainable_reason"],
    }  # fmt: skip
    return {key: value for key, value in message.items() if value is not None}


def export_text(run: RunDir, file: Path, as_json: bool) -> None:
    """Export the published turns to `file` and print counts. Raises ClawError."""
    sessions, turns = export_file(run, file)
    if as_json:
        report = {"exported_sessions": sessions, "exported_turns": turns}
        sys.stdout.write(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        sys.stdout.write(f"{turns} turns of {sessions} sessions written to {file}\n")
