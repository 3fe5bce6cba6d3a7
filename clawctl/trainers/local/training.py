"""The state that a step works on: the policy, AdamW, and the teacher `ema`, with their files in a checkpoint.

In a checkpoint of a sharded trainer each rank saves its part, and any number of ranks can resume from them:

    sharded/
      index.json                         number of ranks that wrote, the checksum of each file, the step of the optimizer's state
      0-of-2.weights.safetensors         rank 0's parts of the weights; the header has their offsets in the complete tensors
      0-of-2.optimizer.safetensors       its parts of the optimizer's state; perhaps a hard link to those of an earlier step
      1-of-2.…

The files contain numbers and names. torch.distributed.checkpoint is not used, because it pickles its index, and anyone who can
write a pickle can run code. A checksum does not help: anyone who can write the file can write its checksum.
"""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
import torch.distributed as dist
from torch import Tensor, nn

from clawctl.config import TrainConfig
from clawctl.errors import ClawError, Damaged
from clawctl.run.checksums import check_folder, checksums_of, read_sealed, sealed
from clawctl.run.directory import link, move, sync
from clawctl.run.names import below
from clawctl.trainers.local.costs import Cost
from clawctl.trainers.local.loading import read_adapter
from clawctl.trainers.local.model import PolicyModel, half_of
from clawctl.trainers.local.objective import OwnLoss
from clawctl.trainers.local.ranks import Ranks, part_of

TEACHER_FILE = "teacher.safetensors"
_PARTS = "sharded"  # in a checkpoint's folder
_INDEX = "index.json"
_OLD_INDEX = ".metadata"  # the index of torch.distributed.checkpoint, a pickle


class Average:
    """w += (policy - w) * (1 - decay) after each step, over the trained weights; in a LoRA run, over the adapter only."""

    def __init__(self, trained: list[tuple[str, nn.Parameter]], decay: float) -> None:
        self.trained, self.decay = trained, decay
        self.weights: dict[str, Tensor] = {name: parameter.detach().clone() for name, parameter in trained}

    @torch.no_grad()
    def update(self) -> None:
        """Update the average with the current weights."""
        for name, parameter in self.trained:
            self.weights[name].lerp_(parameter, 1 - self.decay)

    @contextlib.contextmanager
    def worn(self) -> Iterator[None]:
        """Within this context the policy has the average's weights. It must not be open while a gradient is recorded."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for name, parameter in self.trained:
            parameter.data, self.weights[name] = self.weights[name], parameter.data

    def save(self, folder: Path) -> None:
        from safetensors.torch import save_file

        save_file({name: weight.contiguous() for name, weight in self.weights.items()}, folder / TEACHER_FILE)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Continue from a checkpoint. If it had another teacher, the average stays at the policy's own weights."""
        from safetensors.torch import load_file

        if (folder / TEACHER_FILE).exists():
            for name, weight in load_file(folder / TEACHER_FILE).items():
                self.weights[name].copy_(weight)


FIRST_LR = 3e-4  # of an unscaled step with `lr: auto`; the same at each step, so that a repeated step is the same step
OPTIMIZER_FILE = "optimizer.safetensors"  # in a checkpoint; AdamW's settings come from the recipe


def make_optimizer(policy: PolicyModel, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW, with weight decay on matrices only. It uses the fused kernel, because the step is memory-bound on the CPU too."""
    parameters = [parameter for _, parameter in policy.trained()]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    used = [group for group in groups if group["params"]]
    return torch.optim.AdamW(
        used, lr=learning_rate(config, config.warmup_steps), betas=config.betas, eps=config.epsilon, fused=True
    )


@torch.no_grad()
def put_adapter(policy: PolicyModel, adapter: dict[str, Tensor]) -> None:
    """Replace the weights of the policy's adapter. Raises ClawError if they have other names or shapes."""
    trained = dict(policy.trained())
    if {name: weight.shape for name, weight in trained.items()} != {name: weight.shape for name, weight in adapter.items()}:
        raise ClawError("an adapter has other layers than train.lora", "train with the same LoRA settings, or start a new run", 2)
    for name, weight in trained.items():
        weight.copy_(adapter[name])
        weight.grad = None


@torch.no_grad()
def train_half(training: "Training", half: int, shared: Path | None) -> None:
    """Freeze the other half of an adapter's rank. Half 1 of a person stands on half 0 of the shared policy in the folder `shared`;
    None: on the base model. Raises ClawError."""
    policy = training.policy
    if policy.shard_ranks is not None:
        raise ClawError("half of an adapter cannot be trained with sharded weights", "set train.shard to none", 2)
    policy.half = half
    below = read_adapter(shared) if half and shared is not None else {}
    for name, parameter in policy.trained() if half else ():
        if below:
            half_of(name, parameter, 0).copy_(half_of(name, below[name], 0))
        elif "lora_B" in name:
            half_of(name, parameter, 0).zero_()
    frozen = [half_of(name, parameter.detach(), 1 - half) for name, parameter in policy.trained()]
    kept: list[Tensor] = []
    training.optimizer.register_step_pre_hook(lambda *_: kept.extend(part.clone() for part in frozen))

    def put_back(*_: Any) -> None:  # weight decay has changed them
        for part in reversed(frozen):
            part.copy_(kept.pop())

    training.optimizer.register_step_post_hook(put_back)


def learning_rate(config: TrainConfig, step: int) -> float:
    """The learning rate rises linearly over the first `warmup_steps` of a lineage, then stays constant. With `lr: auto` it is that
    of a step that is scaled afterwards (`distance.move`)."""
    return FIRST_LR if config.lr == "auto" else config.lr * warmth(config, step)


def warmth(config: TrainConfig, step: int) -> float:
    """The share of its full size that a step has during warm-up, 0 to 1."""
    return min(1.0, step / config.warmup_steps) if config.warmup_steps else 1.0


def save_optimizer(optimizer: torch.optim.Optimizer, folder: Path, step: int) -> None:
    """Save the state after `step` by parameter, in the order of the optimizer's parameter groups."""
    from safetensors.torch import save_file

    state: dict[int, dict[str, Tensor]] = optimizer.state_dict()["state"]
    values = {f"{i}.{key}": value for i, entry in state.items() for key, value in entry.items()}
    save_file(values, folder / OPTIMIZER_FILE, {"step": str(step)})


def optimizer_step(checkpoint: Path) -> int | None:
    """The step after which the optimizer's state of a checkpoint was written. None: unknown."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(checkpoint / OPTIMIZER_FILE, "pt") as opened:
            return int((opened.metadata() or {})["step"])
    except (OSError, SafetensorError, LookupError, ValueError):
        return None


def read_optimizer(checkpoint: Path) -> dict[int, dict[str, Tensor]]:
    """The state that `save_optimizer` wrote. Raises ClawError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        flat = load_file(checkpoint / OPTIMIZER_FILE)
    except (OSError, SafetensorError) as error:
        fix = "restore it from a copy, or start a new run with --run"
        raise ClawError(f"checkpoint {checkpoint} cannot be read: {error}", fix) from error
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in flat.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    return state


def load_optimizer(optimizer: torch.optim.Optimizer, checkpoint: Path) -> None:
    """Load the state of a checkpoint, sharded like the parameters. Raises ClawError."""
    parameters: list[Any] = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    saved = read_optimizer(checkpoint)
    state = {i: {key: part_of(value, parameters[i]) for key, value in values.items()} for i, values in saved.items()}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


@dataclass(slots=True)
class Training:
    """All objects that a step reads and changes."""

    policy: PolicyModel
    optimizer: torch.optim.Optimizer
    config: TrainConfig
    ranks: Ranks
    reference: Any | None  # version 0 as a second model, if the recipe needs it and all weights are trained
    cost: Cost | None = None  # cost of a pass; None: unknown
    custom: OwnLoss | None = None  # replaces the policy loss
    average: Average | None = None  # the teacher `ema`
    too_long: int | None = None  # length of the shortest turn that did not fit into memory; None: every turn did

    @property
    def teacher(self) -> Any | None:
        """The second model that teaches. None: the policy's own module does, perhaps with other weights."""
        return self.reference if self.config.teacher == "base" else None


# ---- the parts of a sharded trainer --------------------------------------------------------------------------------------


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
                link(recent / _PARTS / path.name, path)
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
            index = read_sealed((recent / _PARTS / _INDEX).read_bytes())
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
        index = read_sealed((checkpoint / _PARTS / _INDEX).read_bytes())
        return int(index["optimizer_step"]) if index["ranks"] == world else None
    except (OSError, Damaged, LookupError, TypeError, ValueError):
        return None


def move_into(checkpoint: Path, parts: Path) -> None:
    move(parts, checkpoint / _PARTS)


def read_parts(checkpoint: Path, policy: PolicyModel, optimizer: torch.optim.Optimizer) -> bool:
    """Load the parts of a sharded trainer into the weights and the optimizer, with any current sharding. False if there are no
    parts. Raises ClawError."""
    from safetensors import SafetensorError

    folder = checkpoint / _PARTS
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
