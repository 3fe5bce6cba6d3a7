"""Measures whether learning lasts for weeks: one policy, 200 updates, and people whose wishes change, in the world of many wishes.

    scripts/bench weeks [--method combine] [--set KEY=VALUE] [--seeds 3] [--series FILE]
    scripts/bench weeks --set base_pull=0   # without the pull towards version 0

| updates | people |
|---|---|
| 1 to 50 | want a rare value of one axis |
| 51 to 100 | have changed their minds: they want its usual value |
| 101 to 125 | half of them want a rare value of a second axis, half its usual value; nothing tells them apart |
| 126 to 150 | praise what they get |
| 151 to 175 | want a rare value of a third axis, and ask about sums and differences |
| 176 to 200 | still want it, and ask about products |

The policy is measured every ten updates. `satisfaction_current` is the share of first answers that meet the current wish (in the
worse group if people disagree). `ability` is the share of answers that are correct and follow a wish in the system message about
an unmentioned axis; the first and the last measurement use more answers. `worst_group_base` is version 0's satisfaction of the
worse group of people who disagree, and `worst_group_while_disagreeing` must not be lower. `entropy` is the mean surprise of an
answer's tokens, in nats a token. `kl_from_base` is the KL of whole answers from version 0, in nats an answer: the mean log-ratio
over answers of the policy.

The exit code is 1 if a metric misses its bar.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
import yaml
from rich.console import Console
from transformers import AutoModelForCausalLM

from clawctl.config import Recipe
from clawctl.extensions.demos.wishes.axes import AXES, USUAL, is_correct, measure
from clawctl.extensions.demos.wishes.people import Wisher
from clawctl.extensions.demos.wishes.problems import WordProblem, make_problems
from clawctl.extensions.demos.wishes.wording import chosen_axes, system
from scripts.benchmarks.table import Row, make_parser, report
from scripts.benchmarks.wishes import FOLLOWED, rare, some_axes
from scripts.benchmarks.wishes_circle import Group, World, recipe_of
from scripts.benchmarks.wishes_sampling import Drawn

SEEDS = range(10, 13)
EVERY = 10  # updates between two measurements
ANSWERS, FEW_ANSWERS = 120, 8  # answers per measurement; with --quick
MORE = 5  # times as many for the first and the last measurement of ability
PULL = 0.02  # train.base_pull, unless --set says otherwise
NEW = ("first wish", "changed mind", "one topic")  # phases that start with a new wish
BARS = {"ability_change": (-0.02, 1.0), "satisfaction_current": (0.85, 1.0), "updates_to_follow_change": (0.0, 8.0)}


@dataclass(frozen=True, slots=True)
class Phase:
    """The wishes and the problems of people during some updates."""

    name: str
    updates: int
    groups: tuple[Group, ...]
    operations: str = "+-x"


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement."""

    update: int
    phase: str
    satisfaction: float  # satisfaction of the worse group
    correctness: float
    ability: float
    tokens: float  # mean length of an answer
    entropy: float  # nats a token
    kl_from_base: float  # nats an answer


@dataclass(frozen=True, slots=True)
class Life:
    """One run."""

    points: list[Point]
    followed: dict[str, int]  # updates until each new wish was followed, by phase
    worst_group_base: float  # version 0's satisfaction of the worse group of people who disagree


def phases_of(seed: int) -> tuple[Phase, ...]:
    first, second, third = some_axes(chosen_axes(), seed, 3)
    wanted, topic = Group({third: rare(third, seed)}), "+-"
    return (
        Phase("first wish", 50, (Group({first: rare(first, seed)}),)),
        Phase("changed mind", 50, (Group({first: USUAL[first]}),)),
        Phase("disagreement", 25, (Group({second: rare(second, seed)}), Group({second: USUAL[second]}))),
        Phase("praise", 25, (Group({}),)),
        Phase("one topic", 25, (wanted,), topic),
        Phase("another topic", 25, (wanted,), "x"),
    )


class LongWorld(World):
    """A world in which people have problems with certain operations only."""

    operations = "+-x"

    def _problem(self, seed: int) -> WordProblem:
        return next(problem for problem in make_problems(64, seed) if problem.op in self.operations)


class Meter:
    """Measures the current version of a world."""

    def __init__(self, world: LongWorld, count: int, spoken_of: Sequence[str]) -> None:
        self._world, self._count = world, count
        self._axes = [axis for axis in AXES if axis not in spoken_of]
        self._base: Any = AutoModelForCausalLM.from_pretrained(world.recipe.model_path, dtype=torch.float32).eval()

    def __call__(self, update: int, phase: Phase, more: bool = False) -> Point:
        """Measure. `more`: ability on more answers."""
        world = self._world
        measured = world.measure(phase.groups, self._count)
        problems = make_problems(self._count, world.seed, "eval")
        opened = [Wisher({}, world.seed * 1_000_003 + i).open(problem) for i, problem in enumerate(problems)]
        answers = world.answer([[{"role": "user", "content": text}] for text in opened], 77)
        surprises = [-value for answer in answers for value in answer.logprobs]
        return Point(
            update, phase.name, min(measured.satisfaction), measured.correctness,
            self._ability(make_problems(self._count * (MORE if more else 1), world.seed, "eval")), measured.tokens,
            statistics.mean(surprises), statistics.mean(self._gap(answer) for answer in answers),
        )  # fmt: skip

    def _ability(self, problems: Sequence[WordProblem]) -> float:
        rng, asked, wanted = Random(f"ability {self._world.seed}"), [], []
        for problem in problems:
            axis = rng.choice(self._axes)
            wants = {axis: rng.choice(list(AXES[axis]))}
            wanted.append(wants)
            said = system(wants, rng, "trained")
            asked.append([{"role": "system", "content": said}, {"role": "user", "content": problem.text}])
        answers = self._world.answer(asked, 78)
        met = [
            all(measure(answer.text)[axis] == value for axis, value in wants.items()) and is_correct(problem, answer.text)
            for problem, wants, answer in zip(problems, wanted, answers, strict=True)
        ]
        return sum(met) / len(met)

    @torch.inference_mode()
    def _gap(self, answer: Drawn) -> float:
        """log p(answer) - log p_base(answer)."""
        ids = torch.tensor([answer.prompt_ids + answer.completion_ids])
        logits = self._base(input_ids=ids, logits_to_keep=len(answer.completion_ids) + 1).logits[0, :-1].float()
        base = logits.log_softmax(-1).gather(1, ids[0, -len(answer.completion_ids) :, None]).sum()
        return sum(answer.logprobs) - float(base)


def live(recipe: Recipe, seed: int, count: int, shorter: int = 1, tell: Callable[[Point], object] = lambda point: None) -> Life:
    """Do one run."""
    phases, world = phases_of(seed), LongWorld(recipe, seed)
    meter = Meter(world, count, sorted({axis for phase in phases for group in phase.groups for axis in group.wants}))
    points, followed, update = [meter(0, phases[0], more=True)], dict[str, int](), 0
    disagreeing = next(phase for phase in phases if phase.name == "disagreement")
    worst_group_base = min(world.measure(disagreeing.groups, count).satisfaction)
    tell(points[0])
    for phase in phases:
        world.people_change()
        world.operations = phase.operations
        for number in range(1, max(2, phase.updates // shorter) + 1):
            world.update(phase.groups)
            update += 1
            is_open = phase.name in NEW and phase.name not in followed
            if is_open and world.measure(phase.groups, min(count, 60)).satisfaction[0] >= FOLLOWED:
                followed[phase.name] = number
            last = number == max(2, phase.updates // shorter)
            if update % EVERY == 0 or last:
                points.append(meter(update, phase, more=last and phase is phases[-1]))
                tell(points[-1])
        if phase.name in NEW:
            followed.setdefault(phase.name, phase.updates + 1)
    return Life(points, followed, worst_group_base)


def rows_of(runs: Mapping[int, Life]) -> list[Row]:
    """Return the metrics with bars, and a few intermediate numbers."""

    def mean(values: Sequence[float]) -> float:
        return statistics.mean(values)

    found = [life.points for life in runs.values()]
    worst = [min(point.satisfaction for point in points if point.phase == "disagreement") for points in found]
    last = [points[-1] for points in found]
    rows = [
        Row("weeks", "ability_change", mean([points[-1].ability - points[0].ability for points in found]), "share"),
        Row("weeks", "satisfaction_current", mean([point.satisfaction for point in last]), "share"),
        Row("weeks", "updates_to_follow_change", mean([life.followed["changed mind"] for life in runs.values()]), "updates"),
        Row("weeks", "updates_to_follow_first", mean([life.followed["first wish"] for life in runs.values()]), "updates"),
        Row("weeks", "worst_group_while_disagreeing", mean(worst), "share"),
        Row("weeks", "worst_group_base", mean([life.worst_group_base for life in runs.values()]), "share"),
        Row("weeks", "correctness_change", mean([points[-1].correctness - points[0].correctness for points in found]), "share"),
        Row("weeks", "length_change", mean([points[-1].tokens - points[0].tokens for points in found]), "tokens"),
        Row("weeks", "entropy_change", mean([points[-1].entropy - points[0].entropy for points in found]), "nats"),
        Row("weeks", "kl_from_base", mean([point.kl_from_base for point in last]), "nats"),
    ]
    return rows


def main() -> None:
    parser: argparse.ArgumentParser = make_parser(__doc__ or "")
    parser.add_argument("--method", default="combine", help="training method (default combine)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of `train`; repeatable")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--first-seed", type=int, default=SEEDS[0])
    parser.add_argument("--series", type=Path, metavar="FILE", help="write all measurements here, as JSON")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    changes: dict[str, Any] = {key: yaml.safe_load(value) for key, _, value in (pair.partition("=") for pair in options.set)}
    settings = {"method": options.method, "base_pull": PULL, **({"batch_turns": 4} if options.quick else {}), **changes}
    console, began, runs = Console(stderr=True), time.monotonic(), dict[int, Life]()

    def tell(point: Point) -> None:
        numbers = {name: value if isinstance(value, str) else round(value, 3) for name, value in asdict(point).items()}
        console.print(f"{time.monotonic() - began:6.0f} s  {numbers}", highlight=False)

    for seed in range(options.first_seed, options.first_seed + (1 if options.quick else options.seeds)):
        recipe = recipe_of({**settings, "seed": seed})
        runs[seed] = live(recipe, seed, FEW_ANSWERS if options.quick else ANSWERS, 25 if options.quick else 1, tell)
        if options.series:
            series = {seed: asdict(life) for seed, life in runs.items()}
            options.series.write_text(json.dumps({"settings": settings, "runs": series}, indent=1) + "\n")
    rows = rows_of(runs)
    report("weeks", rows, options.json)
    missed = [f"{row.metric} = {row.value:.3g}" for row in rows if row.metric in BARS and not _passes(row)]
    worst, base = (next(r.value or 0 for r in rows if r.metric == f"worst_group_{name}") for name in ("while_disagreeing", "base"))
    if worst < base:
        missed.append(f"worst_group_while_disagreeing = {worst:.3g} < {base:.3g}")
    if missed and not options.quick:
        raise SystemExit(f"bars missed: {', '.join(missed)}")


def _passes(row: Row) -> bool:
    low, high = BARS[row.metric]
    return row.value is not None and low <= row.value <= high


if __name__ == "__main__":
    main()
