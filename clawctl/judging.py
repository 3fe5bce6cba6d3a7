"""The judging seam: lets a stage other than `judge` use a judge.

`eval` compares answers of two versions with the judge of the recipe. That judge is part of the stage `judge`, with its endpoint,
its view of a turn and its defence against hostile text. Stages do not import each other, so `eval` uses this protocol and loads the
judge by name, as `train` loads a trainer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from clawctl.config import Recipe
from clawctl.registry import Registry
from clawctl.run.directory import RunDir
from clawctl.run.rows import Message, Turn


@dataclass(frozen=True, slots=True)
class Preference:
    """The result of comparing two answers."""

    first: float | None  # 1: the first answer is better, 0: the second, 0.5: neither; None: the judge gave no valid vote
    votes: tuple[Any, ...]  # one for each order: "first", "second", "neither", None


class AnswerJudge(Protocol):
    """Judges alternative answers to a captured request; its user did not see them. Raises ClawError if judging is impossible."""

    @property
    def name(self) -> str: ...

    @property
    def spent(self) -> tuple[int, int]:
        """Number of model calls so far, and of their tokens."""
        ...

    async def prefer(self, turn: Turn, first: Message, second: Message) -> Preference:
        """Compare two answers to the request of `turn`, given the next state that followed the original answer. The judge does not
        learn where the answers come from and sees them in both orders. If the two orders disagree, neither answer is better."""
        ...

    async def verdict(self, turn: Turn, answer: Message) -> float | None:
        """1: good, -1: bad, 0: undecided; None without a valid vote."""
        ...

    async def close(self) -> None: ...


ANSWER_JUDGES: Registry[Callable[[RunDir, Recipe], AnswerJudge]] = Registry(
    "judge", "clawctl.answer_judges", {"recipe": "clawctl.judge.comparing:open_judge"}
)
