"""Linear layers with a LoRA adapter under autocast: W x + s B A x in as few passes over memory as products.

peft (0.21) casts the input of each layer to the adapter's float32, and autocast casts it back. Each layer keeps a copy of it for
the backward pass, and three more operations add the adapter's part. Here layers with the same input keep it once, and the products
add up in place. The weights of the adapter stay float32, and a product rounds once where peft's sum rounds three times.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

_ADAPTER = "default"  # peft's name of the only adapter


def use_fused_lora(module: Any) -> None:
    """Replace the passes of peft's plain linear layers. Layers of another kind (quantised, with dropout) stay unchanged."""
    from peft.tuners.lora import Linear

    for layer in module.modules():
        if type(layer) is Linear and type(layer.base_layer) is nn.Linear and _is_plain(layer):
            layer.forward = functools.partial(_forward, layer, layer.forward)  # type: ignore[method-assign]


def _is_plain(layer: Any) -> bool:
    return (
        list(layer.lora_A) == [_ADAPTER]
        and isinstance(layer.lora_dropout[_ADAPTER], nn.Identity)
        and not layer.lora_variant
        and layer.lora_B[_ADAPTER].bias is None
        and not layer.base_layer.weight.requires_grad
    )


def _forward(layer: Any, whole: Callable[..., Tensor], x: Tensor, *rest: Any, **settings: Any) -> Tensor:
    a, b, kind = layer.lora_A[_ADAPTER], layer.lora_B[_ADAPTER], x.device.type
    watched = a._forward_hooks or b._forward_hooks  # `own_gradients` measures the gradients of these modules
    if rest or settings or layer.disable_adapters or layer.merged or watched or not torch.is_autocast_enabled(kind):
        return whole(x, *rest, **settings)
    dtype = torch.get_autocast_dtype(kind)
    weight, bias = layer.base_layer.weight.to(dtype), layer.base_layer.bias
    sums: Tensor = LoraLinear.apply(x.to(dtype), weight, bias, a.weight.to(dtype), b.weight.to(dtype), layer.scaling[_ADAPTER])
    return sums


class LoraLinear(torch.autograd.Function):
    """W x + b + s B A x for a frozen W, rows [..., I] to [..., O] (Hu et al., arXiv 2106.09685, section 4.1)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None, a_RI: Tensor, b_OR: Tensor, scale: float) -> Tensor:
        x_TI = x.reshape(-1, x.shape[-1])
        small_TR = x_TI @ a_RI.T
        y_TO = linear(x_TI, weight_OI, None if bias_O is None else bias_O.to(x.dtype))
        y_TO.addmm_(small_TR, b_OR.T, alpha=scale)
        ctx.save_for_backward(x_TI, small_TR, weight_OI, a_RI, b_OR)
        ctx.scale = scale
        return y_TO.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x_TI, small_TR, weight_OI, a_RI, b_OR = ctx.saved_tensors
        d_y = gradients[0]
        d_TO = d_y.reshape(-1, d_y.shape[-1])
        d_small_TR = (d_TO @ b_OR).mul_(ctx.scale)
        d_x = None
        if ctx.needs_input_grad[0]:
            d_x = (d_TO @ weight_OI).addmm_(d_small_TR, a_RI).view(*d_y.shape[:-1], -1)
        d_b_OR = (d_TO.T @ small_TR).mul_(ctx.scale)
        return d_x, None, None, d_small_TR.T @ x_TI, d_b_OR, None
