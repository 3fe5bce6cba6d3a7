"""The state that a step works on: the policy, AdamW, and the teacher `ema`, with their files in a checkpoint."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clawctl.config import TrainConfig
from clawctl.errors import ClawError
from clawctl.trainers.local.costs import Cost
from clawctl.trainers.local.custom_loss import OwnLoss
from clawctl.trainers.local.loading import read_adapter
from clawctl.trainers.local.model import PolicyModel, half_of
from clawctl.trainers.local.ranks import Ranks, part_of

TEACHER_FILE = "teacher.safetensors"


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
