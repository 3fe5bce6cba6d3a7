"""Shards all weights over the ranks (FSDP2): each rank keeps a part of every matrix, its gradient and its optimizer state.

A layer is gathered only while it computes.

With offload, a rank's part is in host memory, even on a single card. Stored weights are float32. With a bfloat16 forward pass the
gathered copies are bfloat16, and gradients are accumulated in float32.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from clawctl.config import TrainConfig
from clawctl.errors import ClawError
from clawctl.trainers.local.ranks import Ranks, backend_of

T = TypeVar("T")


def is_sharded(config: TrainConfig, ranks: Ranks) -> bool:
    """Whether `train.shard` leads to sharding here. Raises ClawError if the settings conflict."""
    cuda = ranks.device.type == "cuda"
    sharded = {
        "auto": cuda and ((ranks.world > 1 and config.lora is None) or config.local.optimizer_offload),
        "full": True,
        "none": False,
    }
    if config.local.optimizer_offload and config.local.shard == "none":
        raise ClawError("train.optimizer_offload needs sharding, but train.shard is none", "set train.shard to auto", 2)
    if not sharded[config.local.shard]:
        return False
    if config.teacher == "ema" and config.uses_hints:
        raise ClawError(
            "train.teacher ema does not work with sharded weights", "set train.teacher to self or base, or train.shard to none", 2
        )
    if config.lora is not None and config.lora.quantize is not None:
        raise ClawError("a quantised base model cannot be sharded", "remove train.lora.quantize, or set train.shard to none", 2)
    return True


def layers_of(causal: Any) -> list[nn.Module]:
    """The model's blocks, each of which may be gathered or recomputed separately."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in causal.modules() if isinstance(module, GradientCheckpointingLayer)]


def shard(causal: Any, ranks: Ranks, dtype: torch.dtype | None, offload: bool) -> None:
    """Shard the weights of a model that is completely on the CPU or on this device. `dtype` is the dtype of the forward pass; None
    keeps it.

    From then on the model computes only inside `gathering`. Gradients are summed over all ranks.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    cuda = ranks.device.type == "cuda"
    if not dist.is_initialized():  # a single process
        dist.init_process_group(backend_of(cuda), store=dist.HashStore(), rank=0, world_size=1)
    settings: dict[str, Any] = {
        "mesh": init_device_mesh(ranks.device.type, (ranks.world,)),
        "reshard_after_forward": True,  # also at the root: a pass without gradient must not leave old weights behind
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32),
    }
    if offload and cuda:
        settings["offload_policy"] = CPUOffloadPolicy()
    parts: list[Any] = [*layers_of(causal), causal]
    causal.computing = _call
    for part in parts:
        fully_shard(part, **settings)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)  # gloo supports no other reduction
    register_fsdp_forward_method(causal, "computing")


def _call(work: Callable[[], Any]) -> Any:
    """The result of `work`, with views copied, because FSDP attaches its backward hooks to results and may lose those of a view."""
    result = work()
    return tuple(_owned(tensor) for tensor in result) if isinstance(result, tuple) else _owned(result)


def _owned(tensor: Tensor) -> Tensor:
    return tensor.clone() if tensor._is_view() else tensor


def gathering(causal: Any, work: Callable[[], T]) -> T:
    """The result of `work`, a tensor or a tuple of tensors. Meanwhile, the model's weights are gathered as needed."""
    result: T = causal.computing(work) if hasattr(causal, "computing") else work()
    return result


def whole(tensor: Tensor) -> Tensor:
    """The complete tensor of a sharded tensor; every rank must call this. Other tensors are returned unchanged."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a complete tensor, sharded like `like`."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor) or tensor.ndim == 0:
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
