"""A run is bound to its model by the first stage that works on it. A failed attempt does not bind it."""

from pathlib import Path

import pytest

from clawctl.cli.opening import open_stage
from clawctl.config import load_recipe
from clawctl.errors import ClawError
from clawctl.run.directory import open_run
from clawctl.run.endpoint import announce
from clawctl.run.model_binding import first_attempt, is_bound
from clawctl.run.policies import ensure_base_policy, list_versions, read_policy
from tests import forked


def begin(root: Path, model: str, stage: str = "serve") -> None:
    run, recipe = open_stage(stage, root, None, {"model.path": model}, "info", create=True)
    ensure_base_policy(run, recipe.model.path)


def fail(root: Path) -> None:
    with first_attempt(root):
        begin(root, "wrong")
        raise RuntimeError("the engine failed")


def test_a_server_that_cannot_load_its_model_does_not_bind_the_run_to_it(tmp_path: Path) -> None:
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "config.json").write_text('{"model_type": "qwen3"}')
    done = forked.run("serve", "--port", "0", "--run", tmp_path / "run", "--model", tmp_path / "wrong")
    assert done.returncode != 0
    assert not (tmp_path / "run" / "recipe.yaml").exists()
    assert list_versions(open_run(tmp_path / "run")) == []
    missing = forked.run("serve", "--port", "0", "--run", tmp_path / "other", "--model", tmp_path / "nowhere")
    assert missing.returncode == 2
    assert not (tmp_path / "other").exists(), "what is known to be wrong makes no run at all"


@pytest.mark.parametrize("killed", [True, False])
def test_the_right_model_on_the_same_run_works_even_after_a_kill(tmp_path: Path, killed: bool) -> None:
    root = tmp_path / "run"
    if killed:  # nothing was taken back
        begin(root, "wrong")
    else:
        with pytest.raises(RuntimeError):
            fail(root)
        assert not (root / "recipe.yaml").exists()
    begin(root, "right")
    assert load_recipe(root / "recipe.yaml").model.path == "right"
    assert read_policy(open_run(root), 0).base_model == "right"


def test_a_recipe_that_a_person_put_there_stays(tmp_path: Path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    (root / "recipe.yaml").write_text("model: {path: mine}\n")
    with pytest.raises(RuntimeError):
        fail(root)
    assert (root / "recipe.yaml").read_text() == "model: {path: mine}\n"


@pytest.mark.parametrize("stage", ["serve", "train", "judge"])
def test_after_the_first_start_the_model_is_fixed_and_the_recipe_is_not_overwritten(tmp_path: Path, stage: str) -> None:
    root, other = tmp_path / "run", tmp_path / "other.yaml"
    with first_attempt(root):
        begin(root, "right")
        announce(open_run(root), "127.0.0.1", 1)
    assert is_bound(open_run(root))
    before = (root / "recipe.yaml").read_bytes()
    other.write_text("model: {path: other}\n")
    with pytest.raises(ClawError, match="was created for the model 'right', but the recipe names 'other'"):
        open_stage(stage, root, other, {}, "info")
    assert (root / "recipe.yaml").read_bytes() == before


@pytest.mark.parametrize("stage", ["serve", "collect", "judge", "train", "eval"])
def test_a_recipe_that_names_no_model_leaves_the_run_its_own(tmp_path: Path, stage: str) -> None:
    root, other = tmp_path / "run", tmp_path / "other.yaml"
    with first_attempt(root):
        begin(root, "right")
        announce(open_run(root), "127.0.0.1", 1)
    other.write_text("train: {lr: 0.001}\n")
    _, recipe = open_stage(stage, root, other, {}, "info")
    assert (recipe.model.path, recipe.train.lr) == ("right", 0.001)
    assert load_recipe(root / "recipe.yaml").model.path == "right"
