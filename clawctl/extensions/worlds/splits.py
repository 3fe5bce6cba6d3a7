"""Reads the rows of a user's file, skips bad rows, and splits the rest into training and held-out rows."""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from clawctl.environments import Split
from clawctl.errors import ClawError

log = logging.getLogger("play")

Given = TypeVar("Given")
Row = TypeVar("Row")
SHOWN = 1_000_003  # the seed of the tasks whose solutions stand in prompts; no plan reaches these drawn tasks
_FEWEST = 5  # files with fewer rows hold none out
_MAX_NAMED = 5  # the number of bad rows that are logged one by one


def read_each(given: Iterable[Given], read: Callable[[Given], Row], bad: list[tuple[Given, ClawError]] | None = None) -> list[Row]:
    """All rows that can be read. A bad row is logged and skipped, or added to `bad`. Raises ClawError if every row is bad."""
    rows, problems = list[Row](), list[ClawError]()
    for source in given:
        try:
            rows.append(read(source))
        except ClawError as error:
            problems.append(error)
            if bad is not None:
                bad.append((source, problems.pop()))
    if problems and not rows:
        raise problems[0]
    for problem in problems[:_MAX_NAMED]:
        log.warning("left out: %s: %s", problem.problem, problem.fix)
    if len(problems) > _MAX_NAMED:
        log.warning("%d more are left out", len(problems) - _MAX_NAMED)
    return rows


ROWS_ARE = "write one JSON object in each line, a JSON list of objects, or a Parquet file"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON, JSON-lines or Parquet file. Raises OSError and ValueError."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        return list(pyarrow.parquet.read_table(path).to_pylist())
    text = path.read_text(encoding="utf-8")
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    rows = json.loads(text) if text.lstrip().startswith("[") else [_row(line, number) for number, line in lines]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("some of its rows are not mappings")
    return list(rows)


def _row(line: str, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number} is no JSON: {str(error).partition(': line')[0]}") from error


def rows_of(every: Sequence[Row], digest: Callable[[Row], int], split: Split, count: int, seed: int) -> list[Row]:
    """At most `count` rows of the split, starting at a place that the seed selects.

    About a fifth of the rows is held out, chosen by a hash of the row's content. Rows that are added to the file later do not move
    other rows between splits. If there are fewer than five rows, all of them are for training.
    """
    held_out = [len(every) >= _FEWEST and digest(row) % _FEWEST == 0 for row in every]
    rows = [row for row, out in zip(every, held_out, strict=True) if out == (split == "eval")]
    start = seed % len(rows) if rows else 0
    return [*rows[start:], *rows[:start]][:count]


def task_numbers(split: Split, count: int, seed: int) -> list[int]:
    """The numbers of drawn tasks. Even numbers are for training, odd numbers are held out."""
    return [2 * (seed * 100_003 + index) + (split == "eval") for index in range(count)]
