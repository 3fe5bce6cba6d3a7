"""Layers of a loaded model in fewer passes over memory: norms, linear layers with an adapter, and the last layer of a trie.

RMS norms have the results of eager operations. On a GPU that is `torch.nn.functional.rms_norm`, whose kernel rounds once. On the
CPU (torch 2.11) it takes about as long as eager operations: forward and backward of 4096 x 1024 on one core take 32.7 ms with
eager operations, 29.6 ms with it, and 16.8 ms here.

Linear layers with a LoRA adapter compute W x + s B A x in as few passes over memory as products. With peft (0.21) three more
operations add the adapter's part. Under autocast it also casts the input of each layer to the adapter's float32, autocast casts it
back, and each layer keeps a copy of it for the backward pass. Here layers with the same input keep it once, and the products add up
in place. The weights of the adapter stay float32, and a product rounds once where peft's sum rounds three times.

The last layer of a trie is reduced to the tokens whose states are needed, because no later layer attends to the others.

On a CPU frozen matrices may stay in the 16 bits of the model's files (`widen_when_used`): the system then keeps their pages once
for all processes that map the files, and a process has only the matrix under way in float32.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, rms_norm

from clawctl.trainers.local.attention import Visible
from clawctl.trainers.local.ranks import layers_of


def use_fast_norms(causal: Any) -> None:
    """Replace the model's RMS norms by these, if the results are equal."""
    for module in causal.modules():
        if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
            norm = _norm if module.weight.device.type == "cpu" else _norm_on_gpu
            if _is_plain_norm(module, norm):
                module.forward = functools.partial(norm, module)


@torch.no_grad()
def _is_plain_norm(module: Any, norm: Callable[[Any, Tensor], Tensor]) -> bool:
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


def widen_when_used(causal: Any) -> None:
    """Let a model with weights of 16 bits compute in float32, with the numbers of a model in float32. Matrices stay as they are;
    other weights, which are few, become float32."""
    widened = {nn.Linear: _forward_widened, nn.Embedding: _embed_widened}
    for module in causal.modules():
        forward = widened.get(type(module))
        for weight in module.parameters(recurse=False):
            if forward is None or weight is not module.weight:
                weight.data = weight.data.float()
        if forward is not None:
            module.forward = functools.partial(forward, module)


def _forward_widened(layer: Any, x: Tensor) -> Tensor:
    product: Tensor = _WidenedLinear.apply(x, layer.weight, layer.bias)
    return product


def _embed_widened(layer: Any, ids: Tensor) -> Tensor:
    return embedding(ids, layer.weight).float()


class _WidenedLinear(torch.autograd.Function):
    """W x + b for a frozen W, which is widened once more in the backward pass instead of being kept in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight_OI)
        return linear(x, weight_OI.to(x.dtype), bias_O)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (weight_OI,), d_y = ctx.saved_tensors, gradients[0]
        return d_y @ weight_OI.to(d_y.dtype), None, None


_ADAPTER = "default"  # peft's name of the only adapter


def use_fused_lora(module: Any) -> None:
    """Replace the passes of peft's plain linear layers. Layers of another kind (quantised, with dropout) stay unchanged."""
    from peft.tuners.lora import Linear

    for layer in module.modules():
        if type(layer) is Linear and type(layer.base_layer) is nn.Linear and _is_plain_linear(layer):
            layer.forward = functools.partial(_forward_linear, layer, layer.forward)


def _is_plain_linear(layer: Any) -> bool:
    return (
        list(layer.lora_A) == [_ADAPTER]
        and isinstance(layer.lora_dropout[_ADAPTER], nn.Identity)
        and not layer.lora_variant
        and layer.lora_B[_ADAPTER].bias is None
        and not layer.base_layer.weight.requires_grad
    )


def _forward_linear(layer: Any, whole: Callable[..., Tensor], x: Tensor, *rest: Any, **settings: Any) -> Tensor:
    a, b, kind = layer.lora_A[_ADAPTER], layer.lora_B[_ADAPTER], x.device.type
    watched = a._forward_hooks or b._forward_hooks  # `influence` measures the gradients of these modules
    if rest or settings or layer.disable_adapters or layer.merged or watched:
        return whole(x, *rest, **settings)
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    weight, bias = layer.base_layer.weight, layer.base_layer.bias
    sums: Tensor = LoraLinear.apply(x.to(dtype), weight, bias, a.weight.to(dtype), b.weight.to(dtype), layer.scaling[_ADAPTER])
    return sums


class LoraLinear(torch.autograd.Function):
    """W x + b + s B A x for a frozen W, rows [..., I] to [..., O] (Hu et al., arXiv 2106.09685, section 4.1)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None, a_RI: Tensor, b_OR: Tensor, scale: float) -> Tensor:
        x_TI = x.reshape(-1, x.shape[-1])
        small_TR = x_TI @ a_RI.T
        y_TO = linear(x_TI, weight_OI.to(x.dtype), None if bias_O is None else bias_O.to(x.dtype))
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
            d_x = (d_TO @ weight_OI.to(d_TO.dtype)).addmm_(d_small_TR, a_RI).view(*d_y.shape[:-1], -1)
        d_b_OR = (d_TO.T @ small_TR).mul_(ctx.scale)
        return d_x, None, None, d_small_TR.T @ x_TI, d_b_OR, None


# Blocks that compute exactly x + attention(norm(x)), then x + mlp(norm(x)).
KNOWN = {f"{family}DecoderLayer" for family in ("Llama", "Mistral", "Qwen2", "Qwen3", "SmolLM3")}


def keep_asked_states(causal: Any) -> None:
    """Patch the model so that its last states for a tree are only those of `tree.asked_M`. Models with unknown blocks stay
    unchanged."""
    last = layers_of(causal)[-1]
    if type(last).__name__ in KNOWN:
        last.forward = functools.partial(_forward_asked, last, last.forward)


def _forward_asked(
    layer: Any, whole: Callable[..., Tensor], hidden_BTD: Tensor, *, tree: Visible | None = None, **settings: Any
) -> Tensor:
    if tree is None:
        return whole(hidden_BTD, **settings)
    attended_BTD, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_BTD), tree=tree, **settings)
    hidden_BMD = (hidden_BTD + attended_BTD).index_select(1, tree.queries_M)
    made: Tensor = hidden_BMD + layer.mlp(layer.post_attention_layernorm(hidden_BMD))
    return made


def call_between_layers(causal: Any, call: Callable[[], None], device: torch.device) -> None:
    """Call `call` before each layer of a forward pass, a recomputed one included, and before each layer of a backward pass.

    Nothing that is computed changes. On a GPU, kernels of at most one layer are queued while `call` runs.
    """
    queued: list[torch.cuda.Event] = []

    def reach_border() -> None:
        if device.type == "cuda":
            queued.append(torch.cuda.Event())
            queued[-1].record()
            if len(queued) > 1:
                queued.pop(0).synchronize()  # the layer before the last one is computed
        call()

    def reach_backward(gradient: Tensor) -> None:
        reach_border()

    def watch_output(layer: nn.Module, inputs: Any, output: Any) -> None:
        hidden_BTD = output[0] if isinstance(output, tuple) else output
        if hidden_BTD.requires_grad:
            hidden_BTD.register_hook(reach_backward)

    for layer in layers_of(causal):
        layer.register_forward_pre_hook(lambda layer, inputs: reach_border())
        layer.register_forward_hook(watch_output)
