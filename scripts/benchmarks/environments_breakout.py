"""How many attempts to leave the sandbox succeed: files, network, processes, memory, disk, /proc, signals and more."""

import argparse
import asyncio
from pathlib import Path

from clawctl.environments.sandbox.probe import break_out
from scripts.benchmarks.table import Row


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    rounds = [asyncio.run(break_out()) for _ in range(1 if options.quick else 5)]
    found = [Row(f"breakout {name}", "escaped", float(sum(each[name] for each in rounds)), "number") for name in rounds[0]]
    return [*found, Row("breakout", "rounds", len(rounds), "number")]
