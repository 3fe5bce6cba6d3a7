"""Shell tasks that clawctl draws from a seed, in Harbor's format. Each verdict reads files only."""

import random
from collections.abc import Callable
from pathlib import Path

import yaml

from clawctl.environments import Split
from clawctl.extensions.worlds.splits import task_numbers
from clawctl.extensions.worlds.terminal.harbor import HarborTask

_WORDS: dict[str, list[str]] = yaml.safe_load((Path(__file__).parents[1] / "words.yaml").read_text("utf-8"))
NOUNS, PLACES = _WORDS["nouns"], _WORDS["places"]


def _task(kind: str, number: int, instruction: str, seed: dict[str, str], check: str, solution: str) -> HarborTask:
    """Make a task. `check` is a bash condition that the solution must meet."""
    test = (
        f"#!/bin/bash\ncd /app\nif {check}; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi\n"
    )
    return HarborTask(
        f"{kind}-{number}", instruction, {"test.sh": test.encode()}, {"solve.sh": f"#!/bin/bash\nset -e\n{solution}\n".encode()},
        {name: text.encode() for name, text in seed.items()}, agent_s=120.0, verdict_s=60.0,
    )  # fmt: skip


def _lines(draw: random.Random, count: int) -> list[str]:
    return [f"{draw.choice(NOUNS)} {draw.randrange(100)}" for _ in range(count)]


def find(draw: random.Random, number: int) -> HarborTask:
    """Move the file that contains a word into another folder."""
    folders = draw.sample(PLACES, 3)
    names = [f"{folder}/{noun}.txt" for folder in folders for noun in draw.sample(NOUNS, 2)]
    word, right, target = f"KEY{draw.randrange(1000, 10000)}", draw.choice(names), draw.choice(("done", "out", "kept"))
    seed = {name: "\n".join(_lines(draw, 4)) + (f"\n{word}\n" if name == right else "\n") for name in names}
    final = f"{target}/{right.split('/')[1]}"
    check = f'[ ! -e {right} ] && [ "$(ls {target})" = {right.split("/")[1]} ] && [ "$(tail -n 1 {final})" = {word} ]'
    check += "".join(f" && [ -f {name} ]" for name in names if name != right)
    return _task("find", number, f"Find the file that contains {word}. Move it into a new folder {target}.", seed, check,
                 f"mkdir {target}\nmv $(grep -rl {word} .) {target}/")  # fmt: skip


def count(draw: random.Random, number: int) -> HarborTask:
    """Count the lines that contain a word."""
    word = draw.choice(NOUNS)
    lines = _lines(draw, draw.randrange(15, 40)) + [f"{word} {draw.randrange(100)}" for _ in range(draw.randrange(1, 6))]
    draw.shuffle(lines)
    right = sum(line.split()[0] == word for line in lines)
    return _task("count", number, f"Count the lines of log.txt that contain {word}. Write the number to answer.txt.",
                 {"log.txt": "\n".join(lines) + "\n"}, f'[ "$(tr -d " \\n" < answer.txt)" = {right} ]',
                 f"grep -c {word} log.txt > answer.txt")  # fmt: skip


def total(draw: random.Random, number: int) -> HarborTask:
    """Sum a column."""
    rows = [(draw.choice(NOUNS), draw.randrange(1, 500)) for _ in range(draw.randrange(8, 20))]
    text = "item,price\n" + "".join(f"{name},{price}\n" for name, price in rows)
    return _task("total", number, "Add up the column price of items.csv. Write the sum to answer.txt.", {"items.csv": text},
                 f'[ "$(tr -d " \\n" < answer.txt)" = {sum(price for _, price in rows)} ]',
                 "tail -n +2 items.csv | awk -F, '{ s += $2 } END { print s }' > answer.txt")  # fmt: skip


def largest(draw: random.Random, number: int) -> HarborTask:
    """Name the largest file in a folder."""
    names = draw.sample(NOUNS, 5)
    sizes = draw.sample(range(20, 400), 5)
    seed = {f"data/{name}.bin": "x" * size for name, size in zip(names, sizes, strict=True)}
    right = f"{names[sizes.index(max(sizes))]}.bin"
    return _task("largest", number, "Write the name of the largest file in the folder data to answer.txt.", seed,
                 f'[ "$(basename "$(cat answer.txt)")" = {right} ]', "ls -S data | head -n 1 > answer.txt")  # fmt: skip


def replace(draw: random.Random, number: int) -> HarborTask:
    """Replace a word in a settings file."""
    old, new = draw.sample(NOUNS, 2)
    lines = [f"{key} = {draw.choice((old, old, str(draw.randrange(100))))}" for key in draw.sample(PLACES, 6)] + [f"last = {old}"]
    right = "\n".join(lines).replace(old, new)
    check = f'[ "$(cat settings.ini)" = "$(printf \'{right.replace(chr(10), chr(92) + "n")}\')" ]'
    return _task("replace", number, f"Replace the word {old} by {new} everywhere in settings.ini.",
                 {"settings.ini": "\n".join(lines) + "\n"}, check, f"sed -i 's/{old}/{new}/g' settings.ini")  # fmt: skip


def rename(draw: random.Random, number: int) -> HarborTask:
    """Rename files by a rule."""
    names = draw.sample(NOUNS, 4)
    check = " && ".join(f'[ "$(cat {name}.md)" = "{name} text" ] && [ ! -e {name}.txt ]' for name in names)
    return _task("rename", number, "Rename every .txt file to .md.", {f"{name}.txt": f"{name} text\n" for name in names}, check,
                 'for name in *.txt; do mv "$name" "${name%.txt}.md"; done')  # fmt: skip


FAMILIES: tuple[Callable[[random.Random, int], HarborTask], ...] = (find, count, total, largest, replace, rename)


def draw_tasks(split: Split, number: int, seed: int) -> list[HarborTask]:
    """Draw tasks, alternating between the families.

    A task's family and number determine its content. Its family depends on the number of families: if you add one, raise
    `Terminal.version`.
    """
    names = enumerate(task_numbers(split, number, seed))
    return [FAMILIES[index % len(FAMILIES)](random.Random(f"terminal {name}"), name) for index, name in names]
