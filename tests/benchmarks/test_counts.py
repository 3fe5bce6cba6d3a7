"""Figures that are counted, not timed, are as stored; and what `scripts/bench compare` calls a regression."""

from dataclasses import replace
from pathlib import Path

import pytest

from scripts.benchmarks import counts
from scripts.benchmarks.compare import regressions
from scripts.benchmarks.results import Run, load
from scripts.benchmarks.table import Row

OLD = Run("train", "a machine", "abc", "2026-01-01", "scripts/bench train", (Row("a", "m", 10.0, "s"), Row("a", "n", 10.0, "1/s")))


def test_operations_calls_requests_and_bytes_of_each_room_are_as_stored(tmp_path: Path) -> None:
    """If a change is meant: `scripts/bench counts --json counts.json && scripts/bench results counts.json`."""
    runs, _ = load()
    rows = [row for run in runs if run.name == "counts" for row in run.rows]
    stored = {(row.case, row.metric): row.value for row in rows if row.case != "bucket" or counts.HAS_BUCKETS}
    assert {(row.case, row.metric): row.value for row in counts.rows(tmp_path)} == pytest.approx(stored, rel=0.02)


def test_a_regression_is_a_change_for_the_worse_beyond_the_noise() -> None:
    def found(*values: float | None, **about: dict[str, object]) -> list[str]:
        rows = tuple(replace(row, value=value) for row, value in zip(OLD.rows, values, strict=True))
        return [line.split(":")[0] for line in regressions(replace(OLD, rows=rows), [OLD], {"train": about})]

    assert found(10.9, 9.1) == found(5.0, 20.0) == []
    assert found(11.1, 8.9) == found(None, 8.9) == ["a m", "a n"]
    assert found(11.1, 8.9, noise={"m": 0.2}) == ["a n"]
    assert found(8.0, 10.0, bars={"a m": ">= 9"}) == ["a m"]  # a bar decides before the unit
    assert not [*regressions(replace(OLD, rows=(Row("b", "m", 99.0, "s"),)), [OLD], {})]
