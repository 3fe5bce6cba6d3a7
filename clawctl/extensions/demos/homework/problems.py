"""Homework: small word problems, and pupils' solutions to comment on.

Numbers are small enough that a tiny model can learn every fact: sums of 2 to 15, differences within 20, and the times table up to
9. A second step uses 2 to 9. A pupil's wrong solution always uses the wrong operation, so a comment only has to compare two signs.
"""

import re
import zlib
from dataclasses import dataclass
from random import Random
from typing import Literal

Role = Literal["student", "teacher"]
Split = Literal["train", "eval", "all"]
Step = tuple[int, str, int, int]  # 12, "+", 5, 17

NAMES = (
    "Maya",
    "Tom",
    "Ana",
    "Ben",
    "Lily",
    "Omar",
    "Nina",
    "Sam",
    "Zoe",
    "Leo",
    "Ivy",
    "Max",
    "Ella",
    "Noah",
    "Mia",
    "Jack",
    "Rosa",
    "Finn",
    "Lena",
    "Hugo",
    "Aisha",
    "Theo",
    "Clara",
    "Amir",
    "Ruth",
    "Paul",
)
THINGS = (
    "apples",
    "pears",
    "books",
    "cards",
    "coins",
    "shells",
    "stickers",
    "pencils",
    "marbles",
    "cookies",
    "buttons",
    "eggs",
    "stones",
    "flowers",
    "stamps",
    "toys",
    "plums",
    "beads",
    "cups",
    "balloons",
    "muffins",
    "leaves",
    "crayons",
    "badges",
)
BOXES = ("bags", "boxes", "jars", "baskets", "packs", "trays", "shelves", "piles")

_STORIES: dict[str, tuple[str, ...]] = {
    "+": (
        "{A} has {a} {things} and gets {b} more. How many {things} does {A} have now?",
        "{A} found {a} {things} on Monday and {b} on Tuesday. How many {things} is that in all?",
        "There are {a} {things} on the table. {A} adds {b} more. How many {things} are there now?",
        "{A} has {a} {things} and {B} has {b}. How many {things} do they have together?",
        "{A} bought {a} {things}. Then {B} gave {A} another {b}. How many {things} does {A} have?",
        "In the morning {A} counts {a} {things}, in the evening {b} more. How many {things} in total?",
    ),
    "-": (
        "{A} has {a} {things} and gives {b} to {B}. How many {things} are left?",
        "There were {a} {things} in the room. {A} took {b} away. How many {things} are left?",
        "{A} had {a} {things} and lost {b}. How many {things} does {A} still have?",
        "{A} needs {a} {things} and already has {b}. How many {things} are missing?",
        "{A} made {a} {things} and sold {b}. How many {things} remain?",
        "{A} has {a} {things}, {B} has {b} fewer. How many {things} does {B} have?",
    ),
    "x": (
        "{A} has {a} {boxes} with {b} {things} each. How many {things} is that in all?",
        "There are {a} {boxes}. Each one holds {b} {things}. How many {things} are there?",
        "{A} fills {a} {boxes} and puts {b} {things} in each. How many {things} did {A} use?",
        "{a} friends each bring {b} {things}. How many {things} do they bring together?",
        "{A} buys {a} {boxes} of {b} {things}. How many {things} does {A} buy?",
    ),
}
_SECOND: dict[str, tuple[str, ...]] = {
    "+": ("Then {c} more come. How many {things} are there now?", "Later {B} brings {c} more. How many {things} is that now?"),
    "-": ("Then {B} takes {c} of them. How many {things} are left?", "After that {c} get lost. How many {things} remain?"),
}
_ASKS = (
    "{p}",
    "{p}",
    "can you do my homework: {p}",
    "how do I answer this? {p}",
    "homework question: {p}",
    "I'm stuck on this one: {p}",
    "{p} can you help me?",
    "help please! {p}",
    "what do I write here: {p}",
    "my teacher asks: {p}",
    "I have to hand this in tomorrow. {p}",
    "Can you solve this for me? {p}",
    "the next one on my sheet says: {p}",
    "{p} how would you do it?",
)
_COMMENT_ON = (
    "Please comment on {N}'s solution. Problem: {p} {N} wrote: {w}",
    "The problem was: {p} {N} wrote: {w} What should I tell {N}?",
    "I'm grading homework. {p} {N}'s answer: {w} Write a comment for {N}, please.",
    "Can you write feedback for {N}? The problem: {p} {N}'s solution: {w}",
    "{p} My pupil {N} wrote this: {w} Please give me a comment for {N}.",
    "Feedback for {N}, please. {p} This is what {N} handed in: {w}",
    "Is this right? {p} {N} says: {w} I need a comment for {N}.",
    "One of my pupils, {N}, solved this: {p} The solution of {N}: {w} How would you comment on it?",
)
_WROTE = ("{s}.", "{s}, so {x} {things}.", "{s}. Answer: {x} {things}.", "I did {s}.", "{s}, the answer is {x}.")


@dataclass(frozen=True, slots=True)
class Problem:
    """One piece of homework. `name` is the child in the story (student), or the pupil who wrote the solution (teacher)."""

    task_id: str
    role: Role
    prompt: str
    answer: int
    solution_right: bool | None  # teacher only
    name: str
    thing: str
    steps: tuple[Step, ...]  # ((3, "x", 4, 12), (12, "+", 5, 17))
    written: Step | None  # teacher only: the calculation that the pupil wrote


def make_tasks(role: Role, count: int, seed: int, split: Split = "train") -> list[Problem]:
    """`count` tasks. The same arguments give the same tasks. The splits `train` and `eval` share no problem text."""
    rng = Random(f"homework {role} {seed} {split}")
    tasks: list[Problem] = []
    while len(tasks) < count:
        task, problem = _draw(role, rng, f"{role}-{split}-{seed}-{len(tasks)}")
        if split == "all" or (zlib.crc32(problem.encode()) % 5 == 0) == (split == "eval"):
            tasks.append(task)
    return tasks


def is_correct(task: Problem, reply: str) -> bool:
    """Whether a reply is correct.

    Student: the last number of the reply is the answer. Teacher: the reply judges the solution correctly, and if the solution is
    wrong, also contains the right answer.
    """
    numbers = numbers_in(reply)
    if task.role == "student":
        return bool(numbers) and numbers[-1] == task.answer
    said_right = verdict(reply)
    return said_right is task.solution_right and (said_right is not False or task.answer in numbers)


def numbers_in(text: str) -> list[int]:
    """Whole numbers in reading order, without list numbers and the number in "Step 1"."""
    bare = re.sub(r"(?m)^\s*\**\d+[.)]\s|\b[Ss]tep \d+", " ", text)
    return [int(n) for n in re.findall(r"\d+", bare)]


_NOT_RIGHT = re.compile(
    r"incorrect|\bwrong|mistake|\bslip|not (quite |yet |all )?(right|correct|there|it|the same)|isn't|doesn't match|does not match"
)
_RIGHT = re.compile(r"\bcorrect|\bright\b|spot on|matches|exactly|perfect|the same")


def verdict(comment: str) -> bool | None:
    """True if a comment says that the solution is right, False if it says that it is wrong, None if it does neither."""
    text = comment.lower()
    if _NOT_RIGHT.search(text):
        return False
    return True if _RIGHT.search(text) else None


def _draw(role: Role, rng: Random, task_id: str) -> tuple[Problem, str]:
    steps = _steps(rng, max_steps=2 if role == "student" else 1)
    who, other, pupil = rng.sample(NAMES, 3)
    thing = rng.choice(THINGS)
    (a, op, b, _), last = steps[0], steps[-1]
    story = rng.choice(_STORIES[op])
    if len(steps) == 2:
        story = story[: story.rindex(". ") + 2] + rng.choice(_SECOND[last[1]])
    problem = story.format(A=who, B=other, a=a, b=b, c=last[2], things=thing, boxes=rng.choice(BOXES))
    answer = last[3]
    if role == "student":
        return Problem(task_id, role, rng.choice(_ASKS).format(p=problem), answer, None, who, thing, steps, None), problem
    right = rng.random() < 0.5
    written = last if right else _wrong_step(last, rng)
    x, sign, y, z = written
    work = rng.choice(_WROTE).format(s=f"{x} {sign} {y} = {z}", x=z, things=thing)
    prompt = rng.choice(_COMMENT_ON).format(N=pupil, p=problem, w=work)
    return Problem(task_id, role, prompt, answer, right, pupil, thing, steps, written), problem


def _steps(rng: Random, max_steps: int) -> tuple[Step, ...]:
    op = rng.choice("++--xx")
    if op == "x":
        a, b = rng.randint(2, 9), rng.randint(2, 9)
    elif op == "+":
        a, b = rng.randint(2, 15), rng.randint(2, 15)
    else:
        a = rng.randint(4, 20)
        b = rng.randint(2, a - 1)
    first = (a, op, b, _result(a, op, b))
    if max_steps == 1 or op == "-" or rng.random() < 0.6:
        return (first,)
    sign, c = rng.choice("+-"), rng.randint(2, 9)
    if sign == "-" and c >= first[3]:
        sign = "+"
    return (first, (first[3], sign, c, _result(first[3], sign, c)))


def _result(a: int, op: str, b: int) -> int:
    return a + b if op == "+" else a - b if op == "-" else a * b


def _wrong_step(step: Step, rng: Random) -> Step:
    """A pupil's wrong version of a step: the right numbers with the wrong operation, calculated correctly."""
    a, op, b, c = step
    others = [o for o in "+-x" if o != op and _result(a, o, b) >= 0 and _result(a, o, b) != c]
    wrong = rng.choice(others)
    return (a, wrong, b, _result(a, wrong, b))
