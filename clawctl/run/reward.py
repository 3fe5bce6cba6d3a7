"""The reward of a turn, computed here only. Judge, train and inspect all use this module.

The rating of the turn's own user takes precedence, then the outcome that an environment gave the episode, then rules, then the
judge. An environment may also score single turns. This step reward is added to the outcome and replaces one by rules or judge. With
`judge.outcome: decides`, rules and judge are not used for turns with an outcome. With `apart` they are used, and their result is
the step reward: a turn is worth outcome + step reward, each once (OpenClaw-RL, arXiv 2603.10165, calls it integrated).

A verdict names its source, so its row shows which of the two settings applied, whatever the recipe contains today. A verdict by
RATING or OUTCOME repeats a number in the turn's own row and is never added to that number.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

RATING = "user feedback"  # `judge` of a verdict that the user's rating decided
OUTCOME = "environment outcome"  # `judge` of a verdict that the environment's outcome decided
PRACTICE = "practice"  # `judge` of a verdict on a turn that was played with a hint: nothing judged it
RULES = "rules "  # prefix of `judge` if a rule decided: "rules 2: pytest"
NOT_A_NUMBER = "reward is not a number"

STEP = "environment step"

Decider = Literal["rating", "outcome", "step", "rules", "judge"]


@dataclass(frozen=True, slots=True)
class Worth:
    """The reward of a turn and how it was determined."""

    value: float | None  # None: not known, or see `problem`
    by: Decider | None  # the source that decided; None: no source did
    parts: tuple[tuple[str, float], ...] = ()  # the summands of `value`: (("outcome", 1.0), ("rules 2: pytest", -1.0))
    problem: str | None = None  # why there is no value although a source decided

    @property
    def outcome(self) -> float | None:
        """The environment's share of the value. It belongs to the episode, and all of the episode's turns share it."""
        return next((value for name, value in self.parts if name == "outcome"), None)

    @property
    def has_signal(self) -> bool:
        """Whether the value alone can train the turn. A 0 from an environment is a measurement; any other 0 is no opinion."""
        return self.value is not None and (self.value != 0 or self.outcome is not None)

    def counts(self, compared: bool) -> bool:
        """Whether a step can use the value. If turns are `compared` with each other (`train.credit`), any value counts."""
        return self.has_signal or (compared and self.value is not None)

    @property
    def text(self) -> str:
        """The sum as text: "0 = outcome +1, rules 2: pytest -1"."""
        if self.value is None:
            return self.problem or "not known"
        if len(self.parts) == 1:
            return f"{signed(self.value)} by {self.parts[0][0]}"
        return f"{signed(self.value)} = " + ", ".join(f"{name} {signed(value)}" for name, value in self.parts)


def worth(
    rating: float | None, outcome: float | None, judge: str | None = None, reward: float | None = None, step: float | None = None
) -> Worth:
    """Return the reward of a turn.

    `rating` is the newest rating by its own user, and `outcome` the reward of its episode. `judge` and `reward` come from its
    verdict and are None without one. `step` is the environment's own step reward, which outranks those of rules and judge. If the
    deciding number is not finite, the turn has no value, and no other source decides.
    """
    if rating is None and judge == RATING:
        rating = reward  # in rows of older versions the rating is only in the verdict
    if outcome is None and judge == OUTCOME:
        outcome = reward
    if rating is not None:
        return _sum("rating", ("rating", rating))
    judged = reward if judge not in (RATING, OUTCOME) else None
    steps = [] if judged is None else [(judge or "judge", judged)]
    if step is not None:
        steps = [(STEP, step)]
    if outcome is not None:
        return _sum("outcome", ("outcome", outcome), *steps)
    if not steps:
        return Worth(None, None)
    if step is not None:
        return _sum("step", *steps)
    return _sum("rules" if judge is not None and judge.startswith(RULES) else "judge", *steps)


def _sum(by: Decider, *parts: tuple[str, float]) -> Worth:
    total = sum(float(value) for _, value in parts)
    if not math.isfinite(total):  # a summand or the sum is not finite
        return Worth(None, by, problem=NOT_A_NUMBER)
    return Worth(total, by, tuple((name, float(value)) for name, value in parts))


@dataclass(frozen=True, slots=True)
class Signs:
    """How many turns were good, neutral and bad."""

    good: int
    neutral: int
    bad: int


def signs(values: Iterable[float | None]) -> Signs:
    """Count the values by sign. None is not counted."""
    rewards = [value for value in values if value is not None]
    return Signs(sum(v > 0 for v in rewards), sum(v == 0 for v in rewards), sum(v < 0 for v in rewards))


def signed(value: float) -> str:
    """Format a number with its sign: "+1", "-0.25", "0"."""
    return f"{value:+.3g}" if value else "0"
