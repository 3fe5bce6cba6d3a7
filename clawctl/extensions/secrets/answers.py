"""Finds what answers a question for a secret: `Please enter your PIN.`, then `4829`."""

from collections.abc import Iterator

from clawctl.extensions.secrets.digit_codes import TRIVIAL
from clawctl.extensions.secrets.lexicon import ANCHORED, TOKEN, Meaning, meaning_of, words_within
from clawctl.extensions.secrets.names import name_positions
from clawctl.extensions.secrets.text import Span, make_text, regex
from clawctl.extensions.secrets.values import is_passphrase, is_password

_SENTENCE = regex(r"[.!。！\n](?=\s*\S)")
_NUMBER = regex(r"(?<![\w.,:/-])\d(?:[ -]?\d){2,11}(?![\w]|[.,:/-]\d)")
_PHRASE = regex(r"[a-z]{3,12}(?: [a-z]{3,12}){3,}")
_SHORTEST_WORD = 6
_REPLIES = frozenset(("cancel", "continue", "nothing", "correct", "please", "thanks", "anything", "whatever", "default"))
_YES_OR_NO = regex(r"(?i)(?:should|shall|do|does|did|is|are|was|were|has|have|want|would you like)\b")
_MOST_WORDS = 5
_NAMES_A_CODE = Meaning.STRONG | Meaning.PIN | Meaning.WEAK
_ANOTHER_THING = Meaning.HARMLESS | Meaning.BEFORE


def asks(text: str) -> bool:
    """Whether the last sentence of a text names a secret, and nothing that numbers usually name (`Which port …?`)."""
    question = _last_sentence(text)
    meaning = _meaning(question)
    if _of_another_thing(question):
        return False
    return bool(meaning & (ANCHORED & ~Meaning.PLACE | Meaning.PASSWORD)) or bool(name_positions(make_text(question)))


def in_answer(question: str, text: str) -> Iterator[Span]:
    """Find a short answer that is a number, or a password after a question for one."""
    said, asked = text.strip().strip(".!\"'`"), _last_sentence(question)
    if not said or len(said.split()) > _MOST_WORDS or _YES_OR_NO.match(asked):
        return
    meaning = _meaning(asked)
    number = _NUMBER.search(said) if meaning & (_NAMES_A_CODE | Meaning.PASSWORD) else None
    if number is not None and number[0] not in TRIVIAL and not _of_another_thing(said):
        said = number[0]
    elif not meaning & Meaning.PASSWORD or not ((_PHRASE.fullmatch(said) and "phrase" in asked) or _is_word(said)):
        return
    start = text.find(said)
    yield Span(start, start + len(said), "password")


def _is_word(said: str) -> bool:
    if " " in said:
        return is_passphrase(said)
    return (is_password(said) and not said.isalpha()) or (len(said) >= _SHORTEST_WORD and said.lower() not in _REPLIES)


def _last_sentence(text: str) -> str:
    text = text.rstrip(" .!?:？。：\n*_`")
    cuts = [match.end() for match in _SENTENCE.finditer(text)]
    return text[cuts[-1] :] if cuts else text


def _of_another_thing(text: str) -> bool:
    meanings = (meaning_of(word) for word in TOKEN.findall(text.lower()))
    return any(meaning & _ANOTHER_THING and not meaning & (Meaning.OWNER | ANCHORED) for meaning in meanings)


def _meaning(text: str) -> int:
    meaning = 0
    for word in TOKEN.findall(text.lower()):
        meaning |= meaning_of(word)
        if not word.isascii():
            for _, _, inner in words_within(word):
                meaning |= inner
    return meaning
