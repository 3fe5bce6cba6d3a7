"""Parts that the tables of all readers share."""

from collections.abc import Sequence
from typing import TypeVar

from rich.text import Text

from clawctl.printing import one_line

T = TypeVar("T")

_MAX_ROWS = 200


def cut_to(rows: Sequence[T], limit: int = _MAX_ROWS) -> tuple[Sequence[T], list[Text]]:
    """The last rows, and a line that states the number of hidden rows, if any."""
    left_out = len(rows) - limit
    return rows[-limit:], [Text(f"… and {left_out} earlier ones; --json shows all", style="dim")] if left_out > 0 else []


def problem_lines(problems: Sequence[str]) -> list[Text]:
    return [Text.assemble(("problem: ", "red"), one_line(problem, 300)) for problem in problems]


def since(moment: float, now: float) -> str:
    """The time since a moment, in the largest suitable unit: "12 s ago"."""
    age = max(0.0, now - moment)
    for unit, seconds in (("d", 86400), ("h", 3600), ("min", 60)):
        if age >= 2 * seconds:
            return f"{age / seconds:.0f} {unit} ago"
    return f"{age:.0f} s ago"


def sized(count: int) -> str:
    """A number of bytes, in the largest suitable unit: "1.5 MiB"."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
