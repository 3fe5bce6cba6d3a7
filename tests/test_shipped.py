"""Docs and recipes that come with clawctl, in a checkout and in an installation."""

import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest

from clawctl.errors import ClawError
from clawctl.shipped import find_file, find_recipe, names_in, shipped
from tests import forked

ROOT = Path(__file__).parent.parent
CLAWCTL = [sys.executable, "-m", "clawctl"]


def test_a_page_is_printed_by_its_name_or_by_the_path_that_messages_name() -> None:
    for topic, file in (("docs/gate.md", "gate.md"), ("gate", "gate.md"), ("recipes", "reference/recipes.md")):
        page = (ROOT / "docs" / file).read_text()
        done = forked.run("docs", topic)
        assert done.stdout.strip() == page.strip()
    unknown = forked.run("docs", "nothing")
    assert (unknown.returncode, "there is no page nothing" in unknown.stderr) == (2, True)


def test_a_recipe_is_found_by_name_and_a_file_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_recipe(Path("default")) == ROOT / "recipes" / "default.yaml"
    (tmp_path / "smollm2").mkdir()
    assert find_recipe(Path("smollm2")) == ROOT / "recipes" / "smollm2.yaml"
    (tmp_path / "default").write_text("name: mine\n")
    assert find_recipe(Path("default")) == Path("default")
    assert find_recipe(Path("missing.yaml")) == Path("missing.yaml")  # reported by the reader of recipes
    with pytest.raises(ClawError, match="there is no recipe nothing") as refused:
        find_recipe(Path("nothing"))
    assert "smollm2" in str(refused.value.fix)


def test_each_command_takes_a_shipped_recipe_by_its_name() -> None:
    estimated = forked.run("train", "--estimate", "--recipe", "smollm2")
    assert (estimated.returncode, "total" in estimated.stdout + estimated.stderr) == (0, True), estimated.stderr
    unknown = forked.run("collect", "--once", "--recipe", "smolm2")
    assert (unknown.returncode, "there is no recipe smolm2" in unknown.stderr) == (2, True)


def test_an_installation_has_what_a_checkout_has(tmp_path: Path) -> None:
    """The wheel's data files, laid out as an installer lays them out."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    for folder, patterns in data.items():
        for file in (file for pattern in patterns for file in ROOT.glob(pattern)):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / file.name).write_bytes(file.read_bytes())
    installed = partial(shipped, checkout=tmp_path, prefix=tmp_path)
    for name, suffix in (("docs", ".md"), ("docs", ".jsonl"), ("recipes", ".yaml"), ("recipes", ".md")):
        wanted = {file.relative_to(ROOT / name).with_suffix("").as_posix() for file in (ROOT / name).rglob(f"*{suffix}")}
        assert set(names_in(installed(name), suffix)) == wanted
    assert (installed("integrations") / "openclaw" / "openclaw.plugin.json").is_file()
    assert (installed("integrations") / "systemd" / "user" / "clawctl@.service").is_file()


def test_a_file_that_help_names_is_found_outside_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_file(Path("docs/labelled-turns.jsonl")) == ROOT / "docs" / "labelled-turns.jsonl"
    assert find_file(Path("mine/turns.jsonl")) == Path("mine/turns.jsonl")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "labelled-turns.jsonl").touch()
    assert find_file(Path("docs/labelled-turns.jsonl")) == Path("docs/labelled-turns.jsonl")
