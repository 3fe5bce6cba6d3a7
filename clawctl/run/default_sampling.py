"""The sampling of requests that name none: the recipe's, else that of the model's `generation_config.json`, else 1."""

from dataclasses import dataclass
from typing import Any

import orjson

from clawctl.config import Recipe
from clawctl.config.model import PACKAGED
from clawctl.run.model_files import model_file

MIN_TEMPERATURE = 0.01  # below it sampling is practically greedy: vLLM uses 0.01 instead, and float32 overflows at 1e-300

_HOTTEST = 100  # the highest temperature that a request may name


@dataclass(frozen=True, slots=True)
class DefaultSampling:
    temperature: float
    top_p: float
    sources: dict[str, str]  # of temperature, top_p and top_k: "recipe", "model" or "default"; top_k is always 0 (off)
    left_out: dict[str, float]  # the model's own {"top_p": 0.9, "top_k": 20}: a turn that is sampled with them cannot be trained


def default_sampling(recipe: Recipe) -> DefaultSampling:
    """Return the defaults of `clawctl serve`. A model that is not on this machine yet names nothing."""
    named, serve = _of_model(recipe.model_path), recipe.serve
    if recipe.model.path in PACKAGED:
        named = {"temperature": PACKAGED[recipe.model.path].temperature, **named}
    temperature = named.get("temperature", 0)
    by_model = serve.temperature is None and MIN_TEMPERATURE <= temperature <= _HOTTEST
    truncation = {"top_p": named.get("top_p", 1), "top_k": named.get("top_k", 0)}
    left_out = {name: value for name, value in truncation.items() if (0 < value < 1 if name == "top_p" else value > 0)}
    if serve.top_p is not None:
        left_out.pop("top_p", None)
    return DefaultSampling(
        float(temperature) if by_model else 1.0 if serve.temperature is None else serve.temperature,
        1.0 if serve.top_p is None else serve.top_p,
        {
            "temperature": "model" if by_model else "default" if serve.temperature is None else "recipe",
            "top_p": "default" if serve.top_p is None else "recipe",
            "top_k": "default",
        },
        left_out,
    )


def _of_model(model: str) -> dict[str, Any]:
    """Return the numbers in the model's file, or {} if it asks for greedy answers or cannot be read."""
    file = model_file(model, "generation_config.json")
    try:
        content = orjson.loads(file.read_bytes()) if file is not None else {}
    except (OSError, orjson.JSONDecodeError):
        return {}
    if not isinstance(content, dict) or content.get("do_sample") is False:
        return {}
    return {name: value for name, value in content.items() if type(value) in (int, float)}
