"""The state that a step works on: the policy, its optimizer, and related objects."""

from dataclasses import dataclass
from typing import Any

import torch

from clawctl.config import TrainConfig
from clawctl.trainers.local.custom_loss import OwnLoss
from clawctl.trainers.local.ema import Average
from clawctl.trainers.local.flops import Cost
from clawctl.trainers.local.model import PolicyModel
from clawctl.trainers.local.ranks import Ranks


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
