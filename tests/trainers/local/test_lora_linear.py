"""Linear layers with an adapter, computed in few passes."""

import copy
from typing import Any

import torch
from torch import nn

from clawctl.trainers.local.lora_linear import LoraLinear, use_fused_lora


def test_the_gradients_are_those_of_the_formula() -> None:
    torch.manual_seed(0)
    x, a, b = (torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in ((2, 3, 5), (2, 5), (4, 2)))
    weight, bias = torch.randn(4, 5, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    torch.testing.assert_close(LoraLinear.apply(x, weight, bias, a, b, 0.7), x @ weight.T + bias + 0.7 * (x @ a.T) @ b.T)
    assert torch.autograd.gradcheck(lambda x, a, b: LoraLinear.apply(x, weight, bias, a, b, 0.7), (x, a, b))


def test_layers_compute_what_peft_computes_under_autocast() -> None:
    from peft import LoraConfig, inject_adapter_in_model

    torch.manual_seed(0)
    plain: Any = inject_adapter_in_model(
        LoraConfig(r=4, lora_alpha=8, target_modules=["0"], init_lora_weights=False), nn.Sequential(nn.Linear(32, 48).bfloat16())
    )
    for parameter in (plain[0].lora_A["default"].weight, plain[0].lora_B["default"].weight):
        parameter.data = parameter.data.float()  # as in `get_peft_model`
    fused: Any = copy.deepcopy(plain)
    use_fused_lora(fused)
    x = torch.randn(7, 32).bfloat16()
    found = []
    for model in (plain, fused):
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        y.float().square().sum().backward()
        found.append((y.float(), [p.grad for p in model.parameters() if p.grad is not None]))
    (y, gradients), (fused_y, fused_gradients) = found
    torch.testing.assert_close(fused_y, y, rtol=2e-2, atol=2e-2)
    assert [gradient.dtype for gradient in fused_gradients] == [torch.float32] * 2
    for gradient, other in zip(fused_gradients, gradients, strict=True):
        assert (gradient - other).norm() < 0.02 * other.norm()


def test_without_autocast_or_with_the_adapter_off_the_layer_is_peft_s_own() -> None:
    from peft import LoraConfig, inject_adapter_in_model

    model: Any = inject_adapter_in_model(
        LoraConfig(r=4, target_modules=["0"], init_lora_weights=False), nn.Sequential(nn.Linear(8, 8))
    )
    x = torch.randn(3, 8)
    before = model(x)
    use_fused_lora(model)
    assert torch.equal(model(x), before)
    model[0].enable_adapters(False)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model(x), model[0].base_layer(x))
