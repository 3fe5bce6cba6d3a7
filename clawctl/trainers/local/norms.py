"""RMS norms on the CPU with the results of eager operations, in half as many passes over memory.

`torch.nn.functional.rms_norm` (torch 2.11) is no replacement: it takes about as long as eager operations. Forward and backward of
4096 x 1024 on one core take 32.7 ms with eager operations, 29.6 ms with it, and 16.8 ms here.
"""

import functools
from typing import Any

import torch
from torch import Tensor


def use_fast_norms(causal: Any) -> None:
    """Replace the model's RMS norms by these, if the results are equal. For models on the CPU."""
    for module in causal.modules():
        if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon") and _is_plain(module):
            module.forward = functools.partial(_norm, module)


@torch.no_grad()
def _is_plain(module: Any) -> bool:
    x_ND = torch.linspace(-2, 3, 2 * len(module.weight), dtype=module.weight.dtype).reshape(2, -1)
    return torch.allclose(module(x_ND), _norm(module, x_ND), rtol=1e-5)


def _norm(module: Any, hidden: Tensor) -> Tensor:
    normed: Tensor = _RMSNorm.apply(hidden, module.weight, module.variance_epsilon)
    return normed


class _RMSNorm(torch.autograd.Function):
    """w x / sqrt(mean x² + eps) over the last dimension, in float32 except for the product with w (arXiv 1910.07467)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        wide = x.float()
        scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        unit = wide * scale
        ctx.save_for_backward(unit, scale, weight_D)
        ctx.dtype = x.dtype
        normed: Tensor = unit.to(x.dtype) * weight_D
        return normed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        unit, scale, weight_D = ctx.saved_tensors
        gradient, wide_D = gradients[0].float(), weight_D.float()
        along = gradient * unit
        d_weight_D = along.flatten(0, -2).sum(0).to(weight_D.dtype) if ctx.needs_input_grad[1] else None
        mean = (along @ wide_D).div_(unit.shape[-1]).unsqueeze(-1)
        dx = torch.addcmul(gradient * wide_D, unit, mean, value=-1).mul_(scale)
        return dx.to(ctx.dtype), d_weight_D, None
