"""`clawctl up --on` with a launcher that a file names, and the jobs that it records."""

from pathlib import Path

import orjson
import pytest
import yaml

from clawctl.cli.up import up
from clawctl.errors import ClawError
from clawctl.launch import LAUNCHERS
from clawctl.run.directory import open_run
from clawctl.run.endpoint import announce, own_address

LAUNCHER = """
import orjson

class Pencil:
    def render(self, run, recipe, log_level):
        return f"{len(recipe.up.stages)} jobs"
    def launch(self, run, recipe, named_code, log_level):
        run.launch.write_bytes(orjson.dumps({"id": "1", "on": f"{__file__}:PENCIL", "jobs": [], "at": 0.0}))
    def follow(self, run, live):
        print("followed")
    def show(self, run):
        print("shown")
    def stop(self, run):
        print("stopped")

PENCIL = Pencil()
"""


def recipe_of(folder: Path) -> Path:
    file = folder / "recipe.yaml"
    file.write_text(yaml.safe_dump({"up": {"stages": ["judge"]}}))
    return file


def test_a_launcher_of_a_file_submits_follows_and_stops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(LAUNCHER)
    on, run = f"{tmp_path / 'mine.py'}:PENCIL", tmp_path / "run"
    up(recipe_of(tmp_path), run, on=on, dry_run=True)
    assert not run.exists()
    up(recipe_of(tmp_path), run, on=on)
    up(run=run, status=True)
    up(run=run, stop=True)
    assert capsys.readouterr().out.split("\n")[:4] == ["1 jobs", "followed", "shown", "stopped"]


def test_an_unknown_launcher_is_refused_with_the_installed_ones(tmp_path: Path) -> None:
    with pytest.raises(ClawError) as refused:
        up(recipe_of(tmp_path), tmp_path / "run", on="nowhere")
    assert refused.value.problem.startswith("--on: ")
    assert all(name in refused.value.fix for name in LAUNCHERS.names())
    assert not (tmp_path / "run").exists()


def test_jobs_of_a_launcher_that_is_no_longer_installed_are_named(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    run.launch.write_bytes(orjson.dumps({"id": "1", "on": "abacus", "jobs": [], "at": 0.0}))
    with pytest.raises(ClawError, match=r"launch\.json: on: .*'abacus'"):
        up(run=run.root, status=True)


def test_the_status_of_a_run_without_jobs_has_a_cure(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run").root
    for options in ({"status": True}, {"stop": True}):
        with pytest.raises(ClawError, match="clawctl up RECIPE --on NAME"):
            up(run=run, **options)


def test_a_job_runs_only_a_stage_of_its_recipe_and_only_on_its_own_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe_of(tmp_path)
    run = open_run(tmp_path / "run")
    with pytest.raises(ClawError, match="choose one of judge"):
        up(tmp_path / "recipe.yaml", run.root, only="train")
    monkeypatch.setenv("CLAWCTL_LAUNCH", "another")
    with pytest.raises(ClawError, match=r"no run directory in .* all machines mount"):
        up(tmp_path / "recipe.yaml", run.root, only="judge")


def test_a_server_on_all_addresses_is_announced_with_the_one_that_others_reach(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    announce(run, "0.0.0.0", 1234)
    assert f"http://{own_address()}:1234/v1" in run.server.read_text()
    announce(run, "127.0.0.1", 1234)
    assert "http://127.0.0.1:1234/v1" in run.server.read_text()
