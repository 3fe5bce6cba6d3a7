"""The most likely tokens along an answer, by the policy or by its teacher, and their logprobs by both. For methods that compare
whole distributions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clawctl.train.measures import Measures
from clawctl.train.sample import Sample
from clawctl.trainers.local.batches import Microbatch, make_microbatch, share_out
from clawctl.trainers.local.flops import Cost, count_pass
from clawctl.trainers.local.head import token_logprobs, top_tokens
from clawctl.trainers.local.model import PolicyModel
from clawctl.trainers.local.trees import Branch, make_branch


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
    arXiv 2306.17806). The output head is linear, so this is computed with the states before it.
    """
    prompts = [(turn, prompt) for turn, sample in enumerate(samples) for prompt in hinted_prompts(sample)]

    def branch_of(turn: int, prompt: list[int]) -> Branch:
        return make_branch(prompt, samples[turn].completion_ids, samples[turn].temperature, samples[turn].allowed)

    branches, is_guided = [branch_of(turn, prompt) for turn, prompt in prompts], passes.guidance != 1
    scored: dict[int, tuple[Tensor, ...]] = {}
    groups = share_out(branches, policy.merge, passes.tokens).groups if branches else []
    policy.match_passes(len(groups) * (2 if is_guided else 1), passes.causal)
    for group in groups:
        own = [branches[branch] for branch in group]
        batch, without = make_microbatch(own, policy.merge, policy.device), None
        count_pass(passes.measures, passes.cost, batch, own)
        if is_guided:
            plain = [branch_of(turn, samples[turn].prompt_ids) for turn in (prompts[branch][0] for branch in group)]
            without = make_microbatch(plain, policy.merge, policy.device)
            count_pass(passes.measures, passes.cost, without, plain)
        ids_NK = None if ids is None else torch.cat([ids[prompts[branch][0]] for branch in group])
        streams = _teacher_logprobs(policy, batch, k, ids_NK, passes, without)
        scored.update(zip(group, zip(*(stream.split(batch.lengths) for stream in streams), strict=True), strict=True))
    by_turn = [[scored[branch] for branch, (turn, _) in enumerate(prompts) if turn == index] for index in range(len(samples))]
    return [Teachers(torch.stack([h[0] for h in hints]), torch.stack([h[1] for h in hints]), hints[0][2]) for hints in by_turn]


def _teacher_logprobs(
    policy: PolicyModel, batch: Microbatch, k: int, ids_NK: Tensor | None, passes: TeacherPasses, without: Microbatch | None
) -> tuple[Tensor, Tensor, Tensor]:
    causal = passes.causal if passes.causal is not None else policy.causal
    head = causal.get_output_embeddings()

    def work() -> tuple[Tensor, Tensor, Tensor]:
        hidden_ND = policy.hidden(batch, causal)
        if without is not None:
            hidden_ND = policy.hidden(without, causal).lerp(hidden_ND, passes.guidance)
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
