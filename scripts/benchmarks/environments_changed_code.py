"""Case `changed_code`: the code of an environment in files is changed, and its episodes must be played again.

The stages are real: `serve` and `collect --env`. Each change is made to the same small package. Changes that alter nothing
(comments, docstrings, files that are not imported) must not play anything again.
"""

import argparse
import sys
from pathlib import Path
from statistics import fmean

from clawctl.engines.vllm.child import free_port
from clawctl.run.directory import RunDir, open_run
from clawctl.run.feedback import Ratings
from clawctl.run.outcomes import SessionOutcome
from scripts.benchmarks.chaos_stages import Stage
from scripts.benchmarks.circle import write_recipe
from scripts.benchmarks.environments_faults import clawctl
from scripts.benchmarks.table import Row

RECIPE = {"gate": None}
TASKS, ATTEMPTS = 2, 1
FILES = {  # by path below the folder of the environment
    "shop/__init__.py": "",
    "shop/envs/__init__.py": "",
    "shop/envs/main.py": '''
from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from clawctl.environments import Outcome, Task
from clawctl.asking import ask

from . import bonus
from .. import rates
from ..base import Shop

late = importlib.import_module("shop.late")
spec = importlib.util.spec_from_file_location("loaded", Path(__file__).with_name("loaded.py"))
loaded = importlib.util.module_from_spec(spec)
spec.loader.exec_module(loaded)


@dataclass(frozen=True)
class Order:
    goods: tuple[str, ...]
    count: int = 1


class Main(Shop):
    """An environment in a package."""

    def tasks(self, split, count, seed):
        return [Task(f"order-{number}", Order(("tea",), number), split) for number in range(count)]

    async def play(self, task, endpoint):
        from shop.inner import words

        text = await ask(endpoint, [{"role": "user", "content": words.QUESTION}], max_tokens=4)
        return Outcome(reward=max(-1.0, min(1.0, rates.RATE * bonus.BONUS * late.FACTOR * loaded.SHARE + 0.0 * len(text))))
''',
    "shop/envs/bonus.py": "BONUS = 1.0\n",
    "shop/envs/loaded.py": "SHARE = 1.0\n",
    "shop/rates.py": "from .tables import *\n",
    "shop/tables.py": "RATE = 1.0\n",
    "shop/base.py": "class Shop:\n    worst = 0.0\n",
    "shop/late.py": "FACTOR = 1.0\n",
    "shop/inner/__init__.py": "",
    "shop/inner/words.py": 'QUESTION = "What do you want?"\n',
    "shop/unrelated.py": "X = 1\n",
}
CHANGES = {  # name: the file, what is replaced, and by what
    "the reward in the class": ("shop/envs/main.py", "rates.RATE * ", "-rates.RATE * "),
    "a dataclass": ("shop/envs/main.py", "count: int = 1", "count: int = 2"),
    "a module beside it": ("shop/envs/bonus.py", "1.0", "0.5"),
    "a module behind a star": ("shop/tables.py", "1.0", "0.5"),
    "the base class": ("shop/base.py", "0.0", "-1.0"),
    "a module imported by import_module": ("shop/late.py", "1.0", "0.5"),
    "a module loaded by its path": ("shop/envs/loaded.py", "1.0", "0.5"),
    "a module imported while playing": ("shop/inner/words.py", "want", "need"),
    "the package's own file": ("shop/__init__.py", "", "LIMIT = 1\n"),
}
SAME = {
    "a comment": ("shop/tables.py", "RATE", "# per cent\nRATE"),
    "a docstring": ("shop/envs/main.py", "in a package.", "in a package of its own."),
    "a file that is not imported": ("shop/unrelated.py", "1", "2"),
}


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    run, recipe, code = open_run(folder / "run"), write_recipe(folder, RECIPE), folder / "code"
    for name, text in FILES.items():
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(text)
    serve = Stage("serve", run, recipe, free_port())
    serve.start()
    try:
        serve.wait_ready()
        played(run, recipe, code)
        changed = {name: replayed(run, recipe, code, change) for name, change in CHANGES.items()}
        same = {name: replayed(run, recipe, code, change) for name, change in SAME.items()}
    finally:
        serve.kill()
    for name in (name for name, share in changed.items() if share < 1):
        print(f"not played again: {name}", file=sys.stderr)
    for name in (name for name, share in same.items() if share):
        print(f"played again without need: {name}", file=sys.stderr)
    return [
        Row("changed_code", "replayed_share", fmean(changed.values()), f"of {len(changed)} changes"),
        Row("changed_code", "replayed_without_change", fmean(same.values()), f"of {len(same)}"),
    ]


def replayed(run: RunDir, recipe: Path, code: Path, change: tuple[str, str, str]) -> float:
    """Make a change. Returns the share of the attempts that are played again."""
    name, before, after = change
    text = (code / name).read_text()
    (code / name).write_text(text.replace(before, after, 1) if before else text + after)
    return played(run, recipe, code) / (TASKS * ATTEMPTS)


def played(run: RunDir, recipe: Path, code: Path) -> int:
    """Play what has not been played yet. Returns the number of new outcomes."""
    before, main = outcomes(run), code / "shop/envs/main.py"
    clawctl(run, recipe, "collect", "--env", f"{main}:Main", "--tasks", str(TASKS), "--attempts", str(ATTEMPTS))
    return outcomes(run) - before


def outcomes(run: RunDir) -> int:
    return sum(isinstance(row, SessionOutcome) and row.episode is not None for row in Ratings(run).read())
