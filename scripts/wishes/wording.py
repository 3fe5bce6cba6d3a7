"""The wording of wishes by people, instructions and hints: the phrase grammar of `words/`.

`words/held_out/` holds alternatives that the model's training never uses (see `scripts/wishes_model/split.py`).
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random

from scripts.wishes.axes import USUAL
from scripts.wishes.grammar import PhraseGrammar, Phrasings, capitalised, casual

WORDS = Path(__file__).parent / "words"
Wants = Mapping[str, str]
"""Axes and the value wanted of each: {"emoji": "emoji", "language": "german"}."""


def held_out_axes() -> list[str]:
    return (WORDS / "held_out" / "axes.txt").read_text().split("\n")[:-1]


def chosen_axes() -> list[str]:
    """The axes that settings are chosen with."""
    return (WORDS / "axes.txt").read_text().split("\n")[:-1]


@cache
def grammar(held_out: bool) -> PhraseGrammar:
    """The grammar's rules. The held-out alternatives are read only on request."""
    rules = _lines(WORDS / "phrasings.txt")
    for name, text in _lines(WORDS / "held_out" / "phrasings.txt").items() if held_out else ():
        rules[name] += "".join(f" | ~{alternative}" for alternative in text.split(" | "))
    return PhraseGrammar(rules)


def _lines(file: Path) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in file.read_text().splitlines())


def say(rule: str, rng: Random, phrasings: Phrasings, **values: object) -> str:
    return grammar(phrasings != "trained").draw(rule, rng, phrasings, **values)


def clause(axis: str, value: str, rng: Random, phrasings: Phrasings = "trained") -> str:
    """One wish: "answer in German", "no emojis please". Half of them combine a frame with a name of the value or its addition."""
    key, name = f"{axis}-{value.replace(' ', '_')}", f"x-{axis}-{value.replace(' ', '_')}"
    noun = _noun(axis, rng, phrasings)
    if rng.random() < 0.5:
        if noun:
            return say("off" if value == USUAL[axis] else "on", rng, phrasings, **noun)
        if name in grammar(False):
            return say("use", rng, phrasings, x=say(name, rng, phrasings))
    return say(key, rng, phrasings)


def _noun(axis: str, rng: Random, phrasings: Phrasings) -> dict[str, str]:
    name = f"n-{axis}"
    return {"n": say(name, rng, phrasings)} if name in grammar(False) else {}


def wish(wants: Wants, rng: Random, phrasings: Phrasings = "trained") -> str:
    """Join two or three wishes into a sentence; list any other number with commas."""
    clauses = [clause(axis, value, rng, phrasings) for axis, value in wants.items()]
    rng.shuffle(clauses)
    if len(clauses) == 2:
        return say("two", rng, phrasings, w1=clauses[0], w2=clauses[1])
    if len(clauses) == 3:
        return say("three", rng, phrasings, w1=clauses[0], w2=clauses[1], w3=clauses[2])
    return ", ".join(clauses)


def inline(prompt: str, wants: Wants, rng: Random, phrasings: Phrasings = "trained") -> str:
    """A first message that contains the problem and wishes. Without wishes, it contains a neutral remark."""
    rule = "inline" if wants else "neutral-inline"
    return say(rule, rng, phrasings, p=prompt, **({"w": wish(wants, rng, phrasings)} if wants else {}))


def system(wants: Wants, rng: Random, phrasings: Phrasings = "trained") -> str:
    """A system message that asks for `wants`. Without wishes, it is neutral."""
    if not wants:
        return say("neutral-system", rng, phrasings)
    return capitalised(say("system", rng, phrasings, w=wish(wants, rng, phrasings)))


def hint(wants: Wants, rng: Random, phrasings: Phrasings = "trained") -> str:
    """A hint in the judge's style. Without wishes, it changes nothing."""
    if not wants:
        return say("neutral-hint", rng, phrasings)
    return capitalised(say("hint", rng, phrasings, w=wish(wants, rng, phrasings)))


def complaint(wants: Wants, rng: Random, phrasings: Phrasings = "trained") -> str:
    """A complaint by a person whose wishes `wants` are not met."""
    if len(wants) == 1:
        (axis, value), *_ = wants.items()
        noun = _noun(axis, rng, phrasings)
        if noun and rng.random() < 0.3:
            return casual(say("gripe-off" if value == USUAL[axis] else "gripe-on", rng, phrasings, **noun), rng)
    return casual(say("complaint", rng, phrasings, w=wish(wants, rng, phrasings)), rng)


def with_hint(message: str, text: str) -> str:
    """The message followed by the hint block, as the teacher of on-policy distillation receives it."""
    return f"{message}\n\n[user's hint / instruction]\n{text}"
