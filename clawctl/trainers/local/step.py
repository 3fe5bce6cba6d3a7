"""One optimizer step: from a batch to new weights, on however many ranks."""

import contextlib
import functools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from clawctl.config import TrainConfig
from clawctl.errors import ClawError
from clawctl.plugins import CustomLoss
from clawctl.train.advantages import Tops, likeliest, terms_of
from clawctl.train.advantages.binary import Baselines
from clawctl.train.influence import TOO_FAR, bound_of, weight_of
from clawctl.train.records import Told
from clawctl.train.sample import Batch, Sample
from clawctl.trainers.local.agreement import disagreeing
from clawctl.trainers.local.batches import Microbatch, lay_out, share, share_out
from clawctl.trainers.local.branches import asking, taught_beside, teacher_branches, turn_branches
from clawctl.trainers.local.custom_loss import TERM as CUSTOM
from clawctl.trainers.local.custom_loss import custom_loss, logits_of, sampled_logprobs
from clawctl.trainers.local.ema import Average
from clawctl.trainers.local.flops import Cost, peak_flops
from clawctl.trainers.local.measures import Measures, StepFacts, merged, peak_memory, step_row
from clawctl.trainers.local.model import PolicyModel
from clawctl.trainers.local.objective import Objective, Said, token_counts
from clawctl.trainers.local.off_policy import correction_of
from clawctl.trainers.local.own_gradients import measuring
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.remote_teacher import RemoteTeacher
from clawctl.trainers.local.sharding import whole as whole_tensor
from clawctl.trainers.local.tops import Asking, look, teachers_of
from clawctl.trainers.local.trees import Packing, own_starts

log = logging.getLogger("clawctl.train")


@dataclass(slots=True)
class Training:
    """Everything that a step reads and changes."""

    policy: PolicyModel
    optimizer: torch.optim.Optimizer
    baselines: Baselines
    config: TrainConfig
    ranks: Ranks
    reference: Any | None  # version 0 as a second model, if the teacher is `base` and all weights are trained
    step: int  # the one that made its weights, which is also the version that they are
    cost: Cost | None = None  # of a pass; None: not known
    custom: CustomLoss | None = None  # in the place of the policy loss
    average: Average | None = None  # the teacher `ema`
    remote: RemoteTeacher | None = None  # the teacher behind a URL, on rank 0
    paused: ClawError | None = None  # why no step is made
    making: int = 0  # the step in progress
    moved: bool = False  # training continues from another version, not from these weights


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a batch."""

    row: dict[str, Any] | None  # of steps.jsonl; None: the step was not made
    problem: str | None = None  # why not
    broken: tuple[str, ...] = ()  # the turns that caused it; empty: no single one
    told: Told | None = None  # the numbers of each turn; None: the step was not made
    wrong_model: bool = False  # most turns of the newest version disagree with the model: no other batch will do better


def make_optimizer(policy: PolicyModel, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW, with weight decay on matrices only. It uses the fused kernel, because the step is memory-bound on the CPU too."""
    parameters = [parameter for _, parameter in policy.trained()]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=config.lr, betas=config.betas, fused=True)


def learning_rate(config: TrainConfig, step: int) -> float:
    """Rises linearly over the first `warmup_steps` of a lineage, then stays."""
    return config.lr * min(1.0, step / config.warmup_steps) if config.warmup_steps else config.lr


def train_step(training: Training, batch: Batch) -> Outcome:
    """Make one step. Nothing changes if its loss or gradient is not finite, or if another model sampled its turns."""
    config, ranks = training.config, training.ranks
    training.making = batch.step
    objective = _objective_of(training, batch)
    torch.manual_seed((config.seed * 1_000_003 + batch.step) * 1009 + ranks.rank)  # of dropout: the same after a crash
    training.optimizer.zero_grad(set_to_none=True)
    measures = Measures()
    _add_gradients(training, batch, objective, measures)
    with measures.clock("optimizer"):
        parameters = [parameter for _, parameter in training.policy.trained()]
        if training.policy.across is None:
            ranks.sum_gradients(parameters)
        norm = float(whole_tensor(torch.nn.utils.clip_grad_norm_(parameters, config.clip_grad)))
    measures.peak_memory = peak_memory(training.policy.device)
    whole = merged(ranks.gather(measures))
    if not (math.isfinite(norm) and all(math.isfinite(loss) for loss in whole.losses.values())):
        training.optimizer.zero_grad(set_to_none=True)
        return Outcome(None, "loss or gradient is not finite", tuple(name for name, turn in whole.turns.items() if not turn.finite))
    far, most = disagreeing(whole, batch, config.max_mismatch)
    if far:
        training.optimizer.zero_grad(set_to_none=True)
        return Outcome(None, "logprobs disagree with the model", far, wrong_model=most)
    lr = learning_rate(config, batch.depth or batch.step)
    with whole.clock("optimizer"):
        for group_settings in training.optimizer.param_groups:
            group_settings["lr"] = lr
        training.optimizer.step()
        training.optimizer.zero_grad(set_to_none=True)  # the weights to publish need their memory
        if training.average is not None:
            training.average.learn()
    baselines = {sample.turn_id: training.baselines.of(sample.kind) for sample in batch.samples}
    if config.baseline == "mean":
        training.baselines.learn(batch.samples)
    training.step = batch.step
    facts = _facts(training, objective, norm, lr)
    return Outcome(step_row(whole, batch, facts), told=Told(whole.turns, facts, baselines))


def gradients_of(training: Training, batch: Batch) -> Iterator[list[Tensor]]:
    """The gradient of each turn of a step by itself, weighed as it is in this step; they add up to the step's before it is
    clipped. One tensor for each trained parameter. No weight is changed."""
    objective, parameters = _objective_of(training, batch), [parameter for _, parameter in training.policy.trained()]
    measures = Measures()
    _add_gradients(training, batch, objective, measures)
    for sample in batch.samples:
        training.optimizer.zero_grad(set_to_none=True)
        weights = {sample.turn_id: measures.turns[sample.turn_id].bounded}
        _microbatch(training, [sample], objective, Measures(), weights)
        yield [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]
    training.optimizer.zero_grad(set_to_none=True)


def _objective_of(training: Training, batch: Batch) -> Objective:
    terms = terms_of(training.config)
    counts = token_counts(terms, batch.samples)
    if training.custom is not None:
        counts[CUSTOM] = sum(len(sample.completion_ids) for sample in batch.samples)
    return Objective(training.config, terms, counts, training.baselines)


def _add_gradients(training: Training, batch: Batch, objective: Objective, measures: Measures) -> None:
    """Add this rank's part of the batch. The excess of a turn over its bound is subtracted afterwards, because it is not known
    earlier."""
    sizes = _passes(training, batch.samples, objective, measures)
    bound = bound_of(sizes.values(), training.config.turn_bound)
    weights = {turn_id: weight_of(size, bound) for turn_id, size in sizes.items()}
    least = min(weights.values(), default=1.0)
    if least == 1:
        return
    again = Measures()
    if least < TOO_FAR or training.policy.dropouts:  # dropout would blur the same turn in another way
        training.optimizer.zero_grad(set_to_none=True)
        _passes(training, batch.samples, objective, again, weights)
    else:
        excess = {turn_id: weight - 1 for turn_id, weight in weights.items() if weight < 1}
        _passes(training, [s for s in batch.samples if s.turn_id in excess], objective, again, excess)
    measures.add_work(again)
    for turn_id, numbers in measures.turns.items():
        numbers.bounded = weights[turn_id]


def _passes(
    training: Training,
    samples: Sequence[Sample],
    objective: Objective,
    measures: Measures,
    weights: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Add the gradients of the turns, times `weights`, on all ranks. Returns the size of each (see `own_gradients`) in the first
    call, before there are weights."""
    policy, ranks, config = training.policy, training.ranks, training.config
    branches = turn_branches(samples)
    packing = share_out(branches, policy.merge, config.tokens_per_microbatch, ranks.world)
    if weights is not None and training.custom is not None:  # its loss of many turns cannot be weighted by turn
        packing = Packing([[index] for index in range(len(samples))], 0, 0)
    measures.cuts, measures.recomputed_tokens = note_cuts(packing, ranks.world) if ranks.leads else (0, 0)
    own = share(packing.groups, ranks.rank, ranks.world)
    # sharded weights are put together by all ranks or none: one that has no turns left makes the last pass for nothing
    spare = packing.groups[-1:] if policy.across is not None and len(own) * ranks.world < len(packing.groups) else []
    starts = None
    if weights is None and config.turn_bound is not None and len(samples) > 1:
        starts = {sample.turn_id: start for sample, start in zip(samples, own_starts(branches), strict=True)}
    sizes: dict[str, float] = {}
    for group in own:
        sizes |= _microbatch(training, [samples[index] for index in group], objective, measures, weights or {}, starts)
    for group in spare:
        nothing = {samples[index].turn_id: 0.0 for index in group}
        _microbatch(training, [samples[index] for index in group], objective, Measures(), nothing)
    return {turn_id: size for part in ranks.gather(sizes) for turn_id, size in part.items()} if starts is not None else {}


def _facts(training: Training, objective: Objective, norm: float, lr: float) -> StepFacts:
    device, config = training.policy.device, training.config
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    peak = peak_flops(name, config.peak_tflops)
    weights = {term.name: term.weight for term in objective.terms} | {CUSTOM: 1.0}
    correction = None if training.custom is not None else asdict(correction_of(config))
    peak = peak and peak * training.ranks.world
    return StepFacts(config.method, weights, objective.counts, norm, lr, peak, config.clip_grad, correction)


def _microbatch(
    training: Training,
    samples: list[Sample],
    objective: Objective,
    measures: Measures,
    weights: Mapping[str, float],
    starts: Mapping[str, int] | None = None,
) -> dict[str, float]:
    """Add the gradient of a few turns. `starts`: the first token of each turn's own part, if its size is requested."""
    config, policy = training.config, training.policy
    sampled_only = likeliest(config) is None
    beside = taught_beside(config, policy, samples) if sampled_only and training.custom is None else []
    with measures.clock("teacher"):
        apart = [sample for sample in samples if sample not in beside]
        teacher = teacher_logprobs(training, apart, measures) if sampled_only else {}
    branches = [*turn_branches(samples, starts), *teacher_branches(beside)]
    batch = lay_out(branches, policy.merge, policy.device)
    measures.add_pass(training.cost, batch, branches, backward=True)
    with measuring(policy, batch, len(samples)) if starts is not None else contextlib.nullcontext() as squares:
        if training.custom is not None:
            with measures.clock("forward"):
                loss = _own_loss(training, training.custom, batch, samples, teacher, objective, measures)
                loss = loss * weights.get(samples[0].turn_id, 1.0)  # of a single turn, see `_passes`
        elif sampled_only:
            with measures.clock("forward"):
                loss = objective.loss(_said(training, batch, samples, teacher, beside), measures, weights)
        else:
            said = _said_of_tops(training, batch, samples, measures)
            with measures.clock("forward"):
                loss = objective.loss(said, measures, weights)
        with measures.clock("backward"):
            loss.backward()
    names = (sample.turn_id for sample in samples)
    return dict(zip(names, squares.sqrt().tolist(), strict=True)) if squares is not None else {}


def _own_loss(
    training: Training,
    custom: CustomLoss,
    batch: Microbatch,
    samples: Sequence[Sample],
    teacher: dict[str, Tensor],
    objective: Objective,
    measures: Measures,
) -> Tensor:
    """The user's loss of a few turns."""
    policy = training.policy
    with policy.dropping():
        logits = logits_of(policy, batch)
    now = sampled_logprobs(logits, batch)
    with torch.no_grad():
        before = policy.logprobs(batch) if policy.dropouts else now.detach()
        reference = None
        if policy.adapter:
            with policy.without_adapter():
                reference = logits_of(policy, batch)
        elif training.reference is not None:
            reference = logits_of(policy, batch, training.reference)
    streams = zip(samples, now.split(batch.lengths), before.split(batch.lengths), strict=True)
    said = [Said(s, now_T, before_T, _sampler(s, now_T), teacher.get(s.turn_id)) for s, now_T, before_T in streams]
    objective.note(said, measures)
    for turn in said:
        measures.turns[turn.sample.turn_id].advantages[CUSTOM] = objective.advantages(turn).cpu()
    loss = custom_loss(custom, (logits, reference), said, objective, batch, training.making)
    measures.add_loss(CUSTOM, loss)
    return loss


def _said(
    training: Training, batch: Microbatch, samples: Sequence[Sample], teacher: dict[str, Tensor], beside: Sequence[Sample]
) -> list[Said]:
    """The logprobs of the sampled tokens by policy and teacher. The teacher's branches of `beside` follow the policy's."""
    policy = training.policy
    with policy.dropping():
        logprobs = policy.logprobs(batch)
    # The weights do not change within a step, so the policy "before the step" is the one that was just computed,
    # unless dropout has blurred it.
    before = logprobs.detach()
    if policy.dropouts:
        with torch.no_grad():
            before = policy.logprobs(batch)
    now, then = logprobs.split(batch.lengths), before.split(batch.lengths)
    teacher = teacher | {sample.turn_id: value for sample, value in zip(beside, then[len(samples) :], strict=True)}
    streams = zip(samples, now[: len(samples)], then[: len(samples)], strict=True)
    return [Said(s, now_T, before_T, _sampler(s, now_T), teacher.get(s.turn_id)) for s, now_T, before_T in streams]


def _said_of_tops(training: Training, batch: Microbatch, samples: Sequence[Sample], measures: Measures) -> list[Said]:
    """The same of the policy's likeliest tokens as well."""
    policy, k = training.policy, likeliest(training.config)
    assert k is not None
    with measures.clock("forward"):
        with policy.dropping():
            now = look(policy, batch, k)
        before_N, before_NK = now.logprobs_N.detach(), now.likeliest_NK.detach()
        if policy.dropouts:
            with torch.no_grad():
                calm = look(policy, batch, k, now.ids_NK)
            before_N, before_NK = calm.logprobs_N, calm.likeliest_NK
    streams = [stream.split(batch.lengths) for stream in (now.logprobs_N, before_N, now.likeliest_NK, before_NK, now.ids_NK)]
    hinted = [index for index, sample in enumerate(samples) if sample.teacher_prompt_ids is not None]
    with measures.clock("teacher"), _aside(training):
        own, ids = [samples[index] for index in hinted], [streams[4][index] for index in hinted]
        ask = Asking(training.config.tokens_per_microbatch, measures, training.cost, training.reference)
        teachers = dict(zip(hinted, teachers_of(policy, own, ids, ask), strict=True))
    said = []
    for i, (sample, now_T, before_T, now_TK, before_TK, _) in enumerate(zip(samples, *streams, strict=True)):
        told = teachers.get(i)
        tops = Tops(now_TK, before_TK, told.logprobs_HTK, told.overlap_HT) if told is not None else None
        said.append(Said(sample, now_T, before_T, _sampler(sample, now_T), None, tops))
    return said


def _sampler(sample: Sample, like_T: Tensor) -> Tensor:
    return torch.tensor(sample.logprobs, dtype=torch.float32, device=like_T.device)


def _aside(training: Training) -> contextlib.AbstractContextManager[None]:
    """Inside, the policy is the teacher that the recipe names."""
    if training.average is not None:
        return training.average.worn()
    apart = training.config.teacher == "base" and training.policy.adapter
    return training.policy.without_adapter() if apart else contextlib.nullcontext()


@torch.no_grad()
def teacher_logprobs(training: Training, samples: Sequence[Sample], measures: Measures) -> dict[str, Tensor]:
    """For each turn with a hint, the logprob of each of its own tokens after the prompt with the hint: one per token, none
    invented."""
    config, policy = training.config, training.policy
    told = {s.turn_id: torch.tensor(s.teacher_logprobs, device=policy.device) for s in samples if s.teacher_logprobs is not None}
    hinted = asking(samples)
    branches = teacher_branches(hinted)
    with _aside(training):
        groups = share_out(branches, policy.merge, config.tokens_per_microbatch).groups if branches else []
        policy.keep_pace(len(groups), training.reference)
        for group in groups:
            own = [branches[index] for index in group]
            batch = lay_out(own, policy.merge, policy.device)
            measures.add_pass(training.cost, batch, own)
            values = policy.logprobs(batch, training.reference).split(batch.lengths)
            told.update({hinted[index].turn_id: value for index, value in zip(group, values, strict=True)})
    return told


def note_cuts(packing: Packing, world: int) -> tuple[int, int]:
    """Number of cuts and the tokens they cost. Logged once, because a larger `tokens_per_microbatch` or fewer ranks would save
    them."""
    if packing.cuts:
        _tell_cut_once(world)
    return packing.cuts, packing.recomputed


@functools.cache
def _tell_cut_once(world: int) -> None:
    why = "longer than train.tokens_per_microbatch" + (f", or shared by {world} processes" if world > 1 else "")
    log.info("sessions %s are split between turns, so the parts that their turns share are computed again", why)
