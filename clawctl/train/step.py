"""One optimizer step: from a batch to new weights, on however many ranks."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clawctl.config import TrainConfig
from clawctl.train.advantages import Scores, Term, terms_of
from clawctl.train.advantages.binary import Baselines
from clawctl.train.batches import cut, pad, share
from clawctl.train.losses import acting_tokens, policy_loss
from clawctl.train.measures import Measures, merged, sequence_tokens, step_row
from clawctl.train.model import PolicyModel
from clawctl.train.off_policy import correction_of
from clawctl.train.ranks import Ranks
from clawctl.train.sample import Batch, Sample


@dataclass(slots=True)
class Training:
    """Everything that a step reads and changes."""

    policy: PolicyModel
    optimizer: torch.optim.Optimizer
    baselines: Baselines
    config: TrainConfig
    ranks: Ranks
    reference: Any | None  # version 0 as a second model, where the teacher is `base` and all weights are trained
    step: int  # the last one made


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a batch."""

    row: dict[str, Any] | None  # of steps.jsonl; None: the step was not made
    problem: str | None = None  # why not
    broken: tuple[str, ...] = ()  # the turns to blame; empty: none stands out


def make_optimizer(policy: PolicyModel, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW; weight decay on matrices alone. The fused kernel, because the step is memory-bound on the CPU too."""
    parameters = [parameter for _, parameter in policy.trained()]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=config.lr, betas=config.betas, fused=True)


def learning_rate(config: TrainConfig, step: int) -> float:
    """Rises linearly over the first `warmup_steps`, then stays."""
    return config.lr * min(1.0, step / config.warmup_steps) if config.warmup_steps else config.lr


def train_step(training: Training, batch: Batch) -> Outcome:
    """Make one step, or leave everything as it was where its loss or gradient is not finite."""
    config, ranks = training.config, training.ranks
    terms = terms_of(config)
    counts = {term.name: sum(len(s.completion_ids) for s in batch.samples if term.trains(s)) for term in terms}
    torch.manual_seed((config.seed * 1_000_003 + batch.step) * 1009 + ranks.rank)  # of dropout: the same after a crash
    training.optimizer.zero_grad(set_to_none=True)
    measures = Measures()
    groups = cut(sequence_tokens(batch.samples), config.tokens_per_microbatch, ranks.world)
    for group in share(groups, ranks.rank, ranks.world):
        _microbatch(training, [batch.samples[index] for index in group], terms, counts, measures)
    with measures.clock("optimizer"):
        parameters = [parameter for _, parameter in training.policy.trained()]
        ranks.sum_gradients(parameters)
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, config.clip_grad))
    whole = merged(ranks.gather(measures))
    if not (math.isfinite(norm) and all(math.isfinite(loss) for loss in whole.losses.values())):
        training.optimizer.zero_grad(set_to_none=True)
        return Outcome(None, "loss or gradient is not finite", tuple(whole.broken))
    lr = learning_rate(config, batch.step)
    with whole.clock("optimizer"):
        for group_settings in training.optimizer.param_groups:
            group_settings["lr"] = lr
        training.optimizer.step()
    if config.baseline == "mean":
        training.baselines.learn(batch.samples)
    training.step = batch.step
    weights = {term.name: term.weight for term in terms}
    return Outcome(step_row(whole, batch, config.method, weights, counts, norm, lr))


def _microbatch(training: Training, samples: list[Sample], terms: list[Term], counts: dict[str, int], measures: Measures) -> None:
    """Add the gradient of a few turns."""
    config, policy = training.config, training.policy
    with measures.clock("teacher"):
        teacher = teacher_logprobs(training, samples, measures)
    batch = pad(
        [s.prompt_ids for s in samples], [s.completion_ids for s in samples], [s.temperature for s in samples], policy.device
    )
    measures.computed_tokens += sum(sequence_tokens(samples))
    with measures.clock("forward"):
        with policy.dropping():
            logprobs = policy.logprobs(batch).split(batch.lengths)
        # The weights do not change within a step, so the policy "before the step" is the one that was just computed,
        # unless dropout has blurred it.
        before = [values.detach() for values in logprobs]
        if policy.dropouts:
            with torch.no_grad():
                before = list(policy.logprobs(batch).split(batch.lengths))
    sampler = [torch.tensor(sample.logprobs, dtype=torch.float32, device=policy.device) for sample in samples]
    scores = [
        Scores(policy_T, teacher.get(sample.turn_id), training.baselines.of(sample.kind))
        for sample, policy_T in zip(samples, before, strict=True)
    ]
    loss = torch.zeros((), device=policy.device)
    for term in terms:
        own = [index for index, sample in enumerate(samples) if term.trains(sample)]
        if own:
            advantages = [term.advantages(samples[i], scores[i]) for i in own]
            pieces = torch.cat([logprobs[i] for i in own]), torch.cat([sampler[i] for i in own]), torch.cat(advantages)
            lengths, correction = [len(logprobs[i]) for i in own], correction_of(config)
            summand = policy_loss(*pieces, lengths, counts[term.name], correction)
            loss = loss + term.weight * summand
            kept = acting_tokens(pieces[0].detach(), pieces[1], pieces[2], lengths, correction)
            measures.add_term(term.name, float(summand.detach()), pieces[2], kept)
    with measures.clock("backward"):
        loss.backward()
    _note_ratios(training.step, samples, before, sampler, measures)


def _note_ratios(
    version: int, samples: Sequence[Sample], before: Sequence[Tensor], sampler: Sequence[Tensor], measures: Measures
) -> None:
    for sample, now_T, then_T in zip(samples, before, sampler, strict=True):
        log_ratio_T = now_T - then_T
        measures.log_ratios.append(log_ratio_T.cpu())
        if sample.policy_version == version:
            measures.mismatches.append(log_ratio_T.abs().cpu())
        if not bool(torch.isfinite(log_ratio_T.exp() + log_ratio_T.square()).all()):
            measures.broken.append(sample.turn_id)


@torch.no_grad()
def teacher_logprobs(training: Training, samples: Sequence[Sample], measures: Measures) -> dict[str, Tensor]:
    """For each turn with a hint, the logprob of each of its own tokens behind the hinted prompt: one a token, none made up."""
    config, policy = training.config, training.policy
    prompts = [(sample, sample.teacher_prompt_ids) for sample in samples if sample.teacher_prompt_ids is not None]
    lengths = [len(prompt) + len(sample.completion_ids) for sample, prompt in prompts]
    measures.computed_tokens += sum(lengths)
    aside = policy.without_adapter() if config.teacher == "base" and policy.adapter else contextlib.nullcontext()
    told: dict[str, Tensor] = {}
    with aside:
        for group in cut(lengths, config.tokens_per_microbatch):
            own = [prompts[index][0] for index in group]
            batch = pad(
                [prompts[index][1] for index in group], [s.completion_ids for s in own], [s.temperature for s in own], policy.device
            )
            values = policy.logprobs(batch, training.reference).split(batch.lengths)
            told.update({sample.turn_id: value for sample, value in zip(own, values, strict=True)})
    return told
