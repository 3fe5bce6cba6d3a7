"""How far a step moves the policy, and how far the policy is from version 0: KL divergences, the pull back, and the budget.

What is learned follows the distance that the policy moves, and not the learning rate: the same rate changes nothing in one model
and destroys another. `lr: auto` therefore sets the distance of each step, as a trust region does (TRPO, Schulman et al. 2015, arXiv
1502.05477, section 3), here by scaling AdamW's step.

Updates on conversations also move weights that no conversation needs. Each update adds some of this drift, and over weeks it costs
ability. A constant pull towards version 0 removes the drift, and what users go on asking for is learned again (L2-SP, Li et al.
2018, arXiv 1802.01483, as a decoupled step).
"""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from clawctl.train.sample import Batch, Sample
from clawctl.trainers.local.batches import Microbatch, make_microbatch
from clawctl.trainers.local.head import LOGITS_AT_ONCE
from clawctl.trainers.local.scores import turn_branches
from clawctl.trainers.local.training import Training
from clawctl.trainers.local.trees import Branch, tokens_in

_TOKENS, _POSITIONS = 256, 256  # tokens of the turns on which the KL is measured, and positions
_LONGEST = 2048  # of a single longer turn only so many tokens around the beginning of its answer are read
_ATTEMPTS = 12
_SCALINGS, _LARGEST_SCALING, _NEAR = 8, 8.0, 1.5  # scalings of a step; one scaling; how far from the wanted movement it may end


@dataclass(slots=True)
class Probe:
    """Some turns of a batch, on which the policy is compared with itself before the step and with version 0.

    It has at most 256 tokens, so that a pass costs little. If every turn is longer, it is the shortest one, cut to 2048 tokens.
    """

    microbatch: Microbatch
    now_PV: Tensor | None = None  # logprobs of the policy as it is, if they are known

    @classmethod
    def of(cls, training: Training, batch: Batch) -> "Probe":
        branches = turn_branches(_some(batch))
        if training.policy.images is None:  # their positions are those of the whole prompt
            branches = [_cut(branch) for branch in branches]
        return cls(make_microbatch(branches, training.policy.merge, training.policy.device))


def keep_near_base(training: Training, probe: Probe) -> float | None:
    """Pull the trained weights towards version 0 by `train.base_pull`, and further until the KL divergence is within
    `train.kl_budget`. Returns the KL divergence (`kl_from_base`); one that is not finite pulls nothing."""
    config = training.config
    if config.base_pull:
        pull_to_base(training, config.base_pull)
        probe.now_PV = None
    divergence = kl_from_base(training, probe)
    for _ in range(_ATTEMPTS):
        if divergence is None or config.kl_budget is None or divergence <= config.kl_budget:
            break
        # The KL divergence grows with the square of a small difference in weights.
        pull_to_base(training, 1 - 0.95 * math.sqrt(config.kl_budget / divergence))
        probe.now_PV = None
        divergence = kl_from_base(training, probe)
    return divergence


@torch.no_grad()
def move(training: Training, probe: Probe, movement: float) -> tuple[float, float | None]:
    """Make the optimizer's step, scaled so that KL(policy after ‖ policy before) is near `movement` nats a token. Returns the
    learning rate that the scaled step had, and the KL divergence; None if it cannot be measured.

    A small step's KL divergence grows with the square of its length, and that of a long step of an adapter, whose two matrices are
    multiplied, with up to the fourth power. The power is taken from the last two lengths, so one or two scalings are often enough.
    """
    before_PV = _logprobs(training, probe.microbatch)
    parameters = [parameter for _, parameter in training.policy.trained()]
    old = [parameter.detach().clone() for parameter in parameters]
    training.optimizer.step()
    probe.now_PV = _logprobs(training, probe.microbatch)
    scale, moved, power = 1.0, _divergence(training, probe.now_PV, before_PV), 2.0
    for _ in range(_SCALINGS):
        if moved is not None and movement / _NEAR <= moved <= movement * _NEAR:
            break
        ratio = 1 / _LARGEST_SCALING if moved is None else (movement / max(moved, 1e-12)) ** (1 / power)
        ratio = min(max(ratio, 1 / _LARGEST_SCALING), _LARGEST_SCALING)
        for parameter, start in zip(parameters, old, strict=True):
            parameter.sub_(start).mul_(ratio).add_(start)
        scale *= ratio
        probe.now_PV, earlier = _logprobs(training, probe.microbatch), moved
        moved = _divergence(training, probe.now_PV, before_PV)
        if moved is not None and earlier is not None and min(moved, earlier) > 0:
            power = min(max(math.log(moved / earlier) / math.log(ratio), 1.0), 4.0)
    return scale * training.optimizer.param_groups[0]["lr"], moved


@torch.no_grad()
def pull_to_base(training: Training, share: float) -> None:
    """Move the trained weights by `share` of the way to version 0. An adapter's product B A shrinks by `share`;
    of an adapter that is trained in halves, that of the trained half."""
    if training.policy.adapter:
        for name, parameter in training.policy.changing():
            if "lora_B" in name:
                parameter.mul_(1 - share)
        return
    base = dict(training.reference.named_parameters()) if training.reference is not None else {}
    for name, parameter in training.policy.trained():
        parameter.lerp_(base[name], share)


@torch.no_grad()
def kl_from_base(training: Training, probe: Probe) -> float | None:
    """KL(policy ‖ version 0) in nats a token, the mean over at most 256 positions of the probe's answers. At each position it is
    exact over the vocabulary, at temperature 1. None if version 0 is not in memory, or if the divergence is not finite."""
    policy = training.policy
    if not policy.adapter and training.reference is None:
        return None
    now_PV = _logprobs(training, probe.microbatch) if probe.now_PV is None else probe.now_PV
    with policy.without_adapter() if policy.adapter else contextlib.nullcontext():
        base_PV = _logprobs(training, probe.microbatch, training.reference)
    return _divergence(training, now_PV, base_PV)


def _divergence(training: Training, p_PV: Tensor, q_PV: Tensor) -> float | None:
    """The mean of KL(p ‖ q) over positions, the same on all ranks; None if it is not finite."""
    value = float((p_PV.exp() * (p_PV - q_PV)).sum(1).mean())
    value = float(training.ranks.broadcast(value))  # ranks must agree on what to do next
    return value if math.isfinite(value) else None


def _logprobs(training: Training, microbatch: Microbatch, reference: Any = None) -> Tensor:
    """The logprobs of all tokens at some of the scored positions: [P, V]."""
    policy = training.policy
    causal = policy.causal if reference is None else reference

    def work() -> Tensor:
        hidden_ND, head = policy.hidden(microbatch, causal), causal.get_output_embeddings()
        positions = min(_POSITIONS, max(1, LOGITS_AT_ONCE // policy.vocabulary), len(hidden_ND))
        chosen_P = torch.linspace(0, len(hidden_ND) - 1, positions, device=hidden_ND.device).long()
        logits_PV: Tensor = head(hidden_ND[chosen_P])
        return logits_PV.float().log_softmax(-1)

    return policy.compute(work, causal)


def _cut(branch: Branch) -> Branch:
    """A turn without the beginning of a long prompt, and without the end of a long answer."""
    if len(branch.ids) <= _LONGEST:
        return branch
    stop = min(len(branch.ids), branch.scored + _LONGEST // 2)
    start = max(0, stop - _LONGEST)
    return Branch(branch.ids[start:stop], branch.scored - start, branch.temperature)


def _some(batch: Batch) -> Sequence[Sample]:
    """Turns of the batch, in random order, until they have enough tokens; at least one."""
    ordered = sorted(batch.samples, key=lambda sample: sample.turn_id)
    Random(batch.step).shuffle(ordered)
    chosen: list[Sample] = []
    for sample in ordered:
        if tokens_in(turn_branches([*chosen, sample])) <= _TOKENS:
            chosen.append(sample)
    return chosen or [min(ordered, key=lambda sample: len(sample.prompt_ids) + len(sample.completion_ids))]
