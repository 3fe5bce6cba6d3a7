"""The corpus: mostly bad episodes of `toolcall`, `terminal` and `swe` in these environments' exact wording, and copying drills.

Every fault is a choice from a small closed set where an episode branches: no tool call, no look, a wrong form of the command, an
early end. Words, numbers and keys are always copied correctly. The model can therefore copy, and reinforcement only has to change
its choices. The output of commands is computed here, without running them. Only tasks of the split "train" occur.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

from clawctl.extensions.worlds.agent import SYSTEM
from clawctl.extensions.worlds.swe.families import FUNCTIONS, draw_task
from clawctl.extensions.worlds.swe.rows import SweTask
from clawctl.extensions.worlds.terminal.families import FAMILIES, NOUNS, PLACES
from clawctl.extensions.worlds.terminal.harbor import HarborTask
from clawctl.extensions.worlds.toolcall.questions import draw_question
from clawctl.extensions.worlds.toolcall.tools import CALCULATOR
from scripts.tiny_models.documents import Document, Message

SHARES = {"toolcall": 0.3, "terminal": 0.25, "swe": 0.17}  # of the documents; the others are drills
_NUMBERS = 10_000_000  # number of training tasks to draw from
SUBMIT = "submit"
Step = tuple[str, str]  # a command, and the output that the agent reads


def documents(seed: int, count: int) -> Iterator[Document]:
    """Make `count` documents, deterministically for given arguments."""
    for index in range(count):
        rng = Random(f"crafts {seed} {index}")
        kind = rng.choices([*SHARES, "drill"], [*SHARES.values(), 1 - sum(SHARES.values())])[0]
        yield _MAKERS[kind](rng)


def message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def draw_choice(shares: Mapping[str, float], rng: Random) -> str:
    return rng.choices([*shares], [*shares.values()])[0]


def draw_number(rng: Random) -> int:
    """Draw the number of a training task. Held-out tasks have odd numbers."""
    return 2 * rng.randrange(_NUMBERS)


# ---- toolcall ------------------------------------------------------------------------------------------------------------

FIRST = {"calls": 0.55, "malformed": 0.13, "guesses": 0.2, "gives up": 0.12}  # shares of the choices at the question
AFTER_RESULT = {"answers": 0.47, "gives up": 0.28, "only acknowledges": 0.25}
AFTER_ERROR = {"calls": 0.5, "gives up": 0.5}
_UNKNOWN, _ACKNOWLEDGED = "I do not know.", "The calculator has worked it out."
_ERROR = "error: this is no expression"  # for "2 + 3 ="


def _toolcall(rng: Random) -> Document:
    question = draw_question(draw_number(rng))
    expression = expression_in(question.text)
    messages = [message("user", question.text)]
    choice = draw_choice(FIRST, rng)
    if choice == "malformed":
        messages += _asked(f"{expression} =", _ERROR)
        choice = draw_choice(AFTER_ERROR, rng)
    if choice == "calls":
        messages += _asked(expression, str(question.answer))
        choice = draw_choice(AFTER_RESULT, rng)
    last = {"guesses": str(rng.randrange(2, 100)), "answers": str(question.answer), "only acknowledges": _ACKNOWLEDGED}
    messages.append(message("assistant", last.get(choice, _UNKNOWN)))
    return Document(messages, frozenset(range(1, len(messages), 2)), (CALCULATOR,))


def _asked(expression: str, found: str) -> list[Message]:
    """Make a calculator call and its result."""
    call = {"name": "calculator", "arguments": json.dumps({"expression": expression})}
    return [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call-1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "call-1", "content": found},
    ]


def expression_in(question: str) -> str:
    """ "2 + 3" of "What is 2 + 3?"."""
    return question.removeprefix("What is ").removeprefix("Compute ").removeprefix("How much is ").rstrip("?.")


# ---- terminal ------------------------------------------------------------------------------------------------------------


BEGINS = {"command": 0.62, "looks": 0.28, "stops": 0.1}  # shares of the choices of an agent in a shell
AFTER_LOOK = {"command": 0.82, "stops": 0.18}
RIGHT = 0.34  # share of correct commands in `terminal`; the others are wrong commands of the task's family


def _terminal(rng: Random) -> Document:
    number = draw_number(rng)
    family = rng.choice(FAMILIES)
    task = family(Random(f"terminal {number}"), number)
    files = {name: text.decode() for name, text in task.seed.items()}
    look, good, bad = _FAMILIES[family.__name__](task, files)
    return _worked(task.instruction, look, (good, _seen(0)) if rng.random() < RIGHT else rng.choice(bad), rng)


def _worked(instruction: str, look: Step, step: Step, rng: Random) -> Document:
    """Make an episode, perhaps with a look around, and perhaps with the step."""
    steps, choice = list[Step](), draw_choice(BEGINS, rng)
    if choice == "looks":
        steps.append(look)
        choice = draw_choice(AFTER_LOOK, rng)
    return _episode(instruction, [*steps, step] if choice == "command" else steps)


def _episode(instruction: str, steps: list[Step]) -> Document:
    """Make an episode of the steps and the end."""
    messages = [message("system", SYSTEM), message("user", instruction)]
    for command, seen in steps:
        messages += [message("assistant", f"```bash\n{command}\n```"), message("user", seen)]
    messages.append(message("assistant", SUBMIT))
    return Document(messages, frozenset(range(2, len(messages), 2)))


def _seen(code: int, output: str = "") -> str:
    """Format a result like the environments' agent."""
    return f"exit code {code}\n{output}".rstrip()


def _listing(names: list[str]) -> str:
    return "\n".join(sorted({name.split("/")[0] for name in names}))


Family = tuple[Step, str, list[Step]]  # a look around, the command that solves the task, and commands that do not


def _find(task: HarborTask, files: dict[str, str]) -> Family:
    words = task.instruction.replace(".", "").split()
    word, target = words[5], words[-1]
    right = next(name for name, text in files.items() if f"\n{word}\n" in text)
    missing = f"mv: cannot move './{right}' to '{target}/': Not a directory"
    bad = [
        (f"mkdir {target}\ncp $(grep -rl {word} .) {target}/", _seen(0)),
        (f"mkdir {target}\nmv $(grep -rL {word} .) {target}/", _seen(0)),
        (f"mv $(grep -rl {word} .) {target}/", _seen(1, missing)),
        (f"mkdir {target}\ngrep -rl {word} . > {target}/", _seen(1, f"/bin/bash: line 2: {target}/: Is a directory")),
    ]
    return (f"grep -rl {word} .", _seen(0, f"./{right}")), f"mkdir {target}\nmv $(grep -rl {word} .) {target}/", bad


def _count(task: HarborTask, files: dict[str, str]) -> Family:
    word = task.instruction.split(". ")[0].split()[-1]
    lines = files["log.txt"].splitlines()
    bad = [
        (f"grep {word} log.txt > answer.txt", _seen(0)),
        (f"grep -vc {word} log.txt > answer.txt", _seen(0)),
        ("wc -l < log.txt > answer.txt", _seen(0)),
        (f"grep -c {word} log.txt", _seen(0, str(sum(word in line for line in lines)))),
        (f"grep -c {word} > answer.txt", _seen(1)),
    ]
    return ("head -n 3 log.txt", _seen(0, "\n".join(lines[:3]))), f"grep -c {word} log.txt > answer.txt", bad


def _total(task: HarborTask, files: dict[str, str]) -> Family:
    rows = [line.split(",") for line in files["items.csv"].splitlines()]
    sums = sum(int(price) for _, price in rows[1:])
    bad = [
        ("awk -F, '{ s += $1 } END { print s }' items.csv > answer.txt", _seen(0)),
        ("awk '{ s += $2 } END { print s }' items.csv > answer.txt", _seen(0)),
        ("awk -F, '{ s += $2 } END { print s }' items.csv", _seen(0, str(sums))),
        ("awk -F, '{ s += $2 } END { print s }' > answer.txt", _seen(0)),
        ("wc -l < items.csv > answer.txt", _seen(0)),
    ]
    look = ("head -n 3 items.csv", _seen(0, "\n".join(files["items.csv"].splitlines()[:3])))
    return look, "awk -F, '{ s += $2 } END { print s }' items.csv > answer.txt", bad


def _largest(task: HarborTask, files: dict[str, str]) -> Family:
    bad = [
        ("ls -S data | tail -n 1 > answer.txt", _seen(0)),
        ("ls data | head -n 1 > answer.txt", _seen(0)),
        ("ls -S data > answer.txt", _seen(0)),
        ("ls -S | head -n 1 > answer.txt", _seen(0)),
        ("ls -S data | head -n 1", _seen(0, max(files, key=lambda name: len(files[name])).split("/")[1])),
    ]
    names = "\n".join(sorted(name.split("/")[1] for name in files))
    return ("ls data", _seen(0, names)), "ls -S data | head -n 1 > answer.txt", bad


def _replace(task: HarborTask, files: dict[str, str]) -> Family:
    words = task.instruction.split()
    old, new = words[3], words[5]
    lines = files["settings.ini"].splitlines()
    bad = [
        (f"sed 's/{old}/{new}/g' settings.ini", _seen(0, files["settings.ini"].replace(old, new))),
        (f"sed -i 's/{old}/{new}/g' *.txt", _seen(2, "sed: can't read *.txt: No such file or directory")),
        (f"sed -i '1s/{old}/{new}/g' settings.ini", _seen(0)),
        (f"sed -i 's/{old}//g' settings.ini", _seen(0)),
        (f"grep {old} settings.ini", _seen(0, "\n".join(line for line in lines if old in line))),
    ]
    look = ("tail -n 2 settings.ini", _seen(0, "\n".join(lines[-2:])))
    return look, f"sed -i 's/{old}/{new}/g' settings.ini", bad


def _rename(task: HarborTask, files: dict[str, str]) -> Family:
    loop = 'for name in *.txt; do {} "$name" "{}"; done'
    bad = [
        ("mv *.txt *.md", _seen(1, "mv: target '*.md': No such file or directory")),
        (loop.format("cp", "${name%.txt}.md"), _seen(0)),
        (loop.format("mv", "$name.md"), _seen(0)),
        (loop.format("mv", "${name%.txt}"), _seen(0)),
    ]
    return ("ls", _seen(0, _listing([*files]))), loop.format("mv", "${name%.txt}.md"), bad


_FAMILIES: dict[str, Callable[[HarborTask, dict[str, str]], Family]] = {
    "find": _find, "count": _count, "total": _total, "largest": _largest, "replace": _replace, "rename": _rename,
}  # fmt: skip


# ---- swe -----------------------------------------------------------------------------------------------------------------


PATCHES = {"right": 0.38, "wrong": 0.2, "every line": 0.15, "the head": 0.14, "only printed": 0.13}  # shares of the commands


def _swe(rng: Random) -> Document:
    task = draw_task(draw_number(rng))
    file = task.statement.split()[4]
    step = patch(task, draw_choice(PATCHES, rng), rng)
    return _worked(task.statement, (f"cat {file}", _seen(0, task.files[file].decode())), step, rng)


def patch(task: SweTask, kind: str, rng: Random) -> Step:
    """Make a command of the given kind in PATCHES."""
    name, file = task.statement.split()[2], task.statement.split()[4]
    function = next(candidate for candidate in FUNCTIONS if candidate.name == name)
    body = rng.choice(function.wrong) if kind == "wrong" else function.right
    match kind:
        case "every line":
            command = f'sed -i "s|return.*|return {body}|" {file}'
        case "the head":
            command = f'sed -i "/def {name}(/s|return.*|return {body}|" {file}'
        case "only printed":
            return f'grep "def {name}(" {file}', _seen(0, f"def {function.head}:")
        case _:
            command = f'sed -i "/def {name}(/{{n;s|return.*|return {body}|}}" {file}'
    return command, _seen(0)


# ---- copying -------------------------------------------------------------------------------------------------------------


def _drill(rng: Random) -> Document:
    """Make a document with words, numbers, keys or arithmetic to repeat.

    Without drills, the model cannot copy a word from its task into its command, and no attempt succeeds, however it is trained.
    """
    parts: list[Any] = []
    for _ in range(rng.randint(1, 4)):
        match rng.randrange(4):
            case 0:
                parts.append(" ".join(rng.choices([*NOUNS, *PLACES], k=rng.randint(1, 4))))
            case 1:
                parts.append(f"KEY{rng.randrange(1000, 10000)}")
            case 2:
                number = rng.randrange(10 ** rng.randint(1, 7))
                parts.append(str(rng.choice((number, number, -number))))
            case _:
                parts.append(_arithmetic(rng))
    line = ", ".join(parts)
    return Document([message("user", f"Repeat: {line}"), message("assistant", line)], frozenset({1}))


def _arithmetic(rng: Random) -> str:
    parts = [str(rng.randrange(2, 100))]
    for _ in range(rng.randint(1, 3)):
        parts += [rng.choice("+-*"), str(rng.randrange(2, 100))]
    if len(parts) > 3 and rng.random() < 0.4:
        parts[0], parts[2] = f"({parts[0]}", f"{parts[2]})"
    return " ".join(parts)


_MAKERS: dict[str, Callable[[Random], Document]] = {"toolcall": _toolcall, "terminal": _terminal, "swe": _swe, "drill": _drill}
