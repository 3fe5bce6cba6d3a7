"""The pull towards version 0, and the KL divergence from it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from clawctl.run.directory import RunDir
from clawctl.trainers.local.step import train_step
from tests.train.tiny import Sampler, make_recipe, publish_turns
from tests.trainers.local.test_methods_in_a_step import publish_hinted
from tests.trainers.local.test_train_step import begin, take, weights


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_the_pull_moves_the_weights_back_by_its_share(run: RunDir, sampler: Sampler, model_path: Path, lora: Any) -> None:
    publish_turns(run, sampler, 6)
    stepped = {}
    for pull in (0.0, 0.25):
        training = begin(run, model_path, lora=lora, lr=1e-2, base_pull=pull)
        before = weights(training)
        train_step(training, take(run, training))
        stepped[pull] = weights(training)
    for name, after in stepped[0.0].items():
        base = 0 if "lora_B" in name else before[name]
        share = 0.0 if "lora_A" in name else 0.25
        torch.testing.assert_close(stepped[0.25][name], after + share * (base - after), atol=1e-7, rtol=1e-5)
    assert any(not torch.equal(stepped[0.25][name], after) for name, after in stepped[0.0].items())


@pytest.mark.parametrize("changes", [{"lora": {"rank": 4}}, {"method": "opd", "teacher": "base"}])
def test_the_kl_divergence_is_that_of_whole_distributions(
    run: RunDir, sampler: Sampler, model_path: Path, changes: dict[str, Any]
) -> None:
    publish_hinted(run, sampler)
    training = begin(run, model_path, lr=1e-2, **changes)
    base = begin(run, model_path).policy.causal
    batch = take(run, training)
    row = train_step(training, batch).row
    assert row is not None
    divergences = []
    for sample in batch.samples:
        ids_BT = torch.tensor([[*sample.prompt_ids, *sample.completion_ids]])
        with torch.no_grad():
            now, then = (model(input_ids=ids_BT).logits[0].log_softmax(-1) for model in (training.policy.causal, base))
        span = slice(len(sample.prompt_ids) - 1, ids_BT.shape[1] - 1)
        divergences.append((now.exp() * (now - then)).sum(1)[span])
    assert row["kl_base"] == pytest.approx(float(torch.cat(divergences).mean()), rel=1e-4)
    assert row["kl_base"] > 0


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_a_step_that_goes_too_far_is_pulled_back_to_the_budget(run: RunDir, sampler: Sampler, model_path: Path, lora: Any) -> None:
    publish_turns(run, sampler, 6)
    distances = {}
    for budget in (None, 1e3, 1e-3):
        training = begin(run, model_path, lora=lora, lr=3e-2, kl_budget=budget)
        row = train_step(training, take(run, training)).row
        assert row is not None
        distances[budget] = row["kl_base"]
    assert distances[None] is None or distances[None] == distances[1e3]  # all weights: without a budget, version 0 is not in memory
    assert distances[1e3] > 2e-3
    assert 2e-4 < distances[1e-3] <= 1e-3


def test_a_second_model_for_the_pull_is_not_the_teacher(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_hinted(run, sampler)
    rows = []
    for pull in (0.0, 0.5):
        training = begin(run, model_path, method="opd", max_mismatch=50, base_pull=pull, kl_budget=1e3 if pull else None)
        with torch.no_grad():  # the policy is no longer version 0
            for _, parameter in training.policy.trained():
                parameter.add_(0.01 * torch.ones_like(parameter))
        rows.append(train_step(training, take(run, training)).row)
    first, second = rows
    assert first is not None
    assert second is not None
    assert first["terms"]["opd"]["advantage_mean"] == second["terms"]["opd"]["advantage_mean"] != 0


def test_a_divergence_that_is_not_finite_pulls_no_weight(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 6)
    training = begin(run, model_path, kl_budget=1e-6)
    with torch.no_grad():
        training.reference.get_output_embeddings().weight[0, 0] = float("inf")  # type: ignore[union-attr]
    row = train_step(training, take(run, training)).row
    assert row is not None
    assert row["kl_base"] is None
    assert all(bool(weight.isfinite().all()) for weight in weights(training).values())


@pytest.mark.parametrize("lora", [None, {"rank": 4}, {"rank": 16}])
@pytest.mark.parametrize("movement", [1e-3, 0.05])
def test_with_lr_auto_each_step_moves_the_policy_by_the_same_divergence(
    run: RunDir, sampler: Sampler, model_path: Path, lora: Any, movement: float
) -> None:
    """Whatever the weights that are trained, and the rank of the adapter."""
    publish_turns(run, sampler, 4)
    training = begin(run, model_path, lora=lora, lr="auto", movement=movement, kl_budget=100, batch_turns=4)
    row = train_step(training, take(run, training)).row
    assert row is not None
    assert movement / 1.6 < row["moved"] < 1.6 * movement
    assert row["moved"] == pytest.approx(row["kl_base"], rel=1e-3)  # the first step starts at version 0
    assert row["lr"] > 0


def test_a_batch_that_is_not_full_moves_the_policy_in_proportion(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 4)
    training = begin(run, model_path, lora={"rank": 4}, lr="auto", movement=0.04, kl_budget=100, batch_turns=4)
    batch = take(run, training)
    row = train_step(training, replace(batch, samples=batch.samples[:1])).row
    assert row is not None
    assert 0.01 / 1.6 < row["moved"] < 1.6 * 0.01


def test_with_lr_auto_a_repeated_step_is_the_same_step(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 4)

    def stepped() -> dict[str, Tensor]:
        training = begin(run, model_path, lora={"rank": 4}, lr="auto")
        train_step(training, take(run, training))
        return weights(training)

    first, second = stepped(), stepped()
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_movement_is_a_setting_of_lr_auto_alone() -> None:
    with pytest.raises(ValueError, match="movement has no effect unless lr is auto"):
        make_recipe(Path("x"), movement=0.1)
