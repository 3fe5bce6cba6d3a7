"""Shell tasks that clawctl draws from a seed, in Harbor's format. Each verdict reads files only."""

import random
from collections.abc import Callable
from typing import NamedTuple

from clawctl.environments import Split
from clawctl.extensions.worlds.splits import task_numbers
from clawctl.extensions.worlds.terminal.harbor import HarborTask
from clawctl.extensions.worlds.wording import HeldOut, Wording, read_wording, wording_of


class Drawn(NamedTuple):
    """A task without its prompt."""

    values: dict[str, str]  # what the prompt names
    files: dict[str, str]  # the text of each file of the working folder
    check: str  # a bash condition that the solution must meet
    solution: str


Family = Callable[[random.Random, Wording], Drawn]


def _lines(draw: random.Random, wording: Wording, count: int) -> list[str]:
    return [f"{draw.choice(wording.words['nouns'])} {draw.randrange(100)}" for _ in range(count)]


def _file(draw: random.Random, wording: Wording, kind: str) -> str:
    name = draw.choice(wording.words[kind])
    return f"{draw.choice(wording.words['folders'])}/{name}" if wording.is_new and draw.random() < 0.5 else name


def find(draw: random.Random, wording: Wording) -> Drawn:
    """Move the file that contains a word into another folder."""
    words = wording.words
    folders = draw.sample(words["places"], 3)
    names = [f"{folder}/{noun}.txt" for folder in folders for noun in draw.sample(words["nouns"], 2)]
    word = f"{draw.choice(words['keys'])}{draw.randrange(1000, 10000)}"
    right, target = draw.choice(names), draw.choice(words["targets"])
    files = {name: "\n".join(_lines(draw, wording, 4)) + (f"\n{word}\n" if name == right else "\n") for name in names}
    final = f"{target}/{right.split('/')[1]}"
    check = f'[ ! -e {right} ] && [ "$(ls {target})" = {right.split("/")[1]} ] && [ "$(tail -n 1 {final})" = {word} ]'
    check += "".join(f" && [ -f {name} ]" for name in names if name != right)
    return Drawn({"word": word, "folder": target}, files, check, f"mkdir {target}\nmv $(grep -rl {word} .) {target}/")


def count(draw: random.Random, wording: Wording) -> Drawn:
    """Count the lines that contain a word."""
    word, file, answer = draw.choice(wording.words["nouns"]), _file(draw, wording, "logs"), _file(draw, wording, "answers")
    lines = _lines(draw, wording, draw.randrange(15, 40)) + [f"{word} {draw.randrange(100)}" for _ in range(draw.randrange(1, 6))]
    draw.shuffle(lines)
    return Drawn(
        {"word": word, "file": file, "answer": answer}, {file: "\n".join(lines) + "\n", **_beside(answer)},
        _is_answer(answer, sum(word in line for line in lines)), f"grep -c {word} {file} > {answer}",
    )  # fmt: skip


def _is_answer(answer: str, number: int) -> str:
    return f'[ "$(tr -d " \\n" < {answer})" = {number} ]'


def _beside(answer: str) -> dict[str, str]:
    """A file that keeps the folder of the answer in being."""
    folder, slash, _ = answer.rpartition("/")
    return {f"{folder}/readme": "Put results here.\n"} if slash else {}


def total(draw: random.Random, wording: Wording) -> Drawn:
    """Sum a column."""
    file, answer = _file(draw, wording, "tables"), _file(draw, wording, "answers")
    item, column = draw.choice(wording.words["items"]), draw.choice(wording.words["columns"])
    rows = [(draw.choice(wording.words["nouns"]), draw.randrange(1, 500)) for _ in range(draw.randrange(8, 20))]
    text = f"{item},{column}\n" + "".join(f"{name},{number}\n" for name, number in rows)
    return Drawn(
        {"column": column, "file": file, "answer": answer}, {file: text, **_beside(answer)},
        _is_answer(answer, sum(number for _, number in rows)),
        f"tail -n +2 {file} | awk -F, '{{ s += $2 }} END {{ print s }}' > {answer}",
    )  # fmt: skip


def largest(draw: random.Random, wording: Wording) -> Drawn:
    """Name the largest file in a folder."""
    folder, answer = draw.choice(wording.words["folders"]), draw.choice(wording.words["answers"])
    names = draw.sample(wording.words["nouns"], 5)
    sizes = draw.sample(range(20, 400), 5)
    files = {f"{folder}/{name}.bin": "x" * size for name, size in zip(names, sizes, strict=True)}
    right = f"{names[sizes.index(max(sizes))]}.bin"
    return Drawn(
        {"folder": folder, "answer": answer}, files, f'[ "$(basename "$(cat {answer})")" = {right} ]',
        f"ls -S {folder} | head -n 1 > {answer}",
    )  # fmt: skip


def replace(draw: random.Random, wording: Wording) -> Drawn:
    """Replace a word in a settings file."""
    (old, new), file = draw.sample(wording.words["nouns"], 2), _file(draw, wording, "settings")
    keys = draw.sample(wording.words["places"], 6)
    lines = [f"{key} = {draw.choice((old, old, str(draw.randrange(100))))}" for key in keys] + [f"last = {old}"]
    right = "\n".join(lines).replace(old, new)
    check = f'[ "$(cat {file})" = "$(printf \'{right.replace(chr(10), chr(92) + "n")}\')" ]'
    return Drawn({"old": old, "new": new, "file": file}, {file: "\n".join(lines) + "\n"}, check, f"sed -i 's/{old}/{new}/g' {file}")


def rename(draw: random.Random, wording: Wording) -> Drawn:
    """Rename files by a rule."""
    names = draw.sample(wording.words["nouns"], 4)
    old, new = draw.sample(wording.words["extensions"], 2) if wording.is_new else wording.words["extensions"]
    check = " && ".join(f'[ "$(cat {name}.{new})" = "{name} text" ] && [ ! -e {name}.{old} ]' for name in names)
    return Drawn(
        {"old": old, "new": new}, {f"{name}.{old}": f"{name} text\n" for name in names}, check,
        f'for name in *.{old}; do mv "$name" "${{name%.{old}}}.{new}"; done',
    )  # fmt: skip


FAMILIES: tuple[Family, ...] = (find, count, total, largest, replace, rename)


def task_of(family: Family, number: int, wording: Wording | None = None) -> HarborTask:
    """The task of a family and a number. Without `wording`, it is one of training. Its prompt is drawn apart: another prompt does
    not change the task."""
    wording = wording or read_wording()
    kind, drawn = family.__name__, family(random.Random(f"terminal {number}"), wording)
    test = (
        f"#!/bin/bash\ncd /app\nif {drawn.check}; then echo 1 > /logs/verifier/reward.txt; "
        "else echo 0 > /logs/verifier/reward.txt; fi\n"
    )
    return HarborTask(
        f"{kind}-{number}", wording.prompt(f"terminal.{kind}", random.Random(f"prompt {number}"), **drawn.values),
        {"test.sh": test.encode()}, {"solve.sh": f"#!/bin/bash\nset -e\n{drawn.solution}\n".encode()},
        {name: text.encode() for name, text in drawn.files.items()}, agent_s=120.0, verdict_s=60.0,
    )  # fmt: skip


def draw_tasks(split: Split, number: int, seed: int, held_out: HeldOut = "same_prompts") -> list[HarborTask]:
    """Draw tasks, alternating between the families.

    A task's family and number determine its content. Its family depends on the number of families: if you add one, raise
    `Terminal.version`.
    """
    numbers, wording = enumerate(task_numbers(split, number, seed)), wording_of(split, held_out)
    return [task_of(FAMILIES[index % len(FAMILIES)], number, wording) for index, number in numbers]
