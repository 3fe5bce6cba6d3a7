"""Checkpoints of a sharded trainer: each rank saves its part, and any number of ranks can resume from them.

    sharded/
      index.json                         number of ranks that wrote, the checksum of each file, the step of the optimizer's state
      0-of-2.weights.safetensors         rank 0's parts of the weights; the header has their offsets in the complete tensors
      0-of-2.optimizer.safetensors       its parts of the optimizer's state; perhaps a hard link to those of an earlier step
      1-of-2.…

The files contain numbers and names. torch.distributed.checkpoint is not used, because it pickles its index, and anyone who can
write a pickle can run code. A checksum does not help: anyone who can write the file can write its checksum.
"""

import shutil
from pathlib import Path
from typing import Any

import orjson
import torch
import torch.distributed as dist
from torch import Tensor

from clawctl.errors import ClawError, Damaged
from clawctl.run.checksums import check_folder, checksums_of, read_sealed, sealed
from clawctl.run.directory import link, move, sync
from clawctl.run.names import below
from clawctl.trainers.local.model import PolicyModel
from clawctl.trainers.local.ranks import Ranks

NAME = "sharded"  # in a checkpoint's folder
_INDEX = "index.json"
_OLD_INDEX = ".metadata"  # the index of torch.distributed.checkpoint, a pickle


def write_parts(
    folder: Path, ranks: Ranks, policy: PolicyModel, optimizer: torch.optim.Optimizer, step: int, recent: Path | None = None
) -> None:
    """Write a folder of parts, which is later moved into a checkpoint. Every rank must call it. `recent`: the checkpoint whose
    optimizer state is linked instead. Raises OSError on every rank if one fails."""
    from safetensors import SafetensorError

    def clear_folder() -> None:
        shutil.rmtree(folder, ignore_errors=True)  # left by a killed trainer
        folder.mkdir(mode=0o700, parents=True)

    ranks.run_on_leader(clear_folder)
    problem = None
    try:
        for what in ("weights", "optimizer"):
            path = folder / f"{ranks.rank}-of-{ranks.world}.{what}.safetensors"
            if what == "optimizer" and recent is not None:
                link(recent / NAME / path.name, path)
            else:
                tensors = {name: tensor for name, tensor in _tensors(policy, optimizer).items() if name.startswith(what)}
                _write_file(path, tensors, ranks.is_leader)
            sync(path)
    except (OSError, SafetensorError) as error:
        problem = str(error)
    failed = [message for message in ranks.gather(problem) if message is not None]
    if failed:
        raise OSError(f"a rank cannot write its part of {folder}: {failed[0]}")

    def write_index() -> None:
        linked, written = {}, step
        if recent is not None:
            index = read_sealed((recent / NAME / _INDEX).read_bytes())
            linked = {name: checksum for name, checksum in index["files"].items() if ".optimizer." in name}
            written = index["optimizer_step"]
        files = checksums_of(folder, leave_out=linked) | linked
        about = {"ranks": ranks.world, "optimizer_step": written, "files": files}
        (folder / _INDEX).write_bytes(sealed(orjson.dumps(about)))
        sync(folder / _INDEX)
        sync(folder)

    ranks.run_on_leader(write_index)


def _write_file(path: Path, tensors: dict[str, Tensor], is_leader: bool) -> None:
    from safetensors.torch import save_file

    parts, layouts = {}, {}
    for name, tensor in tensors.items():
        local, offset = _part(tensor)
        if local.numel() and (offset is not None or is_leader):  # rank 0 writes data that is the same on all ranks
            parts[name], layouts[name] = local.contiguous().cpu(), {"offset": offset or [], "shape": list(tensor.shape)}
    save_file(parts, path, {"places": orjson.dumps(layouts).decode()})


def parts_step(checkpoint: Path, world: int) -> int | None:
    """The step after which the optimizer's state of a checkpoint was written by `world` ranks. None: unknown, or by others."""
    try:
        index = read_sealed((checkpoint / NAME / _INDEX).read_bytes())
        return int(index["optimizer_step"]) if index["ranks"] == world else None
    except (OSError, Damaged, LookupError, TypeError, ValueError):
        return None


def move_into(checkpoint: Path, parts: Path) -> None:
    move(parts, checkpoint / NAME)


def read_parts(checkpoint: Path, policy: PolicyModel, optimizer: torch.optim.Optimizer) -> bool:
    """Load the parts of a sharded trainer into the weights and the optimizer, with any current sharding. False if there are no
    parts. Raises ClawError."""
    from safetensors import SafetensorError

    folder = checkpoint / NAME
    if not folder.exists():
        return False
    if (folder / _OLD_INDEX).exists() and not (folder / _INDEX).exists():
        raise ClawError(
            f"checkpoint {checkpoint} was written by an older clawctl, with a pickle that could run code when it is read",
            "finish this run with the clawctl version that wrote it, or start a new run from its newest policy with --run",
        )
    for _, parameter in policy.trained():
        step = torch.zeros((), dtype=torch.float32, device=parameter.device)
        state = {key: torch.zeros_like(parameter, requires_grad=False) for key in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": step, **state}
    try:
        _fill(_tensors(policy, optimizer), folder)
    except (Damaged, OSError, SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
        message = str(error).strip().splitlines()[-1:] or [repr(error)]
        raise ClawError(
            f"checkpoint {checkpoint} cannot be read: {message[0]}", "restore it from a copy, or start a new run"
        ) from error
    return True


@torch.no_grad()
def _fill(tensors: dict[str, Tensor], folder: Path) -> None:
    """Copy values from the files into this rank's part of each tensor. Raises Damaged if a value is missing or occurs twice."""
    from safetensors import safe_open

    index = read_sealed((folder / _INDEX).read_bytes())
    files = sorted(index["files"])
    if not dist.is_initialized() or dist.get_rank() == 0:
        check_folder(folder, index["files"])
    local_parts = {name: _part(tensor) for name, tensor in tensors.items()}
    values = dict.fromkeys(tensors, 0)
    for file in files:
        with safe_open(below(folder, file), "pt") as opened:
            layouts: dict[str, Any] = orjson.loads(opened.metadata()["places"])
            for name in layouts.keys() & tensors.keys():
                local, offset = local_parts[name]
                if layouts[name]["shape"] != list(tensors[name].shape):
                    raise Damaged(
                        f"{name} has shape {layouts[name]['shape']}, but the model's shape is {list(tensors[name].shape)}"
                    )
                values[name] += _copy(local, offset or [0] * local.ndim, opened.get_slice(name), layouts[name]["offset"])
    for name, (local, _) in local_parts.items():
        if values[name] != local.numel():
            raise Damaged(f"{values[name]} of the {local.numel()} values of {name} are present")


def _copy(target: Tensor, target_offset: list[int], source: Any, source_offset: list[int]) -> int:
    """Copy the overlap of two parts of one tensor, and return its number of values."""
    if not target.ndim:
        target.copy_(source[...])
        return 1
    source_offset = source_offset or [0] * target.ndim
    into, out_of = [], []
    for size, start, other_size, other in zip(target.shape, target_offset, source.get_shape(), source_offset, strict=True):
        begin, end = max(start, other), min(start + size, other + other_size)
        if begin >= end:
            return 0
        into.append(slice(begin - start, end - start))
        out_of.append(slice(begin - other, end - other))
    shared = target[tuple(into)]
    shared.copy_(source[tuple(out_of)])
    return shared.numel()


def _part(tensor: Tensor) -> tuple[Tensor, list[int] | None]:
    """This rank's part of a tensor, and its offset in the complete tensor; the offset is None if every rank has all of it."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if not isinstance(tensor, DTensor):
        return tensor, None
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tensor.to_local(), list(offset)


def _tensors(policy: PolicyModel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights and AdamW's state by name, read and written in place."""
    values: dict[str, Tensor] = {}
    for name, parameter in policy.trained():
        values[f"weights.{name}"] = parameter.detach()
        values |= {f"optimizer.{name}.{key}": value for key, value in optimizer.state[parameter].items()}
    return values
