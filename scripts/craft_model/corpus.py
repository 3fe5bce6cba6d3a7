"""The corpus: episodes of `toolcall`, `terminal` and `swe` in exactly the words that these environments use, most of them bad, and
drills in copying.

`GOOD` of the demonstrations solve their task; each of the others has one fault. What a command prints is worked out here and not
run. Only tasks of the split "train" occur. Without the drills the model cannot carry a word from the task into its command, and
then no attempt succeeds, however it is trained.
"""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from clawctl.environments.agent import SYSTEM
from clawctl.environments.swe.families import _FUNCTIONS, draw_task
from clawctl.environments.terminal.families import _NOUNS, _PLACES, FAMILIES
from clawctl.environments.terminal.harbor import HarborTask
from clawctl.environments.toolcall.questions import draw_question
from clawctl.environments.toolcall.tools import CALCULATOR
from scripts.demo_model.corpus import Document, Message

GOOD = 0.3  # of the demonstrations
SHARES = {"toolcall": 0.2, "terminal": 0.27, "swe": 0.28}  # of the documents; the others are drills
_NUMBERS = 10_000_000  # of training tasks that are drawn from
SUBMIT = "submit"
Step = tuple[str, str]  # a command, and what the agent reads after it


def documents(seed: int, count: int) -> Iterator[Document]:
    """`count` documents, the same for the same arguments."""
    for index in range(count):
        rng = Random(f"crafts {seed} {index}")
        kind = rng.choices([*SHARES, "drill"], [*SHARES.values(), 1 - sum(SHARES.values())])[0]
        yield _MAKERS[kind](rng)


def _says(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _number(rng: Random) -> int:
    """Of a training task: held-out ones have odd numbers."""
    return 2 * rng.randrange(_NUMBERS)


# ---- toolcall ------------------------------------------------------------------------------------------------------------


def _toolcall(rng: Random) -> Document:
    question = draw_question(_number(rng))
    expression = expression_in(question.text)
    right = int(str(question.answer))
    messages = [_says("user", question.text)]
    fault = None if rng.random() < GOOD else rng.choices(("guess", "expression", "answer"), (5, 3, 3))[0]
    if fault == "guess":
        messages.append(_says("assistant", str(_near(right, rng))))
        return Document(messages, frozenset({1}), (CALCULATOR,))
    asked = _another_expression(expression, rng) if fault == "expression" else expression
    found = str(eval(asked))  # our own text
    call = {"name": "calculator", "arguments": json.dumps({"expression": asked})}
    messages += [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call-1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "call-1", "content": found},
        _says("assistant", str(_near(int(found), rng)) if fault == "answer" else found),
    ]
    return Document(messages, frozenset({1, 3}), (CALCULATOR,))


def expression_in(question: str) -> str:
    """ "2 + 3" of "What is 2 + 3?"."""
    return question.removeprefix("What is ").removeprefix("Compute ").removeprefix("How much is ").rstrip("?.")


def _near(value: int, rng: Random) -> int:
    """Another number."""
    return value + rng.choice((-1, 1)) * rng.choice((1, 2, 3, 5, 10, 20, rng.randrange(1, 100)))


def _another_expression(expression: str, rng: Random) -> str:
    """The expression with one number or sign changed, or with its last term left out."""
    plain = expression.replace("(", "").replace(")", "").split()
    match rng.randrange(3):
        case 0 if len(plain) > 3:
            return " ".join(plain[:-2])
        case 1:
            place = rng.randrange(0, len(plain), 2)
            return " ".join([*plain[:place], str(rng.randrange(2, 100)), *plain[place + 1 :]])
        case _:
            place = rng.randrange(1, len(plain), 2)
            sign = rng.choice([other for other in "+-*" if other != plain[place]])
            return " ".join([*plain[:place], sign, *plain[place + 1 :]])


# ---- terminal ------------------------------------------------------------------------------------------------------------


def _terminal(rng: Random) -> Document:
    number = _number(rng)
    family = rng.choice(FAMILIES)
    task = family(Random(f"terminal {number}"), number)
    files = {name: text.decode() for name, text in task.seed.items()}
    look, good, bad = _FAMILIES[family.__name__](task, files, rng)
    looks = [look] if rng.random() < 0.4 else []
    if rng.random() < GOOD:
        return _episode(task.instruction, [*looks, (good, _seen(0))])
    fault = rng.choices(("command", "stops"), (4, 1))[0]
    if fault == "stops":
        return _episode(task.instruction, looks)
    command, seen = rng.choice(bad)
    return _episode(task.instruction, [*looks, (command, seen)])


def _episode(instruction: str, steps: list[Step]) -> Document:
    """The steps, and the end."""
    messages = [_says("system", SYSTEM), _says("user", instruction)]
    for command, seen in steps:
        messages += [_says("assistant", f"```bash\n{command}\n```"), _says("user", seen)]
    messages.append(_says("assistant", SUBMIT))
    return Document(messages, frozenset(range(2, len(messages), 2)))


def _seen(code: int, output: str = "") -> str:
    """What the agent of the environments shows after a command."""
    return f"exit code {code}\n{output}".rstrip()


def _listing(names: list[str]) -> str:
    return "\n".join(sorted({name.split("/")[0] for name in names}))


def _other_noun(noun: str, rng: Random) -> str:
    return rng.choice([other for other in _NOUNS if other != noun])


Family = tuple[Step, str, list[Step]]  # a look around, the command that solves the task, and commands that do not


def _find(task: HarborTask, files: dict[str, str], rng: Random) -> Family:
    words = task.instruction.replace(".", "").split()
    word, target = words[5], words[-1]
    right = next(name for name, text in files.items() if f"\n{word}\n" in text)
    place, other = right.split("/")[0], f"KEY{rng.randrange(1000, 10000)}"
    where, nothing = rng.choice(_PLACES), f"mv: missing destination file operand after '{target}/'"
    bad = [
        (f"mkdir {target}\ncp $(grep -rl {word} .) {target}/", _seen(0)),
        (f"mkdir {target}\nmv $(grep -rl {other} .) {target}/", _seen(1, nothing)),
        (f"mkdir {target}\nmv {place}/* {target}/", _seen(0)),
        (f"mkdir {where}\nmv $(grep -rl {word} .) {where}/", _seen(0)),
    ]
    return (f"grep -rl {word} .", _seen(0, f"./{right}")), f"mkdir {target}\nmv $(grep -rl {word} .) {target}/", bad


def _count(task: HarborTask, files: dict[str, str], rng: Random) -> Family:
    word = task.instruction.split(". ")[0].split()[-1]
    lines = files["log.txt"].splitlines()
    other = _other_noun(word, rng)
    bad = [
        (f"grep {word} log.txt > answer.txt", _seen(0)),
        (f"grep -c {other} log.txt > answer.txt", _seen(0 if any(other in line for line in lines) else 1)),
        ("wc -l < log.txt > answer.txt", _seen(0)),
        (f"grep -c {word} log.txt", _seen(0, str(sum(word in line for line in lines)))),
    ]
    return ("head -n 3 log.txt", _seen(0, "\n".join(lines[:3]))), f"grep -c {word} log.txt > answer.txt", bad


def _total(task: HarborTask, files: dict[str, str], rng: Random) -> Family:
    rows = [line.split(",") for line in files["items.csv"].splitlines()]
    sums = sum(int(price) for _, price in rows[1:])
    bad = [
        ("awk -F, '{ s += $1 } END { print s }' items.csv > answer.txt", _seen(0)),
        ("awk '{ s += $2 } END { print s }' items.csv > answer.txt", _seen(0)),
        ("awk -F, '{ s += $2 } END { print s }' items.csv", _seen(0, str(sums))),
        ("wc -l < items.csv > answer.txt", _seen(0)),
        ("tail -n 1 items.csv > answer.txt", _seen(0)),
    ]
    look = ("head -n 3 items.csv", _seen(0, "\n".join(files["items.csv"].splitlines()[:3])))
    return look, "awk -F, '{ s += $2 } END { print s }' items.csv > answer.txt", bad


def _largest(task: HarborTask, files: dict[str, str], rng: Random) -> Family:
    bad = [
        ("ls -S data | tail -n 1 > answer.txt", _seen(0)),
        ("ls -S data > answer.txt", _seen(0)),
        ("ls -S | head -n 1 > answer.txt", _seen(0)),
        ("ls -S data | head -n 1", _seen(0, max(files, key=lambda name: len(files[name])).split("/")[1])),
    ]
    names = "\n".join(sorted(name.split("/")[1] for name in files))
    return ("ls data", _seen(0, names)), "ls -S data | head -n 1 > answer.txt", bad


def _replace(task: HarborTask, files: dict[str, str], rng: Random) -> Family:
    words = task.instruction.split()
    old, new = words[3], words[5]
    bad = [
        (f"sed 's/{old}/{new}/g' settings.ini", _seen(0, files["settings.ini"].replace(old, new))),
        (f"sed -i 's/{new}/{old}/g' settings.ini", _seen(0)),
        (f"sed -i 's/{old}/{_other_noun(new, rng)}/g' settings.ini", _seen(0)),
        (f"sed -i 's/{_other_noun(old, rng)}/{new}/g' settings.ini", _seen(0)),
    ]
    look = ("tail -n 2 settings.ini", _seen(0, "\n".join(files["settings.ini"].splitlines()[-2:])))
    return look, f"sed -i 's/{old}/{new}/g' settings.ini", bad


def _rename(task: HarborTask, files: dict[str, str], rng: Random) -> Family:
    loop = 'for name in *.txt; do {} "$name" "{}"; done'
    bad = [
        ("mv *.txt *.md", _seen(1, "mv: target '*.md': No such file or directory")),
        (loop.format("cp", "${name%.txt}.md"), _seen(0)),
        (loop.format("mv", "$name.md"), _seen(0)),
        (loop.format("mv", "${name%.txt}"), _seen(0)),
    ]
    return ("ls", _seen(0, _listing([*files]))), loop.format("mv", "${name%.txt}.md"), bad


_FAMILIES: dict[str, Callable[[HarborTask, dict[str, str], Random], Family]] = {
    "find": _find, "count": _count, "total": _total, "largest": _largest, "replace": _replace, "rename": _rename,
}  # fmt: skip


# ---- swe -----------------------------------------------------------------------------------------------------------------


def _swe(rng: Random) -> Document:
    task = draw_task(_number(rng))
    name, file = task.statement.split()[2], task.statement.split()[4]
    function = next(each for each in _FUNCTIONS if each.name == name)
    look = (f"cat {file}", _seen(0, task.files[file].decode()))
    looks = [look] if rng.random() < 0.5 else []
    if rng.random() < GOOD:
        return _episode(task.statement, [*looks, (_rewrite(name, function.right, file), _seen(0))])
    fault = rng.choices(("body", "function", "all", "stops"), (6, 3, 2, 2))[0]
    if fault == "stops":
        return _episode(task.statement, looks)
    if fault == "all":
        return _episode(task.statement, [*looks, (f'sed -i "s|return.*|return {function.right}|" {file}', _seen(0))])
    if fault == "function":
        other = rng.choice([each for each in _FUNCTIONS if each is not function])
        return _episode(task.statement, [*looks, (_rewrite(other.name, function.right, file), _seen(0))])
    return _episode(task.statement, [*looks, (_rewrite(name, rng.choice(function.wrong), file), _seen(0))])


def _rewrite(function: str, body: str, file: str) -> str:
    """Replace what a function of one line returns."""
    return f'sed -i "/def {function}(/{{n;s|return.*|return {body}|}}" {file}'


# ---- copying -------------------------------------------------------------------------------------------------------------


def _drill(rng: Random) -> Document:
    """Something to repeat: words, numbers, keys, or arithmetic."""
    parts: list[Any] = []
    for _ in range(rng.randint(1, 4)):
        match rng.randrange(4):
            case 0:
                parts.append(" ".join(rng.choices([*_NOUNS, *_PLACES], k=rng.randint(1, 4))))
            case 1:
                parts.append(f"KEY{rng.randrange(1000, 10000)}")
            case 2:
                number = rng.randrange(10 ** rng.randint(1, 7))
                parts.append(str(rng.choice((number, number, -number))))
            case _:
                parts.append(_arithmetic(rng))
    line = ", ".join(parts)
    return Document([_says("user", f"Repeat: {line}"), _says("assistant", line)], frozenset({1}))


def _arithmetic(rng: Random) -> str:
    words = [str(rng.randrange(2, 100))]
    for _ in range(rng.randint(1, 3)):
        words += [rng.choice("+-*"), str(rng.randrange(2, 100))]
    if len(words) > 3 and rng.random() < 0.4:
        words[0], words[2] = f"({words[0]}", f"{words[2]})"
    return " ".join(words)


_MAKERS: dict[str, Callable[[Random], Document]] = {"toolcall": _toolcall, "terminal": _terminal, "swe": _swe, "drill": _drill}
