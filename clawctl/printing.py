"""What users' and models' words look like on a terminal: one line, no control characters, nothing read as markup."""

import json
import re
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)?", re.DOTALL)
# C0 and C1 controls, and the marks that reverse or hide text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_PIPE_WIDTH = 180  # columns where the output is no terminal; rich would take 80 and cut what a reader came for


def plain(text: str, limit: int | None = None) -> str:
    """`text` without escape sequences and control characters, lines kept; cut to `limit` characters with an ellipsis."""
    clean = _CONTROLS.sub("", _ESCAPES.sub("", text.replace("\r\n", "\n")))
    return clean if limit is None or len(clean) <= limit else clean[: limit - 1] + "…"


def one_line(text: str, limit: int) -> Text:
    """`text` for a cell of a table."""
    return Text(plain(" ".join(plain(text[: 20 * limit]).split()), limit))


def answers(width: int | None = None) -> Console:
    """Where answers go: stdout, wide enough where it is no terminal."""
    return Console(width=width if width or sys.stdout.isatty() else _PIPE_WIDTH, highlight=False, markup=False, emoji=False)


def print_json(value: Any) -> None:
    """One JSON document on stdout, in ASCII: a terminal cannot take any of it for a command."""
    print(json.dumps(value, indent=2, ensure_ascii=True))
