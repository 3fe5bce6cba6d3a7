"""Recovery when the device runs out of memory during the passes of a step.

First microbatches become smaller, down to the longest turn. Then layers are checkpointed. If the longest turn still does not fit,
it is refused with its length, and the step is made with the others. The settings that fitted stay until the trainer ends.
"""

import gc
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import torch

from clawctl.errors import ClawError
from clawctl.train.sample import Batch, Sample
from clawctl.trainers.local.model import checkpoint_layers
from clawctl.trainers.local.training import Training

log = logging.getLogger("clawctl.train")
T = TypeVar("T")

_FIX = "lower train.tokens_per_microbatch, or set train.gradient_checkpointing; `clawctl train --estimate` suggests settings"


def within_memory(training: Training, batch: Batch, passes: Callable[[Batch], T]) -> tuple[T | None, Mapping[str, str]]:
    """The result of `passes` for as many turns of the batch as fit into memory, and why the other turns are refused, by turn id.
    None if no turn is left. Raises ClawError if several processes train, because each would have to do the same."""
    refused: dict[str, str] = {}
    while True:
        samples = [sample for sample in batch.samples if sample.turn_id not in refused]
        if training.too_long is not None:
            refused |= {s.turn_id: _reason(s) for s in samples if s.longest >= training.too_long}
            samples = [sample for sample in samples if sample.turn_id not in refused]
        if not samples:
            return None, refused
        try:
            return passes(replace(batch, samples=samples)), refused
        except torch.OutOfMemoryError as error:
            problem = str(error).partition(". ")[0]
        # Only here has the exception been dropped, which refers to the tensors of the pass.
        free_memory(training)
        if training.ranks.world > 1:
            raise ClawError(f"this device has no memory for the step: {problem}", _FIX)
        longest = max(samples, key=lambda sample: sample.longest)
        if not make_smaller(training, samples):
            training.too_long = longest.longest
            refused[longest.turn_id] = _reason(longest)
            log.warning("out of memory (%s): turn %s is refused: %s", problem, longest.turn_id, _reason(longest))


def make_smaller(training: Training, samples: list[Sample]) -> bool:
    """Change the settings so that passes need less memory. False if they cannot change any more."""
    config, longest = training.config, max(sample.longest for sample in samples)
    present = min(config.local.tokens_per_microbatch, sum(sample.longest for sample in samples))
    if present > longest:
        tokens = max(longest, present // 2)
        training.config = config.changed(tokens_per_microbatch=tokens)
        log.warning("out of memory: train.tokens_per_microbatch is %d from now on", tokens)
    elif not config.local.gradient_checkpointing:
        checkpoint_layers(training.policy)
        training.config = config.changed(gradient_checkpointing=True)
        log.warning("out of memory: train.gradient_checkpointing is true from now on")
    else:
        return False
    return True


def free_memory(training: Training) -> None:
    """Drop the gradients of an unfinished step, and return what the allocator keeps to the device."""
    training.optimizer.zero_grad(set_to_none=True)
    gc.collect()
    if training.policy.device.type == "cuda":
        torch.cuda.empty_cache()


def _reason(sample: Sample) -> str:
    return f"too long: {sample.longest} tokens do not fit into the trainer's memory, even alone and with checkpointing"
