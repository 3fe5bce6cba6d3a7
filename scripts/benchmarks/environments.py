"""Checks the built-in environments: the sandbox is secure, and verdicts are correct and cannot be forged.

Cases: `oracle` and `noop` (the score of each kind's tasks with their solution, and without any action), `answers` (which
written answers are right), `cheats` (the best score that an agent gets by attacking its verdict), `idioms` (modules that solve
nothing, under twenty idioms of tests), `scripts` (attacks on fourteen styles of `test.sh`), `foreign` (tasks in the formats of
others: each is playable, or refused for a true reason), `steps` (rewards of single turns, from the environment to the shard),
`changed_code` (whether episodes are played again after each kind of change to an environment's code), `breakout` (how many
attempts to leave the sandbox succeed), `faults` (how failed episodes affect the others), `kill` (outcomes after a SIGKILL of
any process), `load` (many concurrent episodes), `harness` (Codex, Claude Code and mini-swe-agent in the sandbox) and `learn`
(whether reinforcement improves a policy on held-out tasks).
NOTES.md describes the metrics; bars.yaml has the bars, and docs/benchmarks.md the last results.

The exit code is 1 if a metric misses its bar.
"""

import argparse
import importlib
import tempfile
from pathlib import Path
from typing import Any

from scripts.benchmarks.environments_learn import KINDS, VARIANTS
from scripts.benchmarks.results import bar_of, is_missed, load
from scripts.benchmarks.table import Row, make_parser, report

# environments_NAME.rows(options, folder)
CASES = (
    "oracle", "noop", "answers", "cheats", "idioms", "scripts", "foreign", "steps", "changed_code", "breakout", "faults", "kill",
    "load", "harness", "learn", "pretrained",
)  # fmt: skip


def main() -> None:
    options = read_options()
    rows = [row for case in options.case or CASES for row in measure(case, options)]
    report("environments", rows, options.json)
    missed = missed_bars(rows)
    if missed:
        raise SystemExit(f"bars missed: {', '.join(missed)}")


def read_options() -> argparse.Namespace:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--case", action="append", choices=CASES, help="run this case only; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="seed of the tasks that are drawn")
    parser.add_argument("--kind", action="append", choices=KINDS, help="`learn`: this kind of task only; may be repeated")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="`learn`: these rewards only; may be repeated")
    parser.add_argument("--seeds", type=int, default=3, help="`learn`: runs of each kind and variant")
    parser.add_argument("--runs", type=Path, help="`learn`: a file with finished runs, which are not repeated")
    return parser.parse_args()


def measure(case: str, options: argparse.Namespace) -> list[Row]:
    module: Any = importlib.import_module(f"scripts.benchmarks.environments_{case}")
    with tempfile.TemporaryDirectory(prefix="clawctl-environments-") as folder:
        rows: list[Row] = module.rows(options, Path(folder))
    return rows


def missed_bars(rows: list[Row]) -> list[str]:
    """The rows that miss their bar in bars.yaml."""
    bars = load()[1]["environments"]["bars"]
    missed = [row for row in rows if (bar := bar_of(bars, row)) and (row.value is None or is_missed(bar, row.value))]
    return [f"{row.case} {row.metric} = {'missing' if row.value is None else f'{row.value:.4g}'}" for row in missed]


if __name__ == "__main__":
    main()
