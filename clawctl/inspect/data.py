"""`clawctl inspect data`: the stored data, its location and age, and its users."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from rich.table import Table

from clawctl.inspect.rows import read_json, read_lines, read_rows
from clawctl.inspect.sessions import SessionTable
from clawctl.inspect.tables import problem_lines, since, sized
from clawctl.printing import answers, counted, one_line, print_json
from clawctl.privacy.selection import captured_rows
from clawctl.run.directory import FOLDERS, RunDir, published

_HOLDS: dict[str, str] = yaml.safe_load((Path(__file__).parent / "folders.yaml").read_text("utf-8"))


def show_data(run: RunDir, as_json: bool) -> None:
    data = read_data(run)
    if as_json:
        print_json(data)
        return
    stores = Table(title=f"stored in {run.root}")
    for heading in ("where", "files", "size", "rows", "since", "what"):
        stores.add_column(heading, justify="right" if heading in ("files", "size", "rows") else "left")
    for store in data["stores"]:
        began = "" if store["since"] is None else since(store["since"], time.time())
        rows = "" if store["rows"] is None else str(store["rows"])
        stores.add_row(store["where"], str(store["files"]), sized(store["bytes"]), rows, began, store["what"])
    people = Table(title="users")
    for heading in ("user", "sessions", "turns", "captured", "first", "last"):
        people.add_column(heading, justify="right" if heading in ("sessions", "turns", "captured") else "left")
    for user in data["users"]:
        counts = [str(user[name]) for name in ("sessions", "turns", "captured")]
        people.add_row(one_line(user["user"], 40), *counts, *(since(user[name], time.time()) for name in ("first", "last")))
    answers().print(stores, people, *_sent_lines(data["sent"]), *problem_lines(data["problems"]), sep="\n")


def _sent_lines(sent: dict[str, dict[str, int]]) -> list[str]:
    """Lines about the data that left this machine."""
    return [
        f"sent to {one_line(service, 80)} for training: {amount['tokens']} tokens of conversations "
        f"in {counted(amount['steps'], 'step')}"
        for service, amount in sent.items()
    ]


def _sent(run: RunDir, problems: list[str]) -> dict[str, dict[str, int]]:
    """The number of tokens and steps sent to each training service."""
    sent: dict[str, dict[str, int]] = {}
    for row in read_lines(run.spending, problems):
        amount = sent.setdefault(str(row.get("to")), {"tokens": 0, "steps": 0})
        amount["tokens"] += int(row.get("train_tokens") or 0) + int(row.get("prefill_tokens") or 0)
        amount["steps"] += 1
    return sent


def read_data(run: RunDir) -> dict[str, Any]:
    """The content of the tables. Times are in unix seconds."""
    joined = read_rows(run)
    problems, users = joined.problems.copy(), dict[str, dict[str, Any]]()
    rows = {"captures": 0, "trajectories": len(joined.turns.rows), "verdicts": len(joined.verdicts.rows)}
    for user, _, moment in _captured(run):
        rows["captures"] += 1
        _note(users, user, moment)["captured"] += 1
    for totals in SessionTable(joined).users():
        for moment in (totals["first"], totals["last"]):
            _note(users, totals["user"], moment).update(sessions=totals["sessions"], turns=totals["turns"])
    stores = stores_of(run, rows)
    return {
        "run": str(run.root),
        "since": read_json(run.marker, problems).get("created_at"),
        "stores": stores,
        "users": sorted(users.values(), key=lambda user: user["user"]),
        "sent": _sent(run, problems),
        "problems": problems,
    }


def stores_of(run: RunDir, rows: Mapping[str, int]) -> list[dict[str, Any]]:
    """For each folder of the run: files, bytes, age, and the number of rows if it is known."""
    others = sorted(path.name for path in run.root.iterdir() if path.is_dir() and path.name not in FOLDERS)
    return [_store(run.folder(name), rows.get(name)) for name in (*FOLDERS, *others)]


def _store(folder: Path, rows: int | None) -> dict[str, Any]:
    entries = [path.lstat() for path in folder.rglob("*") if path.is_file()] if folder.exists() else []
    return {
        "where": f"{folder.name}/",
        "what": _HOLDS.get(folder.name, "of another stage"),
        "files": len(entries),
        "bytes": sum({(entry.st_dev, entry.st_ino): entry.st_size for entry in entries}.values()),
        "rows": rows,
        "since": min((entry.st_mtime for entry in entries), default=None),
        "owner_only": all(entry.st_mode & 0o077 == 0 for entry in entries),
    }


def _note(users: dict[str, dict[str, Any]], user: str, moment: float) -> dict[str, Any]:
    fresh = {"user": user, "sessions": 0, "turns": 0, "captured": 0, "first": moment, "last": moment}
    totals = users.setdefault(user, fresh)
    totals["first"], totals["last"] = min(totals["first"], moment), max(totals["last"], moment)
    return totals


def _captured(run: RunDir) -> Iterator[tuple[str, str, float]]:
    for path in published(run.captures, ".jsonl"):
        for row in captured_rows(path):
            yield row["key"], row["exchange_id"], float(row["created_at"])
