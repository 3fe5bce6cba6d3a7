"""The reward term, and a distillation that selects its hint: OpenClaw-RL's overlap-guided method (arXiv 2603.10165 v2).

One next state may provide several hints. The most useful teacher is one that the policy can follow: its likeliest tokens overlap
most with the policy's own. O[h, t] = |top-k of the policy before the step ∩ top-k of the teacher with hint h|, at position t.
`sequence` takes argmax_h sum_t O[h, t] for the whole answer, `token` argmax_h O[h, t] at each position; in a tie the shorter hint.
The loss is `losses.subset_loss` on the policy's top-k.
"""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from clawctl.config import TrainConfig
from clawctl.train.advantages import binary, opd
from clawctl.train.advantages.term import Term, Tops
from clawctl.trainers.local.losses import subset_loss
from clawctl.trainers.local.off_policy import clip_of

TOPK = 4


def terms(config: TrainConfig) -> list[Term]:
    low, high = clip_of(config, "hybrid")
    loss = partial(divergence, choice=config.hint_choice, clip=config.gap_clip, low=low, high=high)
    rewarded = [replace(term, weight=config.weight_binary) for term in binary.terms(config)]
    return [*rewarded, Term("opd", config.weight_opd, opd.has_hint, divergence=loss)]


def divergence(tops: Tops, choice: str, clip: float, low: float, high: float) -> Tensor:
    """Of the chosen teacher."""
    chosen_T = chosen_hints(tops.overlap_HT, choice)
    teacher_TK = tops.teacher_HTK[chosen_T, torch.arange(len(chosen_T), device=chosen_T.device)]
    return subset_loss(tops.policy_TK, tops.before_TK, teacher_TK, clip, low, high)


def chosen_hints(overlap_HT: Tensor, choice: str) -> Tensor:
    """The hint selected at each position: [T]. Hints are ordered by length, and argmax takes the first in a tie."""
    if choice == "token":
        return overlap_HT.argmax(0)
    best = 0 if choice == "shortest" else int(overlap_HT.sum(1).argmax())
    return torch.full((overlap_HT.shape[1],), best, device=overlap_HT.device)
