"""On-policy distillation on whole distributions: the policy moves towards the teacher with the hint, at each position of its own
answer, over the policy's likeliest tokens and one bin for all others.

A differentiable reverse KL (`losses.topk_divergence`), never a detached reward, whose expected gradient is zero on-policy. At a
given position the expectation over tokens is exact, so no ratio is needed. Only the path of the answer is off-policy, and
`max_staleness` bounds that.
"""

import torch
from torch import Tensor

from clawctl.config import TrainConfig
from clawctl.train.advantages import opd
from clawctl.train.advantages.term import Term, Tops
from clawctl.trainers.local.losses import topk_divergence

TOPK = 50  # as OpenClaw-RL


def terms(config: TrainConfig) -> list[Term]:
    return [Term("opd_topk", 1.0, opd.has_hint, divergence=divergence)]


def divergence(tops: Tops) -> Tensor:
    """Of the one teacher."""
    (teacher_TK,) = torch.unbind(tops.teacher_HTK)
    return topk_divergence(tops.policy_TK, teacher_TK)
