"""Measures the model of the world of many wishes and writes its card: base rates, correctness, and how often a wish is followed.

python -m scripts.wishes_model.report --model DIR [--count 12]
"""

import argparse
import statistics
import time
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from scripts.benchmarks.wishes_sampling import draw
from scripts.wishes.axes import AXES, USUAL, draw_style, is_correct, measure, write
from scripts.wishes.grammar import Phrasings
from scripts.wishes.problems import WordProblem, make_problems
from scripts.wishes.wording import Wants, complaint, hint, inline, system, with_hint

PLACES = ("system", "message", "conversation", "hint")
Messages = list[dict[str, Any]]

CARD = """# The model of the world of many wishes

A very small language model ({millions:.1f} M weights, Qwen3 architecture, bf16, byte-level BPE) that answers word problems
with one sum. Its answers vary along {axes} independent axes (`scripts/wishes/axes.py`), and it follows wishes
about each of them. It exists so that `scripts/bench wishes` and `scripts/demo --toy` run on two CPU cores. It is trained on
a seeded, synthetic corpus (`scripts/make-wishes-model`) and began with the layers of an
earlier tiny model, which left the repository in November 2026. It knows no other world,
and should be used for nothing else. Licence: Apache-2.0, as clawctl.

## Measured

All logits of the trained model were multiplied by 1.15 (`--sharpen`): its temperature 1 is 0.87 of what was trained.
Sampled at temperature 1, problems of the eval split, fixed seeds, by `scripts/wishes_model/report.py`. Held-out phrasings never
occur in training. "At once" counts an answer only if it meets every wish. The aim is 90 % for one wish and 80 % for three, in
both kinds of phrasings.

{followed}

Lowest values, one wish at a time, n = {each} each, held-out phrasings: {lowest}.

Where nobody asked, {correct:.1%} of {n} answers are correct, and they have the values below (share in the corpus in brackets).

{base}
"""


def asked(problem: WordProblem, wants: Wants, place: str, rng: Random, phrasings: Phrasings) -> Messages:
    """Make a conversation that requests `wants` in one place."""
    user = {"role": "user", "content": problem.text}
    match place:
        case "system":
            return [{"role": "system", "content": system(wants, rng, phrasings)}, user]
        case "message":
            return [{"role": "user", "content": inline(problem.text, wants, rng, phrasings)}]
        case "hint":
            return [{"role": "user", "content": with_hint(problem.text, hint(wants, rng, phrasings))}]
        case _:
            style = draw_style(rng)
            for axis, value in wants.items():  # the answer must not meet the requests
                if style[axis] == value:
                    style[axis] = rng.choice([other for other in AXES[axis] if other != value])
            said = write(problem, style, rng)
            return [user, {"role": "assistant", "content": said}, {"role": "user", "content": complaint(wants, rng, phrasings)}]


class Reporter:
    """Samples many answers of the model and measures them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.seed, self.rng = seed, Random(seed)

    def base(self, count: int) -> tuple[float, list[str]]:
        """Return the share of correct answers and a line for each axis, for requests without wishes."""
        problems = make_problems(count, self.seed, "eval")
        answers = draw(self.model, self.tokenizer, [[{"role": "user", "content": p.text}] for p in problems], self.seed)
        seen: dict[str, Counter[str | None]] = defaultdict(Counter)
        for answer in answers:
            for axis, value in measure(answer.text).items():
                seen[axis][value] += 1
        lines = []
        for axis, values in AXES.items():
            shares = ", ".join(f"{value} {seen[axis][value] / count:.3f} ({share:.2f})" for value, share in values.items())
            lines.append(f"- {axis}: {shares}")
        return statistics.mean(is_correct(p, a.text) for p, a in zip(problems, answers, strict=True)), lines

    def followed(self, phrasings: Phrasings, at_once: int, count: int) -> dict[str, list[bool]]:
        """Return whether wishes were met, by place, by value, and by correctness of the answer."""
        jobs: list[tuple[str, dict[str, str], WordProblem, Messages]] = []
        problems, rng = make_problems(400, self.seed, "eval"), self.rng
        for axis, values in AXES.items():
            for value in values:
                for place in PLACES:
                    for _ in range(count):
                        others = rng.sample([a for a in AXES if a != axis], at_once - 1)
                        wants = {axis: value, **{other: rng.choice(list(AXES[other])) for other in others}}
                        problem = rng.choice(problems)
                        jobs.append((place, wants, problem, asked(problem, wants, place, rng, phrasings)))
        drawn = draw(self.model, self.tokenizer, [job[3] for job in jobs], self.seed + at_once)
        outcomes: dict[str, list[bool]] = defaultdict(list)
        for (place, wants, problem, _), answer in zip(jobs, drawn, strict=True):
            values_found = measure(answer.text)
            met = all(values_found[axis] == value for axis, value in wants.items())
            first, value = next(iter(wants.items()))
            for name in (place, "all", "usual" if value == USUAL[first] else "rare", f"{first} = {value}"):
                outcomes[name].append(met)
            outcomes["correct"].append(is_correct(problem, answer.text))
        return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--count", type=int, default=8, help="answers for each value, place and kind of phrasing")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    began, reporter = time.monotonic(), Reporter(args.model, args.seed)
    correct, base = reporter.base(50 * args.count)
    print(f"correct {correct:.3f}", *base, sep="\n", flush=True)
    names = ("all", "rare", "usual", *PLACES, "correct")
    table = ["| phrasings | at once | n | " + " | ".join(names) + " |", "|---" * (3 + len(names)) + "|"]
    lowest = ""
    for phrasings in ("trained", "held_out"):
        for at_once in (1, 3):
            outcomes = reporter.followed(phrasings, at_once, args.count if at_once == 1 else max(1, args.count // 2))
            shares = " | ".join(f"{statistics.mean(outcomes[name]):.1%}" for name in names)
            table.append(f"| {phrasings} | {at_once} | {len(outcomes['all'])} | {shares} |")
            low = sorted((statistics.mean(met), name) for name, met in outcomes.items() if " = " in name)[:10]
            if at_once == 1:
                lowest = ", ".join(f"{name} {share:.0%}" for share, name in low)
            print(table[-1], low, sep="\n", flush=True)
    millions = sum(p.numel() for p in reporter.model.parameters()) / 1e6
    card = CARD.format(
        millions=millions, axes=len(AXES), followed="\n".join(table), each=4 * args.count, lowest=lowest, correct=correct,
        n=50 * args.count, base="\n".join(base),
    )  # fmt: skip
    (args.model / "README.md").write_text(card)
    print(f"wrote {args.model / 'README.md'} after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
