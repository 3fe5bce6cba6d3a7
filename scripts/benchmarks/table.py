"""The result format of all benchmarks: a printed table, and JSON for scripts."""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    case: str  # "combine@8"
    metric: str  # "satisfaction"
    value: float | None  # None: too few runs to measure it
    unit: str  # "share"


def arguments(description: str) -> argparse.Namespace:
    return make_parser(description).parse_args()


def make_parser(description: str) -> argparse.ArgumentParser:
    """Make a parser with --quick and --json, which all benchmarks accept."""
    parser = _Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check-options", action="store_true", help="end after the options were read")
    parser.add_argument("--quick", action="store_true", help="end within three minutes, keep every row")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here as well")
    return parser


def names_among(allowed: Collection[str]) -> Callable[[str], list[str]]:
    """Make the type of an option that chooses some of these names, separated by commas."""

    def names(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := [name for name in chosen if name not in allowed]:
            raise argparse.ArgumentTypeError(f"there is no {', '.join(unknown)}; choose from {', '.join(allowed)}")
        return chosen

    return names


class _Parser(argparse.ArgumentParser):
    def parse_args(self, *arguments: Any, **more: Any) -> argparse.Namespace:  # type: ignore[override]
        options: argparse.Namespace = super().parse_args(*arguments, **more)
        if options.check_options:
            raise SystemExit(0)
        return options


def _program(name: str) -> list[str]:
    """How the running benchmark was started: a part of one has a module of its own, which `scripts/bench` does not name."""
    module = getattr(sys.modules["__main__"].__spec__, "name", "")
    is_part = module.startswith(f"scripts.benchmarks.{name}_")
    return ["python", "-m", module] if is_part else ["scripts/bench", name]


def report(name: str, rows: list[Row], file: Path | None) -> None:
    """Print the rows as a table and write them to `file` if one is given."""
    table = Table("case", "metric", "value", "unit", title=f"{name} on {machine()}")
    for row in rows:
        table.add_row(row.case, row.metric, "–" if row.value is None else f"{row.value:.4g}", row.unit)
    Console().print(table)
    if file is not None:
        # no folder of this machine
        given = [Path(argument).name if argument.startswith("/") else argument for argument in sys.argv[1:]]
        command = shlex.join([*_program(name), *given])
        about = {"name": name, "machine": machine(), "commit": commit(), "date": date.today().isoformat(), "command": command}
        result = {**about, "rows": [asdict(row) for row in rows]}
        file.write_text(json.dumps(result, indent=1) + "\n")


def commit() -> str:
    """The checkout's commit: "bc5bc05c", or "bc5bc05c, changed"."""
    done = subprocess.run(
        ["git", "describe", "--always", "--exclude=*", "--abbrev=8", "--dirty=, changed"], capture_output=True, text=True
    )
    return done.stdout.strip() or "unknown"


def machine() -> str:
    """Describe the machine of the measurement."""
    try:
        cpu = next(line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line)
    except (OSError, StopIteration):
        cpu = platform.processor() or platform.machine()
    return f"{len(os.sched_getaffinity(0))} cores of {cpu}, Python {platform.python_version()}"
