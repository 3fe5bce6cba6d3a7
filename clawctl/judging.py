"""The judging seam: what a judge tells a stage that is not `judge`.

`eval` compares answers of two versions with the judge of the recipe. That judge lives in the stage `judge`, with its endpoint, its
view of a turn and its defence against hostile text. No stage imports another, so `eval` knows this protocol and gets the judge by
name, as `train` gets a trainer.
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
    """Which of two answers is better."""

    first: float | None  # 1: the first answer, 0: the second, 0.5: neither; None: the judge gave no valid vote
    votes: tuple[Any, ...]  # one for each order: "first", "second", "neither", None


class AnswerJudge(Protocol):
    """Judges answers to a captured request that its user did not see. Raises ClawError if it cannot judge at all."""

    @property
    def name(self) -> str: ...

    @property
    def spent(self) -> tuple[int, int]:
        """Model calls so far, and their tokens."""
        ...

    async def prefer(self, turn: Turn, first: Message, second: Message) -> Preference:
        """Compare two answers to the request of `turn`, knowing what came back after the answer that was given. The judge is not
        told where the answers come from and sees them in both orders; if the orders disagree, neither is better."""
        ...

    async def verdict(self, turn: Turn, answer: Message) -> float | None:
        """1: good, -1: bad, 0: it does not tell; None without a valid vote."""
        ...

    async def close(self) -> None: ...


ANSWER_JUDGES: Registry[Callable[[RunDir, Recipe], AnswerJudge]] = Registry(
    "judge", "clawctl.answer_judges", {"recipe": "clawctl.judge.comparing:open_judge"}
)
