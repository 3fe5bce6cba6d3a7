"""Prints text from users and models safely: on one line, without control characters, and without markup."""

import json
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

T = TypeVar("T")

_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)?", re.DOTALL)
# C0 and C1 controls, and the characters that reverse or hide text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_PIPE_WIDTH = 180  # columns if the output is not a terminal; rich would use 80 and cut the text


def plain(text: str, limit: int | None = None) -> str:
    """`text` without escape sequences and control characters. Line breaks stay. Longer text is cut to `limit` characters and ends
    with an ellipsis."""
    clean = _CONTROLS.sub("", _ESCAPES.sub("", text.replace("\r\n", "\n")))
    return clean if limit is None or len(clean) <= limit else clean[: limit - 1] + "…"


def one_line(text: str, limit: int) -> Text:
    """`text` on one line, cut to `limit` characters, for a table cell."""
    return Text(plain(" ".join(plain(text[: 20 * limit]).split()), limit))


def answers(width: int | None = None) -> Console:
    """The console for answers: stdout, with wide lines if it is not a terminal."""
    return Console(width=width if width or sys.stdout.isatty() else _PIPE_WIDTH, highlight=False, markup=False, emoji=False)


def busy(what: str) -> AbstractContextManager[object]:
    """Shows `what` and a moving mark on stderr while the block runs, if that is a terminal."""
    console = Console(stderr=True)
    return console.status(what) if console.is_terminal else nullcontext()


def tracked(items: Collection[T], what: str) -> Iterable[T]:
    """The items, with a bar on stderr while they are worked off, if that is a terminal."""
    from rich.progress import track

    console = Console(stderr=True)
    return track(items, what, len(items), console=console, transient=True, disable=not console.is_terminal)


def counted(count: int, thing: str) -> str:
    """ "1 turn", "2 turns"."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


@dataclass(frozen=True, slots=True)
class Column:
    heading: str
    right: bool = False
    drop_order: int = 0  # dropped if the terminal is too narrow, highest value first; 0: always shown


def fitting(title: str, columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int, bold: int | None = None) -> Table:
    """A table. If it is wider than the terminal, borders and empty spare columns are dropped first, then all spare columns."""
    widths = [max([cell_len(column.heading), *(row[index].cell_len for row in rows)]) for index, column in enumerate(columns)]
    shown = list(range(len(columns)))
    framed = sum(widths) + 3 * len(widths) + 1 <= width
    if not framed:
        shown = [index for index in shown if not columns[index].drop_order or any(row[index] for row in rows)]
        for index in sorted(shown, key=lambda index: -columns[index].drop_order):
            if columns[index].drop_order and sum(widths[other] + 2 for other in shown) - 2 > width:
                shown.remove(index)
    table = Table(title=title) if framed else Table(title=title, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index in shown:
        table.add_column(columns[index].heading, justify="right" if columns[index].right else "left", no_wrap=True)
    for number, row in enumerate(rows):
        table.add_row(*(row[index] for index in shown), style="bold" if number == bold else None)
    return table


def labelled(parts: Sequence[tuple[str, str]], width: int) -> list[Text]:
    """One indented line per part, cut to the width of the terminal. Parts without text are omitted."""
    return [Text.assemble("  ", (f"{name:<11}", "dim"), one_line(text, width - 13)) for name, text in parts if text.strip()]


def print_json(value: Any) -> None:
    """Print one JSON document to stdout, in ASCII, so that a terminal cannot interpret any of it as a command."""
    print(json.dumps(value, indent=2, ensure_ascii=True))
