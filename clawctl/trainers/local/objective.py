"""Computes the loss of some turns from their logprobs: the terms of the method, each over its own global token count, or a user's
own loss in place of the policy loss."""

import dis
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from clawctl.config import TrainConfig
from clawctl.errors import ClawError
from clawctl.plugins import LOSS, LOSS_STREAMS, LossSettings, load_function, parameters_by_name
from clawctl.train.advantages import Divergence, Gap, Overlap, Reward, Term, likeliest, terms_of
from clawctl.train.advantages.off_policy import correction_of
from clawctl.train.measures import Measures, TurnNumbers
from clawctl.train.sample import Batch, Sample
from clawctl.trainers.local.batches import Microbatch
from clawctl.trainers.local.losses import policy_loss, subset_loss, topk_divergence, unclipped_tokens
from clawctl.trainers.local.model import PolicyModel

log = logging.getLogger("clawctl.train")
CUSTOM = "custom"  # the term of a custom loss
_CURE = "return a scalar tensor that depends on the log-probabilities of the policy"
_TRIAL = 4  # tokens, with which a custom loss is called as a test
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


# ---- a user's own loss ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnLoss:
    """A user's loss, and the streams that its parameters get: {"student_logprobs": "policy", "clip_ratio": None}."""

    function: Callable[..., Any]
    streams: Mapping[str, str | None]  # None: a value of the recipe, or the function's default
    reads_reference: bool
    by_position: bool
    is_share: bool = True  # its value is a share of the step's loss, not the mean over its tokens
    gae: list[Tensor] = field(default_factory=list)  # what `compute_gae` returns in this call

    def takes(self, *streams: str) -> bool:
        return bool({*self.streams.values()} & {*streams})

    @property
    def needs_reference(self) -> bool:
        return self.reads_reference or self.takes("reference_vocabulary")

    def __call__(self, given: Mapping[str, Any], settings: LossSettings) -> Any:
        self.gae[:] = [given["gae"]]
        named = {name: given[stream] for name, stream in self.streams.items() if stream is not None}
        if self.by_position:
            result = self.function(*named.values())
        else:
            result = self.function(**named, **_set_in_recipe(self.function, self.streams, settings))
        return result[0] if isinstance(result, tuple) and result else result  # a loss may return its metrics as well


def load_custom_loss(config: TrainConfig, vocabulary: int) -> OwnLoss | None:
    """The custom loss of the recipe, called with a few made-up tokens as a test. None if the recipe names none. Raises ClawError
    (exit code 2)."""
    if config.custom_loss is None:
        return None
    if likeliest(config) is not None:
        problem = f"train.custom_loss gets no advantages with method {config.method.kind}, which compares distributions"
        raise ClawError(problem, "use binary, grpo, opd or combine", 2)
    function = load_function(config.custom_loss, "train.custom_loss", LOSS, LOSS_STREAMS)
    parameters = parameters_by_name(function, LOSS_STREAMS)
    names = list(inspect.signature(function).parameters)[: len(LOSS)] if parameters is None else [p.name for p in parameters]
    streams = {name: LOSS_STREAMS.get(LOSS[index] if parameters is None else name) for index, name in enumerate(names)}
    reference = next((name for name, stream in streams.items() if stream == "reference"), None)
    loss = OwnLoss(function, streams, reference is not None and _reads(function, reference), parameters is None)
    if loss.takes("teacher", "hinted") and not config.uses_hints:
        raise ClawError(f"{config.custom_loss} needs a teacher, and method {config.method.kind} has none", "use opd or combine", 2)
    if isinstance(function, FunctionType):
        function.__globals__.setdefault("compute_gae", lambda rewards, *others, **named: loss.gae[0])
    try:
        (first, grad), (_, other) = (_try(loss, config, vocabulary, count) for count in (_TRIAL, 2 * _TRIAL))
    except Exception as error:
        raise ClawError(f"train.custom_loss {config.custom_loss} fails on four tokens: {error!r}", _CURE, 2) from error
    _check(first, config, "")
    return replace(loss, is_share=grad is not None and other is not None and not torch.equal(grad, other), gae=loss.gae)


def _try(loss: OwnLoss, config: TrainConfig, vocabulary: int, count: int) -> tuple[Any, Tensor | None]:
    """The value and its gradient in a step of `count` tokens."""
    logits = torch.linspace(-1, 1, _TRIAL * vocabulary).reshape(_TRIAL, vocabulary).roll(1, 0).requires_grad_()
    ids, turns, ones = torch.arange(_TRIAL) % vocabulary, torch.zeros(_TRIAL, dtype=torch.long), torch.ones(_TRIAL)
    policy = logits.log_softmax(-1).gather(1, ids[:, None]).squeeze(1)
    given = {
        "policy": policy, "reference": policy.detach() - 0.1, "teacher": policy.detach() + 0.1, "sampler": policy.detach(),
        "rewards": ones, "scalar_rewards": ones, "advantages": ones, "hinted": ones, "gae": ones, "vocabulary": logits,
        "reference_vocabulary": logits.detach(), "config": LossSettings(config, ids, policy.detach(), turns, count, 1),
    }  # fmt: skip
    value = loss(given, given["config"])  # type: ignore[arg-type]
    has_gradient = isinstance(value, Tensor) and value.ndim == 0 and value.requires_grad
    return value, torch.autograd.grad(value, logits, allow_unused=True)[0] if has_gradient else None


def _set_in_recipe(function: Callable[..., Any], names: Mapping[str, str | None], settings: LossSettings) -> dict[str, Any]:
    """The values of parameters such as `clip_ratio` that the recipe sets to something other than clawctl's default."""
    default = TrainConfig()
    values = {name: settings.train.get(name) for name, stream in names.items() if stream is None}
    return {name: value for name, value in values.items() if value is not None and value != default.get(name)}


def _reads(function: Callable[..., Any], name: str) -> bool:
    """Whether the code of a function uses its parameter `name`; true for other callables."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    read = [step.argval for step in dis.get_instructions(code)] if code is not None else [name]
    return name in read or any(name in some for some in read if isinstance(some, tuple))


def _check(result: Any, config: TrainConfig, where: str) -> None:
    """Raises ClawError (exit code 2) if the result is not a scalar tensor with gradient."""
    if not isinstance(result, Tensor) or result.ndim != 0 or not result.requires_grad:
        got = f"a tensor of shape {list(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
        got += " without gradient" if isinstance(result, Tensor) and not result.requires_grad else ""
        raise ClawError(f"train.custom_loss {config.custom_loss} returned {got}{where}", _CURE, 2)


def logits_of(policy: PolicyModel, batch: Microbatch, causal: Any = None) -> Tensor:
    """The complete logits [N, vocabulary] for a custom loss that asks for them. They take much memory. A token that was not allowed
    at its position has the logit `masks.HIDDEN`."""
    causal = causal if causal is not None else policy.causal
    head = causal.get_output_embeddings()
    logits_NV: Tensor = policy.compute(lambda: head(policy.hidden(batch, causal)).float(), causal)
    logits_NV = logits_NV / batch.temperature_N[:, None]
    return logits_NV if batch.masks is None else batch.masks.hide(logits_NV, slice(None))


def logprobs_of(logits_NV: Tensor, batch: Microbatch) -> Tensor:
    return logits_NV.log_softmax(-1).gather(1, batch.targets_N[:, None]).squeeze(1)


def custom_loss(
    loss: OwnLoss, streams: Mapping[str, Tensor | None], turns: Sequence[TurnLogprobs], objective: Objective, microbatch: Microbatch
) -> Tensor:
    """The share of these turns in the step's loss. Logs the traceback and raises ClawError if the user's function fails."""
    config, step, terms = objective.config, objective.batch.step, objective.terms
    policy_N = torch.cat([turn.policy_T for turn in turns])
    lengths = torch.tensor([len(turn.policy_T) for turn in turns], device=policy_N.device)
    turns_N = torch.arange(len(turns), device=policy_N.device).repeat_interleave(lengths)
    rewards_N = policy_N.new_tensor([torch.nan if turn.sample.reward is None else turn.sample.reward for turn in turns])[turns_N]
    hinted_N = policy_N.new_tensor([float(turn.teacher_T is not None) for turn in turns])[turns_N]
    sampler_N = torch.cat([turn.sampler_T for turn in turns])
    settings = LossSettings(config, microbatch.targets_N, sampler_N, turns_N, objective.counts[CUSTOM], step)
    tokens, of_step = len(policy_N), objective.counts[CUSTOM]
    if loss.takes("hinted"):
        tokens, of_step = int(hinted_N.sum()), sum(objective.counts[term.name] for term in terms if isinstance(term.signal, Gap))
        if not tokens:
            return 0.0 * policy_N.sum()  # a mean over no tokens
    given = {
        **streams, "policy": policy_N, "sampler": sampler_N, "hinted": hinted_N, "rewards": rewards_N, "config": settings,
        "scalar_rewards": rewards_N.nan_to_num(), "advantages": torch.cat([objective.advantages(turn) for turn in turns]),
        "teacher": torch.cat([turn.policy_T if turn.teacher_T is None else turn.teacher_T for turn in turns]),
        "gae": torch.cat([objective.reward_advantages(turn) for turn in turns]),
    }  # fmt: skip
    try:
        result: Any = loss(given, settings)
    except Exception as error:  # user code: its traceback is logged, and committed steps are kept
        problem = f"train.custom_loss {config.custom_loss} fails in step {step}: {error!r}"
        log.error("%s", problem, exc_info=error)
        raise ClawError(
            problem, "fix it and start again; earlier steps are kept, and the turns of this step stay available"
        ) from error
    _check(result, config, f" in step {step}")
    assert isinstance(result, Tensor)
    return result if loss.is_share else result * (tokens / of_step)
