"""The sequences of a step's turns: as they were sampled, and as the teacher reads them."""

from collections.abc import Mapping, Sequence

from clawctl.config import TrainConfig
from clawctl.train.sample import Sample
from clawctl.trainers.local.model import PolicyModel
from clawctl.trainers.local.trees import Branch, make_branch, tokens_in


def turn_branches(samples: Sequence[Sample], own: Mapping[str, int] | None = None) -> list[Branch]:
    """The turns as they were sampled. `own`: the first token of each turn's own part, by turn id."""
    own = own or {}
    return [make_branch(s.prompt_ids, s.completion_ids, s.temperature, s.allowed, own.get(s.turn_id, 0)) for s in samples]


def teacher_branches(samples: Sequence[Sample]) -> list[Branch]:
    """The same completions after the hinted prompts, over the same sets of tokens. All samples must have a hinted prompt."""
    return [make_branch(s.teacher_prompt_ids or [], s.completion_ids, s.temperature, s.allowed) for s in samples]


def with_open_hints(samples: Sequence[Sample]) -> list[Sample]:
    """The turns with a hint for which no server has returned teacher logprobs."""
    return [sample for sample in samples if sample.teacher_prompt_ids is not None and sample.teacher_logprobs is None]


def taught_in_policy_pass(config: TrainConfig, policy: PolicyModel, samples: Sequence[Sample]) -> set[str]:
    """The turns whose teacher is the policy itself and is computed in the policy's pass, on branches of the same tries. This is
    used if it takes less work than a separate pass without gradient, which recomputes the shared part. A token costs three times as
    much with gradient."""
    hinted = with_open_hints(samples)
    if not hinted or config.teacher != "self" or policy.merge != "tree" or policy.dropouts:
        return set()
    own, teachers = turn_branches(samples), teacher_branches(hinted)
    together = tokens_in([*own, *teachers])
    less_work = 3 * (together - tokens_in(own)) < tokens_in(teachers)
    return {sample.turn_id for sample in hinted} if less_work and together <= config.local.tokens_per_microbatch else set()
