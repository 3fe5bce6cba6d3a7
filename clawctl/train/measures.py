"""The measurements of a step: one row of `train/steps.jsonl`, and the numbers of each turn."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clawctl.run.reward import PRACTICE, signs
from clawctl.train.sample import Batch, Sample

Floats = NDArray[np.float32]

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(slots=True)
class TurnNumbers:
    """The numbers of one turn in a step: streams over its T completion tokens, such as [-0.1, -2.3, -0.7]."""

    policy_T: Floats  # logprobs of the policy before the step
    sampler_T: Floats
    teacher_T: Floats | None = None
    bounded: float = 1.0  # loss factor that a trainer set to bound the turn's gradient
    anchored: float = 1.0  # loss factor of an anchor that the policy answers differently
    advantages: dict[str, Floats] = field(default_factory=dict)  # by term
    acting: dict[str, NDArray[np.bool_]] = field(default_factory=dict)  # by term: False for masked tokens
    divergences: dict[str, Floats] = field(default_factory=dict)  # by term; for terms without advantages
    # By token id: how far the teacher with the hint would raise (> 0) or lower its probability
    pulls: dict[int, float] = field(default_factory=dict)

    @property
    def log_ratio_T(self) -> Floats:
        return self.policy_T - self.sampler_T

    @property
    def finite(self) -> bool:
        """Whether the turn's loss and its gradient norm, which squares the ratio, are finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isfinite(np.square(np.exp(self.log_ratio_T)) + np.square(self.log_ratio_T)).all())


@dataclass(slots=True)
class Measures:
    """The measurements of one process for its part of a step; `merged` combines those of several."""

    losses: dict[str, float] = field(default_factory=dict)  # by term, each already divided by its global count
    turns: dict[str, TurnNumbers] = field(default_factory=dict)  # by turn id
    computed_tokens: int = 0  # without padding, including prompts and teacher passes; shared tokens count once
    sequence_tokens: int = 0  # the same if each turn were a separate sequence
    cuts: int = 0  # how often tries were split because they were too long for a microbatch
    recomputed_tokens: int = 0  # tokens that were computed again because of that
    flops: float = 0.0  # floating-point operations of the model's matrix products
    peak_memory: int = 0  # bytes
    seconds: dict[str, float] = field(default_factory=dict)  # by phase

    @contextmanager
    def clock(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - begin

    def add_work(self, other: "Measures") -> None:
        """Add the time and operations of passes whose turns and tokens were counted before."""
        self.flops += other.flops
        for phase, seconds in other.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def add_loss(self, term: str, loss: float) -> None:
        self.losses[term] = self.losses.get(term, 0.0) + loss


def merged(parts: Sequence[Measures]) -> Measures:
    """Combine the measurements of a whole step.

    Seconds are those of the first part, because the processes work in parallel. Memory is the maximum over the parts.
    """
    whole = Measures(seconds=parts[0].seconds, peak_memory=max(part.peak_memory for part in parts))
    for part in parts:
        for name, loss in part.losses.items():
            whole.losses[name] = whole.losses.get(name, 0.0) + loss
        whole.turns |= part.turns
        whole.computed_tokens += part.computed_tokens
        whole.sequence_tokens += part.sequence_tokens
        whole.cuts += part.cuts
        whole.recomputed_tokens += part.recomputed_tokens
        whole.flops += part.flops
    return whole


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a batch: the metrics of the step, or the reason why no step was made."""

    row: dict[str, Any] | None  # row of steps.jsonl (`step_row`); None: no weight changed
    turns: dict[str, TurnNumbers] = field(default_factory=dict)  # by turn id
    facts: "StepFacts | None" = None  # None: no step was made
    problem: str | None = None  # why no step was made
    broken: tuple[str, ...] = ()  # ids of the turns that caused the problem; empty: no single turn did
    refused: Mapping[str, str] = field(default_factory=dict)  # turns that the step left out, and why; no step can train them
    wrong_model: bool = False  # most turns of the newest version disagree with the model, so no other batch will succeed


@dataclass(frozen=True, slots=True)
class StepFacts:
    """The values of a row that are not measurements."""

    method: str
    weights: dict[str, float]  # by term
    counts: dict[str, int]  # by term
    grad_norm: float | None  # None: the service does not report it
    lr: float
    peak_flops: float | None  # floating-point operations per second of all devices together; None: not known
    clip_grad: float
    correction: dict[str, Any] | None  # settings of the off-policy correction; None: a custom loss applies its own
    kl_base: float | None = None  # KL divergence of the new version from version 0, in nats a token; None: not measured
    moved: float | None = None  # the same from the version before the step, for `lr: auto`


def step_row(whole: Measures, batch: Batch, facts: StepFacts) -> dict[str, Any]:
    """Return the row, without the seconds of later phases (checkpoint, publish)."""
    samples, turns = batch.samples, list(whole.turns.values())
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    staleness = [batch.staleness(sample) for sample in samples]
    mismatch = [np.abs(whole.turns[s.turn_id].log_ratio_T) for s in samples if is_newest(s, batch.version)]
    terms = {name: _term(name, whole, facts) for name in whole.losses}
    spent = sum(whole.seconds.values())
    trained = sum(len(sample.completion_ids) for sample in samples)
    return {
        "step": batch.step,
        "version": batch.step,
        "time": time.time(),
        "method": facts.method,
        "turns": len(samples),
        "positive": signs(rewards).good,
        "negative": signs(rewards).bad,
        "hints": sum(sample.teacher_prompt_ids is not None for sample in samples),
        "imported": sum(sample.imported for sample in samples),
        "practised": sum(sample.worth == PRACTICE for sample in samples),  # distilled from notes alone
        "rescored": sum(sample.rescored for sample in samples),  # with placeholders for secrets in their prompts
        "rescored_max": max((sample.rescored_by for sample in samples if sample.rescored_by is not None), default=None),
        "loss": sum(facts.weights[name] * loss for name, loss in whole.losses.items()),
        "terms": terms,
        "reward_mean": sum(rewards) / len(rewards) if rewards else None,
        "reward_std": float(np.std(np.array(rewards, np.float32))) if rewards else None,
        "ratio_quantiles": _quantiles(np.exp(np.concatenate([turn.log_ratio_T for turn in turns]))),
        "masked_fraction": sum(t["masked_fraction"] * t["tokens"] for t in terms.values())
        / sum(t["tokens"] for t in terms.values()),
        "mismatch_mean": float(np.concatenate(mismatch).mean()) if mismatch else None,
        "mismatch_max": float(np.concatenate(mismatch).max()) if mismatch else None,
        "staleness_mean": sum(staleness) / len(staleness),
        "staleness_max": max(staleness),
        "correction": facts.correction,
        "bounded_turns": sum(turn.bounded < 1 for turn in turns),
        "grad_norm": facts.grad_norm,
        "clip_grad": facts.clip_grad,
        "kl_base": facts.kl_base,
        "moved": facts.moved,
        "lr": facts.lr,
        "trained_tokens": trained,
        "computed_tokens": whole.computed_tokens,
        "sequence_tokens": whole.sequence_tokens,
        "tree_saving": whole.sequence_tokens / whole.computed_tokens,
        "cuts": whole.cuts,
        "recomputed_tokens": whole.recomputed_tokens,
        "tokens_per_s": whole.computed_tokens / spent,
        "trained_tokens_per_s": trained / spent,
        "tflops": whole.flops / spent / 1e12,
        "mfu": whole.flops / spent / facts.peak_flops if facts.peak_flops else None,
        "peak_memory_bytes": whole.peak_memory,
        "model_s": spent,
        "seconds": dict(whole.seconds),
    }


def _term(name: str, whole: Measures, facts: StepFacts) -> dict[str, Any]:
    """Return the values of one term. The advantage values are None for a divergence, and the reverse."""
    advantages = [turn.advantages[name] for turn in whole.turns.values() if name in turn.advantages]
    divergences = [turn.divergences[name] for turn in whole.turns.values() if name in turn.divergences]
    masked = sum(int((~turn.acting[name]).sum()) for turn in whole.turns.values() if name in turn.acting)
    return {
        "loss": whole.losses[name],
        "weight": facts.weights[name],
        "tokens": facts.counts[name],
        "masked_fraction": masked / facts.counts[name],
        "advantage_mean": float(np.concatenate(advantages).mean()) if advantages else None,
        "advantage_quantiles": _quantiles(np.concatenate(advantages)) if advantages else None,
        "divergence_quantiles": _quantiles(np.concatenate(divergences)) if divergences else None,
    }


def is_newest(sample: Sample, version: int) -> bool:
    """Whether `version` sampled the whole turn. Trainer and sampler must then agree on it up to rounding."""
    exact = not (sample.imported or sample.rescored or sample.by_another)
    return exact and sample.policy_version == version and sample.policy_version_end in (None, version)


def policy_metrics(row: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a row that `policy.json` repeats."""
    names = (
        "loss", "grad_norm", "kl_base", "lr", "turns", "reward_mean", "mismatch_mean", "masked_fraction", "staleness_mean", "cost",
        "practised",
    )  # fmt: skip
    return {name: float(row[name]) for name in names if row.get(name) is not None}


def _quantiles(values: Floats) -> list[float]:
    """Return the values at QUANTILES, without interpolation."""
    ordered = np.sort(values)
    return [float(ordered[round(q * (len(ordered) - 1))]) for q in QUANTILES]
