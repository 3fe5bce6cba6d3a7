"""What a sharded trainer keeps of a step, each rank its part (torch.distributed.checkpoint).

Any number of ranks goes on from it.
"""

import os
import shutil
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from clawctl.errors import ClawError
from clawctl.run_dir import RunDir
from clawctl.train.model import PolicyModel
from clawctl.train.ranks import Ranks

NAME = "sharded"  # in a checkpoint's folder


def write_parts(run: RunDir, ranks: Ranks, policy: PolicyModel, optimizer: torch.optim.Optimizer, step: int) -> Path:
    """A folder beside the checkpoints, to be moved into one. Every rank must call."""
    import torch.distributed.checkpoint as dcp

    folder = run.train / "checkpoints" / f".{step}.{NAME}"

    def make_room() -> None:
        shutil.rmtree(folder, ignore_errors=True)  # of a killed trainer
        folder.mkdir(mode=0o700, parents=True)

    ranks.led(make_room)
    dcp.save(_tensors(policy, optimizer), checkpoint_id=folder)  # there is a process group, also alone
    return folder


def move_into(checkpoint: Path, parts: Path) -> None:
    os.replace(parts, checkpoint / NAME)


def read_parts(checkpoint: Path, policy: PolicyModel, optimizer: torch.optim.Optimizer) -> bool:
    """Lay what a sharded trainer kept over the weights and the optimizer, however they are cut now; False where there is nothing
    of the kind. Raises ClawError."""
    import torch.distributed.checkpoint as dcp

    if not (checkpoint / NAME).exists():
        return False
    for _, parameter in policy.trained():
        step = torch.zeros((), dtype=torch.float32, device=parameter.device)
        state = {key: torch.zeros_like(parameter, requires_grad=False) for key in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": step, **state}
    alone = not dist.is_initialized()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # alone is what is meant
            dcp.load(_tensors(policy, optimizer), checkpoint_id=checkpoint / NAME, no_dist=alone)
    except (dcp.CheckpointException, OSError, KeyError, RuntimeError) as error:
        told = str(error).strip().splitlines()[-1:] or [repr(error)]
        raise ClawError(
            f"checkpoint {checkpoint} cannot be read: {told[0]}", "restore it from a copy, or start a new run"
        ) from error
    return True


def _tensors(policy: PolicyModel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights and AdamW's state by name; what they name is read and written in place."""
    found: dict[str, Tensor] = {}
    for name, parameter in policy.trained():
        found[f"weights.{name}"] = parameter.detach()
        found |= {f"optimizer.{name}.{key}": value for key, value in optimizer.state[parameter].items()}
    return found
