"""Each extension can be lifted out: commands and recipes work without it, and no other test imports it.

`python -m scripts.without NAME` runs all other tests without an extension."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from scripts.without import EXTENSIONS, ROOT, copy_without

RECIPES = ("default", "smollm2", "qwen3-4b-lora-24gb", "qwen3-8b-full-8x80gb")  # that name nothing of an extension
WORKS = f"""
import typer
from clawctl.cli import app
from clawctl.config import load_recipe
from clawctl.errors import ClawError
from pathlib import Path
from scripts.reference import _leaves

for path, _ in _leaves("clawctl", typer.Context(typer.main.get_command(app))):
    try:
        app([*path.split()[1:], "--help"])
    except SystemExit as end:
        assert not end.code, path
for name in {RECIPES}:
    load_recipe(Path("recipes", name + ".yaml"))
"""


@pytest.mark.parametrize("name", EXTENSIONS)
def test_commands_and_recipes_work_without_an_extension(tmp_path: Path, name: str) -> None:
    environment = copy_without([name], tmp_path)
    assert not (tmp_path / "clawctl" / "extensions" / name).exists()
    done = subprocess.run([sys.executable, "-c", WORKS], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "serve" in done.stdout


@cache
def imported(file: Path) -> list[str]:
    """Modules that a file imports when it is imported."""
    modules: list[str] = []
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Import):
            modules += (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            modules += (f"{node.module}.{alias.name}" for alias in node.names)
    return modules


def extensions_of(file: Path, examined: set[Path]) -> Iterator[str]:
    """The extensions that a file imports, also by files of scripts and tests."""
    examined.add(file)
    for module in imported(file):
        parts = module.split(".")
        if parts[:2] == ["clawctl", "extensions"]:
            yield parts[2]
        for path in (ROOT.joinpath(*parts).with_suffix(".py"), ROOT.joinpath(*parts[:-1]).with_suffix(".py")):
            if parts[0] in ("scripts", "tests") and path.is_file() and path not in examined:
                yield from extensions_of(path, examined)


def test_only_the_tests_of_an_extension_import_it() -> None:
    """Without its folder and theirs, all others can still be collected."""
    wrong = set()
    for file in (ROOT / "tests").rglob("*.py"):
        path = file.relative_to(ROOT / "tests")
        allowed = path.parts[1] if path.parts[0] == "extensions" else ""
        wrong |= {f"{path} imports {name}" for name in extensions_of(file, set()) if name != allowed}
    assert wrong == set()
