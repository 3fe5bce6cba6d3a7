"""The gradient of each turn of a step, which no training needs apart."""

from collections.abc import Iterator

import torch
from torch import Tensor

from clawctl.train.measures import Measures
from clawctl.train.sample import Batch
from clawctl.trainers.local.objective import objective_of
from clawctl.trainers.local.step import add_gradients, add_part
from clawctl.trainers.local.training import Training


def gradients_of(training: Training, batch: Batch) -> Iterator[list[Tensor]]:
    """The separate gradient of each turn of a step, with its weight in this step. They add up to the step's gradient before
    clipping. One tensor per trained parameter. No weight changes."""
    objective, parameters = objective_of(training.config, batch), [parameter for _, parameter in training.policy.trained()]
    measures = Measures()
    add_gradients(training, objective, measures)
    for sample in batch.samples:
        training.optimizer.zero_grad(set_to_none=True)
        weights = {sample.turn_id: measures.turns[sample.turn_id].bounded}
        add_part(training, [sample], objective, Measures(), weights)
        yield [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]
    training.optimizer.zero_grad(set_to_none=True)
