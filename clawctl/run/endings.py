"""How an episode ends, and what each ending means for its turns.

There are three kinds, which must be kept apart. An episode that the policy ended is graded and trained: if an ending were excluded
from training, the policy could learn to use it as an exit. An episode that failed for another reason is no evidence about the
policy. It is not trained, does not count in its group's mean and standard deviation, and is played again. A killed episode leaves
no outcome.
"""

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["policy", "other", "killed"]
MAX_TRIES: Final = 4  # per attempt: an episode that ended for another reason is played again up to three times


@dataclass(frozen=True, slots=True)
class Ending:
    """One way for an episode to end."""

    kind: Kind
    description: str  # description for users

    @property
    def is_trained(self) -> bool:
        """Whether the turns are trained, and the reward counts for the group's mean and standard deviation."""
        return self.kind == "policy"

    @property
    def is_written(self) -> bool:
        """Whether the episode has an outcome."""
        return self.kind != "killed"


ENDINGS: Final[dict[str, Ending]] = {
    "done": Ending("policy", "the agent finished"),
    "turns": Ending("policy", "the agent used all its turns"),
    "time": Ending("policy", "the agent reached the deadline"),
    "context": Ending("policy", "the agent filled the model's context"),
    "refused": Ending("policy", "the agent refused, or gave up"),
    "crashed": Ending("policy", "an action of the agent ended the program that it used"),
    "sandbox": Ending("other", "the sandbox failed"),
    "server": Ending("other", "the model server failed"),
    "verifier": Ending("other", "the verifier failed"),
    "environment": Ending("other", "the environment's code failed"),
    "unverified": Ending("other", "the verdict cannot be trusted"),  # the attempt is settled: another verdict would be no better
    "killed": Ending("killed", "the worker was killed"),
}


def ending_of(name: str) -> Ending:
    """Return the ending of this name. Raises ValueError with the known names."""
    if name not in ENDINGS or not ENDINGS[name].is_written:
        endings = ", ".join(ending_name for ending_name, ending in ENDINGS.items() if ending.is_written)
        raise ValueError(f"{name!r} is not an ending of an episode; the endings are {endings}")
    return ENDINGS[name]
