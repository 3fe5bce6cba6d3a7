"""From the logprobs of some turns to their loss: the terms of the method, each over its own global token count."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clawctl.config import TrainConfig
from clawctl.train.advantages import Scores, Term, Tops
from clawctl.train.advantages.binary import Baselines
from clawctl.train.sample import Sample
from clawctl.trainers.local.losses import acting_tokens, policy_loss
from clawctl.trainers.local.measures import Measures
from clawctl.trainers.local.off_policy import correction_of


@dataclass(frozen=True, slots=True)
class Said:
    """The logprobs of one turn's completion by the models: streams over its T tokens."""

    sample: Sample
    logprobs_T: Tensor  # of the policy, with gradient
    before_T: Tensor  # by the policy before this step, without gradient
    sampler_T: Tensor
    teacher_T: Tensor | None = None  # None: it has no hint, or the method does not use sampled tokens only
    tops: Tops | None = None


@dataclass(frozen=True, slots=True)
class Objective:
    """The method, as one step has it."""

    config: TrainConfig
    terms: Sequence[Term]
    counts: dict[str, int]  # by term: completion tokens of all its turns in the step, on all ranks
    baselines: Baselines

    def loss(self, said: Sequence[Said], measures: Measures, weights: Mapping[str, float]) -> Tensor:
        """This part's share of the step's loss; the parts add up to it. Measurements go to `measures`, with the loss before the
        `weights` of turns (by turn id; 1 if missing)."""
        self.note(said, measures)
        total = torch.zeros((), device=said[0].logprobs_T.device)
        for term in self.terms:
            own = [turn for turn in said if term.trains(turn.sample)]
            if own:
                part = self._policy_term if term.advantages else self._divergence
                summand = part(term, own, [weights.get(turn.sample.turn_id, 1.0) for turn in own], measures)
                total = total + term.weight * summand
        return total

    def _policy_term(self, term: Term, own: Sequence[Said], weights: Sequence[float], measures: Measures) -> Tensor:
        assert term.advantages is not None
        earned = [term.advantages(turn.sample, self._scores(turn)) for turn in own]
        logprobs_N, sampler_N = torch.cat([turn.logprobs_T for turn in own]), torch.cat([turn.sampler_T for turn in own])
        advantages_N, lengths, correction = torch.cat(earned), [len(a) for a in earned], correction_of(self.config)
        how = sampler_N, advantages_N, lengths, self.counts[term.name], correction
        weights_N = torch.cat([torch.full_like(a, weight) for a, weight in zip(earned, weights, strict=True)])
        loss = policy_loss(logprobs_N, *how, weights_N)
        measures.add_loss(term.name, policy_loss(logprobs_N.detach(), *how))
        acting_N = acting_tokens(logprobs_N.detach(), sampler_N, advantages_N, lengths, correction)
        for turn, values_T, acting_T in zip(own, earned, acting_N.split(lengths), strict=True):
            numbers = measures.turns[turn.sample.turn_id]
            numbers.advantages[term.name], numbers.acting[term.name] = values_T.cpu(), acting_T.cpu()
        return loss

    def _divergence(self, term: Term, own: Sequence[Said], weights: Sequence[float], measures: Measures) -> Tensor:
        assert term.divergence is not None
        losses, bounded = [], []
        for turn, weight in zip(own, weights, strict=True):
            assert turn.tops is not None
            losses.append(term.divergence(turn.tops))
            bounded.append(weight * losses[-1])
            measures.turns[turn.sample.turn_id].divergences[term.name] = losses[-1].detach().cpu()
        measures.add_loss(term.name, torch.cat(losses).sum() / self.counts[term.name])
        return torch.cat(bounded).sum() / self.counts[term.name]

    def advantages(self, turn: Said) -> Tensor:
        """The turn's advantages in all its terms, weighted and summed: [T], 0 without any."""
        found = torch.zeros_like(turn.before_T)
        for term in self.terms:
            if term.advantages is not None and term.trains(turn.sample):
                found = found + term.weight * term.advantages(turn.sample, self._scores(turn))
        return found

    def note(self, said: Sequence[Said], measures: Measures) -> None:
        for turn in said:
            measures.add_turn(turn.sample.turn_id, turn.before_T, turn.sampler_T, turn.teacher_T)

    def _scores(self, turn: Said) -> Scores:
        return Scores(turn.before_T, turn.teacher_T, self.baselines.of(turn.sample.kind))


def token_counts(terms: Sequence[Term], samples: Sequence[Sample]) -> dict[str, int]:
    """The denominator of each term."""
    return {term.name: sum(len(sample.completion_ids) for sample in samples if term.trains(sample)) for term in terms}
