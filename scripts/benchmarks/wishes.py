"""Measures whether the model learns arbitrary wishes of people and nothing else, in the world of many wishes.

    scripts/bench wishes [--case alone] [--axis emoji] [--method combine] [--set KEY=VALUE] [--seeds 5] [--runs FILE]

A person wants a rare value of an axis, and asks for it in words only after an answer without it. `satisfaction@8` is the share of
first answers that meet all wishes after 8 updates. `side_effect` is the mean change (total variation distance) of the unmentioned
axes. Finished runs are kept in `--runs` and are not repeated. The case `held-out` uses the axes of `words/held_out/`. No setting is
chosen with it.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
import yaml
from rich.console import Console

from clawctl.inspect.wanted import conflicts
from clawctl.run.complaints import rises
from scripts.benchmarks.table import Row, make_parser, report
from scripts.benchmarks.wishes_circle import (
    ROOT,
    Group,
    Judging,
    World,
    irrelevant_hint,
    random_verdict,
    recipe_of,
    side_effect,
)  # fmt: skip
from scripts.benchmarks.wishes_sessions import sessions_until_satisfied
from scripts.wishes.axes import AXES, USUAL
from scripts.wishes.judge import judged
from scripts.wishes.wording import Wants, chosen_axes, held_out_axes

SEEDS = range(10, 15)
FOLLOWED = 0.75  # satisfaction at which a wish counts as followed
LONGEST = 16  # most updates until a changed wish is followed
ABOUT = 16  # turns: the change that was noticed is this one
ANSWERS, FEW_ANSWERS = 200, 8  # answers per measurement; with --quick
TOLD = ("You answer children.", "You are an assistant for school.")
Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Plan:
    """The length of a run and the size of its measurements."""

    settings: Mapping[str, Any]
    updates: Callable[[int], int]  # given the number of updates of the whole benchmark
    answers: int


def rare(axis: str, seed: int) -> str:
    """Return the value of the axis that people want with this seed."""
    return Random(f"rare {axis} {seed}").choice([value for value in AXES[axis] if value != USUAL[axis]])


def follow(plan: Plan, seed: int, groups: Sequence[Group], updates: int, judge: Judging = judged) -> dict[int, Metrics]:
    """Return the metrics after 8 updates and after all updates, compared with the start."""
    world, spoken_of = World(recipe_of({**plan.settings, "seed": seed}), seed, judge), {a for g in groups for a in g.wants}
    start, results, total, began = world.measure(groups, plan.answers), {}, plan.updates(updates), time.monotonic()
    for update in range(1, total + 1):
        world.update(groups)
        if update in (plan.updates(8), total):
            now = world.measure(groups, plan.answers)
            results[updates if update == total else 8] = {
                "start": statistics.mean(start.satisfaction), "satisfaction": statistics.mean(now.satisfaction),
                "worst_group_start": min(start.satisfaction), "worst_group_satisfaction": min(now.satisfaction),
                "side_effect": side_effect(start, now, list(spoken_of)), "correctness_start": start.correctness,
                "correctness_change": now.correctness - start.correctness, "length_change": now.tokens - start.tokens,
                "conflicts_named": float(len(conflicts(world.pulls))),
            }  # fmt: skip
    results[updates]["seconds_per_update"] = (time.monotonic() - began - world.seconds["measure"]) / total
    return results


def change_minds(plan: Plan, seed: int, axis: str) -> dict[int, Metrics]:
    """People want the rare value, the usual value from update 8, and the rare value again from update 24."""
    world, results = World(recipe_of({**plan.settings, "seed": seed}), seed), {}
    for _ in range(plan.updates(8)):
        world.update([Group({axis: rare(axis, seed)})])
    for at, value in ((8, USUAL[axis]), (24, rare(axis, seed))):
        groups, needed, noticed = [Group({axis: value})], None, None
        world.people_change()
        began = float(world.requests)
        for update in range(1, plan.updates(LONGEST) + 1):
            world.update(groups)
            if noticed is None and any(rise.since >= began - ABOUT for rise in rises(world.reactions)):
                noticed = update
            if needed is None and world.measure(groups, min(plan.answers, 60)).satisfaction[0] >= FOLLOWED:
                needed = update
        (satisfaction,) = world.measure(groups, plan.answers).satisfaction
        results[at] = {"updates_to_follow": float(needed or LONGEST + 1), "satisfaction": satisfaction,
                     "updates_to_notice": float(noticed or LONGEST + 1)}  # fmt: skip
    return results


def some_axes(axes: Sequence[str], seed: int, count: int) -> list[str]:
    return Random(f"axes {seed}").sample(list(axes), count)


def work_of(case: str, axes: Sequence[str], quick: bool) -> list[tuple[str, Callable[[Plan, int], dict[int, Metrics]]]]:
    """Return the runs of a case for one seed, with their names."""
    chosen = [axis for axis in chosen_axes() if not axes or axis in axes]

    def alone(axis: str, method: Mapping[str, Any] | None = None, judge: Judging = judged, updates: int = 8) -> Any:
        def run(plan: Plan, seed: int) -> dict[int, Metrics]:
            changed = Plan({**plan.settings, **(method or {})}, plan.updates, plan.answers)
            return follow(changed, seed, [Group({axis: rare(axis, seed)})], updates, judge)

        return run

    def mixed(seed: int) -> Wants:
        return {axis: rare(axis, seed) for axis in some_axes(chosen_axes(), seed, 3)}

    def one(seed: int) -> str:
        return some_axes(chosen, seed, 1)[0]

    def apart(plan: Plan, seed: int, told: bool) -> dict[int, Metrics]:
        axis = one(seed)
        values = (rare(axis, seed), USUAL[axis])
        groups = [Group({axis: v}, who if told else None, key=v) for v, who in zip(values, TOLD, strict=True)]
        return follow(plan, seed, groups, 16)

    match case:
        case "alone":
            return [(axis, alone(axis)) for axis in (chosen[:1] if quick else chosen)]
        case "held-out":
            return [(axis, alone(axis)) for axis in (held_out_axes()[:1] if quick else held_out_axes())]
        case "three":
            return [("", lambda plan, seed: follow(plan, seed, [Group(mixed(seed))], 16))]
        case "changed-mind":
            return [("", lambda plan, seed: change_minds(plan, seed, one(seed)))]
        case "disagree":
            return [("", lambda plan, seed: apart(plan, seed, told=False))]
        case "disagree-told":
            return [("", lambda plan, seed: apart(plan, seed, told=True))]
        case "control random verdicts":
            return [("", lambda plan, seed: alone(one(seed), {}, random_verdict, 16)(plan, seed))]
        case "control irrelevant hints":
            return [("", lambda plan, seed: alone(one(seed), {"method": "opd"}, irrelevant_hint, 16)(plan, seed))]
        case "control no complaints":
            return [("", lambda plan, seed: follow(plan, seed, [Group({})], 16))]
        case _:
            return [("", lambda plan, seed: sessions_until_satisfied(plan.settings, seed, mixed(seed), 3 if quick else 40))]


CASES = ("alone", "held-out", "three", "changed-mind", "disagree", "disagree-told", "control random verdicts",
         "control irrelevant hints", "control no complaints", "sessions-until-satisfied")  # fmt: skip


def rows_of(case: str, runs: Sequence[tuple[str, dict[str, Metrics]]], method: str) -> list[Row]:
    """Return the rows of a case. `runs` has (axis, metrics by update) for all seeds."""

    def mean(at: int | str, metric: str, axis: str | None = None) -> float | None:
        values = [result[str(at)][metric] for name, result in runs if axis in (None, name) and metric in result.get(str(at), {})]
        return statistics.mean(values) if values else None

    def usual(at: int) -> list[Row]:
        return [
            Row(case, "start", mean(at, "start"), "share"),
            Row(case, "side_effect", mean(at, "side_effect"), "share"),
            Row(case, "correctness_change", mean(at, "correctness_change"), "share"),
            Row(case, "length_change", mean(at, "length_change"), "tokens"),
            Row(case, "seconds_per_update", mean(at, "seconds_per_update"), "s"),
        ]

    match case:
        case "alone" | "held-out":
            axes = sorted({name for name, _ in runs})
            means = {axis: mean(8, "satisfaction", axis) for axis in axes}
            rows = [Row(case, "satisfaction@8", mean(8, "satisfaction"), "share"),
                    Row(case, "satisfaction@8 worst axis", min(v for v in means.values() if v is not None), "share")]  # fmt: skip
            for axis in axes:
                rows += [Row(f"{case}: {axis}", f"{name}@8" if name == "satisfaction" else name, mean(8, name, axis), "share")
                         for name in ("start", "satisfaction", "side_effect", "correctness_change")]  # fmt: skip
            return [*rows, *usual(8)]
        case "three":
            return [Row(case, f"satisfaction@{at}", mean(at, "satisfaction"), "share") for at in (8, 16)] + usual(16)
        case "changed-mind":
            units = {"updates_to_follow": "updates", "updates_to_notice": "updates", "satisfaction": "share"}
            return [Row(f"{case}@{at}", name, mean(at, name), unit) for at in (8, 24) for name, unit in units.items()]
        case "disagree" | "disagree-told":
            metric = "worst_group_satisfaction" + ("@16" if case.endswith("told") else "")
            return [Row(case, metric, mean(16, "worst_group_satisfaction"), "share"),
                    Row(case, "worst_group_start", mean(16, "worst_group_start"), "share"),
                    Row(case, "conflicts_named", mean(16, "conflicts_named"), "share"), *usual(16)[1:]]  # fmt: skip
        case "sessions-until-satisfied":
            return [Row(f"{case}: {method}", name, mean(0, name), "sessions") for name in ("joint_average", "worst_person")]
        case _:
            now, start = mean(16, "satisfaction"), mean(16, "start")
            change = None if now is None or start is None else now - start
            return [Row(case, "satisfaction_change", change, "share"), *usual(16)[1:]]


def main() -> None:
    parser: argparse.ArgumentParser = make_parser(__doc__ or "")
    parser.add_argument("--case", action="append", choices=CASES, help="only this case; may be repeated")
    parser.add_argument("--axis", action="append", default=[], help="only this axis of the chosen ones; may be repeated")
    parser.add_argument("--method", default="combine", help="training method (default combine)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of `train`; may be repeated"
    )
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the five seeds (default 5)")
    parser.add_argument("--first-seed", type=int, default=SEEDS[0], help="settings are chosen with other seeds than 10 to 14")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "wishes.json", help="finished runs, which are not repeated")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    changes = {key: yaml.safe_load(value) for key, _, value in (pair.partition("=") for pair in options.set)}
    small = {"batch_turns": 4} if options.quick else {}
    plan = Plan({"method": options.method, **small, **changes}, (lambda n: max(2, n // 8)) if options.quick else (lambda n: n),
                FEW_ANSWERS if options.quick else ANSWERS)  # fmt: skip
    kept = {} if options.quick or not options.runs.exists() else json.loads(options.runs.read_text())
    console, began, rows = Console(stderr=True), time.monotonic(), list[Row]()
    for case in options.case or CASES:
        runs: list[tuple[str, dict[str, Metrics]]] = []
        for seed in range(options.first_seed, options.first_seed + (1 if options.quick else options.seeds)):
            for axis, run in work_of(case, options.axis, options.quick):
                key = json.dumps([case, axis, options.axis if case not in ("alone", "held-out") else [], dict(plan.settings), seed])
                if key not in kept:
                    kept[key] = {str(at): metrics for at, metrics in run(plan, seed).items()}
                    if not options.quick:
                        options.runs.parent.mkdir(parents=True, exist_ok=True)
                        options.runs.write_text(json.dumps(kept, indent=1) + "\n")
                runs.append((axis, kept[key]))
                console.print(f"{time.monotonic() - began:6.0f} s  {case} {axis} seed {seed}: {_short(kept[key])}", highlight=False)
        rows += rows_of(case, runs, options.method)
    report("wishes", rows, options.json)


def _short(measured: Mapping[str, Metrics]) -> str:
    return "; ".join(
        f"@{at} " + ", ".join(f"{name} {value:.2f}" for name, value in metrics.items()) for at, metrics in measured.items()
    )


if __name__ == "__main__":
    main()
