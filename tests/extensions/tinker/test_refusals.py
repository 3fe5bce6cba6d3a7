"""Recipes that a training service refuses before anything is sent."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from clawctl.config import Recipe, TrainConfig
from clawctl.errors import ClawError
from clawctl.extensions.tinker.backend import check
from tests.train.tiny import make_recipe

ALLOWED = {"backend": "tinker", "send_conversations": True, "lora": {}}


def recipe(**train: Any) -> Recipe:
    return Recipe.model_validate({"model": {"path": "crafts"}, "train": train})


def test_conversations_leave_this_machine_only_with_permission() -> None:
    with pytest.raises(ClawError, match=r"sends conversations to https://gpu\.example") as refused:
        check(recipe(backend={"kind": "tinker", "url": "https://gpu.example"}, lora={}))
    assert "train.send_conversations: true" in str(refused.value.fix)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"lora": None}, "all weights"),
        ({"method": "opd_topk", "teacher": "base"}, "teacher base"),
        ({"teacher": "ema"}, "ema"),
        ({"method": "opd_topk", "guidance": 1.5}, "guidance"),
        ({"custom_loss": "loss.py:mine"}, "custom_loss"),
        ({"lora": {"dropout": 0.1}}, "dropout"),
        ({"lora": {"rslora": True}}, "rslora"),
    ],
)
def test_a_recipe_that_a_service_cannot_carry_out_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ClawError, match=f"cannot train .*{problem}"):
        check(recipe(**{**ALLOWED, **changes}))


def test_each_method_passes() -> None:
    for method in ("binary", "grpo", "opd", "opd_topk", "combine", "hybrid"):
        check(recipe(**ALLOWED, method=method))


def test_the_section_of_the_backend_is_the_section_service() -> None:
    price = {"prefill": 0.07, "train": 0.22}
    short = TrainConfig.model_validate({"backend": {"kind": "tinker", "url": "https://a.example", "price": price, "limit": 5}})
    service = {"url": "https://a.example", "price": price, "limit": 5}
    assert short == TrainConfig.model_validate({"backend": "tinker", "service": service})


def test_a_limit_needs_a_price() -> None:
    with pytest.raises(ValidationError, match="limit needs price"):
        TrainConfig.model_validate({"backend": {"kind": "tinker", "limit": 5}})


@pytest.mark.parametrize("setting", [{"base_pull": 0.1}, {"kl_budget": 0.1}])
def test_a_service_refuses_what_it_cannot_do(model_path: Path, setting: dict[str, Any]) -> None:
    recipe = make_recipe(model_path, backend="tinker", send_conversations=True, lora={"rank": 4, "dropout": 0.0}, **setting)
    with pytest.raises(ClawError, match=f"train.{next(iter(setting))}"):
        check(recipe)
