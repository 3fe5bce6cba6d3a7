"""The score of tasks with their reference solution, for each built-in environment. A mean below 1 means a wrong verdict."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from clawctl.environments import Split
from clawctl.extensions.worlds.gui import environment as gui
from clawctl.extensions.worlds.gui.environment import Gui
from clawctl.extensions.worlds.gui.sites import DRAWN
from clawctl.extensions.worlds.swe import environment as swe
from clawctl.extensions.worlds.swe.environment import Swe
from clawctl.extensions.worlds.terminal import environment as terminal
from clawctl.extensions.worlds.terminal.environment import Terminal
from clawctl.extensions.worlds.toolcall.questions import Question, draw_question, is_right
from clawctl.extensions.worlds.verdicts import Graded
from scripts.benchmarks.table import Row


async def _toolcall(question: Question, commands: str | None) -> Graded:
    return Graded(float(is_right(question.answer or "" if commands is None else "", question)), "")


Solve = Callable[[Any, str | None], Awaitable[Graded]]


def tasks(options: argparse.Namespace) -> list[tuple[str, Solve, list[Any]]]:
    """Return each environment with its training and held-out tasks."""
    number = 6 if options.quick else 24
    splits: tuple[Split, ...] = ("train", "eval")
    count, pages = number // 2, Gui(pages=",".join(DRAWN))
    return [
        ("terminal", terminal.solve, [task.spec for split in splits for task in Terminal().tasks(split, count, options.seed)]),
        ("swe", swe.solve, [task.spec for split in splits for task in Swe().tasks(split, count, options.seed)]),
        ("gui", gui.solve, [task.spec for split in splits for task in pages.tasks(split, max(count, len(DRAWN)), options.seed)]),
        ("toolcall", _toolcall, [draw_question(options.seed * 1000 + index) for index in range(number * 4)]),
    ]


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    return score_rows("oracle", None, options)


def score_rows(case: str, commands: str | None, options: argparse.Namespace) -> list[Row]:
    async def scores(solve: Solve, specs: list[Any]) -> list[float]:
        return [(await solve(spec, commands)).value for spec in specs]

    rows = []
    for name, solve, specs in tasks(options):
        values = asyncio.run(scores(solve, specs))
        rows += [Row(f"{case} {name}", "score", fmean(values), "share"), Row(f"{case} {name}", "tasks", len(values), "number")]
    return rows
