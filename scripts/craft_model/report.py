"""Measures the `crafts` model in the real environments before any reinforcement, and writes its card.

python -m scripts.craft_model.report --model DIR [--tasks 48]
"""

import argparse
import math
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml
from safetensors import safe_open

from clawctl.run.directory import open_run
from clawctl.run.feedback import Ratings
from clawctl.run.outcomes import SessionOutcome
from scripts.benchmarks.circle import ROOT, running, wait_until
from scripts.benchmarks.environments_learn import begun_before
from scripts.craft_model.copying import accuracy, load

KINDS = ("toolcall", "terminal", "swe")
CARD = """# The model of the crafts

A very small language model ({millions:.1f} M weights, Qwen3 architecture, bf16, byte-level BPE) that knows the tasks of `toolcall`,
`terminal` and `swe` weakly. It exists so that `scripts/bench environments --case learn` and `recipes/craft-*.yaml` can show
reinforcement on two CPU cores. It is trained from nothing on a seeded, synthetic corpus (`scripts/make-craft-model`): drills in
copying, and demonstrations of which about three in ten solve their task. It knows no other world, and should be used for nothing
else. Licence: Apache-2.0, as clawctl.

Each fault of a demonstration is a choice out of a small closed set: a guess instead of a tool call, no answer after a result, an
end without a command, or one of four or five wrong forms of the command. What a demonstration copies from its task is exact.

## Measured before reinforcement

Eight attempts at each of {tasks} training tasks, sampled at temperature 1, in the real sandboxes, by
`scripts/craft_model/report.py`. The demonstrations come from the same generators of tasks; held-out tasks were not among them.

| environment | mean reward | pass@8 | lowest kind of task |
|---|---|---|---|
{table}

The share of new episodes in which each word, number and key that is copied from the task or from a result is exact, by
`scripts/craft_model/copying.py`. It bounds what reinforcement can reach if it changes choices alone.

| environment | greedy | at temperature 1 |
|---|---|---|
{copies}

## Weak points

- The fourteen functions of `swe` and the six kinds of tasks of `terminal` are the same in demonstrations, training and held-out
  tasks.
- Every wrong choice was designed, and each has a right one beside it. What reinforcement can do with this model is to select among
  behaviours that it was shown.
"""


def measured(model: Path, kind: str, tasks: int, folder: Path) -> str:
    """Measure one environment and return its row."""
    recipe: dict[str, Any] = yaml.safe_load((ROOT / "recipes" / f"craft-{kind}.yaml").read_text())
    recipe["model"]["path"] = str(model.resolve())
    recipe["up"]["stages"] = ["serve", "play"]
    recipe["play"] |= {"tasks": tasks, "seed": 1_000}
    folder.mkdir()
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    with running(folder / "run", folder / "recipe.yaml") as up:
        run = open_run(folder / "run")
        wait_until(lambda: begun_before(run, math.inf)["groups"] >= tasks, 3600, "the tasks were not played", up)
        solved = begun_before(run, math.inf)["solved"]
    of_kind: dict[str, list[float]] = defaultdict(list)
    for outcome in Ratings(run).read():
        if isinstance(outcome, SessionOutcome) and outcome.episode is not None and outcome.reward is not None:
            of_kind[outcome.episode["task_id"].split("-")[0]].append(outcome.reward)
    mean = statistics.fmean(reward for some in of_kind.values() for reward in some)
    name, some = min(of_kind.items(), key=lambda one: statistics.fmean(one[1]))
    lowest = f"{name} {statistics.fmean(some):.2f}" if len(of_kind) > 1 else "–"
    return f"| `{kind}` | {mean:.2f} | {solved:.2f} | {lowest} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tasks", type=int, default=48)
    args = parser.parse_args()
    began, lines = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="clawctl-crafts-") as folder:
        for kind in KINDS:
            lines.append(measured(args.model, kind, args.tasks, Path(folder) / kind))
            print(lines[-1], flush=True)
    with safe_open(args.model / "model.safetensors", "pt") as weights:
        millions = sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys()) / 1e6  # noqa: SIM118
    copies = []
    for kind in KINDS:
        greedy, sampled = accuracy(*load(args.model), kind, 300)
        copies.append(f"| `{kind}` | {greedy:.3f} | {sampled:.3f} |")
        print(copies[-1], flush=True)
    card = CARD.format(millions=millions, tasks=args.tasks, table="\n".join(lines), copies="\n".join(copies))
    (args.model / "README.md").write_text(card)
    print(f"wrote {args.model / 'README.md'} after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
