"""Lines are appended whole, whatever a killed writer or a full disk left behind."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawctl.run.checksums import sealed
from clawctl.run.lines import LineWriter, append_lines, read_lines


def line(number: int) -> bytes:
    return sealed(orjson.dumps({"number": number, "text": "x" * 100}))


def numbers(path: Path) -> list[int]:
    return [row["number"] for row in read_lines(path)]


@given(cut=st.integers(0, 400))
def test_wherever_a_writer_was_killed_the_lines_before_and_after_are_read(tmp_path_factory: Any, cut: int) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    append_lines(path, [line(1), line(2)])
    data = path.read_bytes()
    path.write_bytes(data[: min(cut, len(data))])
    whole = numbers(path)
    append_lines(path, [line(3)])
    assert numbers(path) == [*whole, 3]
    assert path.read_bytes().count(b"\n") == len(whole) + 1, "nothing is left of the incomplete line"


def test_a_damaged_line_is_reported_with_its_number_except_the_last_one(tmp_path: Path) -> None:
    path, damaged = tmp_path / "a.jsonl", list[int]()
    path.write_bytes(line(1) + b"\n{\n\n" + line(2) + b'\n[1]\n{"numb')
    assert [row["number"] for row in read_lines(path, lambda number, _: damaged.append(number))] == [1, 2]
    assert damaged == [2]
    assert list(read_lines(tmp_path / "none.jsonl")) == []


def test_nothing_is_appended_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"")
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic link"):
        append_lines(tmp_path / "a.jsonl", [line(1)])
    assert (tmp_path / "outside").read_bytes() == b""


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """No file may become larger."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_that_the_disk_has_no_room_for_leaves_nothing_behind(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path, rotate_bytes=1 << 20)
    writer.append(line(1))
    [path] = tmp_path.iterdir()
    size = path.stat().st_size
    with at_most(size + 20), pytest.raises(OSError, match="File too large"):
        writer.append(line(2))
    assert path.stat().st_size == size
    with at_most(size + 20), pytest.raises(OSError, match="File too large"):
        append_lines(path, [line(2)])
    assert path.stat().st_size == size
    writer.append(line(3))
    assert numbers(path) == [1, 3]


def test_a_writer_begins_another_file_when_the_last_is_full_or_gone(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path, rotate_bytes=200)
    for number in range(4):
        writer.append(line(number))
    assert [numbers(path) for path in sorted(tmp_path.iterdir())] == [[0, 1], [2, 3]]
    writer = LineWriter(tmp_path / "other", rotate_bytes=1 << 20)
    writer.append(line(1))
    for path in (tmp_path / "other").iterdir():
        os.unlink(path)
    writer.append(line(2))
    assert [numbers(path) for path in (tmp_path / "other").iterdir()] == [[2]]
