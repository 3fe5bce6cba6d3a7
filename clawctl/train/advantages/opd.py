"""On-policy distillation from hindsight: how much more likely each token is if the prompt contains the hint.

OpenClaw-RL (arXiv 2603.10165): A_t = log p_teacher(a_t | prompt + hint, a_<t) - log p_policy(a_t | prompt, a_<t). Unlike there, the
gap is clamped, both sides use the sampler's temperature, and the first token has its true logprob.
"""

from functools import partial

from torch import Tensor

from clawctl.config import TrainConfig
from clawctl.train.advantages.term import Scores, Term
from clawctl.train.sample import Sample


def terms(config: TrainConfig) -> list[Term]:
    return [Term("opd", 1.0, has_hint, partial(advantages, clip=config.gap_clip))]


def has_hint(sample: Sample) -> bool:
    return sample.teacher_prompt_ids is not None


def advantages(sample: Sample, scores: Scores, clip: float) -> Tensor:
    """The gap, clamped to ± clip."""
    assert scores.teacher_T is not None
    return (scores.teacher_T - scores.policy_T).clamp(-clip, clip)
