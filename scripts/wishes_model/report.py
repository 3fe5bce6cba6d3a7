"""Measures the model of the world of many wishes: base rates, correctness, and how often a wish is followed, place by place.

python -m scripts.wishes_model.report --model DIR [--count 12]
"""

import argparse
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from clawctl.environments.grammar import Phrasings
from clawctl.environments.wishes.axes import AXES, USUAL, draw_style, is_correct, measure, write
from clawctl.environments.wishes.problems import WordProblem, make_problems
from clawctl.environments.wishes.wording import Wants, complaint, hint, inline, system, with_hint
from scripts.benchmarks.wishes_sampling import draw

PLACES = ("system", "message", "conversation", "hint")
Messages = list[dict[str, Any]]


def asked(problem: WordProblem, wants: Wants, place: str, rng: Random, phrasings: Phrasings) -> Messages:
    """A conversation that asks for `wants` in one place."""
    user, said = {"role": "user", "content": problem.text}, ""
    match place:
        case "system":
            return [{"role": "system", "content": system(wants, rng, phrasings)}, user]
        case "message":
            return [{"role": "user", "content": inline(problem.text, wants, rng, phrasings)}]
        case "hint":
            return [{"role": "user", "content": with_hint(problem.text, hint(wants, rng, phrasings))}]
        case _:
            style = draw_style(rng)
            for axis, value in wants.items():  # it is asked for where it was not given
                if style[axis] == value:
                    style[axis] = rng.choice([other for other in AXES[axis] if other != value])
            said = write(problem, style, rng)
            return [user, {"role": "assistant", "content": said}, {"role": "user", "content": complaint(wants, rng, phrasings)}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--count", type=int, default=12, help="answers for each value, place and kind of phrasing")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    model: Any = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(args.model)
    rng = Random(args.seed)

    problems = make_problems(40 * args.count, args.seed, "eval")
    answers = draw(model, tokenizer, [[{"role": "user", "content": p.text}] for p in problems], args.seed)
    found = [measure(a.text) for a in answers]
    print(f"correct {sum(is_correct(p, a.text) for p, a in zip(problems, answers, strict=True)) / len(problems):.3f}, "
          f"{sum(len(a.completion_ids) for a in answers) / len(answers):.0f} tokens")  # fmt: skip
    for axis, values in AXES.items():
        seen = Counter(m[axis] for m in found)
        print(f"base {axis}: " + ", ".join(f"{v} {seen[v] / len(found):.3f} ({share})" for v, share in values.items()), seen[None])

    for phrasings in ("trained", "held_out"):
        for count in (1, 3):
            jobs: list[tuple[str, dict[str, str], WordProblem, Messages]] = []
            for axis, values in AXES.items():
                for value in values:
                    for place in PLACES:
                        for _ in range(args.count if count == 1 else max(1, args.count // 4)):
                            others = rng.sample([a for a in AXES if a != axis], count - 1)
                            wants = {axis: value, **{o: rng.choice(list(AXES[o])) for o in others}}
                            problem = problems[rng.randrange(len(problems))]
                            jobs.append((place, wants, problem, asked(problem, wants, place, rng, phrasings)))
            drawn = draw(model, tokenizer, [job[3] for job in jobs], args.seed + count)
            followed: dict[str, list[bool]] = {}
            for (place, wants, problem, _), answer in zip(jobs, drawn, strict=True):
                values_found = measure(answer.text)
                met = all(values_found[axis] == value for axis, value in wants.items())
                followed.setdefault(f"place {place}", []).append(met)
                followed.setdefault("correct", []).append(is_correct(problem, answer.text))
                followed.setdefault("all", []).append(met)
                if count == 1:
                    ((axis, value),) = wants.items()
                    followed.setdefault("to the usual" if value == USUAL[axis] else "to the rare", []).append(met)
                    followed.setdefault(f"{axis} = {value}", []).append(met)
            print(f"\n{phrasings}, {count} at once: " + ", ".join(
                f"{name} {sum(met) / len(met):.3f}" for name, met in followed.items() if " = " not in name))  # fmt: skip
            low = sorted((sum(met) / len(met), name) for name, met in followed.items() if " = " in name)
            print("   lowest: " + ", ".join(f"{name} {share:.2f}" for share, name in low[:12]))
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
