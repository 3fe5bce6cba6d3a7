"""Word problems with one sum. No number exceeds 20, so a tiny model can learn every fact in digits and in three languages."""

import zlib
from dataclasses import dataclass
from random import Random
from typing import Literal

Split = Literal["train", "eval"]

NAMES = ("Tom", "Ana", "Ben", "Lily", "Omar", "Nina", "Sam", "Zoe", "Leo", "Mia", "Noah", "Rosa")
THINGS: dict[str, tuple[str, str, str]] = {
    "apples": ("apples", "Äpfel", "manzanas"),
    "pears": ("pears", "Birnen", "peras"),
    "books": ("books", "Bücher", "libros"),
    "cards": ("cards", "Karten", "cartas"),
    "coins": ("coins", "Münzen", "monedas"),
    "shells": ("shells", "Muscheln", "conchas"),
    "pencils": ("pencils", "Stifte", "lápices"),
    "cookies": ("cookies", "Kekse", "galletas"),
    "eggs": ("eggs", "Eier", "huevos"),
    "stones": ("stones", "Steine", "piedras"),
    "flowers": ("flowers", "Blumen", "flores"),
    "cups": ("cups", "Tassen", "tazas"),
}
_STORIES: dict[str, tuple[str, ...]] = {
    "+": (
        "{A} has {a} {things} and gets {b} more. How many {things} does {A} have now?",
        "{A} found {a} {things} on Monday and {b} on Tuesday. How many {things} is that?",
        "There are {a} {things} on the table. {A} adds {b} more. How many {things} are there now?",
        "{A} has {a} {things} and a friend has {b}. How many {things} do they have together?",
    ),
    "-": (
        "{A} has {a} {things} and gives away {b}. How many {things} are left?",
        "There were {a} {things} in the room. {A} took {b} away. How many {things} are left?",
        "{A} had {a} {things} and lost {b}. How many {things} does {A} still have?",
        "{A} made {a} {things} and sold {b}. How many {things} are left?",
    ),
    "x": (
        "{A} has {a} boxes with {b} {things} each. How many {things} is that?",
        "There are {a} boxes. {A} puts {b} {things} in each. How many {things} are there?",
        "{A} buys {a} bags of {b} {things}. How many {things} does {A} buy?",
    ),
}


@dataclass(frozen=True, slots=True)
class WordProblem:
    """One word problem: `a op b = c`."""

    task_id: str
    text: str
    name: str
    thing: str  # the English word, which is a key of THINGS
    a: int
    op: str  # "+", "-" or "x"
    b: int

    @property
    def c(self) -> int:
        return self.a + self.b if self.op == "+" else self.a - self.b if self.op == "-" else self.a * self.b


def make_problems(count: int, seed: int, split: Split = "train") -> list[WordProblem]:
    """`count` problems. The same arguments give the same problems. The splits `train` and `eval` share no problem text."""
    rng = Random(f"wishes {seed} {split}")
    problems: list[WordProblem] = []
    while len(problems) < count:
        problem = _draw(rng, f"sum-{split}-{seed}-{len(problems)}")
        if (zlib.crc32(problem.text.encode()) % 5 == 0) == (split == "eval"):
            problems.append(problem)
    return problems


def _draw(rng: Random, task_id: str) -> WordProblem:
    op = rng.choice("++--x")
    if op == "+":
        a, b = rng.randint(2, 10), rng.randint(2, 10)
    elif op == "-":
        a = rng.randint(4, 20)
        b = rng.randint(2, min(10, a - 1))
    else:
        a, b = rng.choice([(a, b) for a in range(2, 10) for b in range(2, 10) if a * b <= 20])
    name, thing = rng.choice(NAMES), rng.choice(list(THINGS))
    return WordProblem(task_id, rng.choice(_STORIES[op]).format(A=name, a=a, b=b, things=thing), name, thing, a, op, b)
