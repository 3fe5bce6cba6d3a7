"""The logprobs of a microbatch's turns: by the policy, and by the teacher that reads the hint.

No model of this run sampled imported turns, or turns with placeholders in their prompt, where no secret is. Their logprobs come
from the weights that are about to be trained, and are computed once the batch is selected (`scored`). Such a turn therefore does
not become stale while it waits, and its ratio starts at 1.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from clawctl.config import TrainConfig
from clawctl.config.methods import Distributions
from clawctl.train.advantages import likeliest, of_teacher
from clawctl.train.measures import Measures
from clawctl.train.sample import Batch, Sample
from clawctl.trainers.local.batches import Microbatch, make_microbatch, share_out
from clawctl.trainers.local.branches import teacher_branches, with_open_hints
from clawctl.trainers.local.custom_loss import custom_loss, logits_of, logprobs_of
from clawctl.trainers.local.flops import count_pass
from clawctl.trainers.local.model import PolicyModel
from clawctl.trainers.local.objective import CUSTOM, LikeliestLogprobs, Objective, TurnLogprobs
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.tops import TeacherPasses, Teachers, policy_tops, teacher_tops
from clawctl.trainers.local.training import Training
from clawctl.trainers.local.trees import make_branch


def sampled_logprobs(
    training: Training,
    microbatch: Microbatch,
    part: Sequence[Sample],
    teacher: Mapping[str, Tensor],
    together: Collection[str] = (),
) -> list[TurnLogprobs]:
    """The logprobs of the sampled tokens. The branches that the policy reads as the teacher of the turns `together` come last."""
    policy = training.policy
    with policy.with_dropout():
        logprobs = policy.logprobs(microbatch)
    # The weights do not change within a step, so the policy "before the step" is the one that was just computed, unless dropout
    # changed its numbers.
    before = logprobs.detach()
    if policy.dropouts:
        with torch.no_grad():
            before = policy.logprobs(microbatch)
    now, then = logprobs.split(microbatch.lengths), before.split(microbatch.lengths)
    names = [sample.turn_id for sample in part if sample.turn_id in together]
    teacher = {**teacher, **dict(zip(names, then[len(part) :], strict=True))}
    streams = zip(part, now[: len(part)], then[: len(part)], strict=True)
    return [TurnLogprobs(s, now_T, before_T, _sampler(s, now_T), teacher.get(s.turn_id)) for s, now_T, before_T in streams]


def likeliest_logprobs(
    training: Training, microbatch: Microbatch, part: Sequence[Sample], k: int, measures: Measures
) -> list[TurnLogprobs]:
    """The logprobs of the sampled tokens, and of `k` likely tokens at each position, by the policy and by each teacher. The tokens
    are the likeliest of the policy, or those of the teacher (`train.topk_of`)."""
    policy, hinted = training.policy, [index for index, sample in enumerate(part) if sample.teacher_prompt_ids is not None]
    config, method = training.config, training.config.method
    guidance = method.guidance if isinstance(method, Distributions) else 1.0
    passes = TeacherPasses(config.local.tokens_per_microbatch, measures, training.cost, training.teacher, guidance)
    taught = [part[index] for index in hinted]
    teachers: dict[int, Teachers] = {}
    ids_NK = None
    if of_teacher(training.config):
        with measures.clock("teacher"), _as_teacher(training):
            teachers = dict(zip(hinted, teacher_tops(policy, taught, k, passes), strict=True))
        without = torch.zeros(1, k, dtype=torch.long, device=policy.device)  # turns without a hint compare no tokens
        ids_NK = torch.cat(
            [teachers[i].ids_TK if i in teachers else without.expand(n, k) for i, n in enumerate(microbatch.lengths)]
        )
    with measures.clock("forward"):
        with policy.with_dropout():
            now = policy_tops(policy, microbatch, k, ids_NK)
        before_N, before_NK = now.logprobs_N.detach(), now.likeliest_NK.detach()
        if policy.dropouts:
            with torch.no_grad():
                calm = policy_tops(policy, microbatch, k, now.ids_NK)
            before_N, before_NK = calm.logprobs_N, calm.likeliest_NK
    streams = [s.split(microbatch.lengths) for s in (now.logprobs_N, before_N, now.likeliest_NK, before_NK, now.ids_NK)]
    if not of_teacher(training.config):
        with measures.clock("teacher"), _as_teacher(training):
            ids = [streams[4][index] for index in hinted]
            teachers = dict(zip(hinted, teacher_tops(policy, taught, k, passes, ids), strict=True))
    turns = []
    for i, (sample, now_T, before_T, now_TK, before_TK, ids_TK) in enumerate(zip(part, *streams, strict=True)):
        teacher = teachers.get(i)
        tops = None
        if teacher is not None:
            tops = LikeliestLogprobs(now_TK, before_TK, teacher.logprobs_HTK, teacher.overlap_HT, ids_TK)
        turns.append(TurnLogprobs(sample, now_T, before_T, _sampler(sample, now_T), None, tops))
    return turns


@torch.no_grad()
def teacher_logprobs(training: Training, samples: Sequence[Sample], measures: Measures) -> dict[str, Tensor]:
    """For each turn with a hint, the logprob of each of its own tokens after the prompt with the hint: exactly one per token."""
    config, policy = training.config, training.policy
    known = {s.turn_id: torch.tensor(s.teacher_logprobs, device=policy.device) for s in samples if s.teacher_logprobs is not None}
    hinted = with_open_hints(samples)
    branches = teacher_branches(hinted)
    with _as_teacher(training):
        groups = share_out(branches, policy.merge, config.local.tokens_per_microbatch).groups if branches else []
        policy.match_passes(len(groups), training.teacher)
        for group in groups:
            own = [branches[index] for index in group]
            microbatch = make_microbatch(own, policy.merge, policy.device)
            count_pass(measures, training.cost, microbatch, own)
            values = policy.logprobs(microbatch, training.teacher).split(microbatch.lengths)
            known.update({hinted[index].turn_id: value for index, value in zip(group, values, strict=True)})
    return known


def custom_loss_of(
    training: Training,
    microbatch: Microbatch,
    part: Sequence[Sample],
    teacher: Mapping[str, Tensor],
    objective: Objective,
    measures: Measures,
) -> Tensor:
    """The custom loss of a microbatch's turns."""
    policy, custom = training.policy, training.custom
    assert custom is not None
    has_vocabulary = custom.takes("vocabulary", "reference_vocabulary")

    def score(causal: Any = None) -> tuple[Tensor, Tensor | None]:
        if not has_vocabulary:
            return policy.logprobs(microbatch, causal), None
        logits = logits_of(policy, microbatch, causal)
        return logprobs_of(logits, microbatch), logits

    with policy.with_dropout():
        now, logits = score()
    reference: tuple[Tensor | None, Tensor | None] = None, None
    with torch.no_grad():
        before = policy.logprobs(microbatch) if policy.dropouts else now.detach()
        if custom.needs_reference and policy.adapter:
            with policy.without_adapter():
                reference = score()
        elif custom.needs_reference:
            reference = score(training.reference)
    streams = zip(part, now.split(microbatch.lengths), before.split(microbatch.lengths), strict=True)
    turns = [TurnLogprobs(s, now_T, before_T, _sampler(s, now_T), teacher.get(s.turn_id)) for s, now_T, before_T in streams]
    objective.note(turns, measures)
    for turn in turns:
        measures.turns[turn.sample.turn_id].advantages[CUSTOM] = objective.advantages(turn).cpu().numpy()
    given = {"vocabulary": logits, "reference": reference[0], "reference_vocabulary": reference[1]}
    loss = custom_loss(custom, given, turns, objective, microbatch)
    measures.add_loss(CUSTOM, float(loss.detach()))
    return loss


def _sampler(sample: Sample, like_T: Tensor) -> Tensor:
    """The sampler's logprobs; those of the policy where the loss has no ratio to them (`imported`)."""
    if sample.logprobs is None:
        return like_T.detach().float()
    return torch.tensor(sample.logprobs, dtype=torch.float32, device=like_T.device)


def _as_teacher(training: Training) -> contextlib.AbstractContextManager[None]:
    """Within this context, the policy computes as the teacher that the recipe names."""
    if training.average is not None:
        return training.average.worn()
    apart = training.config.teacher == "base" and training.policy.adapter
    return training.policy.without_adapter() if apart else contextlib.nullcontext()


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
