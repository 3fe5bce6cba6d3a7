"""The score of tasks without any action. A mean above 0 means that a verdict rewards doing nothing."""

import argparse
from pathlib import Path

from scripts.benchmarks.environments_oracle import score_rows
from scripts.benchmarks.table import Row


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    return score_rows("noop", "", options)
