"""Write access to a run directory cannot make a stage run code: traps of each kind, for each stage."""

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from clawctl.config import Recipe, dump_recipe, load_recipe
from clawctl.engines.vllm.child import environment
from clawctl.errors import ClawError
from clawctl.launch.up import command
from clawctl.named_code import check_named_code
from clawctl.run.directory import open_run
from clawctl.run.policies import ensure_base_policy

CODE: list[dict[str, Any]] = [
    {"train": {"custom_loss": "{file}:loss"}},
    {"train": {"backend": "{file}:BACKEND"}},
    {"judge": {"custom_rm": "{file}:judge"}},
    {"eval": {"suites": ["own", {"name": "{file}:suite", "problems": 3}]}},
    {"serve": {"engine": "vllm", "engine_python": "{file}"}},
    {"play": {"env": "openenv", "options": {"folder": "echo_env", "command": "{file} --port {port}"}}},
    {"play": {"env": "toolcall", "options": {"sandbox": {"kind": "subprocess", "without_isolation": True}, "code": "{file}"}}},
    {"eval": {"suites": [{"name": "terminal", "options": {"harness": "codex", "see": "{file}"}}]}},
]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user's own state lies."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def stage_of(named: dict[str, Any]) -> str:
    return next(iter(named))


def recipe_with(named: dict[str, Any], file: Path, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(named).replace("{file}", str(file)))
    return path


@pytest.mark.parametrize("named", CODE)
@pytest.mark.usefixtures("mine")
def test_code_that_only_the_runs_recipe_names_is_refused_until_its_user_allows_it(tmp_path: Path, named: dict[str, Any]) -> None:
    root, stage = tmp_path / "run", stage_of(named)
    kept = recipe_with(named, tmp_path / "code.py", root / "recipe.yaml")
    resolved = load_recipe(kept)
    for given in (None, kept):
        with pytest.raises(ClawError, match="but you have not allowed it") as refused:
            check_named_code(stage, root, resolved, given, {})
        assert refused.value.exit_code == 2
    check_named_code("collect", root, resolved, None, {})  # which would not run it
    check_named_code("up", root, resolved, recipe_with(named, tmp_path / "code.py", tmp_path / "own.yaml"), {})
    check_named_code(stage, root, resolved, None, {})
    with pytest.raises(ClawError, match="but you have not allowed it"):
        check_named_code(stage, tmp_path / "other", resolved, None, {})
    changed = load_recipe(recipe_with(named, tmp_path / "other.py", root / "recipe.yaml"))
    with pytest.raises(ClawError, match="but you have not allowed it"):
        check_named_code(stage, root, changed, None, {})


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("stage", ["serve", "collect", "play", "up"])
def test_a_finder_that_only_the_runs_recipe_names_is_code_of_every_stage_that_redacts(tmp_path: Path, stage: str) -> None:
    root, named = tmp_path / "run", {"privacy": {"finders": ["rules", "{file}:FINDER"]}}
    kept = recipe_with(named, tmp_path / "code.py", root / "recipe.yaml")
    with pytest.raises(ClawError, match=r"privacy.finders: .*code.py:FINDER, but you have not allowed it"):
        check_named_code(stage, root, load_recipe(kept), None, {})
    check_named_code("judge", root, load_recipe(kept), None, {})  # which would not run it
    check_named_code(stage, root, load_recipe(None, {"privacy.finders": ["rules"]}), None, {})


@pytest.mark.usefixtures("mine")
def test_an_option_names_code_and_code_in_the_run_directory_never_runs(tmp_path: Path) -> None:
    root, setting = tmp_path / "run", {"train.custom_loss": f"{tmp_path / 'code.py'}:loss"}
    resolved = load_recipe(None, setting)
    check_named_code("train", root, resolved, None, setting)
    check_named_code("train", root, resolved, None, {})
    inside = {"train.custom_loss": f"{root / 'captures' / '..' / 'code.py'}:loss"}
    with pytest.raises(ClawError, match="is inside the run directory"):
        check_named_code("train", root, load_recipe(None, inside), None, inside)


@pytest.mark.usefixtures("mine")
def test_an_option_of_an_environment_names_itself_and_no_other_option_of_the_runs_recipe(tmp_path: Path) -> None:
    root, typed = tmp_path / "run", {"play.env": "terminal", "play.options": {"harness": "codex"}}
    check_named_code("play", root, load_recipe(None, typed), None, typed)
    both = load_recipe(None, {**typed, "play.options": {"harness": "codex", "see": "/srv/secrets"}})
    with pytest.raises(ClawError, match=r"play\.options: /srv/secrets, but you have not allowed it"):
        check_named_code("play", root, both, None, typed)


class Trap:
    def __init__(self, sprung: Path) -> None:
        self._sprung = sprung

    def __reduce__(self) -> Any:
        return Path.touch, (self._sprung,)


def test_no_trap_in_a_run_directory_fires_in_any_stage(tmp_path: Path, mine: Path) -> None:
    sprung = tmp_path / "sprung"
    run = open_run(tmp_path / "run")
    ensure_base_policy(run, "crafts")
    trap, script = pickle.dumps(Trap(sprung)), f"#!{sys.executable}\nfrom pathlib import Path\nPath({str(sprung)!r}).touch()\n"
    sharded = run.train / "checkpoints" / "1" / "sharded"
    policy = run.policies / "1"
    for folder in (sharded, sharded.parent / "policy", policy):
        folder.mkdir(parents=True, exist_ok=True)
    for folder in [sharded, sharded.parent / "policy", policy, *(run.root / name for name in os.listdir(run.root)), run.root]:
        if folder.is_dir():
            for name in (".metadata", "__0_0.distcp", "pytorch_model.bin", "adapter_model.bin", "x.pkl", "x.parquet", "x.jsonl"):
                (folder / name).write_bytes(trap)
            for name in ("modeling.py", "sitecustomize.py", "conftest.py", "vllm.py", "code.py"):
                (folder / name).write_text(script)
    (run.root / "code.py").chmod(0o700)
    code = ({"train": {"custom_loss": "{file}:f"}}, {"judge": {"custom_rm": "{file}:f"}}, {"eval": {"suites": ["{file}:f"]}}, {})
    for named in code:
        (run.root / "recipe.yaml").write_text(yaml.safe_dump(named).replace("{file}", str(run.root / "code.py")) if named else "{}")
        for stage in ("collect", "judge", "train") if named == {} else (next(iter(named)),):
            command = [sys.executable, "-m", "clawctl", stage, "--run", str(run.root), "--once"]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
            assert not sprung.exists(), (stage, named)
            assert "Traceback" not in ended.stderr, ended.stderr
            if named:
                assert (ended.returncode, "run directory" in ended.stderr) == (2, True), ended.stderr
    assert dump_recipe(Recipe())


def test_no_module_in_the_folder_that_a_stage_is_started_in_is_imported(tmp_path: Path) -> None:
    """A run directory is such a folder for every user who works in it: `cd RUN && clawctl up …`."""
    sprung, run = tmp_path / "sprung", open_run(tmp_path / "run")
    for module in ("orjson", "typer", "torch", "yaml", "pyarrow"):
        (run.root / f"{module}.py").write_text(f"from pathlib import Path\nPath({str(sprung)!r}).touch()\n")
    (run.root / "clawctl.py").write_text((run.root / "orjson.py").read_text())
    (run.root / "recipe.yaml").write_text("{}")

    def starts(*command: str) -> None:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=run.root)
        assert (ended.returncode, sprung.exists()) == (0, False), ended.stderr

    starts(*command("collect", run, run.root / "recipe.yaml", "info"), "--once")
    (run.root / "clawctl.py").unlink()  # `python -m clawctl` next to such a file cannot be protected
    starts(sys.executable, "-m", "clawctl", "inspect", "data", "--run", ".")


def test_every_python_that_we_start_leaves_out_the_folder_it_is_started_in() -> None:
    sources = {path: path.read_text() for path in (Path(__file__).parents[1] / "clawctl").rglob("*.py")}
    assert [str(path) for path, text in sources.items() if re.search(r"sys\.executable, \"-[mc]\"", text)] == []
    assert environment(Recipe(), "key")["PYTHONSAFEPATH"] == "1"  # of vLLM's Python, which may be older than the option


@pytest.mark.parametrize("home", ["unwritable", "unreadable", "none"])
def test_stages_of_up_run_the_code_in_its_recipe_also_without_a_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("CLAWCTL_NAMED_CODE", raising=False)
    if home == "none":
        monkeypatch.setenv("HOME", "")
    else:
        monkeypatch.setenv("HOME", str(tmp_path / "file"))  # below which no path can be created or read
        (tmp_path / "file").write_text("")
    root, code = tmp_path / "run", tmp_path / "code.py"
    named = {"judge": {"custom_rm": "{file}"}}
    resolved = load_recipe(recipe_with(named, code, tmp_path / "own.yaml"))
    with pytest.raises(ClawError, match="have not allowed it") as refused:
        check_named_code("judge", root, resolved, None, {})
    assert "XDG_STATE_HOME" in refused.value.fix
    check_named_code("up", root, resolved, tmp_path / "own.yaml", {})
    check_named_code("judge", root, resolved, root / "recipe.yaml", {})  # as `up` starts it
    other = load_recipe(recipe_with(named, tmp_path / "other.py", tmp_path / "own.yaml"))
    with pytest.raises(ClawError, match="have not allowed it"):
        check_named_code("judge", root, other, root / "recipe.yaml", {})
    monkeypatch.delenv("CLAWCTL_NAMED_CODE")
