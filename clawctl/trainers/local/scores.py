"""The logprobs of a microbatch's turns: by the policy, and by the teacher that reads the hint.

No model of this run sampled imported turns, or turns with placeholders in their prompt, where no secret is. Their logprobs come
from the weights that are about to be trained, and are computed once the batch is selected (`scored`). Such a turn therefore does
not become stale while it waits, and its ratio starts at 1.

The turns' sequences are built here too: as they were sampled, and as the teacher reads them. For methods that compare whole
distributions there are the most likely tokens along an answer, with their logprobs by policy and teacher.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from clawctl.config import TrainConfig
from clawctl.config.methods import Distributions
from clawctl.train.advantages import likeliest, of_teacher
from clawctl.train.measures import Measures
from clawctl.train.sample import Batch, Sample
from clawctl.trainers.local.batches import Microbatch, make_microbatch, share_out
from clawctl.trainers.local.costs import Cost, count_pass
from clawctl.trainers.local.head import token_logprobs, top_tokens
from clawctl.trainers.local.model import PolicyModel
from clawctl.trainers.local.objective import CUSTOM, LikeliestLogprobs, Objective, TurnLogprobs, custom_loss, logits_of, logprobs_of
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.training import Training
from clawctl.trainers.local.trees import Branch, make_branch, tokens_in


def turn_branches(samples: Sequence[Sample], own_starts: Mapping[str, int] | None = None) -> list[Branch]:
    """The turns as they were sampled. `own_starts`: the first token of each turn's own part, by turn id."""
    own_starts = own_starts or {}
    return [make_branch(s.prompt_ids, s.completion_ids, s.temperature, s.allowed, own_starts.get(s.turn_id, 0)) for s in samples]


def teacher_branches(samples: Sequence[Sample]) -> list[Branch]:
    """The same completions after the hinted prompts, over the same sets of tokens. All samples must have a hinted prompt."""
    return [make_branch(s.teacher_prompt_ids or [], s.completion_ids, s.temperature, s.allowed) for s in samples]


def with_open_hints(samples: Sequence[Sample]) -> list[Sample]:
    """The turns with a hint for which no server has returned teacher logprobs."""
    return [sample for sample in samples if sample.teacher_prompt_ids is not None and sample.teacher_logprobs is None]


def taught_in_policy_pass(config: TrainConfig, policy: PolicyModel, samples: Sequence[Sample]) -> set[str]:
    """The turns whose teacher is the policy itself and is computed in the policy's pass, on branches of the same tries. This is
    used if it takes less work than a separate pass without gradient, which recomputes the shared part. A token costs three times as
    much with gradient."""
    hinted = with_open_hints(samples)
    if not hinted or config.teacher != "self" or policy.merge != "tree" or policy.dropouts:
        return set()
    students, teachers = turn_branches(samples), teacher_branches(hinted)
    together = tokens_in([*students, *teachers])
    less_work = 3 * (together - tokens_in(students)) < tokens_in(teachers)
    return {sample.turn_id for sample in hinted} if less_work and together <= config.local.tokens_per_microbatch else set()


@dataclass(frozen=True, slots=True)
class PolicyTops:
    """The policy's logprobs of the N completion tokens of a microbatch, and of the K most likely tokens at each position."""

    logprobs_N: Tensor
    ids_NK: Tensor
    likeliest_NK: Tensor


@dataclass(frozen=True, slots=True)
class TeacherPasses:
    """Settings for teacher passes."""

    tokens: int  # tokens per pass
    measures: Measures
    cost: Cost | None = None
    causal: Any = None  # the model to use; None: the policy's own
    guidance: float = 1.0  # multiple of what a hint changes in the logits


@dataclass(frozen=True, slots=True)
class Teachers:
    """The logprobs of K tokens at the T positions of one turn, by its H teachers."""

    logprobs_HTK: Tensor
    overlap_HT: Tensor  # number of the K tokens that are among the teacher's own K most likely
    ids_TK: Tensor  # the tokens


def policy_tops(policy: PolicyModel, batch: Microbatch, k: int, ids_NK: Tensor | None = None) -> PolicyTops:
    """The policy's logprobs, with gradient if the caller records one. `ids_NK` sets the tokens; None: the most likely tokens of
    this pass."""
    head = policy.causal.get_output_embeddings()

    def work() -> tuple[Tensor, Tensor]:
        hidden_ND = policy.hidden(batch)
        named_NK = top_tokens(hidden_ND.detach(), head, batch.temperature_N, k, batch.masks)[0] if ids_NK is None else ids_NK
        scored_ids = torch.cat([named_NK, batch.targets_N[:, None]], 1)
        return token_logprobs(hidden_ND, head, scored_ids, batch.temperature_N, batch.masks), named_NK

    result, named_NK = policy.compute(work)
    return PolicyTops(result[:, k], named_NK, result[:, :k])


@torch.no_grad()
def teacher_tops(
    policy: PolicyModel, samples: Sequence[Sample], k: int, passes: TeacherPasses, ids: Sequence[Tensor] | None = None
) -> list[Teachers]:
    """The teachers of each turn, one per hint, scored on the tokens `ids` [T, K] at its positions; None: on the teacher's own K
    most likely tokens, for turns with one hint. All turns must have a hint.

    With guidance, the teacher's logits are z + guidance (z_hint - z), where z are its logits without the hint (Sanchez et al.,
    arXiv 2306.17806). The output head is linear, so this is computed with the states before it. Both prompts of a turn stand in one
    tree, which computes what they share only once.
    """
    prompts = [(turn, prompt) for turn, sample in enumerate(samples) for prompt in hinted_prompts(sample)]

    def branch_of(turn: int, prompt: list[int]) -> Branch:
        return make_branch(prompt, samples[turn].completion_ids, samples[turn].temperature, samples[turn].allowed)

    branches, is_guided = [branch_of(turn, prompt) for turn, prompt in prompts], passes.guidance != 1
    scored: dict[int, tuple[Tensor, ...]] = {}
    groups = share_out(branches, policy.merge, passes.tokens).groups if branches else []
    policy.match_passes(len(groups), passes.causal)
    for group in groups:
        read_branches = [branches[branch] for branch in group]
        batch = read = make_microbatch(read_branches, policy.merge, policy.device)
        if is_guided:
            read_branches += [branch_of(turn, samples[turn].prompt_ids) for turn in (prompts[branch][0] for branch in group)]
            read = make_microbatch(read_branches, policy.merge, policy.device)
        count_pass(passes.measures, passes.cost, read, read_branches)
        ids_NK = None if ids is None else torch.cat([ids[prompts[branch][0]] for branch in group])
        streams = _teacher_logprobs(policy, batch, k, ids_NK, passes, read)
        scored.update(zip(group, zip(*(stream.split(batch.lengths) for stream in streams), strict=True), strict=True))
    by_turn = [[scored[branch] for branch, (turn, _) in enumerate(prompts) if turn == index] for index in range(len(samples))]
    return [Teachers(torch.stack([h[0] for h in hints]), torch.stack([h[1] for h in hints]), hints[0][2]) for hints in by_turn]


def _teacher_logprobs(
    policy: PolicyModel, batch: Microbatch, k: int, ids_NK: Tensor | None, passes: TeacherPasses, read: Microbatch
) -> tuple[Tensor, Tensor, Tensor]:
    """`read`: `batch`, or with guidance its branches and then the same without their hints."""
    causal = passes.causal if passes.causal is not None else policy.causal
    head = causal.get_output_embeddings()

    def work() -> tuple[Tensor, Tensor, Tensor]:
        hidden_ND = policy.hidden(read, causal)
        if read is not batch:
            with_ND, without_ND = hidden_ND.chunk(2)
            hidden_ND = without_ND.lerp(with_ND, passes.guidance)
        own_NK, logprobs_NK = top_tokens(hidden_ND, head, batch.temperature_N, k, batch.masks)
        if ids_NK is None:
            return logprobs_NK, overlap(own_NK, own_NK), own_NK
        return token_logprobs(hidden_ND, head, ids_NK, batch.temperature_N, batch.masks), overlap(ids_NK, own_NK), ids_NK

    return policy.compute(work, causal)


def overlap(ids_NK: Tensor, others_NK: Tensor) -> Tensor:
    """Number of tokens at each position that are among the others: [N]."""
    return (ids_NK[:, :, None] == others_NK[:, None, :]).any(2).sum(1)


def hinted_prompts(sample: Sample) -> list[list[int]]:
    """The turn's prompt with each of its hints."""
    return [] if sample.teacher_prompt_ids is None else [sample.teacher_prompt_ids, *map(list, sample.other_prompts)]


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
    given = {s.turn_id: torch.tensor(s.teacher_logprobs, device=policy.device) for s in samples if s.teacher_logprobs is not None}
    hinted = with_open_hints(samples)
    branches = teacher_branches(hinted)
    with _as_teacher(training):
        groups = share_out(branches, policy.merge, config.local.tokens_per_microbatch).groups if branches else []
        policy.match_passes(len(groups), training.teacher)
        for group in groups:
            group_branches = [branches[index] for index in group]
            microbatch = make_microbatch(group_branches, policy.merge, policy.device)
            count_pass(measures, training.cost, microbatch, group_branches)
            values = policy.logprobs(microbatch, training.teacher).split(microbatch.lengths)
            given.update({hinted[index].turn_id: value for index, value in zip(group, values, strict=True)})
    return given


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
