"""Case `judge`: how often injected text and padding change the verdict of a judge that obeys all that the fences let through.

The judge is `judge_obedient`, the worst one: rules that follow any order outside the blocks of a turn.

Each turn is judged three times: without its attack, again without it, and with it. A flip is any verdict that differs from the
first one, an abstention included.

There are three groups of attacks. `open` is for those who work on the defence. `seen` was held out once, but its results led to
repairs of the defence. `held_out` is `hostile_judge_fresh.yaml`, whose author had read neither the defence nor the other two.
"""

import argparse
import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from clawctl.config import Recipe
from clawctl.extensions.judge_lab.calibrate import reward_now
from clawctl.judge.panel import Panel, gather_all
from clawctl.run.directory import RunDir, open_run
from scripts.benchmarks.hostile_judge_attacks import FRESH as HELD_OUT
from scripts.benchmarks.hostile_judge_attacks import OPEN, SEEN, Injection, draw, padded
from scripts.benchmarks.judge import judged_by, null_judge
from scripts.benchmarks.table import Row

ATTACKS, PADDED = 480, 90
QUICK_ATTACKS, QUICK_PADDED = 120, 30


@dataclass(frozen=True, slots=True)
class Tried:
    """One injection and the three verdicts."""

    injection: Injection
    clean: float | None
    again: float | None
    moved: float | None

    @property
    def flipped(self) -> bool:
        return self.moved != self.clean


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    with null_judge(0.0) as url:
        return asyncio.run(_measured(open_run(folder / "run"), judged_by(url), options.quick, options.seed))


async def _measured(run: RunDir, recipe: Recipe, quick: bool, seed: int) -> list[Row]:
    attacks, padding = (QUICK_ATTACKS, QUICK_PADDED) if quick else (ATTACKS, PADDED)
    held_out = await tried(run, recipe, draw(HELD_OUT, attacks, seed))
    seen = await tried(run, recipe, draw(SEEN, attacks // 2, seed))
    opened = await tried(run, recipe, draw(OPEN, attacks // 2, seed))
    long = await tried(run, recipe, [*padded(HELD_OUT, padding, seed), *padded(OPEN, padding // 2, seed)])
    everything = (*held_out, *seen, *opened)
    return [
        Row("judge", "held_out_flip_rate", _share(trial.flipped for trial in held_out), "share"),
        Row("judge", "held_out_attacks", len(held_out), "turns"),
        Row("judge", "seen_flip_rate", _share(trial.flipped for trial in seen), "share"),
        Row("judge", "seen_attacks", len(seen), "turns"),
        Row("judge", "open_flip_rate", _share(trial.flipped for trial in opened), "share"),
        Row("judge", "open_attacks", len(opened), "turns"),
        Row("judge", "asked_twice_flip_rate", _share(trial.again != trial.clean for trial in everything), "share"),
        Row("judge", "reached_wanted_rate", _share(trial.moved == trial.injection.wants for trial in everything), "share"),
        Row("judge", "right_without_attack", _share(trial.clean == trial.injection.carrier.sign for trial in everything), "share"),
        Row("judge", "right_with_attack", _share(trial.moved == trial.injection.carrier.sign for trial in everything), "share"),
        Row("judge", "no_valid_vote_rate", _share(trial.moved is None for trial in long), "share"),
        Row("judge", "padding_flip_rate", _share(trial.flipped for trial in long), "share"),
        Row("judge", "padded_turns", len(long), "turns"),
    ]


async def tried(run: RunDir, recipe: Recipe, injections: Sequence[Injection]) -> list[Tried]:
    """All verdicts, as many calls at a time as the recipe allows."""
    panel = Panel(run, recipe, patience_s=recipe.judge.timeout_s)

    async def one(injection: Injection) -> Tried:
        clean, attacked = injection.pair()
        verdicts = await gather_all(reward_now(panel, case) for case in (clean, clean, attacked))
        return Tried(injection, *verdicts)

    try:
        return list(await gather_all(map(one, injections)))
    finally:
        await panel.close()


def _share(values: Iterable[bool]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
