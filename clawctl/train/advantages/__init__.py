"""The differences between methods, as plain data: which turns have a term, its weight, and the source of its advantages.

A method is a list of terms. The advantage of a reward is a number that is computed here, before the step. The advantages of a hint
need the logprobs of a teacher, so a term only specifies what the trainer measures. Each term is one policy loss, or one divergence,
over its own global token count. So turns without a hint do not dilute the distillation term, and no signal dominates the other.
"""

from dataclasses import dataclass
from typing import Literal

from clawctl.config import TrainConfig
from clawctl.config.methods import Both, Combine, Hybrid, Opd, OpdTopk
from clawctl.train.advantages.off_policy import clip_of
from clawctl.train.sample import Sample


@dataclass(frozen=True, slots=True)
class Reward:
    """Each token of a turn has the turn's advantage (`Batch.advantage`). OpenClaw-RL (arXiv 2603.10165): A_t = r."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A_t = log p_teacher(a_t | prompt + hint, a_<t) - log p_policy(a_t | prompt, a_<t), clamped to ± `clip` (arXiv 2603.10165)."""

    clip: float


@dataclass(frozen=True, slots=True)
class Divergence:
    """KL between the policy and the teacher with the hint: KL(policy ‖ teacher), or with `forward` KL(teacher ‖ policy).

    It covers the `k` likeliest tokens of the policy, or of the teacher, at each position and one bin for all others. It is
    differentiable, and not a detached reward, whose expected gradient is zero on-policy. At a given position the expectation over
    tokens is exact, so no ratio is needed. Only the path of the answer is off-policy, and `max_staleness` bounds that.
    """

    k: int
    forward: bool = False
    of_teacher: bool = False  # the k tokens are the teacher's likeliest


@dataclass(frozen=True, slots=True)
class Overlap:
    """OpenClaw-RL's overlap-guided distillation (arXiv 2603.10165 v2) over the policy's `k` likeliest tokens.

    One next state may provide several hints. The most useful teacher is one that the policy can follow: its likeliest tokens
    overlap most with the policy's own. At position t, O[h, t] = |top-k of the policy before the step ∩ top-k of the teacher with
    hint h|. `choice` is argmax_h sum_t O[h, t] for the whole answer (`sequence`), argmax_h O[h, t] at each position (`token`), or
    the shortest hint; in a tie the shorter hint. The ratio is clipped to 1 - `low` … 1 + `high`.
    """

    k: int
    choice: Literal["sequence", "token", "shortest"]
    clip: float  # clips the advantage
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of the loss, with its own denominator: the completion tokens of all its turns in the step."""

    name: str  # "binary"
    weight: float
    signal: Reward | Gap | Divergence | Overlap

    def trains(self, sample: Sample) -> bool:
        """Whether a turn has this term."""
        return sample.reward is not None if isinstance(self.signal, Reward) else sample.teacher_prompt_ids is not None


def terms_of(config: TrainConfig) -> list[Term]:
    """Return the terms of the recipe's method."""
    method, hint = config.method, _hint_signal(config)
    if hint is None:  # `binary` and `grpo` differ in `credit`
        return [Term(method.kind, 1.0, Reward())]
    if isinstance(method, Both):  # a turn may have both: the reward penalises the whole answer, the hint the tokens at fault
        return [Term("binary", method.weight_binary, Reward()), Term("opd", method.weight_opd, hint)]
    return [Term(method.kind, 1.0, hint)]


def _hint_signal(config: TrainConfig) -> Gap | Divergence | Overlap | None:
    match method := config.method:
        case OpdTopk() | Combine(topk=int()):
            k = method.topk or 50  # as OpenClaw-RL
            return Divergence(k, method.divergence == "forward", method.topk_of == "teacher")
        case Hybrid():
            return Overlap(method.topk or 4, method.hint_choice, method.gap_clip, *clip_of(config, "hybrid"))
        case Opd() | Combine():
            return Gap(method.gap_clip)
        case _:
            return None


def likeliest(config: TrainConfig) -> int | None:
    """Return the number of likeliest tokens that the method compares at each position, or None if it uses only the sampled
    tokens.
    """
    signal = _hint_signal(config)
    return signal.k if isinstance(signal, Divergence | Overlap) else None


def of_teacher(config: TrainConfig) -> bool:
    """Whether the compared tokens are the likeliest ones of the teacher, and not of the policy."""
    signal = _hint_signal(config)
    return isinstance(signal, Divergence) and signal.of_teacher
