"""The running mean reward per kind of turn, for turns that are not compared within a group or session.

REINFORCE with a baseline (Williams 1992).
"""

from collections.abc import Mapping, Sequence, Set

from clawctl.train.sample import Sample

MAX_KINDS = 256  # per key, because clients name the tasks
MEMORY = 64  # turns; older rewards fade, because they belong to an older policy


class Baselines:
    """Mean reward per kind of task over about the last MEMORY turns: b += (r - b) / min(n, MEMORY). Stored in checkpoints."""

    def __init__(self, means: Mapping[str, tuple[float, int]] | None = None) -> None:
        self.means = {kind: (float(mean), int(count)) for kind, (mean, count) in (means or {}).items()}

    def of(self, kind: str) -> float:
        """Return the baseline of a kind; 0.0 before its first turn."""
        return self.means.get(kind, (0.0, 0))[0]

    def update(self, samples: Sequence[Sample]) -> None:
        """Add the rewards of a step. Called after the step, so that a turn is never its own baseline."""
        for sample in samples:
            if sample.reward is not None:
                mean, count = self.means.get(sample.kind, (0.0, 0))
                self.means.pop(sample.kind, None)
                self.means[sample.kind] = (mean + (sample.reward - mean) / min(count + 1, MEMORY), count + 1)
        self._trim({_key(sample.kind) for sample in samples})

    def _trim(self, keys: Set[str]) -> None:
        """For each of the keys, keep only the kinds that were seen last."""
        for key in keys:
            kinds = [kind for kind in self.means if _key(kind) == key]
            for kind in kinds[: max(0, len(kinds) - MAX_KINDS)]:
                del self.means[kind]


def _key(kind: str) -> str:
    """Return the key that a kind belongs to: "anna" for "anna/homework", "" for "homework" (the default key)."""
    return kind.rpartition("/")[0]
