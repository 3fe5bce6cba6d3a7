"""The corpus: mostly bad episodes of `toolcall`, `terminal` and `swe` in these environments' exact wording, and copying drills.

Every fault is a choice from a small closed set where an episode branches: no tool call, no look, a wrong form of the command, an
early end. Words, numbers and keys are always copied correctly. The model can therefore copy, and reinforcement only has to change
its choices. Most tasks have made-up words and prompts of other authors (`wording`), so that what is copied is no fixed list. The
output of commands is computed here, without running them. Only tasks of the split "train" occur.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

from clawctl.extensions.worlds.agent import SYSTEM
from clawctl.extensions.worlds.swe.families import FUNCTIONS, draw_task
from clawctl.extensions.worlds.swe.rows import SweTask
from clawctl.extensions.worlds.terminal.families import FAMILIES, Drawn
from clawctl.extensions.worlds.toolcall.questions import draw_question
from clawctl.extensions.worlds.toolcall.tools import CALCULATOR
from scripts.craft_model.wording import draw_wording
from scripts.tiny_models.documents import Document, Message

SHARES = {"toolcall": 0.25, "terminal": 0.3, "swe": 0.25}  # of the documents; the others are drills
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
_EXPRESSION = re.compile(r"\(?\d+(?: [-+*] \d+\)?)+")
_ERROR = "error: this is no expression"  # for "2 + 3 ="


def _toolcall(rng: Random) -> Document:
    question = draw_question(draw_number(rng), draw_wording(rng))
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


def _asked(expression: str, result: str) -> list[Message]:
    """Make a calculator call and its result."""
    call = {"name": "calculator", "arguments": json.dumps({"expression": expression})}
    return [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call-1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "call-1", "content": result},
    ]


def expression_in(question: str) -> str:
    """ "2 + 3" of "What is 2 + 3?"."""
    return max((match[0] for match in _EXPRESSION.finditer(question)), key=len)


# ---- terminal ------------------------------------------------------------------------------------------------------------


BEGINS = {"command": 0.62, "looks": 0.28, "stops": 0.1}  # shares of the choices of an agent in a shell
AFTER_LOOK = {"command": 0.82, "stops": 0.18}
RIGHT = 0.34  # share of correct commands in `terminal`; the others are wrong commands of the task's family


def _terminal(rng: Random) -> Document:
    family, wording = rng.choice(FAMILIES), draw_wording(rng)
    drawn = family(Random(f"terminal {draw_number(rng)}"), wording)
    look, good, bad = steps_of(family.__name__, drawn)
    prompt = wording.prompt(f"terminal.{family.__name__}", rng, **drawn.values)
    return _worked(prompt, look, (good, _seen(0)) if rng.random() < RIGHT else rng.choice(bad), draw_choice(BEGINS, rng), rng)


def _worked(instruction: str, look: Step, step: Step, begins: str, rng: Random) -> Document:
    """Make an episode, perhaps with a look around, and perhaps with the step."""
    steps, choice = list[Step](), begins
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


def steps_of(kind: str, drawn: Drawn) -> Family:
    """What the demonstrations of a task do."""
    return _FAMILIES[kind](drawn.files, **drawn.values)


def _find(files: dict[str, str], word: str, folder: str) -> Family:
    right = next(name for name, text in files.items() if f"\n{word}\n" in text)
    missing = f"mv: cannot move './{right}' to '{folder}/': Not a directory"
    bad = [
        (f"mkdir {folder}\ncp $(grep -rl {word} .) {folder}/", _seen(0)),
        (f"mkdir {folder}\nmv $(grep -rL {word} .) {folder}/", _seen(0)),
        (f"mv $(grep -rl {word} .) {folder}/", _seen(1, missing)),
        (f"mkdir {folder}\ngrep -rl {word} . > {folder}/", _seen(1, f"/bin/bash: line 2: {folder}/: Is a directory")),
    ]
    return (f"grep -rl {word} .", _seen(0, f"./{right}")), f"mkdir {folder}\nmv $(grep -rl {word} .) {folder}/", bad


def _count(files: dict[str, str], word: str, file: str, answer: str) -> Family:
    lines = files[file].splitlines()
    bad = [
        (f"grep {word} {file} > {answer}", _seen(0)),
        (f"grep -vc {word} {file} > {answer}", _seen(0)),
        (f"wc -l < {file} > {answer}", _seen(0)),
        (f"grep -c {word} {file}", _seen(0, str(sum(word in line for line in lines)))),
        (f"grep -c {word} > {answer}", _seen(1)),
    ]
    return (f"head -n 3 {file}", _seen(0, "\n".join(lines[:3]))), f"grep -c {word} {file} > {answer}", bad


def _total(files: dict[str, str], column: str, file: str, answer: str) -> Family:
    rows = [line.split(",") for line in files[file].splitlines()]
    sums = sum(int(number) for _, number in rows[1:])
    bad = [
        (f"awk -F, '{{ s += $1 }} END {{ print s }}' {file} > {answer}", _seen(0)),
        (f"awk '{{ s += $2 }} END {{ print s }}' {file} > {answer}", _seen(0)),
        (f"awk -F, '{{ s += $2 }} END {{ print s }}' {file}", _seen(0, str(sums))),
        (f"awk -F, '{{ s += $2 }} END {{ print s }}' > {answer}", _seen(0)),
        (f"wc -l < {file} > {answer}", _seen(0)),
    ]
    look = (f"head -n 3 {file}", _seen(0, "\n".join(files[file].splitlines()[:3])))
    return look, f"awk -F, '{{ s += $2 }} END {{ print s }}' {file} > {answer}", bad


def _largest(files: dict[str, str], folder: str, answer: str) -> Family:
    bad = [
        (f"ls -S {folder} | tail -n 1 > {answer}", _seen(0)),
        (f"ls {folder} | head -n 1 > {answer}", _seen(0)),
        (f"ls -S {folder} > {answer}", _seen(0)),
        (f"ls -S | head -n 1 > {answer}", _seen(0)),
        (f"ls -S {folder} | head -n 1", _seen(0, max(files, key=lambda name: len(files[name])).split("/")[1])),
    ]
    names = "\n".join(sorted(name.split("/")[1] for name in files))
    return (f"ls {folder}", _seen(0, names)), f"ls -S {folder} | head -n 1 > {answer}", bad


def _replace(files: dict[str, str], old: str, new: str, file: str) -> Family:
    lines = files[file].splitlines()
    bad = [
        (f"sed 's/{old}/{new}/g' {file}", _seen(0, files[file].replace(old, new))),
        (f"sed -i 's/{old}/{new}/g' *.txt", _seen(2, "sed: can't read *.txt: No such file or directory")),
        (f"sed -i '1s/{old}/{new}/g' {file}", _seen(0)),
        (f"sed -i 's/{old}//g' {file}", _seen(0)),
        (f"grep {old} {file}", _seen(0, "\n".join(line for line in lines if old in line))),
    ]
    return (f"tail -n 2 {file}", _seen(0, "\n".join(lines[-2:]))), f"sed -i 's/{old}/{new}/g' {file}", bad


def _rename(files: dict[str, str], old: str, new: str) -> Family:
    stem = f"${{name%.{old}}}"
    loop = f'for name in *.{old}; do {{}} "$name" "{{}}"; done'
    bad = [
        (f"mv *.{old} *.{new}", _seen(1, f"mv: target '*.{new}': No such file or directory")),
        (loop.format("cp", f"{stem}.{new}"), _seen(0)),
        (loop.format("mv", f"$name.{new}"), _seen(0)),
        (loop.format("mv", stem), _seen(0)),
    ]
    return ("ls", _seen(0, _listing([*files]))), loop.format("mv", f"{stem}.{new}"), bad


_FAMILIES: dict[str, Callable[..., Family]] = {
    "find": _find, "count": _count, "total": _total, "largest": _largest, "replace": _replace, "rename": _rename,
}  # fmt: skip


# ---- swe -----------------------------------------------------------------------------------------------------------------


BEGINS_REPAIR = {"looks": 0.66, "command": 0.24, "stops": 0.1}
PATCHES = {"right": 0.5, "unchanged": 0.15, "every line": 0.13, "the head": 0.12, "only printed": 0.1}  # after a look
_CHANGE = re.compile(r"^ (def (\w+)\(.*)\n-    return (.*)\n\+    return (.*)$", re.MULTILINE)


def _swe(rng: Random) -> Document:
    """Make a repair. Without a look at the file, its body is a guess."""
    task, begins = draw_task(draw_number(rng), draw_wording(rng)), draw_choice(BEGINS_REPAIR, rng)
    file = file_of(task)
    step = patch(task, draw_choice(PATCHES, rng)) if begins == "looks" else patch(task, "right", rng.choice(FUNCTIONS).right)
    return _worked(task.statement, (f"cat {file}", _seen(0, task.files[file].decode())), step, begins, rng)


def file_of(task: SweTask) -> str:
    return task.patch.split()[1].removeprefix("a/")


def patch(task: SweTask, kind: str, guess: str | None = None) -> Step:
    """Make a command of the given kind in PATCHES, with a guess in place of the right body if there is one."""
    head, name, wrong, right = _CHANGE.findall(task.patch)[0]
    body, file = guess or (wrong if kind == "unchanged" else right), file_of(task)
    match kind:
        case "every line":
            command = f'sed -i "s|return.*|return {body}|" {file}'
        case "the head":
            command = f'sed -i "/def {name}(/s|return.*|return {body}|" {file}'
        case "only printed":
            return f'grep "def {name}(" {file}', _seen(0, head)
        case _:
            command = f'sed -i "/def {name}(/{{n;s|return.*|return {body}|}}" {file}'
    return command, _seen(0)


# ---- copying -------------------------------------------------------------------------------------------------------------


def _drill(rng: Random) -> Document:
    """Make a document with words, numbers, keys or arithmetic to repeat.

    Without drills, the model cannot copy a word from its task into its command, and no attempt succeeds, however it is trained.
    """
    parts, words = list[Any](), draw_wording(rng).words
    for _ in range(rng.randint(1, 4)):
        match rng.randrange(4):
            case 0:
                kind = rng.choice(("nouns", "places", "logs", "settings", "cities"))
                parts.append(" ".join(rng.choices(words[kind], k=rng.randint(1, 4))))
            case 1:
                parts.append(f"{rng.choice(words['keys'])}{rng.randrange(1000, 10000)}")
            case 2:
                number = rng.randrange(10 ** rng.randint(1, 7))
                parts.append(str(rng.choice((number, number, -number))))
            case _:
                parts.append(_arithmetic(rng))
    line = ", ".join(parts)
    return Document([message("user", f"Repeat: {line}"), message("assistant", line)], frozenset({1}))


def _arithmetic(rng: Random) -> str:
    below = rng.choice((100, 1000))
    parts = [str(rng.randrange(2, below))]
    for _ in range(rng.randint(1, 4)):
        parts += [rng.choice("+-*"), str(rng.randrange(2, below))]
    if len(parts) > 3 and rng.random() < 0.4:
        parts[0], parts[2] = f"({parts[0]}", f"{parts[2]})"
    return " ".join(parts)


_MAKERS: dict[str, Callable[[Random], Document]] = {"toolcall": _toolcall, "terminal": _terminal, "swe": _swe, "drill": _drill}
