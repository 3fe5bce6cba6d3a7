"""The fast RMS norm, against numbers worked by hand and against the models' own."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from clawctl.trainers.local.norms import use_fast_norms


def is_ours(module: Any) -> bool:
    return "forward" in vars(module)


def test_a_norm_is_as_worked_by_hand() -> None:
    norm = LlamaRMSNorm(2, eps=0.5)
    norm.weight.data = torch.tensor([1.0, 2.0])
    use_fast_norms(norm)
    assert is_ours(norm)
    x = torch.tensor([[3.0, 4.0]], requires_grad=True)
    y = norm(x)
    root = math.sqrt(13.0)  # (9 + 16) / 2 + 0.5
    torch.testing.assert_close(y, torch.tensor([[3 / root, 8 / root]]))
    y[0, 0].backward()
    # of x0 / root: 1 / root - x0 x / (2 root³); the weight's is x0 / root
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.tensor([[1 / root - 9 / (2 * root**3), -12 / (2 * root**3)]]))
    torch.testing.assert_close(norm.weight.grad, torch.tensor([3 / root, 0.0]))


@pytest.mark.parametrize("made", [LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm])
@pytest.mark.parametrize(("types", "tolerance"), [((torch.float32, torch.float32), 1e-5), ((torch.bfloat16, torch.float32), 0.02),
                                                  ((torch.bfloat16, torch.bfloat16), 0.02)])  # fmt: skip
def test_the_fast_norms_equal_the_models_own_in_every_type(
    made: Any, types: tuple[torch.dtype, torch.dtype], tolerance: float
) -> None:
    torch.manual_seed(0)
    theirs = made(16, eps=1e-6).to(types[1])
    theirs.weight.data.uniform_(0.5, 1.5)
    ours = copy.deepcopy(theirs)
    use_fast_norms(ours)
    assert is_ours(ours)
    x = torch.randn(1, 5, 3, 16, dtype=types[0], requires_grad=True)
    wanted = torch.randn(1, 5, 3, 16)
    found = []
    for norm in (theirs, ours):
        y = norm(x)
        found.append((y, *torch.autograd.grad((y.float() * wanted).sum(), (x, norm.weight))))
    for mine, expected in zip(found[1], found[0], strict=True):
        assert mine.dtype == expected.dtype
        torch.testing.assert_close(mine, expected, atol=tolerance, rtol=tolerance)


def test_a_frozen_weight_gets_no_gradient_and_passes_the_incoming_one_on() -> None:
    norm = Qwen3RMSNorm(4).requires_grad_(False)
    use_fast_norms(norm)
    x = torch.randn(3, 4, requires_grad=True)
    norm(x).sum().backward()
    assert norm.weight.grad is None
    assert x.grad is not None


def test_norms_that_compute_something_else_stay_as_they_are() -> None:
    class OddRMSNorm(LlamaRMSNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    odd = nn.ModuleList([GemmaRMSNorm(4), OddRMSNorm(4), nn.RMSNorm(4), nn.LayerNorm(4)])
    use_fast_norms(odd)
    assert not any(is_ours(norm) for norm in odd)
