"""One optimizer step: from a batch to new weights, on any number of ranks.

Batch      the samples of one step
part       the samples of one microbatch: sessions stay together, so that shared prefixes are computed once
Microbatch its tensors, laid out as tries

If the device runs out of memory, microbatches first become smaller, down to the longest turn. Then layers are checkpointed. If the
longest turn still does not fit, it is refused with its length, and the step is made with the others. The settings that fitted stay
until the trainer ends.
"""

import contextlib
import functools
import gc
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TypeVar

import torch

from clawctl.config import TrainConfig
from clawctl.errors import ClawError
from clawctl.run.progress import report
from clawctl.train.advantages import Divergence
from clawctl.train.advantages.off_policy import correction_of
from clawctl.train.agreement import mismatched_turns
from clawctl.train.measures import Measures, StepFacts, StepResult, merged, step_row
from clawctl.train.sample import Batch, Sample
from clawctl.trainers.local.batches import make_microbatch, share, share_out
from clawctl.trainers.local.costs import count_pass, peak_flops, peak_memory
from clawctl.trainers.local.distance import Probe, keep_near_base, move
from clawctl.trainers.local.influence import TOO_FAR, bound_of, measuring, weight_of
from clawctl.trainers.local.model import checkpoint_layers, half_of
from clawctl.trainers.local.objective import CUSTOM, Objective, objective_of
from clawctl.trainers.local.ranks import whole
from clawctl.trainers.local.scores import (
    custom_loss_of,
    likeliest_logprobs,
    sampled_logprobs,
    scored,
    taught_in_policy_pass,
    teacher_branches,
    teacher_logprobs,
    turn_branches,
)
from clawctl.trainers.local.training import Training, learning_rate, warmth
from clawctl.trainers.local.trees import Packing, own_starts

log = logging.getLogger("clawctl.train")


def train_step(training: Training, batch: Batch) -> StepResult:
    """Make one step. No weight changes if the loss or gradient is not finite, or if another model sampled its turns. Turns that are
    too long for the device's memory are refused."""
    if training.policy.images is not None:
        batch = training.policy.images.with_image_ids(batch)
    computed, refused = within_memory(training, batch, functools.partial(_gradients, training))
    if computed is None:
        return StepResult(None, problem="no turn fits into memory", refused=refused)
    return replace(_apply(training, *computed), refused=refused)


def _gradients(training: Training, batch: Batch) -> tuple[Objective, Measures]:
    """The gradients of a batch, in the parameters."""
    config, ranks = training.config, training.ranks
    batch = scored(training.policy, ranks, batch, config)
    objective, measures = objective_of(config, batch), Measures()
    # Seed of dropout, so that it is the same after a crash.
    torch.manual_seed((config.seed * 1_000_003 + batch.step) * 1009 + ranks.rank)
    training.optimizer.zero_grad(set_to_none=True)
    add_gradients(training, objective, measures)
    return objective, measures


def _apply(training: Training, objective: Objective, measures: Measures) -> StepResult:
    """Change the weights by the gradients."""
    config, ranks, optimizer, batch = training.config, training.ranks, training.optimizer, objective.batch
    with measures.clock("optimizer"):
        norm = _clip_gradients(training)
    measures.peak_memory = peak_memory(training.policy.device)
    total = merged(ranks.gather(measures))
    problem, broken, wrong_model = None, tuple(name for name, turn in total.turns.items() if not turn.finite), False
    if not (math.isfinite(norm) and all(math.isfinite(loss) for loss in total.losses.values())):
        problem = "loss or gradient is not finite"
    else:
        broken, wrong_model = mismatched_turns(total, batch, config.max_mismatch)
        problem = "logprobs disagree with the model" if broken else None
    if problem is not None:
        optimizer.zero_grad(set_to_none=True)
        return StepResult(None, problem=problem, broken=broken, wrong_model=wrong_model)
    depth, moved = batch.depth or batch.step, None
    lr = learning_rate(config, depth)
    with total.clock("optimizer"):
        for group in optimizer.param_groups:
            group["lr"] = lr
        probe, filled = Probe.of(training, batch), min(1.0, len(batch.samples) / config.batch_turns)
        if config.lr == "auto":
            lr, moved = move(training, probe, movement_of(config, total, objective) * warmth(config, depth) * filled)
        else:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)  # frees memory that publishing the weights needs
        kl_base = keep_near_base(training, probe)
        if training.average is not None:
            training.average.update()
        if training.policy.device.type == "cuda":
            torch.cuda.synchronize(training.policy.device)  # the optimizer's kernels belong to its time
    facts = _facts(training, objective, norm, lr, kl_base, moved)
    return StepResult(step_row(total, batch, facts), total.turns, facts)


def movement_of(config: TrainConfig, measures: Measures, objective: Objective) -> float:
    """How far a step should move the policy (`lr: auto`): by `train.movement`, but at most a quarter of the way to the teacher.

    A quarter of the way is a sixteenth of the divergence, which grows with the square of the distance. So the steps of a policy
    that has learned its hints become small. With half of the way, the direction of a step of 16 answers, which is partly chance,
    lost what earlier steps had learned.
    """
    names = [term.name for term in objective.terms if isinstance(term.signal, Divergence)]
    to_teacher = [measures.losses[name] for name in names if name in measures.losses]
    return min([config.movement, *(max(loss / 16, config.movement / 100) for loss in to_teacher)])


def add_gradients(training: Training, objective: Objective, measures: Measures) -> None:
    """Add the gradients of this rank's part of the batch. The excess of a turn over its bound is subtracted afterwards, because it
    is unknown earlier."""
    samples = objective.batch.samples
    sizes = backward(training, samples, objective, measures)
    bound = bound_of(sizes.values(), training.config.turn_bound)
    weights = {turn_id: weight_of(size, bound) for turn_id, size in sizes.items()}
    smallest = min(weights.values(), default=1.0)
    if smallest == 1:
        return
    again = Measures()
    if smallest < TOO_FAR or training.policy.dropouts:  # dropout would change the same turn in a different way
        training.optimizer.zero_grad(set_to_none=True)
        backward(training, samples, objective, again, weights)
    else:
        excess = {turn_id: weight - 1 for turn_id, weight in weights.items() if weight < 1}
        backward(training, [s for s in samples if s.turn_id in excess], objective, again, excess)
    measures.add_work(again)
    for turn_id, numbers in measures.turns.items():
        numbers.bounded = weights[turn_id]


def backward(
    training: Training,
    samples: Sequence[Sample],
    objective: Objective,
    measures: Measures,
    weights: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Add the gradients of the turns, times `weights`, on all ranks. Returns the size of each turn's gradient (`influence`) if
    `weights` is None and turns are bounded; otherwise {}."""
    measured = weights is None and training.config.turn_bound is not None and len(samples) > 1
    starts = dict(zip((s.turn_id for s in samples), own_starts(turn_branches(samples)), strict=True)) if measured else None
    sizes: dict[str, float] = {}
    parts, discarded = pack(training, samples, measures, by_turn=weights is not None and training.custom is not None)
    for number, part in enumerate(parts, 1):
        report(number, len(parts))
        sizes |= add_part(training, part, objective, measures, weights or {}, starts)
    for part in discarded:
        add_part(training, part, objective, Measures(), dict.fromkeys((s.turn_id for s in part), 0.0))
    return (
        {turn_id: size for sizes_of_rank in training.ranks.gather(sizes) for turn_id, size in sizes_of_rank.items()}
        if measured
        else {}
    )


def pack(
    training: Training, samples: Sequence[Sample], measures: Measures, by_turn: bool = False
) -> tuple[list[list[Sample]], list[list[Sample]]]:
    """The parts of this rank, and spare parts whose result is discarded. All ranks must gather sharded weights together, so a rank
    without turns makes the last pass too. `by_turn`: one turn per part, because a custom loss of many turns cannot be weighted by
    turn."""
    policy, ranks = training.policy, training.ranks
    packing = Packing([[index] for index in range(len(samples))], 0, 0)
    if not by_turn:
        packing = share_out(turn_branches(samples), policy.merge, training.config.local.tokens_per_microbatch, ranks.world)
    measures.cuts, measures.recomputed_tokens = (packing.cuts, packing.recomputed) if ranks.is_leader else (0, 0)
    if measures.cuts:
        _log_cut_once(ranks.world)
    mine = share(packing.groups, ranks.rank, ranks.world)
    discarded = packing.groups[-1:] if policy.shard_ranks is not None and len(mine) * ranks.world < len(packing.groups) else []
    parts, discarded_parts = ([[samples[index] for index in group] for group in groups] for groups in (mine, discarded))
    return parts, discarded_parts


def add_part(
    training: Training,
    part: list[Sample],
    objective: Objective,
    measures: Measures,
    weights: Mapping[str, float],
    starts: Mapping[str, int] | None = None,
) -> dict[str, float]:
    """Add the gradient of one microbatch. `starts`: the first token of each turn's own part, if its size is requested."""
    policy, sampled_only = training.policy, objective.likeliest is None
    together = taught_in_policy_pass(training.config, policy, part) if sampled_only and training.custom is None else set()
    with measures.clock("teacher"):
        apart = [sample for sample in part if sample.turn_id not in together]
        teacher = teacher_logprobs(training, apart, measures) if sampled_only else {}
    branches = [*turn_branches(part, starts), *teacher_branches([s for s in part if s.turn_id in together])]
    microbatch = make_microbatch(branches, policy.merge, policy.device)
    count_pass(measures, training.cost, microbatch, branches, backward=True)
    with measuring(policy, microbatch, len(part)) if starts is not None else contextlib.nullcontext() as squares:
        if training.custom is not None:
            with measures.clock("forward"):
                weight = weights.get(part[0].turn_id, 1.0)  # weight of a single turn, see `pack`
                loss = weight * custom_loss_of(training, microbatch, part, teacher, objective, measures)
        elif objective.likeliest is not None:
            turns = likeliest_logprobs(training, microbatch, part, objective.likeliest, measures)
            with measures.clock("forward"):
                loss = objective.loss(turns, measures, weights)
        else:
            with measures.clock("forward"):
                turns = sampled_logprobs(training, microbatch, part, teacher, together)
                loss = objective.loss(turns, measures, weights)
        with measures.clock("backward"):
            loss.backward()
    names = (sample.turn_id for sample in part)
    return dict(zip(names, squares.sqrt().tolist(), strict=True)) if squares is not None else {}


def _clip_gradients(training: Training) -> float:
    """Sum the gradients of all ranks and clip them. Returns their norm before clipping."""
    parameters = [parameter for _, parameter in training.policy.trained()]
    if training.policy.shard_ranks is None:
        training.ranks.sum_gradients(parameters)
    if (half := training.policy.half) is not None:
        for name, parameter in training.policy.trained():
            if parameter.grad is not None:
                half_of(name, parameter.grad, 1 - half).zero_()
    return float(whole(torch.nn.utils.clip_grad_norm_(parameters, training.config.clip_grad)))


def _facts(
    training: Training, objective: Objective, norm: float, lr: float, kl_base: float | None, moved: float | None
) -> StepFacts:
    device, config = training.policy.device, training.config
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    peak = peak_flops(name, config.local.peak_tflops)
    weights = {term.name: term.weight for term in objective.terms} | {CUSTOM: 1.0}
    correction = None if training.custom is not None else asdict(correction_of(config))
    peak = peak and peak * training.ranks.world
    return StepFacts(config.method.kind, weights, objective.counts, norm, lr, peak, config.clip_grad, correction, kl_base, moved)


@functools.cache
def _log_cut_once(world: int) -> None:
    """Log once that a larger `tokens_per_microbatch` or fewer ranks would save recomputed tokens."""
    why = "longer than train.tokens_per_microbatch" + (f", or shared by {world} processes" if world > 1 else "")
    log.info("sessions %s are split between turns, so the parts that their turns share are computed again", why)


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
    elif config.local.gradient_checkpointing < 1:
        checkpoint_layers(training.policy)
        training.config = config.changed(gradient_checkpointing=1.0)
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
