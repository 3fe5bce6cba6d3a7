"""The correction for tokens that an older version sampled."""

from dataclasses import dataclass
from typing import Literal

from clawctl.config import TrainConfig

# Published ranges: OpenClaw-RL (2603.10165); no lower bound and up to 5 (ScaleRL, 2510.13786); GSPO (2507.18071, §5.1)
_CLIPS = {"ppo_clip": (0.2, 0.28), "cispo": (1.0, 4.0), "gspo": (3e-4, 4e-4)}


@dataclass(frozen=True, slots=True)
class Correction:
    """The surrogate and its bounds. `r` is the policy's current probability of a token divided by the sampler's."""

    surrogate: Literal["dppo", "ppo_clip", "tis", "cispo", "gspo"] = "dppo"
    threshold: float = 0.2  # dppo: maximum change of a probability
    clip_low: float = 0.2  # ppo_clip, cispo, gspo: r is clipped to 1 - clip_low …
    clip_high: float = 0.28  # … 1 + clip_high
    cap: float = 2.0  # tis: the largest weight
    penalty: float = 1e-3  # weight of (log r)^2, the only KL penalty towards the sampler


def correction_of(config: TrainConfig) -> Correction:
    """Return the correction of every policy term."""
    low, high = clip_of(config, config.off_policy)
    return Correction(config.off_policy, config.mask_threshold, low, high, config.ratio_cap, config.ratio_penalty)


def clip_of(config: TrainConfig, surrogate: str) -> tuple[float, float]:
    """Return the bounds of the ratio below and above 1. Values that the recipe leaves unset use the published range of
    `surrogate`.
    """
    low, high = _CLIPS.get(surrogate, (0.2, 0.28))
    return (low if config.clip_low is None else config.clip_low), (high if config.clip_high is None else config.clip_high)
