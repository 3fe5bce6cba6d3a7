"""Binary RL: every token of a turn gets its reward minus the mean reward of turns of its kind.

OpenClaw-RL (arXiv 2603.10165): A_t = r. A single turn has no group for comparison, hence the running baseline (REINFORCE with a
baseline, Williams 1992). If the recipe compares a turn with its group or session, that credit replaces both.
"""

from collections.abc import Sequence, Set

import torch
from torch import Tensor

from clawctl.config import TrainConfig
from clawctl.train.advantages.term import Scores, Term
from clawctl.train.sample import Sample

MOST_KINDS = 256  # of a key: clients name the tasks
MEMORY = 64  # turns: older rewards fade, because they belong to an older policy


def terms(config: TrainConfig) -> list[Term]:
    return [Term("binary", 1.0, has_reward, advantages)]


def has_reward(sample: Sample) -> bool:
    return sample.reward is not None


def advantages(sample: Sample, scores: Scores) -> Tensor:
    """The credit of the turn or, without one, reward - baseline; the same for each token."""
    assert sample.reward is not None
    return torch.full_like(scores.policy_T, sample.reward - scores.baseline if sample.credit is None else sample.credit)


class Baselines:
    """Mean reward per kind of task over the last MEMORY turns or so: b += (r - b) / min(n, MEMORY). A checkpoint keeps them."""

    def __init__(self, kept: dict[str, tuple[float, int]] | None = None) -> None:
        self.kept = {kind: (float(mean), int(count)) for kind, (mean, count) in (kept or {}).items()}

    def of(self, kind: str) -> float:
        """0.0 before the first turn of a kind."""
        return self.kept.get(kind, (0.0, 0))[0]

    def learn(self, samples: Sequence[Sample]) -> None:
        """Take in the rewards of a step, after it: a turn is never its own baseline."""
        for sample in samples:
            if sample.reward is not None:
                mean, count = self.kept.get(sample.kind, (0.0, 0))
                self.kept.pop(sample.kind, None)
                self.kept[sample.kind] = (mean + (sample.reward - mean) / min(count + 1, MEMORY), count + 1)
        self._forget({_key(sample.kind) for sample in samples})

    def _forget(self, keys: Set[str]) -> None:
        """Of each of the keys keep the kinds that were seen last."""
        for key in keys:
            own = [kind for kind in self.kept if _key(kind) == key]
            for kind in own[: max(0, len(own) - MOST_KINDS)]:
                del self.kept[kind]


def _key(kind: str) -> str:
    """Whose kind of task it is: "anna" of "anna/homework", "" of "homework", the default key's."""
    return kind.rpartition("/")[0]
