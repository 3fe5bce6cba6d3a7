"""Small repositories, each with one wrong function, which clawctl draws from a seed."""

import difflib
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from clawctl.extensions.worlds.swe.rows import SweTask
from clawctl.extensions.worlds.wording import Wording, read_wording


@dataclass(frozen=True, slots=True)
class _Function:
    head: str  # "area(width, height)"
    right: str
    wrong: Sequence[str]
    arguments: Sequence[str]  # the kind of each
    module: str

    @property
    def name(self) -> str:
        return self.head.split("(")[0]

    @property
    def parameters(self) -> list[str]:
        return self.head.rstrip(")").split("(")[1].split(", ")

    def renamed(self, names: dict[str, str]) -> "_Function":
        """The same function under other names of itself, its module and its parameters."""
        pattern = re.compile(rf"(?<!')\b({'|'.join(names)})\b(?!')")
        head, right, *wrong = (pattern.sub(lambda match: names[match[0]], text) for text in (self.head, self.right, *self.wrong))
        return replace(self, head=head, right=right, wrong=wrong, module=names[self.module])

    def draw(self, draw: random.Random) -> list[Any]:
        return [_DRAWN[kind](draw) for kind in self.arguments]

    def source(self, body: str) -> str:
        return f"def {self.head}:\n    return {body}\n"

    def value(self, body: str, arguments: list[Any]) -> Any:
        space: dict[str, Any] = {}
        exec(self.source(body), space)  # text from this folder
        return space[self.name](*arguments)


_WORDS = ("red", "tall", "Fox", "sky", "Moon", "tea", "oak", "Lime")
_DRAWN: dict[str, Callable[[random.Random], Any]] = {  # an argument, by its kind
    "number": lambda draw: draw.randrange(2, 40),
    "more": lambda draw: draw.randrange(2, 40) + 50,
    "percent": lambda draw: draw.choice((5, 10, 20, 25)),
    "list": lambda draw: [draw.randrange(1, 40) for _ in range(draw.randrange(3, 6))],
    "words": lambda draw: draw.sample(_WORDS, 3),
    "word": lambda draw: draw.sample(_WORDS, 3)[0],
}
FUNCTIONS = [_Function(**row) for row in yaml.safe_load((Path(__file__).parent / "functions.yaml").read_text("utf-8"))]


def functions_of(draw: random.Random, wording: Wording) -> Sequence[_Function]:
    """The functions under their usual names, or under drawn names where the wording is new."""
    if not wording.is_new:
        return FUNCTIONS
    modules, words = sorted({function.module for function in FUNCTIONS}), wording.words
    module_names = dict(zip(modules, draw.sample(words["modules"], len(modules)), strict=True))
    renamed = []
    for function, name in zip(FUNCTIONS, draw.sample(words["functions"], len(FUNCTIONS)), strict=True):
        parameters = dict(zip(function.parameters, draw.sample(words["parameters"], len(function.parameters)), strict=True))
        renamed.append(function.renamed(module_names | parameters | {function.name: name}))
    return renamed


def draw_task(number: int, wording: Wording | None = None) -> SweTask:
    """Draw a task. The same number always gives the same task. Without `wording`, it is one of training."""
    wording = wording or read_wording()
    draw = random.Random(f"swe {number}")
    return task_of(draw, f"operator-{number}", functions_of(random.Random(f"names {number}"), wording), wording)


def task_of(draw: random.Random, name: str, every: Sequence[_Function], wording: Wording) -> SweTask:
    """A repository of two modules with one wrong function."""
    broken = draw.choice(every)
    wrong = draw.choice(broken.wrong)
    others = [function.module for function in every if function.module != broken.module]
    modules = sorted({broken.module, draw.choice(others)})
    calls: list[dict[str, Any]] = []
    files, right, tests, names = dict[str, str](), dict[str, str](), dict[str, str](), list[str]()
    for module in modules:
        functions = [function for function in every if function.module == module]
        right[f"{module}.py"] = "\n\n".join(function.source(function.right) for function in functions)
        files[f"{module}.py"] = "\n\n".join(
            function.source(wrong if function is broken else function.right) for function in functions
        )
        lines = [f"from {module} import {', '.join(function.name for function in functions)}"]
        for function in functions:
            cases = [function.draw(draw) for _ in range(4)]
            lines.append(f"\n\ndef test_{function.name}():")
            for case in cases:
                value = function.value(function.right, case)
                lines.append(f"    assert {function.name}({', '.join(map(repr, case))}) == {value!r}")
                calls.append({"call": f"{module}.{function.name}", "args": case, "want": value})
            names.append(f"tests/test_{module}.py::test_{function.name}")
        tests[f"tests/test_{module}.py"] = "\n".join(lines) + "\n"
    shown = broken.draw(draw)
    while broken.value(wrong, shown) == broken.value(broken.right, shown):
        shown = broken.draw(draw)
    examples = ", ".join(map(repr, shown))
    statement = wording.prompt(
        "swe.repair", draw, function=broken.name, file=f"{broken.module}.py", call=f"{broken.name}({examples})",
        wanted=repr(broken.value(broken.right, shown)), given=repr(broken.value(wrong, shown)),
    )  # fmt: skip
    changed = f"{broken.module}.py"
    old, new = files[changed].splitlines(keepends=True), right[changed].splitlines(keepends=True)
    patch = "".join(difflib.unified_diff(old, new, f"a/{changed}", f"b/{changed}"))
    return SweTask(
        name, statement, {name: text.encode() for name, text in files.items()}, tuple(names),
        {name: text.encode() for name, text in tests.items()}, patch=patch, calls=tuple(calls), agent_s=180.0, verdict_s=120.0,
    )  # fmt: skip
