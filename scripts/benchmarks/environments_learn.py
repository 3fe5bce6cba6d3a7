"""Case `learn`: measures whether reinforcement improves a policy on held-out tasks, with real stages and tiny models.

A run is `clawctl up recipes/craft-KIND.yaml` in a new run directory, until the last update. Then `clawctl eval` measures the first
and the last version on held-out tasks, sampled as in training. Each kind of task has three runs: with the rewards of the
environment, with additional step rewards (`integrated`), and with the rewards of other episodes (`shuffled`), from which nothing
can be learned. Held-out tasks have the prompts of training; two more measurements have new words, and prompts of other authors.

`pass_at_8_before` is the share of groups with at least one success. It counts groups of eight attempts that all began before the
first update. Finished runs are kept in `--runs` and are not repeated.
"""

import argparse
import json
import random
import resource
import shutil
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import yaml

from clawctl.config import load_recipe
from clawctl.environments import ENVIRONMENTS, Outcome, Split, Task, create
from clawctl.environments.episode import play_task
from clawctl.run.directory import RunDir, open_run
from clawctl.run.endpoint import Endpoint
from clawctl.run.feedback import Ratings
from clawctl.run.outcomes import SessionOutcome
from clawctl.run.policies import list_versions, read_policy
from scripts.benchmarks.circle import measure, read_recipe, running, wait_until
from scripts.benchmarks.table import Row

KINDS = ("toolcall", "terminal", "swe", "gui", "gui-vision")  # each has a recipe: recipes/craft-KIND.yaml
WITH_STEPS = ("toolcall", "terminal", "swe", "gui")  # kinds whose environment has step rewards: they have the variant `integrated`
VARIANTS = ("outcome", "integrated", "shuffled")
WITH_WORDS = WITH_STEPS  # kinds whose tasks have words and prompts that can be others
MEASURED = {"same_prompts": 96, "new_words": 48, "paraphrased": 48}  # held-out tasks
MEASURED_AS = {  # before the first update and after the last
    "same_prompts": ("start", "end"),
    "new_words": ("new_words_start", "new_words"),
    "paraphrased": ("paraphrased_start", "paraphrased"),
}
QUICK_MEASURED, QUICK_UPDATES = 16, 4
_LONGEST_S = 3600.0  # time limit of one run
Numbers = dict[str, float]


class Shuffled:
    """The tasks of another environment. Each episode gets the reward of an earlier episode."""

    def __init__(self, env: str, **options: Any) -> None:
        self._inner = create(ENVIRONMENTS.load(env, "play.env"), env, "play.env", options)
        self.worst = float(getattr(self._inner, "worst", -1.0))
        self._rewards: deque[float] = deque([0.0, 0.0, 0.0, 1.0], maxlen=256)
        self._draw = random.Random(0)

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        return self._inner.tasks(split, count, seed)

    async def play(self, task: Task, endpoint: Endpoint) -> Outcome:
        outcome = await play_task(self._inner, task, endpoint)
        if outcome.reward is None:
            return outcome
        other = self._draw.choice(self._rewards)
        self._rewards.append(outcome.reward)
        return replace(outcome, reward=other)


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    kept: dict[str, Numbers] = {}
    if options.runs is not None and options.runs.exists() and not options.quick:
        kept = json.loads(options.runs.read_text())
    rows = []
    for kind in options.kind or KINDS:
        runs: dict[str, list[Numbers]] = defaultdict(list)
        for variant in options.variant or VARIANTS:
            if variant == "integrated" and kind not in WITH_STEPS:
                continue
            for seed in range(options.seed, options.seed + (1 if options.quick else options.seeds)):
                name = f"{kind} {variant} {seed}"
                if name not in kept:
                    kept[name] = learn(kind, variant, seed, folder / name.replace(" ", "-"), options.quick)
                    print(name, json.dumps(kept[name]), flush=True)
                    if options.runs is not None and not options.quick:
                        options.runs.parent.mkdir(parents=True, exist_ok=True)
                        options.runs.write_text(json.dumps(kept, indent=1) + "\n")
                runs[variant].append(kept[name])
        rows += rows_of(f"learn{'-quick' if options.quick else ''} {kind}", runs)
    return rows


def learn(kind: str, variant: str, seed: int, folder: Path, is_quick: bool = False) -> Numbers:
    """Do one run. Returns the reward on held-out tasks before and after it, and the cost."""
    folder.mkdir()
    recipe = write_recipe(kind, variant, seed, folder, is_quick)
    last = int(yaml.safe_load(recipe.read_text())["train"]["max_steps"])
    run, began, spent = folder / "run", time.monotonic(), processor_s()
    with running(run, recipe) as up:
        opened = open_run(run)
        wait_until(lambda: last in list_versions(opened), _LONGEST_S, f"version {last} was not trained", up)
        seconds = time.monotonic() - began
        stop_playing(up.pid)
        measured: Numbers = {}
        for held_out, names in MEASURED_AS.items() if kind in WITH_WORDS else [("same_prompts", ("start", "end"))]:
            eval_recipe = measured_by(recipe, held_out, is_quick)
            measured |= {
                name: reward_of(measure(run, eval_recipe, version)) for name, version in zip(names, (0, last), strict=True)
            }
        before = begun_before(opened, read_policy(opened, 1).created_at)
    steps = [json.loads(line) for line in (run / "train" / "steps.jsonl").read_text().splitlines()]
    shutil.rmtree(run, ignore_errors=True)  # a process that is still ending may write files
    return {
        **measured, "seconds": seconds, "updates": last, "turns": float(sum(step["turns"] for step in steps)),
        "processor": processor_s() - spent,
        "pass@8": before["solved"], "groups": before["groups"],
    }  # fmt: skip


def stop_playing(up: int) -> None:
    """End the stage `play` of a process `clawctl up`: its sandboxes would share the processors with the measurements."""
    for stage in psutil.Process(up).children():
        with suppress(psutil.NoSuchProcess):  # one that has just ended
            if "play" in stage.cmdline():
                stage.terminate()


def processor_s() -> float:
    """CPU seconds of all ended child processes: the stages and their children. Processes in a sandbox are not counted."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def write_recipe(kind: str, variant: str, seed: int, folder: Path, is_quick: bool) -> Path:
    recipe = read_recipe(f"craft-{kind}")
    recipe["up"]["stages"].remove("eval")  # the versions are measured after training
    recipe["play"]["seed"] = recipe["eval"]["seed"] = recipe["train"]["seed"] = seed
    if is_quick:
        recipe["train"]["max_steps"] = QUICK_UPDATES
    if variant == "integrated":
        recipe["play"]["options"] = {**recipe["play"].get("options", {}), "steps": True}
    if variant == "shuffled":
        recipe["play"]["options"] = {**recipe["play"].get("options", {}), "env": recipe["play"]["env"]}
        recipe["play"]["env"] = f"{Path(__file__).resolve()}:Shuffled"
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return path


def measured_by(recipe: Path, held_out: str, is_quick: bool) -> Path:
    """Write the recipe that measures held-out tasks of one kind."""
    changed = yaml.safe_load(recipe.read_text())
    (suite,) = changed["eval"]["suites"]
    named: dict[str, Any] = {"name": suite} if isinstance(suite, str) else suite
    changed["eval"]["suites"] = [{**named, "options": {**named.get("options", {}), "held_out": held_out}}]
    changed["eval"]["problems"] = QUICK_MEASURED if is_quick else MEASURED[held_out]
    path = recipe.with_name(f"{held_out}.yaml")
    path.write_text(yaml.safe_dump(changed, sort_keys=False))
    return path


def recipes(folder: Path) -> Iterator[Path]:
    """The recipes of all kinds and variants, which `scripts/bench all --rehearse` loads."""
    for kind in KINDS:
        for variant in VARIANTS:
            path = write_recipe(kind, variant, 0, folder, is_quick=True)
            play = load_recipe(path).play
            create(ENVIRONMENTS.load(str(play.env), "play.env"), str(play.env), "play.env", play.options)
            yield path
            yield measured_by(path, "paraphrased", is_quick=True)


def reward_of(record: Mapping[str, Any]) -> float:
    """The mean reward in the only suite of a measurement."""
    (suite,) = record["suites"].values()
    return float(suite["reward"]["mean"])


def begun_before(run: RunDir, moment: float) -> Numbers:
    """Count the groups whose episodes all began before `moment`, and return the share of them with a solved episode."""
    groups: dict[str, list[SessionOutcome]] = defaultdict(list)
    for outcome in Ratings(run).read():
        if isinstance(outcome, SessionOutcome) and outcome.episode is not None and outcome.settled:
            groups[outcome.episode["group_id"]].append(outcome)
    whole = []
    for episodes in groups.values():
        specs = [outcome.episode or {} for outcome in episodes]
        if len(specs) == specs[0]["attempts"] and all(spec["created_at"] < moment for spec in specs):
            whole.append(episodes)
    solved = [max((outcome.reward or 0.0) for outcome in episodes) > 0 for episodes in whole]
    return {"groups": float(len(whole)), "solved": statistics.fmean(solved) if solved else float("nan")}


def rows_of(case: str, runs: Mapping[str, Sequence[Numbers]]) -> list[Row]:
    """Return the rows of one kind. A variant that was not run has no rows."""
    rows = []
    if outcome := runs.get("outcome"):
        groups = sum(run["groups"] for run in outcome)
        solved = sum(run["pass@8"] * run["groups"] for run in outcome if run["groups"])
        rows += [
            Row(case, "reward_heldout", _mean(outcome, "end"), "reward"),
            Row(case, "reward_start", _mean(outcome, "start"), "reward"),
            Row(case, "reward_ratio", _mean(outcome, "end") / start if (start := _mean(outcome, "start")) else None, "end / start"),
            Row(case, "reward_heldout_lowest", min(run["end"] for run in outcome), "of the seeds"),
            Row(case, "pass_at_8_before", solved / groups if groups else None, "share of groups"),
            Row(case, "updates", _mean(outcome, "updates"), "number"),
            Row(case, "seconds", _mean(outcome, "seconds"), "s"),
            Row(case, "processor_seconds", _mean(outcome, "processor"), "s, with two measurements"),
        ]
        others = [name for name in outcome[0] if name.startswith(("new_words", "paraphrased"))]
        rows += [Row(case, name, _mean(outcome, name), "reward") for name in others]
    if integrated := runs.get("integrated"):
        rows.append(Row(f"{case} integrated", "reward_heldout", _mean(integrated, "end"), "reward"))
        if outcome:
            difference = _mean(integrated, "end") - _mean(outcome, "end")
            rows.append(Row(case, "integrated_minus_outcome", difference, "reward"))
    if shuffled := runs.get("shuffled"):
        change = _mean(shuffled, "end") - _mean(shuffled, "start")
        rows.append(Row(f"{case} shuffled", "reward_change", change, "reward"))
    return rows


def _mean(runs: Sequence[Numbers], name: str) -> float:
    return statistics.fmean(run[name] for run in runs)
