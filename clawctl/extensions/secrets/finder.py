"""The rules as a finder of clawctl. The other modules of this extension import nothing of clawctl."""

from collections.abc import Collection, Iterator
from functools import lru_cache

from clawctl.extensions.secrets import (
    RULES,
    Rule,
    encoded,
    is_code_under,
    is_cookie,
    is_login,
    is_secret_under,
    make_text,
    spans_of,
)  # fmt: skip
from clawctl.extensions.secrets.answers import evidence_of, in_answer
from clawctl.extensions.secrets.questions import asks, continues
from clawctl.extensions.secrets.text import Kind
from clawctl.extensions.secrets.values import is_letters_drawn
from clawctl.privacy.finders import Encoded, Finder, Secret

_LONGEST_WORD = 16  # characters; a word alone is no secret


class RuleFinder(Finder):
    """Finds secrets with all rules of the kinds."""

    def find(self, text: str, kinds: frozenset[Kind]) -> Iterator[Secret | Encoded]:
        if len(text) <= _LONGEST_WORD and text.isascii() and text.isalpha() and text.islower():  # such as a role
            return
        piece = make_text(text)
        for rule in _rules_of(kinds, piece.present):
            for span in spans_of(rule.search, piece) if rule.search.to_value_end else rule.search.find(piece):
                by = rule.by if rule.by == "form" or not is_letters_drawn(text[span.start : span.end]) else "form"
                yield Secret(span.start, span.end, span.kind, rule.name, by)
        for start, end, decoded in encoded(piece):
            yield Encoded(start, end, decoded)

    def is_password(self, name: str, value: str, beside: Collection[str]) -> bool:
        if "name" in beside and is_cookie(name, value, beside):
            name = "password"
        return is_secret_under(name, value, quoted=True) or is_login(name, value) or is_code_under(name, value)

    def asks(self, text: str, role: str) -> bool:
        return asks(text, by_person=role == "user")

    def continues(self, text: str) -> bool:
        return continues(text)

    def find_answer(self, question: str, text: str) -> Iterator[Secret]:
        for span in in_answer(question, text):
            by = evidence_of(text, span.start, span.end)
            yield Secret(span.start, span.end, span.kind, "an answer to a question for a secret", by)


@lru_cache(maxsize=1 << 12)
def _rules_of(kinds: frozenset[Kind], present: int) -> list[Rule]:
    return [rule for rule in RULES if rule.kind in kinds and present & rule.search.needs]


RULE_FINDER = RuleFinder()
