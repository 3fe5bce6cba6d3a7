"""`bfcl`: held-out tasks of the Berkeley function-calling leaderboard, from the package bfcl-eval (Patil et al. 2025).

Only categories with one turn and Python's types are played, because their verdict compares calls. Other categories need simulated
systems, a search engine, or parsers for Java and JavaScript. Calls are compared by the rules of the package's `ast_checker`.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path

from clawctl.environments import Split, Task
from clawctl.errors import ClawError
from clawctl.extensions.worlds.toolcall.calls import CATEGORIES, FORMER
from clawctl.extensions.worlds.toolcall.environment import ToolCall
from clawctl.extensions.worlds.toolcall.questions import Question, read_questions


class Bfcl(ToolCall):
    """`path`: the folder `data` of bfcl-eval (default: the installed package's). `categories`: names, separated by commas."""

    metrics = ("reward", "solved", "called")

    def __init__(self, path: str | None = None, categories: str | Sequence[str] = CATEGORIES) -> None:
        super().__init__(max_turns=1)
        named = [name.strip() for name in categories.split(",")] if isinstance(categories, str) else list(categories)
        if unknown := [name for name in named if name not in CATEGORIES]:
            raise ClawError(f"bfcl: {', '.join(unknown)} is not supported", f"choose from {', '.join(CATEGORIES)}", 2)
        folder = _installed() if path is None else Path(path).expanduser()
        self.version = f"bfcl {sha256(','.join(named).encode()).hexdigest()[:8]}"
        self._questions = {name: _read(folder, name) for name in named}

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        """Questions, alternating between the categories. None is for training, because the leaderboard is for measuring."""
        if split != "eval":
            return []
        by_category = {
            name: [*rows[seed % len(rows) :], *rows[: seed % len(rows)]] for name, rows in self._questions.items() if rows
        }
        turns = [question for questions in zip_longest(*by_category.values()) for question in questions if question is not None]
        return [Task(question.name, question, split) for question in turns[:count]]


def _installed() -> Path:
    spec = find_spec("bfcl_eval")
    folder = Path(spec.origin).parent / "data" if spec is not None and spec.origin else None
    if folder is None or not folder.is_dir():
        cure = "run `pip install --no-deps bfcl-eval`, or set the suite's option path to a folder of its data"
        raise ClawError("the questions of BFCL are not installed", cure, 2)
    return folder


def _read(folder: Path, category: str) -> list[Question]:
    names = "|".join([category, *(former for former, name in FORMER.items() if name == category)])
    files = sorted(path for path in folder.glob("BFCL_v*.json") if re.fullmatch(rf"BFCL_v\d+_(?:{names})", path.stem))
    if not files:
        raise ClawError(f"{folder} has no BFCL_v4_{category}.json", "set path to the folder `data` of bfcl-eval", 2)
    rows = enumerate(read_questions(files[-1]))
    return [replace(question, name=f"{category}-{number}") for number, question in rows]
