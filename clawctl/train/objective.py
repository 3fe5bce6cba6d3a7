"""From what models say of some turns to the loss of these turns: the terms of the method, each over its own global token count."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clawctl.config import TrainConfig
from clawctl.train.advantages import Scores, Term, Tops
from clawctl.train.advantages.binary import Baselines
from clawctl.train.influence import bound_of, likeliest_norms, pushes, sampled_norms, size_of, weight_of
from clawctl.train.losses import acting_tokens, policy_loss
from clawctl.train.measures import Measures
from clawctl.train.off_policy import correction_of
from clawctl.train.sample import Sample


@dataclass(frozen=True, slots=True)
class Said:
    """What models say of one turn's completion: streams over its T tokens."""

    sample: Sample
    logprobs_T: Tensor  # of the policy, with gradient
    before_T: Tensor  # of the policy as it is before this step, without
    sampler_T: Tensor
    teacher_T: Tensor | None = None  # None: it has no hint, or the method does not look at sampled tokens alone
    tops: Tops | None = None


@dataclass(frozen=True, slots=True)
class Objective:
    """The method, as one step has it."""

    config: TrainConfig
    terms: Sequence[Term]
    counts: dict[str, int]  # by term: completion tokens of all its turns in the step, on all ranks
    baselines: Baselines
    bound: float = math.inf  # of a turn's size, see `influence`

    def bounded(self, sizes: dict[str, float]) -> "Objective":
        """The same, with the bound that the sizes of all turns of the step give."""
        return replace(self, bound=bound_of(sizes.values(), self.config.turn_bound))

    def size(self, turn: Said) -> float:
        """The estimated norm of the turn's gradient in this step, all terms together, before it is bounded."""
        count, correction = len(turn.before_T), replace(correction_of(self.config), penalty=0.0)
        temperature, sampled_T = turn.sample.temperature, torch.zeros_like(turn.before_T)
        likeliest_T = torch.zeros_like(turn.before_T)
        for term in self.terms:
            if not term.trains(turn.sample):
                continue
            share = term.weight / self.counts[term.name]
            with torch.enable_grad():
                if term.advantages is not None:
                    leaf_T = turn.before_T.detach().clone().requires_grad_()
                    advantages_T = term.advantages(turn.sample, self._scores(turn))
                    loss = policy_loss(leaf_T, turn.sampler_T, advantages_T, [count], 1, correction)
                    sampled_T += share * pushes(loss, leaf_T)
                elif term.divergence is not None and turn.tops is not None:
                    leaf_TK = turn.tops.before_TK.detach().clone().requires_grad_()
                    loss = term.divergence(replace(turn.tops, policy_TK=leaf_TK)).sum()
                    pushes_TK = share * pushes(loss, leaf_TK)
                    likeliest_T += likeliest_norms(pushes_TK, leaf_TK.detach(), temperature)
        ids_T = torch.tensor(turn.sample.completion_ids, device=turn.before_T.device)
        return size_of(sampled_norms(sampled_T, turn.before_T, temperature) + likeliest_T, ids_T)

    def weight(self, turn: Said) -> float:
        """What all advantages and divergences of the turn are multiplied by."""
        return 1.0 if math.isinf(self.bound) else weight_of(self.size(turn), self.bound)

    def loss(self, said: Sequence[Said], measures: Measures) -> Tensor:
        """This part's share of the step's loss: the parts add up to it. What is worth telling goes to `measures`: the
        loss as the formula has it, before turns are bounded."""
        self.note(said, measures)
        weights = {turn.sample.turn_id: self.weight(turn) for turn in said}
        for turn_id, weight in weights.items():
            measures.turns[turn_id].bounded = weight
        total = torch.zeros((), device=said[0].logprobs_T.device)
        for term in self.terms:
            own = [turn for turn in said if term.trains(turn.sample)]
            if own:
                part = self._policy_term if term.advantages else self._divergence
                summand = part(term, own, weights, measures)
                total = total + term.weight * summand
        return total

    def _policy_term(self, term: Term, own: Sequence[Said], weights: dict[str, float], measures: Measures) -> Tensor:
        assert term.advantages is not None
        earned = [term.advantages(turn.sample, self._scores(turn)) for turn in own]
        bounded = [weights[turn.sample.turn_id] * values_T for turn, values_T in zip(own, earned, strict=True)]
        logprobs_N, sampler_N = torch.cat([turn.logprobs_T for turn in own]), torch.cat([turn.sampler_T for turn in own])
        advantages_N, lengths, correction = torch.cat(earned), [len(a) for a in earned], correction_of(self.config)
        how = lengths, self.counts[term.name], correction
        loss = policy_loss(logprobs_N, sampler_N, torch.cat(bounded), *how)
        measures.add_loss(term.name, policy_loss(logprobs_N.detach(), sampler_N, advantages_N, *how))
        acting_N = acting_tokens(logprobs_N.detach(), sampler_N, advantages_N, lengths, correction)
        for turn, values_T, acting_T in zip(own, earned, acting_N.split(lengths), strict=True):
            numbers = measures.turns[turn.sample.turn_id]
            numbers.advantages[term.name], numbers.acting[term.name] = values_T.cpu(), acting_T.cpu()
        return loss

    def _divergence(self, term: Term, own: Sequence[Said], weights: dict[str, float], measures: Measures) -> Tensor:
        assert term.divergence is not None
        losses, bounded = [], []
        for turn in own:
            assert turn.tops is not None
            losses.append(term.divergence(turn.tops))
            bounded.append(weights[turn.sample.turn_id] * losses[-1])
            measures.turns[turn.sample.turn_id].divergences[term.name] = losses[-1].detach().cpu()
        measures.add_loss(term.name, torch.cat(losses).sum() / self.counts[term.name])
        return torch.cat(bounded).sum() / self.counts[term.name]

    def advantages(self, turn: Said) -> Tensor:
        """The turn's advantages in all its terms, weighted, bounded and summed: [T], 0 where it has none."""
        found = torch.zeros_like(turn.before_T)
        for term in self.terms:
            if term.advantages is not None and term.trains(turn.sample):
                found = found + term.weight * term.advantages(turn.sample, self._scores(turn))
        return self.weight(turn) * found

    def note(self, said: Sequence[Said], measures: Measures) -> None:
        for turn in said:
            measures.add_turn(turn.sample.turn_id, turn.before_T, turn.sampler_T, turn.teacher_T)

    def _scores(self, turn: Said) -> Scores:
        return Scores(turn.before_T, turn.teacher_T, self.baselines.of(turn.sample.kind))


def token_counts(terms: Sequence[Term], samples: Sequence[Sample]) -> dict[str, int]:
    """The denominator of each term."""
    return {term.name: sum(len(sample.completion_ids) for sample in samples if term.trains(sample)) for term in terms}
