"""RMS norms with the results of eager operations, in fewer passes over memory.

On a GPU that is `torch.nn.functional.rms_norm`, whose kernel rounds once. On the CPU (torch 2.11) it takes about as long as eager
operations: forward and backward of 4096 x 1024 on one core take 32.7 ms with eager operations, 29.6 ms with it, and 16.8 ms here.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm


def use_fast_norms(causal: Any) -> None:
    """Replace the model's RMS norms by these, if the results are equal."""
    for module in causal.modules():
        if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
            norm = _norm if module.weight.device.type == "cpu" else _norm_on_gpu
            if _is_plain(module, norm):
                module.forward = functools.partial(norm, module)


@torch.no_grad()
def _is_plain(module: Any, norm: Callable[[Any, Tensor], Tensor]) -> bool:
    weight_D = module.weight
    x_ND = torch.linspace(-2, 3, 2 * len(weight_D), dtype=weight_D.dtype, device=weight_D.device).reshape(2, -1)
    return torch.allclose(module(x_ND), norm(module, x_ND), rtol=1e-5 if weight_D.dtype == torch.float32 else 1e-2)


def _norm(module: Any, hidden: Tensor) -> Tensor:
    normed: Tensor = _RMSNorm.apply(hidden, module.weight, module.variance_epsilon)
    return normed


def _norm_on_gpu(module: Any, hidden: Tensor) -> Tensor:
    weight_D: Tensor = module.weight
    with torch.autocast(hidden.device.type, enabled=False):  # it would compute, and store, float32
        return rms_norm(hidden, weight_D.shape, weight_D.to(hidden.dtype), module.variance_epsilon)


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
