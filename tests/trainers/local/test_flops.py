"""The FLOPs of a step, by hand."""

from typing import Any

import pytest
import torch

from clawctl.trainers.local.costs import Cost, cost_of, measured_flops, peak_flops
from tests.train.tiny import Sampler


def test_a_pass_costs_two_operations_a_weight_and_token_and_training_three_times_that() -> None:
    full = Cost(frozen_weights=0, trained_weights=100, head_weights=50, head_learns=True, attention=8)
    # 2·100·10 + 2·50·3 + 4·8·20
    assert full.forward(tokens=10, pairs=20, scored=3) == 2000 + 300 + 640
    assert full.forward_backward(10, 20, 3) == 3 * (2000 + 300 + 640)
    adapter = Cost(frozen_weights=90, trained_weights=10, head_weights=50, head_learns=False, attention=8)
    # frozen weights need no weight gradient
    assert adapter.forward_backward(10, 20, 3) == 2 * (2000 + 300) + 2 * 10 * 10 + 3 * 640


def test_the_cost_of_a_model_counts_its_matrices(sampler: Sampler) -> None:
    model: Any = sampler.model
    cost = cost_of(model)
    # hidden 32, 2 heads and 1 key-value head of 16, mlp 64, 2 layers: q 32·32, k and v 32·16, o 32·32, three of 32·64
    assert cost.frozen_weights + cost.trained_weights == 2 * (1024 + 512 + 512 + 1024 + 3 * 2048)
    assert cost.head_weights == 32 * model.config.vocab_size
    assert cost.attention == 2 * 2 * 16


def test_the_peak_of_a_device_comes_from_the_recipe_or_from_its_specification() -> None:
    assert peak_flops("NVIDIA H100 80GB HBM3", None) == pytest.approx(989.4e12)
    assert peak_flops("NVIDIA H100 PCIe", None) == 756e12
    assert peak_flops("NVIDIA L4", None) == 121e12
    assert peak_flops("NVIDIA L40S", None) == 362e12
    assert peak_flops(None, 0.25) == 0.25e12
    assert peak_flops(None, None) is None
    assert peak_flops("Some GPU", None) is None


def test_a_cpu_is_measured_by_a_matrix_product() -> None:
    assert 1e8 < measured_flops(torch.float32) < 1e15
