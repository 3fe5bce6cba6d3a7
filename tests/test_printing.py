from io import StringIO

import pytest
from rich.console import Console
from rich.text import Text

from clawctl.printing import Column, counted, fitting, labelled

COLUMNS = (Column("name"), Column("note", drop_order=2), Column("empty", drop_order=1), Column("count", right=True))
ROWS = [[Text("alpha"), Text("n" * 20), Text(""), Text("12")], [Text("b"), Text("m"), Text(""), Text("3")]]


def drawn(width: int) -> list[str]:
    out = StringIO()
    Console(file=out, width=width).print(fitting("two", COLUMNS, ROWS, width))
    return out.getvalue().splitlines()


@pytest.mark.parametrize(
    ("width", "heads"),
    [
        (48, ["name", "note", "empty", "count"]),  # 5 + 20 + 5 + 5, and 3 a column and one: 48
        (47, ["name", "note", "count"]),
        (34, ["name", "note", "count"]),  # 5 + 20 + 5, and 2 between each: 34
        (33, ["name", "count"]),
    ],
)
def test_a_table_drops_columns_that_do_not_fit(width: int, heads: list[str]) -> None:
    lines = drawn(width)
    assert max(map(len, lines)) <= width
    assert next(line.replace("┃", " ").split() for line in lines if "name" in line) == heads
    assert not any("…" in line for line in lines)


def test_parts_are_lines_that_fit_and_empty_ones_are_left_out() -> None:
    lines = [line.plain for line in labelled([("asked", "a\nb " + "c" * 50), ("hint", " ")], 30)]
    assert lines == ["  asked      a b " + "c" * 12 + "…"]
    assert len(lines[0]) == 30


def test_one_is_not_many() -> None:
    assert (counted(1, "file"), counted(0, "file"), counted(2, "file")) == ("1 file", "0 files", "2 files")
