"""The reward of a turn, computed here only. Judge, train and inspect all call this.

The rating of the turn's own user takes precedence, then the outcome that an environment gave the episode, then rules, then the
judge. An environment may also score single turns; this step reward is added to the outcome, in place of one by rules or judge. With
`judge.outcome: decides`, rules and judge are not used for turns with an outcome. With `apart` they are used, and their result is
the step reward: a turn is worth outcome + step reward, each once (OpenClaw-RL, arXiv 2603.10165, calls it integrated).

A verdict names its source, so its row shows which of the two was in force, whatever the recipe contains today. A verdict by RATING
or OUTCOME repeats a number in the turn's own row and is never added to that number.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

RATING = "user feedback"  # the judge in a verdict that the turn's user decided
OUTCOME = "environment outcome"  # where the environment did
RULES = "rules "  # beginning of the name if a rule decided: "rules 2: pytest"
NOT_A_NUMBER = "reward is not a number"

STEP = "environment step"

Decider = Literal["rating", "outcome", "step", "rules", "judge"]


@dataclass(frozen=True, slots=True)
class Worth:
    """The reward of a turn, and how it was found."""

    value: float | None  # None: not known, or `problem`
    by: Decider | None  # the source that decided; None: none did
    parts: tuple[tuple[str, float], ...] = ()  # the summands of `value`: (("outcome", 1.0), ("rules 2: pytest", -1.0))
    problem: str | None = None  # why there is no value although a source decided

    @property
    def outcome(self) -> float | None:
        """The part from the environment. It belongs to the episode, and all of its turns share it."""
        return next((value for name, value in self.parts if name == "outcome"), None)

    @property
    def says_something(self) -> bool:
        """Whether the value alone can train the turn. A 0 from an environment is a measurement; any other 0 is no opinion."""
        return self.value is not None and (self.value != 0 or self.outcome is not None)

    def counts(self, compared: bool) -> bool:
        """Whether a step can use the value. Where turns are `compared` with each other (`train.credit`), any value counts."""
        return self.says_something or (compared and self.value is not None)

    @property
    def words(self) -> str:
        """The sum, for people: "0 = outcome +1, rules 2: pytest -1"."""
        if self.value is None:
            return self.problem or "not known"
        if len(self.parts) == 1:
            return f"{signed(self.value)} by {self.parts[0][0]}"
        return f"{signed(self.value)} = " + ", ".join(f"{name} {signed(value)}" for name, value in self.parts)


def worth(
    rating: float | None, outcome: float | None, judge: str | None = None, reward: float | None = None, step: float | None = None
) -> Worth:
    """The reward of a turn. `rating` is the newest rating by its own user, and `outcome` that of its episode. `judge` and `reward`
    come from its verdict and are None without one. `step` is the environment's own step reward, which outranks those of rules and
    judge. If the number that decides is not finite, the turn has no value, and no other
    source decides."""
    if rating is None and judge == RATING:
        rating = reward  # its rating is gone, or was never written apart: rows of older versions
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
    if not math.isfinite(total):  # one of them is not, or their sum
        return Worth(None, by, problem=NOT_A_NUMBER)
    return Worth(total, by, tuple((name, float(value)) for name, value in parts))


@dataclass(frozen=True, slots=True)
class Signs:
    """How many turns were good, neutral and bad."""

    good: int
    neutral: int
    bad: int


def signs(values: Iterable[float | None]) -> Signs:
    """None does not count."""
    known = [value for value in values if value is not None]
    return Signs(sum(v > 0 for v in known), sum(v == 0 for v in known), sum(v < 0 for v in known))


def signed(value: float) -> str:
    """ "+1", "-0.25", "0"."""
    return f"{value:+.3g}" if value else "0"
