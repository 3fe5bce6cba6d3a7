"""Checks whether the turns of a step were sampled by the trained model.

For turns of the newest version, the trainer's logprobs must equal the sampler's up to rounding. Otherwise the recorded logprobs
belong to another model, and the off-policy ratio corrects nothing.
"""

import logging
from dataclasses import dataclass
from typing import Any

from clawctl.config import TrainConfig
from clawctl.run.shards import Origin
from clawctl.train.measures import Measures, is_newest
from clawctl.train.sample import Batch

log = logging.getLogger("clawctl.train")

FEWEST = 3  # minimum number of mismatched turns before the model is considered the wrong one; one or two may be damaged themselves
# Far above the effect of rounding on the mean |difference| of a step: float32 engines are within 1e-5. Engines in bfloat16 are
# within 0.004 on a model with 5 M weights, and about 0.01 on models with billions of weights. A trainer over 4 bits differed by
# 0.29 (simulated) and 0.2 (random weights, on a card).
UNUSUAL, UNUSUAL_ROUNDED, UNUSUAL_QUANTISED = 2e-3, 0.03, 0.6


def differs(sampler: str | None, trainer: str | None) -> bool:
    """Whether both values are known and differ."""
    return None not in (sampler, trainer) and sampler != trainer


def model_difference(origin: Origin, ours: Origin) -> str | None:
    """Return how the model that sampled a shard differs, or may differ, from the trained base model, or None without evidence."""
    sampler, trainer = origin.base_model or "an unnamed model", ours.base_model or "an unnamed model"
    if differs(origin.architecture, ours.architecture):
        return (
            f"turns of {sampler} ({origin.architecture}) are refused, because the trained model is {trainer} ({ours.architecture})"
        )
    if differs(origin.weights, ours.weights):
        return (
            f"turns were sampled by {sampler} (weights {origin.weights}), but the trained model is {trainer} "
            f"(weights {ours.weights}): another base model, or the same one in another type"
        )
    if origin.weights is None and differs(origin.base_model, ours.base_model):
        return (
            f"turns were sampled by {sampler}, but the trained model is {trainer}; whether their weights are the same is not known"
        )
    return None


def mismatched_turns(measures: Measures, batch: Batch, limit: float) -> tuple[tuple[str, ...], bool]:
    """Return the turns of the newest version with a mean logprob difference above `limit`, and whether they are the majority.

    The majority is counted among the turns that the newest version sampled.
    """
    newest = [sample.turn_id for sample in batch.samples if is_newest(sample, batch.version)]
    mismatched = tuple(name for name in newest if float(abs(measures.turns[name].log_ratio_T).mean()) > limit)
    return mismatched, len(mismatched) >= FEWEST and 2 * len(mismatched) > len(newest)


@dataclass(slots=True)
class Watch:
    """Warns once if sampler and trainer differ by more than rounding, but too little for turns to be refused."""

    limit: float
    warned: bool = False

    @classmethod
    def of(cls, exact: bool, config: TrainConfig) -> "Watch":
        """`exact`: the trainer computes in float32 throughout."""
        quantised = config.lora is not None and config.lora.quantize is not None
        return cls(UNUSUAL_QUANTISED if quantised else UNUSUAL if exact else UNUSUAL_ROUNDED)

    def check(self, row: dict[str, Any]) -> None:
        """Check one row of steps.jsonl."""
        mismatch = row["mismatch_mean"]
        if self.warned or mismatch is None or mismatch <= self.limit:
            return
        self.warned = True
        log.warning(
            "step %d: log-probabilities of the newest version differ from the sampler's by %.3g on average, but rounding "
            "causes less than %g; the engine uses another type than model.dtype, or one side has quantised weights or "
            "another base model",
            row["step"], mismatch, self.limit,
        )  # fmt: skip
