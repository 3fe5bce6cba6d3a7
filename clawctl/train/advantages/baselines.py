"""The running mean reward of turns of a kind, for turns that are not compared with a group or session (REINFORCE with a baseline,
Williams 1992)."""

from collections.abc import Mapping, Sequence, Set

from clawctl.train.sample import Sample

MOST_KINDS = 256  # of a key: clients name the tasks
MEMORY = 64  # turns: older rewards fade, because they belong to an older policy


class Baselines:
    """Mean reward per kind of task over the last MEMORY turns or so: b += (r - b) / min(n, MEMORY). A checkpoint keeps them."""

    def __init__(self, means: Mapping[str, tuple[float, int]] | None = None) -> None:
        self.means = {kind: (float(mean), int(count)) for kind, (mean, count) in (means or {}).items()}

    def of(self, kind: str) -> float:
        """0.0 before the first turn of a kind."""
        return self.means.get(kind, (0.0, 0))[0]

    def learn(self, samples: Sequence[Sample]) -> None:
        """Take in the rewards of a step, after it: a turn is never its own baseline."""
        for sample in samples:
            if sample.reward is not None:
                mean, count = self.means.get(sample.kind, (0.0, 0))
                self.means.pop(sample.kind, None)
                self.means[sample.kind] = (mean + (sample.reward - mean) / min(count + 1, MEMORY), count + 1)
        self._forget({_key(sample.kind) for sample in samples})

    def _forget(self, keys: Set[str]) -> None:
        """Of each of the keys keep the kinds that were seen last."""
        for key in keys:
            own = [kind for kind in self.means if _key(kind) == key]
            for kind in own[: max(0, len(own) - MOST_KINDS)]:
                del self.means[kind]


def _key(kind: str) -> str:
    """Whose kind of task it is: "anna" of "anna/homework", "" of "homework", the default key's."""
    return kind.rpartition("/")[0]
