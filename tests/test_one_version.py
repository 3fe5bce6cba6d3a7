"""vLLM serves one version of full weights at a time. Stages that need another version are warned before the first turn."""

import logging
from pathlib import Path
from typing import Any

import pytest

from clawctl.config import Recipe, load_recipe
from clawctl.errors import ClawError
from clawctl.run.directory import open_run
from clawctl.run.endpoint import check_unserved_versions, unserved_versions
from clawctl.run.policies import move_live, publish_policy
from clawctl.run.rows import Policy
from tests import forked

ONE_VERSION: dict[str, Any] = {"model": {"path": "x", "name": "m"}, "serve": {"engine": "vllm"}}


def found(**more: Any) -> str | None:
    return unserved_versions(Recipe.model_validate({**ONE_VERSION, **more}))


def test_the_judges_default_and_the_gates_candidates_are_named() -> None:
    assert found() == "m@0 (judge)"
    assert found(judge={"hint_model": "m@3", "model": "m"}) == "m@3 (judge)"
    assert found(gate={}) == "m@0 (judge), the gate's candidates (eval)"
    assert found(serve={"upstream": {"url": "http://x", "kind": "vllm"}}) == "m@0 (judge)"


@pytest.mark.parametrize(
    "more",
    [
        {"serve": {"engine": "transformers"}},  # serves any version
        {"train": {"lora": {}}},  # several adapters can be loaded
        {"judge": {"endpoint": "http://elsewhere"}},
        {"judge": {"endpoints": ["http://elsewhere"]}},
        {"judge": {"model": "m"}},  # the live one is there always
        {"judge": {"prm": "a-model"}},
        {"judge": {"custom_rm": "file.py:name"}},
        {"judge": {"endpoint": "http://elsewhere"}, "gate": {}, "eval": {"endpoint": "http://elsewhere"}},
    ],
)
def test_served_versions_cause_no_error(more: dict[str, Any]) -> None:
    assert found(**more) is None


@pytest.mark.parametrize("path", sorted(Path("recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_uses_only_served_versions(path: Path) -> None:
    assert unserved_versions(load_recipe(path)) is None


def test_it_is_a_warning_while_the_base_serves_and_an_error_once_trained_weights_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, recipe = open_run(tmp_path / "run"), Recipe.model_validate(ONE_VERSION)
    with caplog.at_level(logging.WARNING):
        check_unserved_versions(run, recipe)
    assert "set judge.endpoint" in caplog.text
    publish_policy(run, Policy(1, 0, 1, None, "full", "x", [], None, {}, 0.0), lambda folder: None)
    move_live(run, 1)
    with pytest.raises(ClawError, match="m@0") as refused:
        check_unserved_versions(run, recipe)
    assert refused.value.exit_code == 2
    assert "train.lora" in refused.value.fix


def test_up_refuses_such_a_recipe_before_a_stage_is_started(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("serve: {engine: vllm}\nup: {stages: [serve, collect, judge, train]}\n")
    done = forked.run("up", recipe, "--run", tmp_path / "run")
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "one version at a time" in said
    assert "set judge.endpoint" in said
    assert "runs as process" not in said
