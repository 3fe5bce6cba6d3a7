"""A user-defined loss in place of the policy loss."""

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
from clawctl.train.advantages import Gap, likeliest
from clawctl.trainers.local.batches import Microbatch
from clawctl.trainers.local.model import PolicyModel
from clawctl.trainers.local.objective import CUSTOM, Objective, TurnLogprobs

log = logging.getLogger("clawctl.train")

_CURE = "return a scalar tensor that depends on the log-probabilities of the policy"
_TRIAL = 4  # tokens


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
