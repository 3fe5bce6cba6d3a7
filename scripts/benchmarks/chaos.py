"""Measures whether a run survives killed workers, full disks, damaged files, jumping clocks and a week's load at once.

Case `kill`: in each round, one or all stages are killed by SIGKILL at a random moment under load. Afterwards, every answer that a
client received must be in the run. Case `people`: the same while people have policies and notes of their own, notes are practised,
and training happens in the gaps. Case `million`: a million short turns pass through collect, judge and the trainer's intake.
Case `refusals`: updates are refused and rolled back at random while stages are killed.
Case `disk-full`: the disk of all stages is filled. Case `damage`: each kind of file has a flipped bit or is cut short.
Case `clocks`: the clocks of the hosts jump. docs/reliability.md describes the metrics and the results.

With `--storage s3` there is one case: a run in an unreliable object store, on hosts that share nothing else.

If `lost_turns`, `trained_twice`, `trained_others_turns`, `half_files_read` or `built_on_refused` is not zero, the exit code is 1.
"""

import argparse
import importlib
import random
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from scripts.benchmarks.table import Row, make_parser, report

CASES = {  # case: the module whose rows(options, folder) measures it in a separate folder
    "kill": "chaos_kill",
    "people": "chaos_people",
    "disk-full": "chaos_disk",
    "damage": "chaos_damage",
    "clocks": "chaos_clocks",
    "refusals": "chaos_refusals",
    "million": "chaos_million",
}
NEVER = ("lost_turns", "trained_twice", "trained_others_turns", "half_files_read", "built_on_refused")  # metrics that must be zero


def main() -> None:
    options = read_options()
    print(f"seed {options.seed}", flush=True)
    cases = ["bucket"] if options.storage == "s3" else options.case or CASES
    rows = [row for case in cases for row in rows_of(case, options)]
    report("chaos", rows, options.json)
    broken = broken_laws(rows)
    if broken:
        raise SystemExit(f"not kept: {', '.join(broken)}")


def read_options() -> argparse.Namespace:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--case", action="append", choices=CASES, help="this one only; may be repeated")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="who is killed and how, and what clients say")
    parser.add_argument("--rounds", type=int, help="kills of the case `kill`, instead of 200")
    parser.add_argument("--turns", type=int, help="turns of the case `million`, instead of 1,000,000")
    parser.add_argument("--storage", choices=["disk", "s3"], default="disk", help="s3: a run in an object store, and no other case")
    parser.add_argument(
        "--store", choices=["moto", "weed"], default="moto", help="with --storage s3: the program (weed: SeaweedFS)"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave what the cases made here, one folder a case")
    return parser.parse_args()


def rows_of(case: str, options: argparse.Namespace) -> list[Row]:
    module: Any = importlib.import_module(f"scripts.benchmarks.{CASES.get(case, 'chaos_bucket')}")
    with ExitStack() as leaving:
        kept = options.keep and options.keep / case
        folder = kept or Path(leaving.enter_context(tempfile.TemporaryDirectory(prefix="clawctl-chaos-")))
        folder.mkdir(parents=True, exist_ok=True)
        rows: list[Row] = module.rows(options, folder)
    return rows


def broken_laws(rows: list[Row]) -> list[str]:
    """Return the cases and metrics of `NEVER` that are not zero."""
    return [f"{row.case} {row.metric} = {row.value:g}" for row in rows if row.metric in NEVER and row.value]


if __name__ == "__main__":
    main()
