"""A step of each method mixes no tensors of two devices, and makes on a card what it makes on the CPU."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from pretended_card import Mixup, on_card, on_cpu
from pretended_quantiser import IntegerLinear
from safetensors.torch import load_file

from clawctl.config import Recipe
from clawctl.config.methods import METHODS as KINDS
from clawctl.run.directory import open_run
from clawctl.run.policies import ensure_base_policy
from clawctl.trainers.local.model import load_policy
from clawctl.trainers.local.ranks import Ranks
from tests.train.tiny import Sampler, make_recipe, publish_turns, run_training

METHODS: dict[str, dict[str, Any]] = {
    "binary": {"method": "binary"},
    "grpo": {"method": "grpo"},
    "opd": {"method": "opd"},
    "opd-topk": {"method": "opd_topk", "topk": 8},
    "practice": {
        "method": "opd_topk", "topk": 8, "topk_of": "teacher", "teacher": "base", "guidance": 1.3, "divergence": "forward",
        "lr": "auto",
    },
    "combine": {"method": "combine"},
    "combine-topk": {"method": "combine", "topk": 8},
    "hybrid": {"method": "hybrid"},
}  # fmt: skip
WEIGHTS: dict[str, dict[str, Any]] = {
    "full": {"turn_bound": None},
    "adapter": {"lora": {"rank": 2}, "gradient_checkpointing": True, "kl_budget": 0.5, "tokens_per_microbatch": 64},
    "quantised": {"lora": {"rank": 2, "quantize": "nf4"}, "clip_grad": 0.1},
}


def _mixed_and_moved(card: torch.device) -> tuple[str, str, bool]:
    weight, values = torch.randn(2, 3, device=card, requires_grad=True), torch.randn(2, 3)
    with pytest.raises(Mixup) as mixup:
        weight * values
    (weight * values.to(card)).sum().backward()
    assert weight.grad is not None
    return str(mixup.value), str(weight.grad.device), torch.equal(weight.grad.cpu(), values)


def test_a_mixup_is_noticed_and_a_backward_pass_is_computed() -> None:
    assert on_card(_mixed_and_moved) == ("aten.mul.Tensor of [('card', (2, 3)), ('CPU', (2, 3))]", "card:0", True)


@pytest.fixture(scope="module")
def untied_path(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with a head of its own: the pretended device cannot keep weights tied that are moved there."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, model = tmp_path_factory.mktemp("untied"), AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_path).save_pretrained(folder)
    return folder


def _train(device: torch.device, root: Path, recipe: Recipe) -> None:
    run_training(open_run(root), recipe, Ranks(0, 1, device), threading.Event(), once=True)


def test_each_method_is_among_the_steps() -> None:
    assert {settings["method"] for settings in METHODS.values()} == set(KINDS)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("method", METHODS)
def test_a_step_on_a_card_mixes_no_devices_and_is_that_of_the_cpu(
    tmp_path: Path, sampler: Sampler, untied_path: Path, method: str, weights: str
) -> None:
    recipe = make_recipe(untied_path, batch_turns=2, max_steps=1, **METHODS[method], **WEIGHTS[weights])
    runs = [open_run(tmp_path / name) for name in ("card", "cpu")]
    for run in runs:
        ensure_base_policy(run, str(untied_path))
        publish_turns(run, sampler, 8, group_id="g", task_id="t")
    on_card(_train, runs[0].root, recipe)
    on_cpu(_train, runs[1].root, recipe)
    ours, theirs = (load_file(next(run.version_folder(1).glob("*.safetensors"))) for run in runs)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], atol=2e-4, rtol=1e-3)


def _quantised_layers(device: torch.device, path: Path) -> list[str]:
    policy = load_policy(make_recipe(path, **WEIGHTS["quantised"]), Ranks(0, 1, device))
    return [f"{layer.weight.dtype} {layer.weight.device}" for layer in policy.module.modules() if type(layer) is IntegerLinear]


def test_the_base_of_a_quantised_step_has_integer_weights_on_the_card(untied_path: Path) -> None:
    assert on_card(_quantised_layers, untied_path) == 2 * 7 * ["torch.int8 card:0"]  # layers of the model, and in each


def _canaries(card: torch.device, path: Path) -> tuple[Any, Any]:
    quantised = load_policy(make_recipe(path, **WEIGHTS["quantised"]), Ranks(0, 1, card))
    plain = load_policy(make_recipe(path, lora={"rank": 2}), Ranks(0, 1, torch.device("cpu")))
    return quantised.canary()["logprobs"], plain.canary()["logprobs"]


def test_the_canary_over_a_quantised_base_is_scored_with_the_plain_one(untied_path: Path) -> None:
    for ours, theirs in zip(*on_card(_canaries, untied_path), strict=True):
        assert ours[1:] == pytest.approx(theirs[1:], abs=1e-5)
