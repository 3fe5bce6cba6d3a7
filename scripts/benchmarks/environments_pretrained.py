"""Case `pretrained`: the reward of SmolLM2-135M-Instruct as it is, with solved tasks in its prompt, and after training.

A run is `clawctl up recipes/smollm2-KIND.yaml` in a new run directory, until the last update. `as_it_is` is measured without solved
tasks in the prompt, `start` and `@32` with those of the recipe. A kind without a recipe has no `@32`. Finished runs are kept in
`--runs` and are not repeated.
"""

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from clawctl.run.directory import open_run
from clawctl.run.policies import list_versions
from scripts.benchmarks.circle import measure, read_recipe, running, wait_until
from scripts.benchmarks.environments_learn import reward_of
from scripts.benchmarks.table import Row

TRAINED = ("toolcall",)  # kinds that have a recipe: recipes/smollm2-KIND.yaml
SHOWN = {  # kinds of which the start is measured
    "terminal": {"examples": 6, "max_turns": 4},
    "swe": {"examples": 4, "max_turns": 4},
    "gui": {"examples": 8, "max_turns": 4},
}
_LONGEST_S = 3 * 3600.0  # time limit of one run
Numbers = dict[str, float]


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    kept: dict[str, Numbers] = {}
    if options.runs is not None and options.runs.exists() and not options.quick:
        kept = json.loads(options.runs.read_text())
    rows = []
    for kind in [kind for kind in (*TRAINED, *SHOWN) if kind in (options.kind or (kind,))]:
        runs = []
        for seed in range(options.seed, options.seed + (1 if options.quick else options.seeds)):
            name = f"{kind} smollm2 {seed}"
            if name not in kept:
                kept[name] = learn(kind, seed, folder / name.replace(" ", "-"), options.quick)
                print(name, json.dumps(kept[name]), flush=True)
                if options.runs is not None and not options.quick:
                    options.runs.write_text(json.dumps(kept, indent=1) + "\n")
            runs.append(kept[name])
        rows += rows_of(f"learn{'-quick' if options.quick else ''} {kind} smollm2", runs)
    return rows


def learn(kind: str, seed: int, folder: Path, is_quick: bool = False) -> Numbers:
    """Do one run. Returns the reward on held-out tasks before and after it, and the time."""
    folder.mkdir()
    recipe, plain = write_recipes(kind, seed, folder, is_quick)
    last = int(yaml.safe_load(recipe.read_text())["train"]["max_steps"]) if kind in TRAINED else 0
    run, began = folder / "run", time.monotonic()
    with running(run, recipe) as up:
        wait_until(lambda: last in list_versions(open_run(run)), _LONGEST_S, f"version {last} was not trained", up)
        seconds = time.monotonic() - began
        as_it_is = reward_of(measure(run, plain, 0))
        start = reward_of(measure(run, recipe, 0))
        end = {"end": reward_of(measure(run, recipe, last))} if last else {}
    shutil.rmtree(run, ignore_errors=True)  # a process that is still ending may write files
    return {"as_it_is": as_it_is, "start": start, **end, "seconds": seconds, "updates": last}


def write_recipes(kind: str, seed: int, folder: Path, is_quick: bool) -> tuple[Path, Path]:
    """The recipe of a run, and the same one without solved tasks in the prompt."""
    recipe = read_recipe(f"smollm2-{kind}" if kind in TRAINED else "smollm2-toolcall")
    recipe["up"]["stages"].remove("eval")  # the versions are measured after training
    if kind in SHOWN:
        recipe["up"]["stages"], recipe["eval"]["suites"] = ["serve"], [{"name": kind, "options": SHOWN[kind]}]
    recipe["play"]["seed"] = recipe["eval"]["seed"] = recipe["train"]["seed"] = seed
    if is_quick:
        recipe["train"] |= {"max_steps": 1, "batch_turns": 8}
        recipe["eval"]["problems"] = 4
    paths = []
    for name in ("recipe", "plain"):
        paths.append(folder / f"{name}.yaml")
        paths[-1].write_text(yaml.safe_dump(recipe, sort_keys=False))
        recipe["eval"]["suites"] = [{"name": kind}]
    return paths[0], paths[1]


def recipes(folder: Path) -> Iterator[Path]:
    """The recipes of all kinds, which `scripts/bench all --rehearse` loads."""
    for kind in (*TRAINED, *SHOWN):
        yield from write_recipes(kind, 0, folder, is_quick=True)


def rows_of(case: str, runs: Sequence[Mapping[str, Any]]) -> list[Row]:
    def mean(name: str) -> float:
        return statistics.fmean(run[name] for run in runs)

    rows = [Row(case, "as_it_is", mean("as_it_is"), "reward"), Row(case, "start", mean("start"), "reward")]
    if all("end" in run for run in runs):
        rows += [
            Row(case, "@32", mean("end"), "reward"),
            Row(case, "@32_lowest", min(run["end"] for run in runs), "of the seeds"),
            Row(case, "gain", mean("end") - mean("start"), "reward"),
            Row(case, "seconds", mean("seconds"), "s"),
        ]
    return rows
