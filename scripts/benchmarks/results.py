"""Keeps results of benchmarks: adds runs to results.json and writes docs/benchmarks.md.

    scripts/bench train --json train.json
    scripts/bench results train.json        # without a file: only write the page

A row replaces an earlier one of the same benchmark, case and metric. `bars.yaml` has what each benchmark measures, and its bars.
"""

import argparse
import json
import operator
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from scripts.benchmarks.table import Row

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "benchmarks.md"
_OPERATORS = {">=": operator.ge, "<=": operator.le}
_UNITS = {"ratio": "", "share": "", "1/s": " / s", "us": " µs"}
_SIGNS = {">=": "≥", "<=": "≤"}
_HEAD = """# Benchmarks

`scripts/bench NAME [--quick]` runs a benchmark beside its baseline and prints a table. `--quick` keeps every row and ends within
minutes; it checks that the benchmark works, and its figures are not representative. A *bar* is the value that a metric should
reach. Timings depend on the machine and on what else it does, so each table names the run of every figure.

This page is generated. `scripts/bench NAME --json FILE` followed by `scripts/bench results FILE` replaces its figures by those of
your run. [The notebook](../scripts/benchmarks/NOTES.md) has the details: how each case works, what was tried, and what earlier
runs gave. The commit of a figure is the one that was measured, or the one that recorded it if it is older than 26 November 2026.
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a benchmark, as `--json` writes it."""

    name: str
    machine: str
    commit: str
    date: str
    command: str
    rows: tuple[Row, ...]
    note: str = ""  # "beside other work"

    @classmethod
    def read(cls, data: dict[str, Any]) -> "Run":
        return cls(**{**data, "rows": tuple(Row(**row) for row in data["rows"])})


def add(runs: list[Run], new: Run) -> list[Run]:
    """All runs after `new`. A run without rows that still count is dropped."""
    replaced = {(row.case, row.metric) for row in new.rows}
    kept = []
    for run in runs:
        rows = tuple(row for row in run.rows if run.name != new.name or (row.case, row.metric) not in replaced)
        kept += [Run(**{**_fields(run), "rows": rows})] if rows else []
    return [*kept, new]


def _fields(run: Run) -> dict[str, Any]:
    return {name: getattr(run, name) for name in Run.__dataclass_fields__}


def page(runs: list[Run], benchmarks: dict[str, Any]) -> str:
    """docs/benchmarks.md."""
    lines = [_HEAD]
    for name, about in benchmarks.items():
        lines += [f"## {name}\n", about["measures"].strip(), ""]
        lines += [*_tables([run for run in runs if run.name == name], about.get("bars", {})), ""]
    return "\n".join(lines).rstrip() + "\n"


def _tables(runs: list[Run], bars: dict[str, str]) -> Iterator[str]:
    if not runs:
        return
    yield from ("| case | metric | figure | bar | run |", "|---|---|---|---|---|")
    for number, run in enumerate(runs, 1):
        for row in run.rows:
            bar = bar_of(bars, row)
            unit = _UNITS.get(row.unit, f" {row.unit}")
            figure = "not measured" if row.value is None else f"{row.value:,.4g}{unit}"
            yield f"| {row.case} | `{row.metric}` | {figure} | {_bar(bar, row.value)} | {number} |"
    yield from ("", "| run | command | machine | commit, date | note |", "|---|---|---|---|---|")
    for number, run in enumerate(runs, 1):
        yield f"| {number} | `{run.command}` | {run.machine} | {run.commit}, {run.date} | {run.note} |"


def bar_of(bars: dict[str, str], row: Row) -> str:
    """The bar of a row: by case and metric, `oracle * score` for all cases that begin so, or by metric. "" if it has none."""
    names = (f"{row.case} {row.metric}", f"{row.case.split()[0]} * {row.metric}", row.metric)
    return next((bars[name] for name in names if name in bars), "")


def is_missed(bar: str, value: float) -> bool:
    sign, limit = bar.split()
    return not _OPERATORS[sign](value, float(limit))


def _bar(bar: str, value: float | None) -> str:
    """`≥ 15`, or `≥ 15, **missed**`."""
    if not bar:
        return ""
    sign, limit = bar.split()
    return f"{_SIGNS[sign]} {limit}" + ", **missed**" * (value is not None and is_missed(bar, value))


def load() -> tuple[list[Run], dict[str, Any]]:
    runs = [Run.read(run) for run in json.loads((FOLDER / "results.json").read_text())]
    return runs, yaml.safe_load((FOLDER / "bars.yaml").read_text())


def write(runs: list[Run]) -> str:
    """results.json: a run starts a line, and so does each of its rows."""
    texts = []
    for run in runs:
        data = asdict(run)
        rows = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in data.pop("rows"))
        texts.append(json.dumps(data, ensure_ascii=False)[:-1] + f', "rows": [\n  {rows}]}}')
    return "[\n" + ",\n".join(texts) + "\n]\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="runs, as --json of a benchmark wrote them")
    parser.add_argument("--note", default="", help="what a reader has to know about them: 'beside other work'")
    options = parser.parse_args()
    runs, benchmarks = load()
    for file in options.files:
        runs = add(runs, Run.read({**json.loads(file.read_text()), "note": options.note}))
    (FOLDER / "results.json").write_text(write(runs))
    PAGE.write_text(page(runs, benchmarks))


if __name__ == "__main__":
    main()
