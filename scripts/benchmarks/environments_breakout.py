"""Counts successful attempts to leave each kind of sandbox that works here: files, network, processes, memory, disk and more."""

import argparse
import asyncio
from pathlib import Path

from clawctl.errors import ClawError
from clawctl.extensions.worlds.sandbox.kinds import testable_kinds
from clawctl.extensions.worlds.sandbox.probe import attempt_escapes
from scripts.benchmarks.table import Row


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    times, rows = 1 if options.quick else 5, []
    for kind in testable_kinds():
        try:
            kind.prepare()
            rounds = [asyncio.run(attempt_escapes(kind)) for _ in range(times)]
        except ClawError as error:  # it is installed but does not work
            if kind.name == "bubblewrap":
                raise
            print(f"{kind.name} is left out: {error.problem}")
            continue
        case = f"breakout {kind.name}"
        rows += [Row(f"{case} {name}", "escaped", float(sum(counts[name] for counts in rounds)), "number") for name in rounds[0]]
    return [*rows, Row("breakout", "rounds", times, "number")]
