"""Checks whether the turns of a step were sampled by the trained model.

For turns of the newest version, the trainer's logprobs must equal the sampler's up to rounding. Otherwise the recorded logprobs
belong to another model, and the off-policy ratio corrects nothing.
"""

import logging
from dataclasses import dataclass
from typing import Any

from clawctl.run.shards import Origin
from clawctl.train.measures import Measures, is_newest
from clawctl.train.sample import Batch

log = logging.getLogger("clawctl.train")

FEWEST = 3  # turns that disagree before the model is called the wrong one: one or two may be broken by themselves
# Far above what rounding makes of the mean |difference| of a step: float32 engines are within 1e-5; bfloat16 ones within 0.004 on
# the demo model, and about 0.01 on models of billions of weights.
UNUSUAL, UNUSUAL_ROUNDED = 2e-3, 0.03


def differs(theirs: str | None, ours: str | None) -> bool:
    """Whether both are known, and not the same."""
    return None not in (theirs, ours) and theirs != ours


def unlike(origin: Origin, own: Origin) -> str | None:
    """How the model that sampled a shard differs, or may differ, from the trained base model; None if there is no evidence."""
    theirs, ours = origin.base_model or "an unnamed model", own.base_model or "an unnamed model"
    if differs(origin.architecture, own.architecture):
        return f"turns of {theirs} ({origin.architecture}) are refused, because the trained model is {ours} ({own.architecture})"
    if differs(origin.weights, own.weights):
        named = (
            f"turns were sampled by {theirs} (weights {origin.weights}), but the trained model is {ours} (weights {own.weights})"
        )
        return f"{named}: another base model, or the same one in another type"
    if origin.weights is None and differs(origin.base_model, own.base_model):
        return f"turns were sampled by {theirs}, but the trained model is {ours}; whether their weights are the same is not known"
    return None


def disagreeing(whole: Measures, batch: Batch, most: float) -> tuple[tuple[str, ...], bool]:
    """The turns of the newest version whose logprobs differ by more than `most` on average over their tokens, and whether they are
    most of the turns that it sampled."""
    newest = [sample.turn_id for sample in batch.samples if is_newest(sample, batch.version)]
    far = tuple(name for name in newest if float(abs(whole.turns[name].log_ratio_T).mean()) > most)
    return far, len(far) >= FEWEST and 2 * len(far) > len(newest)


@dataclass(slots=True)
class Watch:
    """Warns once if sampler and trainer differ by more than rounding, but too little for turns to be refused."""

    exact: bool  # the trainer computes in float32 throughout
    warned: bool = False

    def check(self, row: dict[str, Any]) -> None:
        """At a row of steps.jsonl."""
        mismatch, most = row["mismatch_mean"], UNUSUAL if self.exact else UNUSUAL_ROUNDED
        if self.warned or mismatch is None or mismatch <= most:
            return
        self.warned = True
        log.warning(
            "step %d: log-probabilities of the newest version differ from the sampler's by %.3g on average, but rounding "
            "causes less than %g; the engine uses another type than model.dtype, or one side has quantised weights or "
            "another base model",
            row["step"], mismatch, most,
        )  # fmt: skip
