"""Computes the loss of some turns from their logprobs: the terms of the method, each over its own global token count."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clawctl.config import TrainConfig
from clawctl.train.advantages import Divergence, Gap, Overlap, Reward, Term, likeliest, terms_of
from clawctl.train.advantages.off_policy import correction_of
from clawctl.train.measures import Measures, TurnNumbers
from clawctl.train.sample import Batch, Sample
from clawctl.trainers.local.losses import policy_loss, subset_loss, topk_divergence, unclipped_tokens

CUSTOM = "custom"  # the term of a custom loss
MAX_PULLS = 16  # tokens kept per turn
_ANCHORED, _MAX_ANCHOR_WEIGHT = 0.02, 4.0  # nats a token that an anchor may move without more weight; its largest weight


@dataclass(frozen=True, slots=True)
class LikeliestLogprobs:
    """Logprobs of K tokens at each of the T positions of a turn. The tokens are the policy's most likely ones before this step.
    Each of H teachers has one hint. With K = 2, T = 1, H = 1: policy_TK [[-0.1, -2.5]], teacher_HTK [[[-0.3, -1.4]]], overlap_HT
    [[2]]."""

    policy_TK: Tensor  # with gradient
    before_TK: Tensor  # under the policy before this step
    teacher_HTK: Tensor
    overlap_HT: Tensor  # number of the K tokens that are also among the teacher's K most likely
    ids_TK: Tensor | None = None  # the tokens


@dataclass(frozen=True, slots=True)
class TurnLogprobs:
    """The logprobs of one turn's completion: streams over its T tokens, such as [-0.1, -2.3, -0.7]."""

    sample: Sample
    policy_T: Tensor  # with gradient
    before_T: Tensor  # under the policy before this step, without gradient
    sampler_T: Tensor
    teacher_T: Tensor | None = None  # None: no hint, or the method does not use only the sampled tokens
    tops: LikeliestLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Objective:
    """The loss of one step."""

    config: TrainConfig
    batch: Batch
    terms: Sequence[Term]
    counts: dict[str, int]  # by term: completion tokens of all its turns in the step, on all ranks

    @property
    def likeliest(self) -> int | None:
        """Number of most likely tokens that the method compares at each position; None if it uses only the sampled tokens."""
        return likeliest(self.config)

    def loss(self, turns: Sequence[TurnLogprobs], measures: Measures, weights: Mapping[str, float]) -> Tensor:
        """The share of these turns in the step's loss; the shares add up to it. Records measurements in `measures`, including the
        loss without the `weights` of turns (by turn id; 1 if missing)."""
        self.note(turns, measures)
        total = torch.zeros((), device=turns[0].policy_T.device)
        for term in self.terms:
            some = [turn for turn in turns if term.trains(turn.sample)]
            if some:
                loss = self._divergence if isinstance(term.signal, Divergence | Overlap) else self._policy_loss
                total = total + term.weight * loss(term, some, [weights.get(turn.sample.turn_id, 1.0) for turn in some], measures)
        return total

    def _policy_loss(self, term: Term, turns: Sequence[TurnLogprobs], weights: Sequence[float], measures: Measures) -> Tensor:
        advantages = [self._advantages(term, turn) for turn in turns]
        logprobs_N, sampler_N = torch.cat([turn.policy_T for turn in turns]), torch.cat([turn.sampler_T for turn in turns])
        advantages_N, lengths, correction = torch.cat(advantages), [len(a) for a in advantages], correction_of(self.config)
        how = sampler_N, advantages_N, lengths, self.counts[term.name], correction
        weights_N = torch.cat([torch.full_like(a, weight) for a, weight in zip(advantages, weights, strict=True)])
        loss = policy_loss(logprobs_N, *how, weights_N)
        measures.add_loss(term.name, float(policy_loss(logprobs_N.detach(), *how)))
        acting_N = unclipped_tokens(logprobs_N.detach(), sampler_N, advantages_N, lengths, correction)
        for turn, values_T, acting_T in zip(turns, advantages, acting_N.split(lengths), strict=True):
            numbers = measures.turns[turn.sample.turn_id]
            numbers.advantages[term.name], numbers.acting[term.name] = values_T.cpu().numpy(), acting_T.cpu().numpy()
            if isinstance(term.signal, Gap):
                ids_T1 = torch.tensor(turn.sample.completion_ids, device=values_T.device)[:, None]
                numbers.pulls = pulls(ids_T1, values_T[:, None])
        return loss

    def _divergence(self, term: Term, turns: Sequence[TurnLogprobs], weights: Sequence[float], measures: Measures) -> Tensor:
        losses, weighted = [], []
        for turn, weight in zip(turns, weights, strict=True):
            assert turn.tops is not None
            losses.append(divergence(term, turn.tops))
            numbers = measures.turns[turn.sample.turn_id]
            numbers.anchored = anchor_weight(turn.sample, losses[-1].detach())
            weighted.append(weight * numbers.anchored * losses[-1])
            numbers.divergences[term.name] = losses[-1].detach().cpu().numpy()
            if turn.tops.ids_TK is not None:
                numbers.pulls = pulls(turn.tops.ids_TK, turn.tops.teacher_HTK[0].exp() - turn.tops.before_TK.exp())
        measures.add_loss(term.name, float(torch.cat(losses).detach().sum() / self.counts[term.name]))
        return torch.cat(weighted).sum() / self.counts[term.name]

    def advantages(self, turn: TurnLogprobs) -> Tensor:
        """The turn's advantages in all its terms, weighted and summed: [T]; 0 without any term."""
        total = torch.zeros_like(turn.before_T)
        for term in self.terms:
            if not isinstance(term.signal, Divergence | Overlap) and term.trains(turn.sample):
                total = total + term.weight * self._advantages(term, turn)
        return total

    def reward_advantages(self, turn: TurnLogprobs) -> Tensor:
        """The advantages of the turn's reward, without the term's weight: [T]; 0 without a reward."""
        rewarded = [term for term in self.terms if isinstance(term.signal, Reward) and term.trains(turn.sample)]
        return self._advantages(rewarded[0], turn) if rewarded else torch.zeros_like(turn.before_T)

    def note(self, turns: Sequence[TurnLogprobs], measures: Measures) -> None:
        for turn in turns:
            teacher_T = None if turn.teacher_T is None else turn.teacher_T.cpu().numpy()
            numbers = TurnNumbers(turn.before_T.cpu().numpy(), turn.sampler_T.cpu().numpy(), teacher_T)
            measures.turns[turn.sample.turn_id] = numbers

    def _advantages(self, term: Term, turn: TurnLogprobs) -> Tensor:
        reward = self.batch.advantage(turn.sample) if isinstance(term.signal, Reward) else None
        return token_advantages(term, turn.before_T, turn.teacher_T, reward)


def objective_of(config: TrainConfig, batch: Batch) -> Objective:
    terms = terms_of(config)
    counts = {term.name: sum(len(sample.completion_ids) for sample in batch.samples if term.trains(sample)) for term in terms}
    if config.custom_loss is not None:
        counts[CUSTOM] = sum(len(sample.completion_ids) for sample in batch.samples)
    return Objective(config, batch, terms, counts)


def token_advantages(term: Term, policy_T: Tensor, teacher_T: Tensor | None, reward: float | None) -> Tensor:
    """The advantage of each token of a turn: [T]. `reward` is the turn's own, for a reward term. No gradient is recorded."""
    if isinstance(term.signal, Reward):
        assert reward is not None
        return torch.full_like(policy_T, reward)
    assert isinstance(term.signal, Gap)
    assert teacher_T is not None
    return (teacher_T - policy_T).clamp(-term.signal.clip, term.signal.clip)


def divergence(term: Term, tops: LikeliestLogprobs) -> Tensor:
    """The distance to the teacher at each position: [T], with gradient."""
    if isinstance(term.signal, Divergence):
        (teacher_TK,) = torch.unbind(tops.teacher_HTK)
        return topk_divergence(tops.policy_TK, teacher_TK, term.signal.forward)
    assert isinstance(term.signal, Overlap)
    chosen_T = chosen_hints(tops.overlap_HT, term.signal.choice)
    teacher_TK = tops.teacher_HTK[chosen_T, torch.arange(len(chosen_T), device=chosen_T.device)]
    return subset_loss(tops.policy_TK, tops.before_TK, teacher_TK, term.signal.clip, term.signal.low, term.signal.high)


def anchor_weight(sample: Sample, divergence_T: Tensor) -> float:
    """The weight of an anchor, an imported answer whose teacher reads the same prompt as the policy; 1 for any other turn.

    It grows with the turn's mean divergence, so an anchor costs little as long as the policy keeps to it.
    """
    if not sample.imported or sample.teacher_prompt_ids != sample.prompt_ids:
        return 1.0
    return min(max(float(divergence_T.mean()) / _ANCHORED, 1.0), _MAX_ANCHOR_WEIGHT)


def chosen_hints(overlap_HT: Tensor, choice: str) -> Tensor:
    """The hint selected at each position: [T]. Hints are ordered by length, and argmax selects the first in a tie."""
    if choice == "token":
        return overlap_HT.argmax(0)
    best = 0 if choice == "shortest" else int(overlap_HT.sum(1).argmax())
    return torch.full((overlap_HT.shape[1],), best, device=overlap_HT.device)


def pulls(ids_TK: Tensor, gaps_TK: Tensor) -> dict[int, float]:
    """The direction in which the hint moves the policy: the MAX_PULLS tokens with the largest absolute sum of gaps over all
    positions.

    A gap is the teacher's probability minus the policy's. Its sum is the negative gradient of the forward KL with respect to a bias
    of the output layer: {410: 0.8, 12: -0.7}. For sampled tokens the gap is the advantage.
    """
    ids_N, where_N = ids_TK.flatten().unique(return_inverse=True)
    sums_N = torch.zeros(len(ids_N), device=gaps_TK.device).index_add_(0, where_N, gaps_TK.detach().flatten().float())
    top = sums_N.abs().topk(min(MAX_PULLS, len(sums_N))).indices
    ids, sums = torch.stack([ids_N[top].float(), sums_N[top]]).tolist()  # one read from the device; ids below 2^24 are exact
    return {int(token): total for token, total in zip(ids, sums, strict=True)}
