"""Results of benchmarks: which are kept, and how the page shows them."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.benchmarks import results
from scripts.benchmarks.environments import missed_bars
from scripts.benchmarks.results import Run, add, page
from scripts.benchmarks.table import Row, report

OLD = Run("train", "a machine", "abc", "2026-01-01", "scripts/bench train", (Row("a", "m", 1.0, "s"), Row("b", "m", 2.0, "s")))


def test_a_row_replaces_the_row_of_the_same_benchmark_case_and_metric_and_no_other() -> None:
    new = replace(OLD, date="2026-02-02", rows=(Row("b", "m", 3.0, "s"), Row("b", "n", 4.0, "s")))
    assert add([OLD], new) == [replace(OLD, rows=OLD.rows[:1]), new]
    assert add([OLD], replace(OLD, date="2026-02-02")) == [replace(OLD, date="2026-02-02")]
    other = replace(OLD, name="serve")
    assert add([OLD], other) == [OLD, other]


def test_a_benchmark_and_the_page_have_the_same_bars() -> None:
    rows = [
        Row("learn gui", "new_words", 0.5, "reward"),
        Row("learn gui", "paraphrased", 0.5, "reward"),
        Row("oracle swe", "score", 0.9, ""),
    ]
    assert missed_bars(rows) == ["learn gui new_words = 0.5", "oracle swe score = 0.9"]
    assert missed_bars([Row("noop swe", "score", None, "")]) == ["noop swe score = missing"]


def test_the_page_marks_a_missed_bar_and_names_the_run_of_a_figure() -> None:
    text = page([OLD], {"train": {"measures": "Speed.", "bars": {"m": "<= 1", "b m": ">= 2.5"}}})
    assert "| a | `m` | 1 s | ≤ 1 | 1 |" in text
    assert "| b | `m` | 2 s | ≥ 2.5, **missed** | 1 |" in text
    assert "| 1 | `scripts/bench train` | a machine | abc, 2026-01-01 |" in text


def test_what_a_benchmark_writes_can_be_added_and_the_file_reads_back(tmp_path: Path) -> None:
    report("train", [Row("a", "m", None, "s")], tmp_path / "run.json")
    run = Run.read(json.loads((tmp_path / "run.json").read_text()))
    assert (run.name, run.rows) == ("train", (Row("a", "m", None, "s"),))
    assert [Run.read(data) for data in json.loads(results.write([OLD, run]))] == [OLD, run]


def test_each_kept_run_is_of_a_benchmark_on_the_page() -> None:
    runs, benchmarks = results.load()
    assert {run.name for run in runs} <= benchmarks.keys()


@pytest.mark.parametrize(
    ("module", "start"),
    [("gate", "scripts/bench gate"), ("gate_part", "python -m scripts.benchmarks.gate_part"), ("gates", "scripts/bench gate")],
)
def test_a_result_names_the_command_that_repeats_it(tmp_path: Path, module: str, start: str) -> None:
    package, file = tmp_path / "scripts" / "benchmarks", tmp_path / "out.json"
    package.mkdir(parents=True)
    (package / "table.py").write_bytes(Path(results.FOLDER / "table.py").read_bytes())
    (package / f"{module}.py").write_text(
        "from pathlib import Path\nfrom scripts.benchmarks.table import report\nreport('gate', [], Path('out.json'))\n"
    )
    subprocess.run([sys.executable, "-m", f"scripts.benchmarks.{module}"], cwd=tmp_path, check=True, capture_output=True)
    assert json.loads(file.read_text())["command"] == start
