"""Simulated people. Rules decide their opinion, and a phrase grammar words it. This module does no I/O; `chat.py` does the HTTP."""

from dataclasses import dataclass
from random import Random

from clawctl.extensions.demos.grammar import PhraseGrammar, Phrasings, casual
from clawctl.extensions.demos.homework.phrasings import PEOPLE
from clawctl.extensions.demos.homework.problems import NAMES, Problem, Role, is_correct, make_tasks, numbers_in
from clawctl.extensions.demos.homework.satisfaction import satisfaction

WORDS = PhraseGrammar(PEOPLE)
MAX_COMPLAINTS = 3


@dataclass(frozen=True, slots=True)
class Reaction:
    """A person's reaction to a reply. `text` None: the person stops. `done`: the session ends once `text` is answered."""

    text: str | None
    done: bool
    satisfied: bool


class Person:
    """One student or teacher with a name and a random generator. The same seed gives the same messages."""

    def __init__(self, role: Role, seed: int, phrasings: Phrasings = "all"):
        self.role = role
        self.phrasings = phrasings
        self._rng = Random(f"person {role} {seed}")
        self.name = self._rng.choice(NAMES)

    def open(self, task: Problem) -> str:
        """The first message of a session."""
        return WORDS.draw("opens", self._rng, self.phrasings, prompt=task.prompt)

    def react(self, task: Problem, reply: str, turn: int) -> Reaction:
        """The reaction to reply number `turn`, counted from 0."""
        notices = not is_correct(task, reply) and self._rng.random() < 0.5
        unhappy_with_style = satisfaction(task, reply) < 0.75
        if not notices and not unhappy_with_style:
            return Reaction(content_words(task, self._rng, self.phrasings), done=True, satisfied=True)
        if turn >= MAX_COMPLAINTS:
            text = casual(WORDS.draw("gives_up", self._rng, self.phrasings), self._rng) if self._rng.random() < 0.6 else None
            return Reaction(text, done=True, satisfied=False)
        if unhappy_with_style:
            return Reaction(style_complaint(task, self._rng, self.phrasings), done=False, satisfied=False)
        return Reaction(number_complaint(task, reply, self._rng, self.phrasings), done=False, satisfied=False)


def content_words(task: Problem, rng: Random, phrasings: Phrasings) -> str:
    """Thanks or the next problem, and sometimes an unclear or unrelated message."""
    draw = rng.random()
    if draw < 0.06:
        return casual(WORDS.draw("unclear", rng, phrasings), rng)
    if draw < 0.14:
        return casual(WORDS.draw("other_topic", rng, phrasings), rng)
    if draw < 0.26:
        following = make_tasks(task.role, 1, rng.getrandbits(32))[0]
        return WORDS.draw("moved_on", rng, phrasings, next_problem=following.prompt)
    return casual(WORDS.draw("happy", rng, phrasings), rng)


def style_complaint(task: Problem, rng: Random, phrasings: Phrasings) -> str:
    """A complaint about the style. Most complaints name the wanted style; about one in ten is vague."""
    rule = "complain_vague" if rng.random() < 0.1 else f"complain_{task.role}"
    return casual(WORDS.draw(rule, rng, phrasings, pupil=task.name), rng)


def number_complaint(task: Problem, reply: str, rng: Random, phrasings: Phrasings) -> str:
    """A complaint that doubts the number in the reply, and sometimes names the right one."""
    said: list[object] = [*numbers_in(reply)[-1:], "that"]
    return casual(WORDS.draw("wrong_number", rng, phrasings, said=said[0], right=task.answer), rng)
