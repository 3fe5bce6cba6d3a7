"""Imported turns, which no model of this run sampled, and turns with placeholders in their prompt, where no secret is.

Their logprobs come from the weights that are about to be trained, and are computed once the batch is selected. Such a turn
therefore does not become stale while it waits, and its ratio starts at 1.
"""

from dataclasses import replace
from typing import cast

import torch

from clawctl.config import TrainConfig
from clawctl.train.advantages import likeliest
from clawctl.train.sample import Batch, Sample
from clawctl.trainers.local.batches import make_microbatch, share_out
from clawctl.trainers.local.model import PolicyModel
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.trees import make_branch


def scored(policy: PolicyModel, ranks: Ranks, batch: Batch, config: TrainConfig) -> Batch:
    """The batch with logprobs for these turns, under the weights that the step starts from. Every rank must call it, and
    every rank gets rank 0's numbers. A turn without a reward, under a method that compares distributions, needs none."""
    if not any(needs_logprobs(sample, config) for sample in batch.samples):
        return batch
    computes = ranks.is_leader or policy.shard_ranks is not None  # all ranks together compute with sharded weights
    return cast(Batch, ranks.broadcast(_scored(policy, batch, config) if computes else None))


def needs_logprobs(sample: Sample, config: TrainConfig) -> bool:
    """Whether the sampler's logprobs of a turn are missing, or of another prompt, and its loss has a ratio to them."""
    has_ratio = sample.reward is not None or likeliest(config) is None or config.custom_loss is not None
    return sample.rescored or (sample.logprobs is None and has_ratio)


@torch.no_grad()
def _scored(policy: PolicyModel, batch: Batch, config: TrainConfig) -> Batch:
    waiting = [sample for sample in batch.samples if needs_logprobs(sample, config)]
    branches = [make_branch(sample.prompt_ids, sample.completion_ids, sample.temperature) for sample in waiting]
    result: dict[str, list[float]] = {}
    for group in share_out(branches, policy.merge, config.local.tokens_per_microbatch).groups if branches else []:
        laid = make_microbatch([branches[index] for index in group], policy.merge, policy.device)
        values = policy.logprobs(laid).float().split(laid.lengths)
        result.update({waiting[index].turn_id: value.tolist() for index, value in zip(group, values, strict=True)})
    samples = [sample.scored(result[sample.turn_id]) if sample.turn_id in result else sample for sample in batch.samples]
    return replace(batch, samples=samples)
