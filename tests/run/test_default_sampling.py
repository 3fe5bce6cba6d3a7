"""What a request does not name comes from the recipe, else from the model's generation_config.json, else it changes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from clawctl.config import Recipe
from clawctl.run.default_sampling import DefaultSampling, default_sampling


def of(folder: Path, file: Any, **serve: Any) -> DefaultSampling:
    if file is not None:
        (folder / "generation_config.json").write_text(file if isinstance(file, str) else json.dumps(file))
    return default_sampling(Recipe.model_validate({"model": {"path": str(folder)}, "serve": serve}))


def test_the_model_names_what_the_recipe_does_not(tmp_path: Path) -> None:
    sampling = of(tmp_path, {"temperature": 0.6})
    assert (sampling.temperature, sampling.top_p) == (0.6, 1.0)
    assert sampling.sources == {"temperature": "model", "top_p": "default", "top_k": "default"}


def test_the_recipe_outranks_the_model(tmp_path: Path) -> None:
    sampling = of(tmp_path, {"do_sample": True, "temperature": 0.6}, temperature=0.9, top_p=0.8)
    assert (sampling.temperature, sampling.top_p) == (0.9, 0.8)
    assert sampling.sources == {"temperature": "recipe", "top_p": "recipe", "top_k": "default"}


def test_the_models_truncation_is_left_out_because_its_turns_could_not_be_trained(tmp_path: Path) -> None:
    sampling = of(tmp_path, {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20})
    assert (sampling.temperature, sampling.top_p, sampling.left_out) == (0.6, 1.0, {"top_p": 0.95, "top_k": 20})
    assert of(tmp_path, {"top_p": 1.0, "top_k": 0}).left_out == {}
    assert of(tmp_path, {"top_p": 0.95}, top_p=0.9).left_out == {}


@pytest.mark.parametrize(
    "file",
    [None, "", "[]", '{"temperature": 0.6', {"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}, {"temperature": "hot"},
     {"temperature": True}, {"temperature": None}, {"temperature": -1}, '{"temperature": NaN}'],
)  # fmt: skip
def test_a_file_that_names_no_usable_temperature_changes_nothing(tmp_path: Path, file: Any) -> None:
    sampling = of(tmp_path, file)
    assert (sampling.temperature, sampling.sources["temperature"], sampling.left_out) == (1.0, "default", {})
