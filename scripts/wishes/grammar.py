"""A small phrase grammar: each `{slot}` is filled from a rule, and `|` separates the alternatives of a rule.

An alternative that begins with `~` is held out: a model's training never uses it. There are three kinds of phrasings:
`trained` (never a held-out alternative), `held_out` (always a held-out alternative if the rule has one) and `all`.
"""

import re
from random import Random
from typing import Literal

Phrasings = Literal["all", "trained", "held_out"]

_SLOT = re.compile(r"\{([\w+-]+)\}")
_SPACES = re.compile(r" {2,}")


class PhraseGrammar:
    """Phrase rules by name. `say` draws one sentence. The same state of the random generator gives the same sentence."""

    def __init__(self, rules: dict[str, str]):
        options = {name: [o.strip() for o in text.split("|")] for name, text in rules.items()}
        self._trained = {name: [o for o in alternatives if not o.startswith("~")] for name, alternatives in options.items()}
        self._held_out = {
            name: [o[1:].strip() for o in alternatives if o.startswith("~")] for name, alternatives in options.items()
        }

    def __contains__(self, name: str) -> bool:
        return name in self._trained

    def options(self, name: str, phrasings: Phrasings) -> list[str]:
        """The alternatives of a rule. `held_out` falls back to the trained alternatives if the rule has no held-out ones."""
        trained, held_out = self._trained[name], self._held_out[name]
        if phrasings == "trained":
            return trained
        return (held_out or trained) if phrasings == "held_out" else trained + held_out

    def draw(self, rule: str, rng: Random, phrasings: Phrasings = "all", /, **values: object) -> str:
        """Draw one sentence from `rule`. Slots named in `values` are filled with these values."""

        def fill(match: re.Match[str]) -> str:
            slot = match[1]
            return str(values[slot]) if slot in values else self.draw(slot, rng, phrasings, **values)

        text = _SLOT.sub(fill, rng.choice(self.options(rule, phrasings)))
        return _SPACES.sub(" ", text).strip().replace(" ,", ",").replace(" .", ".").replace(" !", "!")


def capitalised(text: str) -> str:
    """Capitalise the first letter, and each letter that follows the end of a sentence."""
    return re.sub(r"(^|[.!?] )([a-z])", lambda m: m[1] + m[2].upper(), text)


def casual(text: str, rng: Random) -> str:
    """Imitate casual typing: mostly without capital letters, and often without the final full stop."""
    neat = rng.random() < 0.4
    text = capitalised(text) if neat else text
    return text.removesuffix(".") if rng.random() < 0.5 else text
