"""What a step tells about itself: one row of `train/steps.jsonl`."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from clawctl.train.sample import Batch, Sample

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(slots=True)
class Measures:
    """What one rank saw in its part of a step; `merged` puts the ranks together. Tensors are on the CPU."""

    losses: dict[str, float] = field(default_factory=dict)  # by term, each already over its global count
    advantages: dict[str, list[Tensor]] = field(default_factory=dict)  # by term, over its tokens
    masked: dict[str, int] = field(default_factory=dict)  # by term: tokens that the mask left out
    log_ratios: list[Tensor] = field(default_factory=list)  # log(policy now / sampler), over all completion tokens
    mismatches: list[Tensor] = field(default_factory=list)  # its size where both are the same version: should be rounding alone
    broken: list[str] = field(default_factory=list)  # ids of turns whose numbers are not finite
    computed_tokens: int = 0  # real ones, prompts and teacher passes included
    seconds: dict[str, float] = field(default_factory=dict)  # by phase

    @contextmanager
    def clock(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - begin

    def add_term(self, name: str, loss: float, advantages: Tensor, kept: Tensor) -> None:
        self.losses[name] = self.losses.get(name, 0.0) + loss
        self.advantages.setdefault(name, []).append(advantages.cpu())
        self.masked[name] = self.masked.get(name, 0) + int((~kept).sum())


def merged(parts: Sequence[Measures]) -> Measures:
    """The whole step. Seconds are rank 0's: the ranks work side by side."""
    whole = Measures(seconds=parts[0].seconds)
    for part in parts:
        for name, loss in part.losses.items():
            whole.losses[name] = whole.losses.get(name, 0.0) + loss
            whole.masked[name] = whole.masked.get(name, 0) + part.masked[name]
            whole.advantages.setdefault(name, []).extend(part.advantages[name])
        whole.log_ratios += part.log_ratios
        whole.mismatches += part.mismatches
        whole.broken += part.broken
        whole.computed_tokens += part.computed_tokens
    return whole


def step_row(
    whole: Measures, batch: Batch, method: str, weights: dict[str, float], counts: dict[str, int], grad_norm: float, lr: float
) -> dict[str, Any]:
    """The row, but for the seconds that are still to come (checkpoint, publish)."""
    samples = batch.samples
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    staleness = [batch.step - 1 - sample.policy_version for sample in samples]
    log_ratio = torch.cat(whole.log_ratios)
    spent = sum(whole.seconds.values())
    return {
        "step": batch.step,
        "version": batch.step,
        "time": time.time(),
        "method": method,
        "turns": len(samples),
        "positive": sum(reward > 0 for reward in rewards),
        "negative": sum(reward < 0 for reward in rewards),
        "hints": sum(sample.teacher_prompt_ids is not None for sample in samples),
        "loss": sum(weights[name] * loss for name, loss in whole.losses.items()),
        "terms": {
            name: {
                "loss": loss,
                "weight": weights[name],
                "tokens": counts[name],
                "masked_fraction": whole.masked[name] / counts[name],
                "advantage_mean": float(torch.cat(whole.advantages[name]).mean()),
                "advantage_quantiles": _quantiles(torch.cat(whole.advantages[name])),
            }
            for name, loss in whole.losses.items()
        },
        "reward_mean": sum(rewards) / len(rewards) if rewards else None,
        "reward_std": float(torch.tensor(rewards).std(correction=0)) if rewards else None,
        "ratio_quantiles": _quantiles(log_ratio.exp()),
        "masked_fraction": sum(whole.masked.values()) / max(1, sum(counts[name] for name in whole.losses)),
        "mismatch_mean": float(torch.cat(whole.mismatches).mean()) if whole.mismatches else None,
        "mismatch_max": float(torch.cat(whole.mismatches).max()) if whole.mismatches else None,
        "staleness_mean": sum(staleness) / len(staleness),
        "staleness_max": max(staleness),
        "grad_norm": grad_norm,
        "lr": lr,
        "trained_tokens": sum(len(sample.completion_ids) for sample in samples),
        "computed_tokens": whole.computed_tokens,
        "tokens_per_s": whole.computed_tokens / spent,
        "model_s": spent,
        "seconds": dict(whole.seconds),
    }


def policy_metrics(row: dict[str, Any]) -> dict[str, float]:
    """The few numbers of a row that `policy.json` repeats."""
    names = ("loss", "grad_norm", "lr", "turns", "reward_mean", "mismatch_mean", "masked_fraction", "staleness_mean")
    return {name: float(row[name]) for name in names if row[name] is not None}


def sequence_tokens(samples: Sequence[Sample]) -> list[int]:
    return [len(sample.prompt_ids) + len(sample.completion_ids) for sample in samples]


def _quantiles(values: Tensor) -> list[float]:
    """At QUANTILES, by sorting: torch.quantile refuses more than 16 million values."""
    ordered = values.float().sort().values
    return [float(ordered[round(q * (len(ordered) - 1))]) for q in QUANTILES]
