"""Measures the model `crafts` or `pages` in its real environments before any reinforcement, and writes its card.

python -m scripts.craft_model.report NAME --model DIR [--tasks 48]
"""

import argparse
import math
import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import yaml
from safetensors import safe_open

from clawctl.run.directory import open_run
from clawctl.run.feedback import Ratings
from clawctl.run.outcomes import SessionOutcome
from scripts.benchmarks.circle import read_recipe, running, wait_until
from scripts.benchmarks.environments_learn import begun_before
from scripts.craft_model.copying import accuracy, load
from scripts.craft_model.train import CORPORA

CARD = """# The model `{name}`

A very small language model ({millions:.1f} M weights, Qwen3 architecture, bf16, byte-level BPE) that knows the tasks of {kinds}
weakly. It exists so that `scripts/bench environments --case learn` and the recipes `craft-*.yaml` can show reinforcement on two CPU
cores. It is trained from nothing on a seeded, synthetic corpus (`scripts/make-craft-model {name}`). It knows no other world, and
should be used for nothing else. Licence: Apache-2.0, as clawctl.

{about.corpus}

## Measured before reinforcement

Eight attempts at each of {tasks} training tasks, sampled at temperature 1, in the real {about.places}, by
`scripts/craft_model/report.py`. The demonstrations come from the same generators of tasks; held-out tasks were not among them.

| environment | mean reward | pass@8 | lowest kind of task |
|---|---|---|---|
{table}

{about.exact} by `scripts/craft_model/copying.py`. It bounds what reinforcement can reach if it changes choices alone.

| episodes | greedy | at temperature 1 |
|---|---|---|
{copies}

## Weak points

{about.weak}
- Every wrong choice was designed, and each has a right one beside it. What reinforcement can do with this model is to select among
  behaviours that it was shown.
"""


@dataclass(frozen=True, slots=True)
class About:
    """What the card says about one of the models."""

    kinds: tuple[str, ...]  # of the recipes
    copies: tuple[str, ...]  # kinds of documents whose copies are measured
    places: str
    corpus: str
    exact: str
    weak: str


MODELS = {
    "crafts": About(
        ("toolcall", "terminal", "swe"),
        ("toolcall", "terminal", "swe"),
        "sandboxes",
        """The corpus has drills in copying, and demonstrations of which about three in ten solve their task. Each fault of a
demonstration is a choice out of a small closed set: a guess instead of a tool call, no answer after a result, an end without a
command, or one of four or five wrong forms of the command. What a demonstration copies from its task is exact. Most tasks have
made-up words and other names of functions, and half have prompts by three authors: the model can copy words that it has never seen,
and knows other ways of asking. A function under a new name has to be read before it is mended.""",
        "The share of new episodes in which each word, number and key that is copied from the task or from a result is exact,",
        """- The fourteen functions of `swe` and the six kinds of tasks of `terminal` are the same in demonstrations, training and
  held-out tasks.""",
    ),
    "pages": About(
        ("gui",),
        ("labels",),
        "Chromium",
        """The corpus has drills that ask for elements by their labels, and demonstrations of which about a third solve their task.
Each fault of a demonstration is a choice out of a small closed set: another element of the same kind, an action without quotation
marks, or an early end. What a demonstration copies is exact. The pages were computed, without Chromium. Most of them have made-up
words, and half of the tasks have prompts by three authors.""",
        "The share of new drills in which each label is exact,",
        "- The eight kinds of websites are the same in demonstrations, training and held-out tasks.",
    ),
}


def measured(model: Path, kind: str, tasks: int, folder: Path) -> str:
    """Measure one environment and return its row."""
    recipe = read_recipe(f"craft-{kind}")
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
    name, some = min(of_kind.items(), key=lambda item: statistics.fmean(item[1]))
    lowest = f"{name} {statistics.fmean(some):.2f}" if len(of_kind) > 1 else "–"
    return f"| `{kind}` | {mean:.2f} | {solved:.2f} | {lowest} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*MODELS])
    parser.add_argument("--model", type=Path, required=True, help="the folder of the model")
    parser.add_argument("--tasks", type=int, default=48)
    args = parser.parse_args()
    began, lines, about = time.monotonic(), [], MODELS[args.name]
    with tempfile.TemporaryDirectory(prefix="clawctl-crafts-") as folder:
        for kind in about.kinds:
            lines.append(measured(args.model, kind, args.tasks, Path(folder) / kind))
            print(lines[-1], flush=True)
    with safe_open(args.model / "model.safetensors", "pt") as weights:
        millions = sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys()) / 1e6  # noqa: SIM118
    copies = []
    for kind in about.copies:
        greedy, sampled = accuracy(*load(args.model), CORPORA[args.name], kind, 300)
        copies.append(f"| `{kind}` | {greedy:.3f} | {sampled:.3f} |")
        print(copies[-1], flush=True)
    *first, last = (f"`{kind}`" for kind in about.kinds)
    kinds = f"{', '.join(first)} and {last}" if first else last
    card = CARD.format(
        name=args.name, about=about, millions=millions, kinds=kinds, tasks=args.tasks, table="\n".join(lines),
        copies="\n".join(copies),
    )  # fmt: skip
    (args.model / "README.md").write_text(card)
    print(f"wrote {args.model / 'README.md'} after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
