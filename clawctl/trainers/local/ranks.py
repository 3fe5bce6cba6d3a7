"""The processes of one trainer. All of them compute, and only rank 0 reads and writes the run.

All weights can be sharded over the ranks (FSDP2): each rank keeps a part of every matrix, its gradient and its optimizer state. A
layer is gathered only while it computes. With offload, a rank's part is in host memory, even on a single card. Stored weights are
float32. With a bfloat16 forward pass the gathered copies are bfloat16, and gradients are accumulated in float32.
"""

import datetime
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch import Tensor, nn

from clawctl.config import TrainConfig
from clawctl.errors import ClawError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ranks:
    """The rank of this process. With world 1 every method is the identity, and nothing is initialised."""

    rank: int
    world: int
    device: torch.device

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def run_on_leader(self, work: Callable[[], T]) -> T:
        """The result of `work` on rank 0, sent to every rank. If it raises a ClawError, all ranks end, and rank 0 prints the
        reason."""
        if self.world == 1:
            return work()
        result, error = None, None
        if self.is_leader:
            try:
                result = work()
            except ClawError as raised:
                error = raised
        result, exit_code = self.broadcast((result, error.exit_code if error else None))
        if error is not None:
            raise error
        if exit_code is not None:
            raise SystemExit(exit_code)
        return cast(T, result)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order, on every rank."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def maximum(self, count: int) -> int:
        """The largest count of all ranks, on every rank."""
        if self.world == 1:
            return count
        largest = torch.tensor(count)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def sum_gradients(self, parameters: list[torch.nn.Parameter]) -> None:
        """Add up the gradients of all ranks; a rank without work adds zeros."""
        if self.world == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients: list[Tensor] = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])  # one message instead of one per tensor
        dist.all_reduce(flat)
        for gradient, summed in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(summed.view_as(gradient))


def join_ranks(rank: int, world: int, local_rank: int) -> Ranks:
    """Join the process group: gloo on the CPU, NCCL on CUDA. Call `leave_ranks` when done."""
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if world > 1:
        try:
            dist.init_process_group(backend_of(cuda), timeout=datetime.timedelta(minutes=30))
        except (ValueError, RuntimeError) as error:
            raise ClawError(f"{world} trainers cannot connect to each other: {error}", "start them with torchrun") from error
    return Ranks(rank, world, device)


@contextmanager
def abort_on_lost_rank() -> Iterator[None]:
    """Raises ClawError if a message fails because another process has ended."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo/transport" not in str(error):  # gloo's errors have no class of their own
            raise
        fix = "committed steps are safe: run the same command again, or let torchrun restart it with --max-restarts"
        raise ClawError("another process of this trainer has exited", fix) from error


def backend_of(cuda: bool) -> str:
    """The communication backend: NCCL for tensors on a GPU, gloo for all others."""
    return "cpu:gloo,cuda:nccl" if cuda else "gloo"


def leave_ranks() -> None:
    """Leave the process group, which also ends gloo's threads. A thread that still runs while Python exits can abort the
    process."""
    if dist.is_initialized():  # also with one rank, if weights are sharded
        dist.destroy_process_group()


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
