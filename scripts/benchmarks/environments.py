"""Checks the built-in environments: the sandbox is secure, and verdicts are correct and cannot be forged.

Cases: `oracle` and `noop` (the score of each kind's tasks with their solution, and without any action), `answers` (which
written answers are right), `cheats` (the best score that an agent gets by attacking its verdict), `idioms` (modules that solve
nothing, under twenty idioms of tests), `scripts` (attacks on fourteen styles of `test.sh`), `foreign` (tasks in the formats of
others: each is playable, or refused for a true reason), `steps` (rewards of single turns, from the environment to the shard),
`changed_code` (whether episodes are played again after each kind of change to an environment's code), `breakout` (how many
attempts to leave the sandbox succeed), `faults` (how failed episodes affect the others), `kill` (outcomes after a SIGKILL of
any process), `load` (many concurrent episodes), `harness` (Codex, Claude Code and mini-swe-agent in the sandbox) and `learn`
(whether reinforcement improves a policy on held-out tasks).
NOTES.md describes the metrics; docs/benchmarks.md has the bars and the last results.

The exit code is 1 if a metric misses its bar.
"""

import argparse
import importlib
import tempfile
from pathlib import Path
from typing import Any

from clawctl.extensions.worlds.gui.sites import SPOT_BOXES
from scripts.benchmarks.environments_learn import KINDS, VARIANTS
from scripts.benchmarks.environments_pretrained import TRAINED
from scripts.benchmarks.table import Row, make_parser, report

# environments_NAME.rows(options, folder)
CASES = (
    "oracle", "noop", "answers", "cheats", "idioms", "scripts", "foreign", "steps", "changed_code", "breakout", "faults", "kill",
    "load", "harness", "learn", "pretrained",
)  # fmt: skip
BARS = {  # metric of a case: the smallest and largest values that pass
    ("oracle", "score"): (1.0, 1.0),
    ("noop", "score"): (0.0, 0.0),
    ("answers", "equivalent_found"): (0.98, 1.0),
    ("answers", "different_accepted"): (0.0, 0.0),
    ("cheats", "score_max"): (0.0, 0.0),
    ("idioms", "forged_share"): (0.0, 0.0),
    ("idioms", "honest_refused"): (0.0, 0.05),
    ("scripts", "forged_share"): (0.0, 0.0),
    ("scripts", "honest_lost"): (0.0, 0.0),
    ("foreign", "playable_or_refused_with_true_reason"): (1.0, 1.0),
    ("steps", "rewarded_turns_with_reward"): (1.0, 1.0),
    ("steps", "other_turns_with_reward"): (0.0, 0.0),
    ("changed_code", "replayed_share"): (1.0, 1.0),
    ("changed_code", "replayed_without_change"): (0.0, 0.0),
    ("breakout", "escaped"): (0.0, 0.0),
    ("faults", "advantage_change"): (0.0, 1e-9),
    ("kill", "lost_outcomes"): (0.0, 0.0),
    ("kill", "doubled_outcomes"): (0.0, 0.0),
    ("load", "refused_requests"): (0.0, 0.0),
    ("harness", "score"): (1.0, 1.0),
    ("harness", "trainable"): (1.0, 1.0),
    ("load", "environment_share"): (0.0, 0.4),
    ("learn toolcall", "reward_start"): (0.0, 0.35),
    ("learn toolcall", "reward_heldout"): (0.85, 1.0),
    ("learn terminal", "reward_start"): (0.0, 0.35),
    ("learn terminal", "reward_heldout"): (0.85, 1.0),
    ("learn swe", "reward_heldout"): (0.80, 1.0),
    ("learn gui", "reward_heldout"): (0.60, 1.0),
    ("learn gui-vision", "reward_heldout"): (3 / SPOT_BOXES, 1.0),  # three times what a policy that sees no colours gets
    ("learn gui-vision", "reward_ratio"): (3.0, 1000.0),
    **{(f"learn {kind} smollm2", "gain"): (0.15, 1.0) for kind in TRAINED},
    **{(f"learn {kind}", "pass_at_8_before"): (0.5, 1.0) for kind in KINDS},
    **{(f"learn {kind} shuffled", "reward_change"): (-1.0, 0.05) for kind in KINDS},
}


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
    """Return the missed bars. A row such as `oracle terminal` has its own bars or the bars of its case `oracle`."""
    missed = []
    for row in rows:
        bar = BARS.get((row.case, row.metric)) or BARS.get((row.case.split()[0], row.metric))
        if bar is not None and (row.value is None or not bar[0] <= row.value <= bar[1]):
            missed.append(f"{row.case} {row.metric} = {'missing' if row.value is None else f'{row.value:.4g}'}")
    return missed


if __name__ == "__main__":
    main()
