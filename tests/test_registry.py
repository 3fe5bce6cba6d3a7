"""A seam's implementations, by name, from a file, and from an installed package."""

import sys
from pathlib import Path

import pytest

from clawctl.errors import ClawError
from clawctl.registry import Registry, points
from tests.extension import needs

SUITES: Registry[object] = Registry("suite", "clawctl.test_suites", {"ours": "os.path:join"})


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package on the import path, as pip would leave it, that announces three suites; the module of one fails."""
    info = tmp_path / "their_suites-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-suites\nVersion: 1.0\n")
    points = "theirs = their_suites:measure\nours = their_suites:measure\nbroken = their_broken_suites:measure\n"
    (info / "entry_points.txt").write_text(f"[clawctl.test_suites]\n{points}")
    (tmp_path / "their_suites.py").write_text("measure = 'theirs'\n")
    (tmp_path / "their_broken_suites.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_built_in_implementation_is_imported_by_name() -> None:
    assert SUITES.load("ours", "eval.suites") is __import__("os").path.join


@pytest.mark.usefixtures("installed")
def test_an_installed_package_adds_its_own_and_replaces_none_of_ours() -> None:
    assert SUITES.names() == ["ours", "broken", "theirs"]
    assert SUITES.load("theirs", "eval.suites") == "theirs"
    assert SUITES.load("ours", "eval.suites") is __import__("os").path.join


@pytest.mark.usefixtures("installed")
def test_no_package_is_imported_before_it_is_named() -> None:
    SUITES.names()
    assert "their_broken_suites" not in sys.modules
    with pytest.raises(ClawError, match="broken of the installed package 'their_broken_suites:measure' cannot be imported"):
        SUITES.load("broken", "eval.suites")


def test_a_file_names_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("measure = 3\n")
    assert SUITES.load(f"{tmp_path / 'mine.py'}:measure", "eval.suites") == 3


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ClawError, match=r"eval\.suites: there is no suite 'other'") as refused:
        SUITES.load("other", "eval.suites")
    assert "ours, a file.py:name" in refused.value.fix


def test_a_seam_without_any_implementation_says_so() -> None:
    with pytest.raises(ClawError, match="--on: no launcher is installed, so there is no 'slurm'") as refused:
        Registry[object]("launcher", "clawctl.test_launchers", {}).load("slurm", "--on")
    assert refused.value.fix == "use a file.py:name, or install a package with the entry point clawctl.test_launchers: slurm"


@needs("tinker")
def test_a_package_that_calls_itself_clawctl_replaces_no_extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "clawctl-99.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: clawctl\nVersion: 99.0\n")
    (info / "entry_points.txt").write_text("[clawctl.trainers]\ntinker = os.path:join\ngone = clawctl.extensions.gone:X\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    by_name = points("clawctl.trainers")
    assert by_name["tinker"].module == "clawctl.extensions.tinker.backend"
    assert "gone" not in by_name  # its folder is not there
