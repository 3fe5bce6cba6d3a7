"""The logprobs of a step's turns from a service: by the policy, and by the teacher that reads the hint.

A service computes the logprobs of given tokens. A method over the policy's K likeliest tokens therefore sends a turn K more times:
the same ids, but at each position of the answer the logprob of another token is asked for. The sampler names these tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from clawctl.config import TrainConfig
from clawctl.extensions.tinker.sdk import RemoteAdapter, Service
from clawctl.extensions.tinker.sequences import TokenSequence, sequence_of
from clawctl.train.advantages import likeliest, of_teacher
from clawctl.train.measures import Measures
from clawctl.train.sample import Sample
from clawctl.trainers.local.objective import LikeliestLogprobs, TurnLogprobs
from clawctl.trainers.local.scores import hinted_prompts, overlap, with_open_hints


@dataclass(frozen=True, slots=True)
class ScoredTurn:
    """A turn's logprobs, and the sequences that carry its gradient: the turn itself, then one for each of the K likeliest tokens.
    With K = 2 and a completion of T tokens: 3 sequences, and `leaves` of the shapes [T] and [T, 2]."""

    logprobs: TurnLogprobs
    sequences: list[TokenSequence]

    @property
    def leaves(self) -> list[Tensor]:
        tops = self.logprobs.tops
        return [self.logprobs.policy_T] if tops is None else [self.logprobs.policy_T, tops.policy_TK]


@dataclass(slots=True)
class Scores:
    """The scored turns of a step, in the order of its samples."""

    turns: list[ScoredTurn]
    read: list[TokenSequence] = field(default_factory=list)  # all that the policy or the teacher read


def score_turns(
    service: Service, client: RemoteAdapter, samples: Sequence[Sample], config: TrainConfig, measures: Measures
) -> Scores:
    """Ask the service for all logprobs that the method needs. A turn without the sampler's logprobs gets those of the policy."""
    k = likeliest(config)
    if k is None:
        return _sampled(service, client, samples, config, measures)
    return _likeliest(client, samples, k, of_teacher(config), measures)


def _sampled(service: Service, client: RemoteAdapter, samples: Sequence[Sample], config: TrainConfig, measures: Measures) -> Scores:
    sampled = [sequence_of(sample) for sample in samples]
    hinted = with_open_hints(samples) if config.uses_hints else []
    taught = [sequence_of(sample, sample.teacher_prompt_ids) for sample in hinted]
    with measures.clock("forward"):
        policy = client.logprobs(sampled if config.teacher == "base" else [*sampled, *taught])
    with measures.clock("teacher"):
        scored = service.base_logprobs(taught) if config.teacher == "base" else policy[len(sampled) :]
    teacher = {sample.turn_id: torch.tensor(values) for sample, values in zip(hinted, scored, strict=True)}
    teacher |= {s.turn_id: torch.tensor(s.teacher_logprobs) for s in samples if s.teacher_logprobs is not None}
    rows = zip(samples, sampled, policy, strict=False)
    turns = [ScoredTurn(_turn(sample, values, teacher), [sequence]) for sample, sequence, values in rows]
    return Scores(turns, [*sampled, *taught])


def _likeliest(client: RemoteAdapter, samples: Sequence[Sample], k: int, named_by_teacher: bool, measures: Measures) -> Scores:
    sampled = [sequence_of(sample) for sample in samples]
    hinted = {index: [sequence_of(s, prompt) for prompt in hinted_prompts(s)] for index, s in enumerate(samples)}
    hinted = {index: prompts for index, prompts in hinted.items() if prompts}
    plain, taught = [sampled[index] for index in hinted], [sequence for prompts in hinted.values() for sequence in prompts]
    with measures.clock("teacher"):
        named = iter(client.likeliest([*plain, *taught], k))
        ids = {index: next(named) for index in hinted}
        others = {index: [next(named) for _ in prompts] for index, prompts in hinted.items()}
    if named_by_teacher:
        ids = {index: prompts[0] for index, prompts in others.items()}
    columns = {index: sampled[index].scoring(ids[index]) for index in hinted}
    teacher_columns = {index: [sequence.scoring(ids[index]) for sequence in prompts] for index, prompts in hinted.items()}
    read = [*sampled, *(c for kept in columns.values() for c in kept)]
    read += [c for prompts in teacher_columns.values() for kept in prompts for c in kept]
    with measures.clock("forward"):
        answers = iter(client.logprobs(read))
    policy = [next(answers) for _ in sampled]
    before = {index: _columns(answers, k) for index in hinted}
    teacher = {index: torch.stack([_columns(answers, k) for _ in prompts]) for index, prompts in hinted.items()}
    turns = []
    for index, (sample, sequence, values) in enumerate(zip(samples, sampled, policy, strict=True)):
        turn = _turn(sample, values, {})
        if index in hinted:
            ids_TK = torch.tensor(ids[index])
            overlap_HT = torch.stack([overlap(ids_TK, torch.tensor(kept)) for kept in others[index]])
            now_TK = before[index].clone().requires_grad_()
            turn = replace(turn, tops=LikeliestLogprobs(now_TK, before[index], teacher[index], overlap_HT, ids_TK))
        turns.append(ScoredTurn(turn, [sequence, *columns.get(index, [])]))
    return Scores(turns, [*plain, *taught, *read])


def _columns(answers: Iterator[list[float]], k: int) -> Tensor:
    """The next K answers as one tensor [T, K]."""
    return torch.tensor([next(answers) for _ in range(k)]).T


def _turn(sample: Sample, values: Sequence[float], teacher: Mapping[str, Tensor]) -> TurnLogprobs:
    sample = sample.scored(values) if sample.rescored or sample.logprobs is None else sample
    now_T = torch.tensor(values, dtype=torch.float32)
    sampler_T = torch.tensor(sample.logprobs, dtype=torch.float32)
    return TurnLogprobs(sample, now_T.clone().requires_grad_(), now_T, sampler_T, teacher.get(sample.turn_id))
