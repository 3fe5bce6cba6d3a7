"""The code of an environment: how it is loaded from a file, and what its version covers."""

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clawctl.environments import ENVIRONMENTS, create
from clawctl.environments.code_version import normalised_code
from clawctl.environments.player import make_plan
from clawctl.errors import ClawError
from clawctl.eval.suites import digest_of
from clawctl.plugins import load_object
from tests.extension import needs

CODE = """
from __future__ import annotations
from dataclasses import dataclass
from clawctl.environments import Outcome, Task

@dataclass(frozen=True)
class Sum:
    left: int
    right: int = 1

class Sums:
    def tasks(self, split, count, seed):
        return [Task("sum-1", Sum(2), split)]

    def play(self, task, endpoint):
        from pricing import reward
        return Outcome(reward=reward(task.spec))
"""


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def plan_id(folder: Path) -> str:
    name = f"{folder / 'sums.py'}:Sums"
    return make_plan(create(ENVIRONMENTS.load(name, "play.env"), name, "play.env"), name, 1, 1, 0).id


def test_a_file_is_a_module_that_inspect_and_dataclasses_can_look_up(tmp_path: Path) -> None:
    write(tmp_path, sums=CODE)
    loaded = load_object(f"{tmp_path / 'sums.py'}:Sums", "play.env")
    assert inspect.getsourcefile(loaded) == str(tmp_path / "sums.py")
    assert "left: int" in inspect.getsource(load_object(f"{tmp_path / 'sums.py'}:Sum", "play.env"))


def test_the_version_of_an_environment_covers_what_its_file_imports_from_its_folder(tmp_path: Path) -> None:
    pricing = "from rates.table import RATE\n\ndef reward(spec):\n    return RATE\n"
    write(tmp_path, sums=CODE, pricing=pricing, rates__table="RATE = 1.0\n", unrelated="X = 1\n")
    (tmp_path / "rates" / "__init__.py").write_text("")
    first, suite = plan_id(tmp_path), digest_of(f"{tmp_path / 'sums.py'}:Sums")
    write(tmp_path, unrelated="X = 2\n", pricing=f"# a comment\n{pricing}")
    assert plan_id(tmp_path) == first
    write(tmp_path, rates__table="RATE = 0.5\n")
    assert plan_id(tmp_path) != first, "the reward has changed, so its episodes are played again"
    digest_of.cache_clear()
    assert digest_of(f"{tmp_path / 'sums.py'}:Sums") != suite


def test_the_version_covers_modules_that_the_code_names_in_a_text(tmp_path: Path) -> None:
    named = "import importlib\n\nlate = importlib.import_module('late')\nFILE = 'loaded.py'\n"
    write(tmp_path, sums=CODE + named, late="X = 1\n", loaded="Y = 1\n", pricing="")
    first = plan_id(tmp_path)
    write(tmp_path, late="X = 2\n")
    second = plan_id(tmp_path)
    write(tmp_path, loaded="Y = 2\n")
    assert len({first, second, plan_id(tmp_path)}) == 3


def test_the_version_covers_the_file_that_the_user_names_and_not_only_that_of_the_class(tmp_path: Path) -> None:
    write(tmp_path, other_sums=CODE, sums="import other_sums\nfrom other_sums import Sums\n\nother_sums.LIMIT = 1\n")
    first = plan_id(tmp_path)
    write(tmp_path, sums="import other_sums\nfrom other_sums import Sums\n\nother_sums.LIMIT = 2\n")
    assert plan_id(tmp_path) != first


@needs("worlds")
def test_a_class_that_inherits_the_version_of_a_built_in_environment_has_a_version_of_its_own_code(tmp_path: Path) -> None:
    code = "from clawctl.extensions.worlds.toolcall.environment import ToolCall\n\nclass Sums(ToolCall):\n    scale = 1\n"
    write(tmp_path, sums=code)
    first = plan_id(tmp_path)
    write(tmp_path, sums=code.replace("scale = 1", "scale = 2"))
    second = plan_id(tmp_path)
    assert second != first
    declared = code.replace("scale = 1", "version = '1'\n    scale = 1")
    write(tmp_path, sums=declared)
    third = plan_id(tmp_path)
    write(tmp_path, sums=declared.replace("scale = 1", "scale = 2"))
    assert plan_id(tmp_path) == third, "the user raises a declared version"


def test_a_file_in_a_package_is_imported_as_a_part_of_it(tmp_path: Path) -> None:
    write(tmp_path, packed__envs__sums=CODE + "\nfrom ..rates import RATE\n", packed__rates="RATE = 3\n")
    for folder in ("packed", "packed/envs"):
        (tmp_path / folder / "__init__.py").write_text("")
    loaded = load_object(f"{tmp_path / 'packed/envs/sums.py'}:RATE", "play.env")
    assert loaded == 3


def test_options_that_differ_are_another_plan(tmp_path: Path) -> None:
    write(tmp_path, sums=CODE)
    name = f"{tmp_path / 'sums.py'}:Sums"
    made = create(ENVIRONMENTS.load(name, "play.env"), name, "play.env")
    plan = make_plan(made, name, 1, 1, 0)
    assert replace(plan, options={"steps": True}).id != plan.id


def test_a_comment_or_a_docstring_does_not_change_the_version_of_an_environment() -> None:
    code = b"""def play(self):\n    "Plays."\n    return 1  # always\n"""
    assert normalised_code(code) == normalised_code(b"def play(self):\n    return 1\n")
    assert normalised_code(code) != normalised_code(code.replace(b"1", b"2"))


@pytest.mark.parametrize(
    ("code", "problem", "fix"),
    [
        ("import no_such_library\n", "there is no module 'no_such_library'", "install no_such_library"),
        ("class Sums(\n", "SyntaxError", "fix the file"),
    ],
)
def test_a_file_that_does_not_import_is_refused_with_the_cure(tmp_path: Path, code: Any, problem: str, fix: str) -> None:
    write(tmp_path, sums=code)
    with pytest.raises(ClawError, match=problem) as refused:
        load_object(f"{tmp_path / 'sums.py'}:Sums", "play.env")
    assert fix in refused.value.fix
