"""Simulated people with wishes. They read an answer and say which wishes it does not meet. No I/O."""

from dataclasses import dataclass
from random import Random

from scripts.wishes.axes import is_correct, measure
from scripts.wishes.grammar import Phrasings, casual
from scripts.wishes.problems import WordProblem, make_problems
from scripts.wishes.wording import Wants, complaint, say

MAX_COMPLAINTS = 3
AT_ONCE = 2  # the number of axes that one complaint may name


@dataclass(frozen=True, slots=True)
class WishReaction:
    """A person's reaction to a reply. `text` None: the person stops. `done`: the session ends once `text` is answered."""

    text: str | None
    done: bool
    satisfied: bool


def unmet(wants: Wants, answer: str) -> dict[str, str]:
    """The wishes that an answer does not meet."""
    measured = measure(answer)
    return {axis: value for axis, value in wants.items() if measured[axis] != value}


class Wisher:
    """A person with the wishes `wants`. The same seed gives the same messages. Without wishes, they only doubt wrong numbers."""

    def __init__(self, wants: Wants, seed: int, phrasings: Phrasings = "all") -> None:
        self.wants, self.phrasings = wants, phrasings
        self._rng = Random(f"wisher {seed}")

    def open(self, problem: WordProblem) -> str:
        """The first message of a session. It expresses no wish."""
        return problem.text if self._rng.random() < 0.6 else say("neutral-inline", self._rng, self.phrasings, p=problem.text)

    def react(self, problem: WordProblem, reply: str, turn: int) -> WishReaction:
        """The reaction to reply number `turn`, counted from 0."""
        rng, missing, right = self._rng, unmet(self.wants, reply), is_correct(problem, reply)
        notices = not right and rng.random() < 0.5
        if not missing and not notices:
            return WishReaction(self._pleased(), done=True, satisfied=True)
        if turn >= MAX_COMPLAINTS:
            return WishReaction(None, done=True, satisfied=False)
        if missing:
            axes = rng.sample(list(missing), min(len(missing), rng.randint(1, AT_ONCE)))
            return WishReaction(complaint({axis: missing[axis] for axis in axes}, rng, self.phrasings), done=False, satisfied=False)
        said = casual(say("wrong", rng, self.phrasings, said="that", right=problem.c), rng)
        return WishReaction(said, done=False, satisfied=False)

    def _pleased(self) -> str:
        rng, draw = self._rng, self._rng.random()
        if draw < 0.06:
            return casual(say("unclear", rng, self.phrasings), rng)
        if draw < 0.2:
            return say("next", rng, self.phrasings, p=make_problems(1, rng.getrandbits(32))[0].text)
        return casual(say("happy", rng, self.phrasings), rng)
