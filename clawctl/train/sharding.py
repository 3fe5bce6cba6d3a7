"""All weights cut over the ranks (FSDP2): each keeps a part of every matrix, with its gradient and its optimizer state.

The layer at work is put together for as long as it computes.

With offload what a rank keeps lies in host memory, also on a single card. Kept weights are float32; where the forward pass is
bfloat16 the copies that are put together are, and gradients are added up in float32.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from clawctl.config import TrainConfig
from clawctl.errors import ClawError
from clawctl.train.ranks import Ranks, backend_of

T = TypeVar("T")


def is_sharded(config: TrainConfig, ranks: Ranks) -> bool:
    """What `train.shard` comes to here. Raises ClawError where it cannot be."""
    cuda = ranks.device.type == "cuda"
    wanted = {"auto": cuda and ((ranks.world > 1 and config.lora is None) or config.optimizer_offload), "full": True, "none": False}
    if config.optimizer_offload and config.shard == "none":
        raise ClawError("train.optimizer_offload needs sharding, but train.shard is none", "set train.shard to auto", 2)
    if not wanted[config.shard]:
        return False
    if config.teacher == "ema" and config.uses_hints:
        raise ClawError(
            "train.teacher ema does not work with sharded weights", "set train.teacher to self or base, or train.shard to none", 2
        )
    if config.lora is not None and config.lora.quantize is not None:
        raise ClawError("a quantised base model cannot be sharded", "remove train.lora.quantize, or set train.shard to none", 2)
    return True


def layers_of(causal: Any) -> list[nn.Module]:
    """The model's blocks, each of which may be put together, or computed again, alone."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in causal.modules() if isinstance(module, GradientCheckpointingLayer)]


def shard(causal: Any, ranks: Ranks, dtype: torch.dtype | None, offload: bool) -> None:
    """Cut the weights of a model that lies whole on the CPU, or on our device. `dtype` is the forward pass's; None: as they are.

    From then on it computes inside `gathering` alone. Gradients are the sums of all ranks'.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    cuda = ranks.device.type == "cuda"
    if not dist.is_initialized():  # alone
        dist.init_process_group(backend_of(cuda), store=dist.HashStore(), rank=0, world_size=1)
    settings: dict[str, Any] = {
        "mesh": init_device_mesh(ranks.device.type, (ranks.world,)),
        "reshard_after_forward": True,  # at the root too: a pass without gradient must not leave old weights behind
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32),
    }
    if offload and cuda:
        settings["offload_policy"] = CPUOffloadPolicy()
    parts: list[Any] = [*layers_of(causal), causal]
    causal.computing = _call
    for part in parts:
        fully_shard(part, **settings)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)  # gloo knows no other
    register_fsdp_forward_method(causal, "computing")


def _call(work: Callable[[], Any]) -> Any:
    """FSDP hangs its backward hooks on what is returned, and those of a view may be lost."""
    result = work()
    return tuple(_owned(tensor) for tensor in result) if isinstance(result, tuple) else _owned(result)


def _owned(tensor: Tensor) -> Tensor:
    return tensor.clone() if tensor._is_view() else tensor


def gathering(causal: Any, work: Callable[[], T]) -> T:
    """What `work` returns, a tensor or a tuple of tensors; inside, the model's weights are put together as they are needed."""
    result: T = causal.computing(work) if hasattr(causal, "computing") else work()
    return result


def whole(tensor: Tensor) -> Tensor:
    """All parts of a sharded tensor put together; every rank must ask. Others are returned as they are."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """The part of a whole tensor that our rank keeps, cut as `like` is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor) or tensor.ndim == 0:
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
