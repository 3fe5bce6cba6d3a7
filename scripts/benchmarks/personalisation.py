"""The published experiment at small scale: measures whether the model learns people's wishes from their replies and stays correct.

Students do not want to look as if they used AI. Teachers want friendly, specific comments. For each method and seed, real stages
run until 16 updates are live. Versions 0, 8 and 16 then answer 36 new problems (108 for correctness). The published experiment is
OpenClaw-RL, arXiv 2603.10165 v1, Table 3 (base 0.17).

The case `start, asked for the style` is version 0 on the same problems, with a hint in each request that asks for the wanted style.
The demo model makes more mistakes in that style. `correctness_change` of this case is the cost of the style without training.
"""

import asyncio
import math
import statistics
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console

from clawctl.config import load_recipe
from clawctl.environments.asking import ask, new_client
from clawctl.extensions.demos.homework.environment import problems
from clawctl.extensions.demos.homework.people import Person
from clawctl.extensions.demos.homework.problems import Problem, is_correct
from clawctl.extensions.demos.homework.satisfaction import satisfaction
from clawctl.run.directory import open_run
from clawctl.run.endpoint import own_endpoint
from scripts.benchmarks.circle import measure, people, running, write_recipe
from scripts.benchmarks.table import Row, arguments, report
from scripts.demo_model.phrasings import hint, with_hint

METHODS = ("binary", "opd", "combine")
LR = 7.5e-5  # for all methods; docs/toy-worlds.md describes its selection
SEEDS = range(10, 15)  # the settings were chosen with other seeds
PROBLEMS = 36  # as published
FEW_PROBLEMS = 12  # --quick
SMALL_STEPS = {"batch_turns": 4, "batch_wait_s": 3, "batch_min_turns": 1}  # --quick: all rows, but without meaningful numbers
MORE_PROBLEMS = 108  # for correctness: 36 answers are too few to detect a change of three points
PUBLISHED = {
    "start": 0.17,
    "binary@8": 0.25,
    "binary@16": 0.23,
    "opd@8": 0.25,
    "opd@16": 0.72,
    "combine@8": 0.76,
    "combine@16": 0.81,
}
ASKED = "start, asked for the style"
AT_ONCE = 8  # concurrent requests
T_975 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 15: 2.145}  # Student's t for the 95 % interval of the mean of n runs


def one_run(folder: Path, method: str, seed: int, quick: bool, lr: float = LR) -> dict[str, tuple[float, float]]:
    """Do one run. Returns {"combine@8": (satisfaction, correctness), …}, with version 0 as "start"."""
    changes = {
        "train": {"method": method, "lr": lr, "max_steps": 16, "seed": seed, **(SMALL_STEPS if quick else {})},
        "eval": {"seed": seed, "problems": FEW_PROBLEMS if quick else PROBLEMS},
        "up": {"stages": ["serve", "collect", "judge", "train"]},
        "gate": None,
    }
    folder.mkdir()
    recipe, run = write_recipe(folder, changes), folder / "run"
    with running(run, recipe):
        people(run, 10, seed, until_version=16, timeout_s=1200, think_s=0.3)
        more = folder / "more"
        more.mkdir()
        longer = write_recipe(more, {**changes, "eval": {"seed": seed, "problems": MORE_PROBLEMS}})
        found = {}
        for version in (0, 8, 16):
            first = measure(run, recipe, version)["suites"]["personalisation"]
            counted = first if quick else measure(run, longer, version)["suites"]["personalisation"]
            case = f"{method}@{version}" if version else "start"
            found[case] = (first["satisfaction"]["mean"], counted["correctness"]["mean"])
        found[ASKED] = asyncio.run(asked_for_the_style(run, recipe if quick else longer))
    return found


async def asked_for_the_style(run: Path, recipe_file: Path) -> tuple[float, float]:
    """Return (satisfaction, correctness) of version 0 if each request asks for the style in the demo model's training phrasings."""
    recipe = load_recipe(recipe_file)
    endpoint, places = own_endpoint(open_run(run), recipe, version=0), asyncio.Semaphore(AT_ONCE)

    async def reply_to(number: int, task: Problem) -> str:
        seed = recipe.eval.seed * 1_000_003 + number  # the same person as in the suite
        prompt = with_hint(Person(task.role, seed).open(task), hint(task.role, "human", Random(seed), "trained"))
        async with places:
            sampling: dict[str, Any] = {"temperature": recipe.eval.temperature, "max_tokens": recipe.eval.max_tokens}
            return await ask(endpoint, [{"role": "user", "content": prompt}], {"X-Capture": "off"}, client=client, **sampling)

    asked = problems("eval", recipe.eval.problems, recipe.eval.seed)
    async with new_client(endpoint) as client:
        replies = await asyncio.gather(*(reply_to(number, task) for number, task in enumerate(asked)))
    pairs = list(zip(asked, replies, strict=True))
    return statistics.mean(satisfaction(*pair) for pair in pairs), statistics.mean(is_correct(*pair) for pair in pairs)


def interval(values: list[float]) -> float | None:
    """Return the half width of the 95 % interval of the mean over seeds, or None for a single seed."""
    if len(values) < 2:
        return None
    return T_975[len(values)] * statistics.stdev(values) / math.sqrt(len(values))


def main() -> None:
    options = arguments(__doc__ or "")
    seeds = SEEDS[:1] if options.quick else SEEDS
    console, start = Console(stderr=True), time.monotonic()
    results: dict[str, list[tuple[float, float]]] = {}
    changed: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="clawctl-bench-") as folder:
        for method in METHODS:
            for seed in seeds:
                found = one_run(Path(folder) / f"{method}-{seed}", method, seed, options.quick)
                for case, pair in found.items():
                    results.setdefault(case, []).append(pair)
                    changed.setdefault(case, []).append(pair[1] - found["start"][1])
                console.print(f"{time.monotonic() - start:6.0f} s  {method} seed {seed}: {found}")
    rows = []
    for case in ("start", ASKED, *(f"{method}@{version}" for method in METHODS for version in (8, 16))):
        satisfied = [pair[0] for pair in results[case]]
        rows += [
            Row(case, "satisfaction", statistics.mean(satisfied), "share"),
            Row(case, "satisfaction_ci95", interval(satisfied), "share"),
            Row(case, "satisfaction_published", PUBLISHED.get(case), "share"),
            Row(case, "correctness", statistics.mean(pair[1] for pair in results[case]), "share"),
            Row(case, "correctness_change", statistics.mean(changed[case]), "share"),
        ]
    report("personalisation", rows, options.json)


if __name__ == "__main__":
    main()
