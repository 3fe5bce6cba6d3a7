"""Compares a run with the stored results: `scripts/bench NAME --json FILE`, then `scripts/bench compare FILE`.

A figure that is worse by more than its noise is a regression, and the exit code is 1. The noise is 10 % of the stored figure, or
the share that `bars.yaml` has for the metric under `noise`. A bar decides which way is better, otherwise the unit; without either,
any change counts. Timings can be compared on the same machine at the same load only.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.benchmarks.results import Run, load
from scripts.benchmarks.table import Row

NOISE = 0.1
_SMALLER_IS_BETTER = {"s", "ms", "us", "µs", "MB", "MiB", "GB", "kB", "KB", "bytes", "CPU seconds", "nats"}
_LARGER_IS_BETTER = {"1/s", "1/min", "turns/s"}


def regressions(new: Run, runs: list[Run], benchmarks: dict[str, Any], noise: float = NOISE) -> Iterator[str]:
    """A line for each figure of `new` that is worse than the stored one by more than its noise."""
    about = benchmarks.get(new.name, {})
    stored = {(row.case, row.metric): row.value for run in runs if run.name == new.name for row in run.rows}
    for row in new.rows:
        before = stored.get((row.case, row.metric))
        if before is None:
            continue
        bar = about.get("bars", {}).get(f"{row.case} {row.metric}", about.get("bars", {}).get(row.metric, ""))
        allowed = about.get("noise", {}).get(row.metric, noise) * abs(before)
        if row.value is None or _worse(row, before, bar) > allowed + 1e-12:
            yield f"{row.case} {row.metric}: {before:.6g} before, {row.value} now ({row.unit})"


def _worse(row: Row, before: float, bar: str) -> float:
    """By how much a figure is worse than before."""
    assert row.value is not None
    change = row.value - before
    if bar:
        return change if bar.startswith("<=") else -change
    return change if row.unit in _SMALLER_IS_BETTER else -change if row.unit in _LARGER_IS_BETTER else abs(change)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="runs, as --json of a benchmark wrote them")
    options = parser.parse_args()
    runs, benchmarks = load()
    new = [Run.read(json.loads(file.read_text())) for file in options.files]
    if problems := [f"{run.name}: {line}" for run in new for line in regressions(run, runs, benchmarks)]:
        raise SystemExit("\n".join(problems))
    print("no figure is worse than the stored one by more than its noise")


if __name__ == "__main__":
    main()
