"""Sums of two roles, as an environment that eval measures: half of an answer is whether it is right, half whether it is polite."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from clawctl.asking import ask
from clawctl.environments import Outcome, Split, Task
from clawctl.run.endpoint import Endpoint

SUMS = f"{Path(__file__).resolve()}:Sums"  # the suite's name in a recipe
MARGINS = [{"suite": SUMS, "metric": metric, "max_drop": 0.1} for metric in ("correctness", "satisfaction")]


@dataclass(frozen=True, slots=True)
class Sum:
    task_id: str
    role: str
    prompt: str
    answer: int


def sums(split: Split, count: int, seed: int) -> list[Sum]:
    """Half of them of each role; of an odd count, students get one more. No sum of training is held out."""
    rng, tens = Random(f"{split} {seed}"), 0 if split == "train" else 10
    made = []
    for number in range(count):
        role = "teacher" if number >= count - count // 2 else "student"
        a, b = rng.randint(100, 999), 20 * rng.randint(10, 49) + tens + rng.randint(0, 9)
        made.append(Sum(f"{role}-{split}-{seed}-{number}", role, f"What is {a} + {b}?", a + b))
    return made


class Sums:
    metrics = ("satisfaction", "correctness")
    version = "1"

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        return [Task(made.task_id, made, split) for made in sums(split, count, seed)]

    async def play(self, task: Task, endpoint: Endpoint) -> Outcome:
        reply = await ask(endpoint, [{"role": "user", "content": task.spec.prompt}])
        satisfied, correct = float("please" in reply), float(str(task.spec.answer) in reply)
        shown = {
            "role": task.spec.role,
            "prompt": task.spec.prompt,
            "reply": reply,
            "satisfaction": satisfied,
            "correct": bool(correct),
        }
        return Outcome(parts={"satisfaction": satisfied, "correctness": correct}, example=shown)


def good(task: Sum) -> str:
    """A satisfying and correct answer."""
    return f"{task.answer}, if you please"


def bad(task: Sum) -> str:
    return f"{task.answer + 1}"
