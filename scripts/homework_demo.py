"""The demo: runs `clawctl up recipes/demo.yaml` with simulated people and draws the results.

Run it with `scripts/demo`, which creates the environment first.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from clawctl.config import load_recipe
from clawctl.inspect.report import write_report
from clawctl.run.directory import RunDir, open_run, published
from clawctl.run.policies import list_versions, live_version

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ROOT / "recipes" / "demo.yaml"
LONGEST_S = 270.0  # a slow machine shows its results so far
PEOPLE = 12


def main() -> None:
    console = Console(stderr=True)
    folder = ROOT / "runs" / time.strftime("demo-%Y%m%d-%H%M%S")
    folder.parent.mkdir(exist_ok=True)
    run = open_run(folder)
    steps = load_recipe(RECIPE).train.max_steps or 0
    console.print(f"{PEOPLE} simulated students and teachers will talk to a small model that learns only from what they say back.")
    with (run.logs / "demo.log").open("wb") as log:
        up = start_process([sys.executable, "-m", "clawctl", "up", str(RECIPE), "--run", str(folder)], log)
        chat = [sys.executable, "-m", "clawctl.extensions.demos.homework.chat", "--run", str(folder)]
        people = start_process([*chat, "--people", str(PEOPLE), "--think-s", "0.3"], log)
        try:
            finished = _watch(run, steps, up, console)
        finally:
            end_process(people)
            end_process(up)
    if not finished:
        raise SystemExit(f"demo: no policy was measured; the stages' log is {run.logs / 'demo.log'}")
    picture, page = write_report(run, folder)
    _show_end(run, picture, page)


def start_process(command: list[str], log: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, start_new_session=True)


def end_process(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.kill(process.pid, signal.SIGINT)
    try:
        process.wait(40)
    except subprocess.TimeoutExpired:
        process.kill()


def _watch(run: RunDir, steps: int, up: subprocess.Popen[bytes], console: Console) -> bool:
    """Show progress until the last version is measured. Returns whether at least one trained version was measured."""
    bar = Progress(TextColumn("updates"), BarColumn(), TextColumn("{task.completed:.0f} of {task.total:.0f}"), TimeElapsedColumn())
    task = bar.add_task("updates", total=steps)
    deadline = time.monotonic() + LONGEST_S
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while time.monotonic() < deadline and up.poll() is None:
            results = measured(run)
            bar.update(task, completed=max(list_versions(run), default=0))
            live.update(Group(_counts(run), versions_table(results, live_version(run)), bar))
            if steps in results:
                break
            time.sleep(0.5)
    if up.poll() not in (None, 0):
        tail = (run.logs / "demo.log").read_text(errors="replace").splitlines()[-5:]
        raise SystemExit("demo: the stages stopped.\n  " + "\n  ".join(tail))
    return any(version > 0 and result["suites"] for version, result in measured(run).items())


def measured(run: RunDir) -> dict[int, dict[str, Any]]:
    """Read eval/<version>.json of each version."""
    return {int(path.stem): json.loads(path.read_bytes()) for path in published(run.eval, ".json") if path.stem.isdigit()}


def _counts(run: RunDir) -> str:
    exchanges = sum(path.read_bytes().count(b"\n") for path in published(run.captures, ".jsonl"))
    shards, judged = len(published(run.trajectories, ".parquet")), len(published(run.verdicts, ".parquet"))
    serving = live_version(run)
    told = f"{exchanges} answers given, {shards} shards of turns collected, {judged} judged"
    return told if serving is None else f"{told}; policy {serving} serves"


def versions_table(results: dict[int, dict[str, Any]], live: int | None) -> Table:
    """One line per measured version."""
    table = Table(
        "policy", "first reply satisfies", "answers correctly", "gate", title="36 new problems per policy, 95 % intervals"
    )
    for version, result in sorted(results.items()):
        suite = result["suites"].get("personalisation")
        if suite is None:  # a newer version was published before this one was measured
            continue
        promote = result.get("decision", {}).get("promote")
        gate = "the start" if version == 0 else {True: "let in", False: "kept out", None: "–"}[promote]
        mark = " (live)" if version == live else ""
        table.add_row(f"{version}{mark}", _share(suite["satisfaction"]), _share(suite["correctness"]), gate)
    return table


def _share(measure: dict[str, Any]) -> str:
    low, high = measure["ci95"]
    return f"{measure['mean']:.2f}  [{low:.2f}, {high:.2f}]"


def _show_end(run: RunDir, picture: Path, page: Path) -> None:
    out = Console()
    results = measured(run)
    out.print(versions_table(results, live_version(run)))
    root = run.root.relative_to(ROOT) if run.root.is_relative_to(ROOT) else run.root
    out.print(f"\nPicture  {picture}\nPage     {page}\nRun      {run.root}\n\nLook closer:", highlight=False, soft_wrap=True)
    for command in ("inspect policies", "inspect sessions", "inspect turns"):
        out.print(f"  .venv/bin/clawctl {command} --run {root}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
