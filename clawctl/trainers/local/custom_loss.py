"""A user-defined loss in place of the policy loss."""

import logging
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from clawctl.config import TrainConfig
from clawctl.errors import ClawError
from clawctl.plugins import LOSS, CustomLoss, LossSettings, load_function
from clawctl.train.advantages import likeliest
from clawctl.trainers.local.batches import Microbatch
from clawctl.trainers.local.model import PolicyModel
from clawctl.trainers.local.objective import CUSTOM, Objective, TurnLogprobs

log = logging.getLogger("clawctl.train")

_CURE = "return a scalar tensor that depends on policy_logits: a sum over tokens, divided by config.count"

_NO_REFERENCE = "reference_logits is None here; it needs train.lora or train.teacher: base"


def load_custom_loss(config: TrainConfig, vocabulary: int) -> CustomLoss | None:
    """The custom loss of the recipe, called once with two made-up tokens as a test. None if the recipe names none. Raises ClawError
    (exit code 2)."""
    if config.custom_loss is None:
        return None
    if likeliest(config) is not None:
        problem = f"train.custom_loss gets no advantages with method {config.method}, which compares distributions"
        raise ClawError(problem, "use binary, grpo, opd or combine", 2)
    loss = cast(CustomLoss, load_function(config.custom_loss, "train.custom_loss", LOSS))
    logits = torch.zeros(2, vocabulary, requires_grad=True)
    ids, turns, zeros = torch.tensor([0, 1]), torch.zeros(2, dtype=torch.long), torch.zeros(2)
    settings = LossSettings(config, ids, zeros, turns, 2, 1)
    reference = torch.zeros(2, vocabulary) if config.lora is not None or config.needs_second_model else None
    try:
        result: Any = loss(logits, reference, torch.ones(2), torch.ones(2), settings)
    except Exception as error:
        cure = _CURE if reference is not None else f"{_CURE}; {_NO_REFERENCE}"
        raise ClawError(f"train.custom_loss {config.custom_loss} fails on two tokens: {error!r}", cure, 2) from error
    _check(result, config, "")
    return loss


def _check(result: Any, config: TrainConfig, where: str) -> None:
    """Raises ClawError (exit code 2) if the result is not a scalar tensor with gradient."""
    if not isinstance(result, Tensor) or result.ndim != 0 or not result.requires_grad:
        got = f"a tensor of shape {list(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
        got += " without gradient" if isinstance(result, Tensor) and not result.requires_grad else ""
        raise ClawError(f"train.custom_loss {config.custom_loss} returned {got}{where}", _CURE, 2)


def logits_of(policy: PolicyModel, batch: Microbatch, causal: Any = None) -> Tensor:
    """The complete logits [N, vocabulary] for a custom loss; other methods avoid them because of their memory. A token that was not
    allowed at its position has the logit `masks.HIDDEN`."""
    causal = causal if causal is not None else policy.causal
    head = causal.get_output_embeddings()
    logits_NV: Tensor = policy.compute(lambda: head(policy.hidden(batch, causal)).float(), causal)
    logits_NV = logits_NV / batch.temperature_N[:, None]
    return logits_NV if batch.masks is None else batch.masks.hide(logits_NV, slice(None))


def logprobs_of(logits_NV: Tensor, batch: Microbatch) -> Tensor:
    return logits_NV.log_softmax(-1).gather(1, batch.targets_N[:, None]).squeeze(1)


def custom_loss(
    loss: CustomLoss,
    logits: tuple[Tensor, Tensor | None],
    turns: Sequence[TurnLogprobs],
    objective: Objective,
    microbatch: Microbatch,
) -> Tensor:
    """The share of these turns in the step's loss. Logs the traceback and raises ClawError if the user's function fails."""
    device = logits[0].device
    lengths = torch.tensor([len(turn.policy_T) for turn in turns], device=device)
    rewards = torch.tensor([torch.nan if turn.sample.reward is None else turn.sample.reward for turn in turns], device=device)
    turns_N = torch.arange(len(turns), device=device).repeat_interleave(lengths)
    sampler_N = torch.cat([turn.sampler_T for turn in turns])
    config, step = objective.config, objective.batch.step
    settings = LossSettings(config, microbatch.targets_N, sampler_N, turns_N, objective.counts[CUSTOM], step)
    advantages_N = torch.cat([objective.advantages(turn) for turn in turns])
    try:
        result: Any = loss(*logits, rewards[turns_N], advantages_N, settings)
    except Exception as error:  # user code: its traceback is logged, and committed steps are kept
        problem = f"train.custom_loss {config.custom_loss} fails in step {step}: {error!r}"
        log.error("%s", problem, exc_info=error)
        raise ClawError(
            problem, "fix it and start again; earlier steps are kept, and the turns of this step stay available"
        ) from error
    _check(result, config, f" in step {step}")
    assert isinstance(result, Tensor)
    return result
