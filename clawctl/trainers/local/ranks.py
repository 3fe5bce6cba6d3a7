"""The processes of one trainer. All of them compute, and only rank 0 reads and writes the run."""

import datetime
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

# Import it before creating a group; otherwise its default arguments keep the group alive after `leave_ranks`.
import torch.distributed.nn.functional
from torch import Tensor

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
