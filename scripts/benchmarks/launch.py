"""`clawctl up --on`: runs the stages as jobs of a real scheduler with two nodes, and kills workers.

Case `slurm`: a Slurm cluster of two nodes on this machine (Debian's slurm-wlm and munge, as root). Case `ray`: a Ray cluster of two
nodes on this machine (`pip install 'clawctl[ray]'`). In both cases, serve runs on one node, collect on the other, judges on any
node, and the trainer on both. Clients send requests throughout. Afterwards, every answer that they received must be in the run.
Case `sky`: SkyPilot itself reads the rendered tasks, in the separate environment `.venv-sky`, which is created on first use.

If `lost_turns` or `trained_twice` is not zero, the exit code is 1.
"""

import argparse
import importlib
import random
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clawctl.run.directory import RunDir, open_run
from clawctl.run.policies import list_versions
from scripts.benchmarks.chaos_audit import Watcher, audit
from scripts.benchmarks.chaos_kill import RECIPE, Crowd, has_drained
from scripts.benchmarks.circle import CLAWCTL, write_recipe
from scripts.benchmarks.table import Row, make_parser, report

CASES = {"slurm": "launch_slurm", "ray": "launch_ray", "sky": "launch_sky"}
NEVER = ("lost_turns", "trained_twice", "refused_tasks")
ROUNDS, QUICK_ROUNDS = 20, 4
_PATIENCE_S = 240.0
STAGES = ["serve", "collect", "judge", "train"]


def main() -> None:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--case", action="append", choices=CASES, help="this one only; may be repeated")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="who is killed, and what clients say")
    parser.add_argument("--rounds", type=int, help=f"kills in each case, instead of {ROUNDS}")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave what the cases made here")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    rows: list[Row] = []
    for case in options.case or CASES:
        module: Any = importlib.import_module(f"scripts.benchmarks.{CASES[case]}")
        with tempfile.TemporaryDirectory(prefix="clawctl-launch-") as temporary:
            folder = options.keep / case if options.keep else Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            rows += module.rows(options, folder)
    report("launch", rows, options.json)
    if broken := [f"{row.case} {row.metric} = {row.value:g}" for row in rows if row.metric in NEVER and row.value]:
        raise SystemExit(f"not kept: {', '.join(broken)}")


def recipe_of(folder: Path, port: int, machines: dict[str, Any]) -> Path:
    """Write the recipe `circle` for two nodes, with small steps, no deletion, and the trainer on both nodes."""
    changes = {"serve": {"host": "0.0.0.0", "port": port}, "up": {"stages": STAGES}, "machines": machines}
    return write_recipe(folder, RECIPE | changes)


def killed_under_load(
    case: str,
    folder: Path,
    recipe: Path,
    options: argparse.Namespace,
    env: dict[str, str],
    kill: Callable[[random.Random], str],
    starts: Callable[[RunDir], int],
) -> list[Row]:
    """Submit the jobs, run clients, call `kill` in each round, and audit the run. `starts` counts the starts of all jobs."""
    run, began = open_run(folder / "run"), time.monotonic()
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    clawctl(env, "up", str(recipe), "--run", str(run.root), *on(case), "--detach")
    watcher = Watcher(run)
    learned = drained = False
    try:
        _wait(lambda: run.server.exists(), "the server is registered", run)
        print(f"serve is up after {time.monotonic() - began:.0f} s", flush=True)
        watcher.start()
        crowd, dice = Crowd(run, recipe, options.seed, 4), random.Random(f"launch {options.seed}")
        _wait(lambda: newest(run) > 0, "the first version", run)
        for number in range(1, rounds + 1):
            what, before = kill(dice), len(crowd.answered)
            _wait(lambda before=before: len(crowd.answered) > before + 5, "answers after a kill", run)  # type: ignore[misc]
            print(f"round {number}/{rounds} after {time.monotonic() - began:.0f} s: {what}; {before} answered, "
                  f"version {newest(run)}", flush=True)  # fmt: skip
        version = newest(run)
        _wait(lambda: newest(run) > version, "a version after the last kill", run)
        learned = True
        crowd.end()
        _wait(lambda: has_drained(run), "every captured turn has its row and its verdict", run)
        drained = True
    finally:
        count = starts(run)
        clawctl(env, "up", "--stop", "--run", str(run.root))
    watcher.end()
    # Without the trainer's logs: torchrun prints a traceback if the trainer's other node was killed.
    logs = sorted(path for path in run.job_output.iterdir() if not path.name.startswith("train"))
    counts = audit(run, crowd.answered, crowd.rated, logs)
    for name in ("lost", "doubled", "altered", "lost_ratings", "unjudged", "trained_twice", "inconsistent_steps", "complaints"):
        for problem in getattr(counts, name)[:10]:
            print(f"{name}: {problem}", flush=True)
    values = {
        "rounds": (rounds, "kills by the scheduler"),
        "starts": (count, "of the jobs' workers"),
        "answered": (len(crowd.answered), "turns"),
        "lost_turns": (len(counts.lost), "turns"),
        "doubled_turns": (len(counts.doubled), "turns"),
        "altered_turns": (len(counts.altered), "turns"),
        "lost_ratings": (len(counts.lost_ratings), "ratings"),
        "trained": (counts.trained, "turns"),
        "trained_twice": (len(counts.trained_twice), "turns"),
        "half_files_read": (len(watcher.half) + len(counts.quarantined) + len(counts.complaints), "files"),
        "inconsistent_steps": (len(counts.inconsistent_steps), "steps"),
        "longest_silence_s": (crowd.longest_silence_s, "s"),
        "learned_afterwards": (float(learned), "yes or no"),
        "drained": (float(drained), "yes or no"),
        "wall_s": (time.monotonic() - began, "s"),
    }
    return [Row(case, metric, float(value), unit) for metric, (value, unit) in values.items()]


def on(case: str) -> list[str]:
    return ["--on", case]


def clawctl(env: dict[str, str], *options: str) -> None:
    done = subprocess.run([*CLAWCTL, *options], env=env, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise SystemExit(f"clawctl {options[0]} ended with code {done.returncode}: {done.stderr[-2000:]}")


def newest(run: RunDir) -> int:
    return max(list_versions(run), default=0)


def _wait(condition: Callable[[], bool], what: str, run: RunDir) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            logs = "\n".join(f"{file.name}: {file.read_text(errors='replace')[-1500:]}" for file in run.job_output.iterdir())
            raise SystemExit(f"not within {_PATIENCE_S:.0f} s: {what}\n{logs}")
        time.sleep(0.5)


if __name__ == "__main__":
    main()
