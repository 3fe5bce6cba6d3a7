"""Case `points` of `scripts/bench scale`: the model against two real arrangements of processes.

All figures are processor time, on which other work on the machine has little effect. Time before a stage is ready is not counted.
First, each stage runs alone, and its cost of a turn, a call, a step or a second of waiting is measured. Then all stages run
concurrently, and the predicted cost of each node is compared with the measured cost.
"""

import argparse
import os
import resource
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from clawctl.engines.vllm.child import free_port
from clawctl.run.directory import RunDir, open_run
from scripts.benchmarks.chaos_audit import captured_lines, row_ids
from scripts.benchmarks.chaos_kill import RECIPE, Crowd, has_drained, newest
from scripts.benchmarks.chaos_stages import Stage
from scripts.benchmarks.circle import CLAWCTL, write_recipe
from scripts.benchmarks.table import Row

TURNS, QUICK_TURNS = 240, 120
_STAGES = ("serve", "collect", "judge", "train")
_NODES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "one box": {"one": _STAGES},
    "two nodes": {"left": ("serve",), "right": ("collect", "judge", "train")},
}
_PATIENCE_S = 900.0


@dataclass(frozen=True, slots=True)
class Costs:
    """Processor seconds, each measured while the other stages are idle."""

    serve_turn: float  # gateway and engine together
    collect_turn: float
    judge_turn: float
    serve_judged: float  # cost of the judge's calls about a turn in the server
    train_turn: float
    serve_step: float  # cost of a swap in the server
    idle: Mapping[str, float]  # cost of an idle second in each stage


@dataclass(frozen=True, slots=True)
class Work:
    """The amount of work, its duration and its cost."""

    turns: int
    judged: int
    trained: int
    steps: int
    seconds: float
    used: Mapping[str, float]  # processor seconds by stage


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    turns = options.turns or (QUICK_TURNS if options.quick else TURNS)
    costs = _alone(folder / "alone", turns, options.seed)
    result = [Row("alone", f"{name}_ms", value * 1000, "processor time") for name, value in _listed(costs)]
    errors = []
    for case, nodes in _NODES.items():
        work = _together(folder / case.replace(" ", "-"), turns, options.seed + 1, nodes)
        load = {name: sum(work.used[stage] for stage in stages) for name, stages in nodes.items()}
        expected = {name: sum(_expected(costs, work, stage) for stage in stages) for name, stages in nodes.items()}
        for stage in _STAGES:
            print(f"{case}: {stage} used {work.used[stage]:.2f} s, predicted {_expected(costs, work, stage):.2f} s", flush=True)
        busiest = max(load, key=lambda name: load[name])
        errors.append(abs(expected[busiest] / load[busiest] - 1))
        result += [
            Row(case, "turns", work.turns, "turns"),
            Row(case, "trained", work.trained, "turns"),
            Row(case, "measured_turns_per_core_s", work.turns / load[busiest], f"of node {busiest}, the busiest"),
            Row(case, "predicted_turns_per_core_s", work.turns / expected[busiest], "of the same node"),
            Row(case, "model_error", errors[-1], "share"),
        ]
    return [*result, Row("points", "model_error_two_points", max(errors), "share")]


def _listed(costs: Costs) -> list[tuple[str, float]]:
    names = ("serve_turn", "collect_turn", "judge_turn", "serve_judged", "train_turn", "serve_step")
    return [(name, getattr(costs, name)) for name in names] + [(f"{stage}_idle_second", s) for stage, s in costs.idle.items()]


def _expected(costs: Costs, work: Work, stage: str) -> float:
    busy = {
        "serve": costs.serve_turn * work.turns + costs.serve_judged * work.judged + costs.serve_step * work.steps,
        "collect": costs.collect_turn * work.turns,
        "judge": costs.judge_turn * work.judged,
        "train": costs.train_turn * work.trained,
    }
    return busy[stage] + costs.idle[stage] * work.seconds


def _alone(folder: Path, turns: int, seed: int) -> Costs:
    """Run the stages one after another on the same turns."""
    folder.mkdir(parents=True)
    recipe, run, port = write_recipe(folder, RECIPE), open_run(folder / "run"), free_port()
    serve, collect = Stage("serve", run, recipe, port), Stage("collect", run, recipe)
    try:
        for stage in (serve, collect):
            stage.start()
            _wait(stage.ready)
        idle, seconds = _used_in(10.0, {"serve": serve, "collect": collect})
        before, began = (_cpu(serve), _cpu(collect)), time.monotonic()
        crowd = _talk(run, recipe, turns, seed)
        _wait(lambda: captured_lines(run)[0] <= row_ids(run))
        lasted = time.monotonic() - began
        count = len(row_ids(run))
        rates = {stage: used / seconds for stage, used in idle.items()}
        serve_turn = (_cpu(serve) - before[0] - rates["serve"] * lasted) / count
        collect_turn = (_cpu(collect) - before[1] - rates["collect"] * lasted) / count
        collect.stop()
        judging, judge_s, by_serve = _once("judge", run, recipe, serve, rates["serve"])
        train_start, _, _ = _once("judge", run, recipe, serve, rates["serve"])  # no work is left: the cost of a start
        judge_cost, serve_judged = (judging - train_start) / count, by_serve / count
        training, _, swaps = _once("train", run, recipe, serve, rates["serve"], wait=lambda: True)
        steps, start, _, _ = newest(run), *_once("train", run, recipe, serve, rates["serve"])
        print(f"alone: {count} turns, {len(crowd.answered)} answered, {steps} steps, judge took {judge_s:.0f} s", flush=True)
        trained = steps * RECIPE["train"]["batch_turns"]
        rates |= _idle_rates(run, recipe)
        return Costs(
            max(0.0, serve_turn), max(0.0, collect_turn), max(0.0, judge_cost), max(0.0, serve_judged),
            max(0.0, (training - start) / trained), max(0.0, swaps / steps), rates,
        )  # fmt: skip
    finally:
        serve.stop()
        collect.stop()


def _idle_rates(run: RunDir, recipe: Path) -> dict[str, float]:
    """Return the processor seconds per second of an idle judge and an idle trainer."""
    stages = {name: Stage(name, run, recipe) for name in ("judge", "train")}
    try:
        for stage in stages.values():
            stage.start()
            _wait(stage.ready)
        time.sleep(8.0)
        used, seconds = _used_in(10.0, stages)
        return {name: value / seconds for name, value in used.items()}
    finally:
        for stage in stages.values():
            stage.stop()


def _together(folder: Path, turns: int, seed: int, nodes: Mapping[str, tuple[str, ...]]) -> Work:
    """Run all stages concurrently. If there are enough cores, each node gets its own."""
    folder.mkdir(parents=True)
    recipe, run, port = write_recipe(folder, RECIPE), open_run(folder / "run"), free_port()
    stages = {name: Stage(name, run, recipe, port) for name in _STAGES}
    cores = sorted(os.sched_getaffinity(0))
    try:
        for stage in stages.values():
            stage.start()
            _wait(stage.ready)
        if 1 < len(nodes) <= len(cores):
            for number, names in enumerate(nodes.values()):
                for name in names:
                    _pin(stages[name], cores[number])
        time.sleep(8.0)  # a ready stage is still loading
        before, began = {name: _cpu(stage) for name, stage in stages.items()}, time.monotonic()
        _talk(run, recipe, turns, seed)
        _wait(lambda: has_drained(run))
        _wait_until_it_rests(stages["train"])
        used = {name: _cpu(stage) - before[name] for name, stage in stages.items()}
        count, steps = len(row_ids(run)), newest(run)
        return Work(count, count, steps * RECIPE["train"]["batch_turns"], steps, time.monotonic() - began, used)
    finally:
        for stage in reversed(stages.values()):
            stage.stop()


def _talk(run: RunDir, recipe: Path, turns: int, seed: int) -> Crowd:
    crowd = Crowd(run, recipe, seed, 4)
    _wait(lambda: len(crowd.answered) >= turns)
    crowd.end()
    return crowd


def _once(
    stage: str, run: RunDir, recipe: Path, serve: Stage, idle: float, wait: Callable[[], bool] | None = None
) -> tuple[float, float, float]:
    """Run `clawctl STAGE --once`. Returns its processor seconds, its duration, and the server's processor seconds for it."""
    before, children, began = _cpu(serve), resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [*CLAWCTL, stage, "--run", str(run.root), "--recipe", str(recipe), "--once"]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if wait is not None:
        time.sleep(10.0)  # the server loads the newest version
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    lasted = time.monotonic() - began
    used = after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime
    return used, lasted, max(0.0, _cpu(serve) - before - idle * lasted)


def _cpu(stage: Stage) -> float:
    """Return the processor seconds of a stage and all its child processes."""
    process = psutil.Process(stage.pid)
    total = 0.0
    for member in [process, *process.children(recursive=True)]:
        try:
            times = member.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + (times.children_user + times.children_system if member is process else 0.0)
    return total


def _pin(stage: Stage, core: int) -> None:
    process = psutil.Process(stage.pid)
    for member in [process, *process.children(recursive=True)]:
        for thread in member.threads():
            os.sched_setaffinity(thread.id, {core})


def _used_in(seconds: float, stages: Mapping[str, Stage]) -> tuple[dict[str, float], float]:
    began, before = time.monotonic(), {name: _cpu(stage) for name, stage in stages.items()}
    time.sleep(seconds)
    return {name: _cpu(stage) - before[name] for name, stage in stages.items()}, time.monotonic() - began


def _wait_until_it_rests(stage: Stage) -> None:
    """Wait until the stage uses less than a fifth of a core for three seconds."""
    for _ in range(60):
        used, seconds = _used_in(3.0, {"it": stage})
        if used["it"] / seconds < 0.2:
            return


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {_PATIENCE_S:.0f} s")
        time.sleep(0.5)
