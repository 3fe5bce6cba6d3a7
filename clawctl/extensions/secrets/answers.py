# ruff: noqa: E501 - expressions stay lines
"""Finds what answers a question for a secret: `Please enter your PIN.`, then `4829`."""

from collections.abc import Iterator

from clawctl.extensions.secrets.digit_codes import TRIVIAL
from clawctl.extensions.secrets.lexicon import ANCHORED, TOKEN, Meaning, meaning_of, words_within
from clawctl.extensions.secrets.names import name_positions
from clawctl.extensions.secrets.text import Span, make_text, regex
from clawctl.extensions.secrets.values import is_passphrase, is_password, is_strong_key, is_stronger_password
from clawctl.extensions.secrets.vocabulary import NO_VALUES

_SENTENCE = regex(r"[.!。！\n](?=\s*\S)")
_NUMBER = regex(r"(?<![\w.,:/-])\d(?:[ -]?\d){2,11}(?![\w]|[.,:/-]\d)")
_PHRASE = regex(r"[a-z]{2,12}(?: [a-z]{2,12}){3,23}")
_LOGIN = regex(r"[\w.@+-]{2,40} ?[/|] ?(?P<value>(?=\S*\d)\S{5,64})")  # `ann / secret7`
# Questions that open an account: `Which answer did you give to the question about your first pet?`
_PERSONAL = regex(
    r"(?i)(?=.*\b(?:answer|question|Antwort|Frage)\b).*\b(?:first (?:pet|school|teacher|car)|maiden name|security question|Sicherheitsfrage)\b"
)
_PRONOUN = regex(r"(?i)\b(?:it|that|them|one|say|message)\b")
_OTHER_QUESTIONS = regex(
    r"\b(?:TAN|(?:digits|Ziffern|chiffres|cifras|dígitos|cifre|cijfers)\b[^.?]{0,40}\b(?:text|message|SMS|card|Karte|carte|tarjeta|cartão|carta|kaart)|(?:recovery|seed|secret|backup) phrase)\b"
)
_NAMES_A_FIELD = regex(rf"(?i)\b(?:password|passphrase|passcode|pin|token|key|secret) (?:{'|'.join(sorted(NO_VALUES))})\b")
_SHORTEST_WORD = 6
_REPLIES = frozenset(("cancel", "continue", "nothing", "correct", "please", "thanks", "anything", "whatever", "default"))
_NO_PHRASE = frozenset(("know", "idea", "cannot", "not", "forgot", "sure", "later", "tell", "why", "need"))
_YES_OR_NO = regex(r"(?i)(?:should|shall|do|does|did|is|are|was|were|has|have|want|would you like)\b")
_MOST_WORDS, _MOST_READ, _MOST_WORDS_OF_PRONOUN, _MOST_PERSONAL = 5, 12, 6, 3
_AROUND = ".,;:!?()[]<>\"'`*"
_NAMES_A_CODE = Meaning.STRONG | Meaning.PIN | Meaning.WEAK
_ANOTHER_THING = Meaning.HARMLESS | Meaning.BEFORE


def asks(text: str) -> bool:
    """Whether a text ends with a question for a secret, and not for what numbers usually name (`Which port …?`)."""
    question = _question(text)
    if _of_another_thing(question) or _NAMES_A_FIELD.search(question):
        return False
    wanted = _meaning(question) & (ANCHORED & ~Meaning.PLACE | Meaning.PASSWORD)
    return (
        bool(wanted)
        or _for_code_or_phrase(question)
        or _PERSONAL.search(question) is not None
        or bool(name_positions(make_text(question)))
    )


def in_answer(question: str, text: str) -> Iterator[Span]:
    """Find a short answer that is a number, a phrase, or a password after a question for one."""
    said, asked = text.strip().strip(".!\"'`"), _question(question)
    if not said or _YES_OR_NO.match(_last_sentence(question)):
        return
    meaning = _meaning(asked)
    number = _NUMBER.search(said) if meaning & (_NAMES_A_CODE | Meaning.PASSWORD) or _for_code_or_phrase(asked) else None
    if len(said.split()) > _MOST_WORDS:
        number = None
    if number is not None and number[0] not in TRIVIAL and not _of_another_thing(said):
        said = number[0]
    elif (_PERSONAL.search(asked) and len(said.split()) <= _MOST_PERSONAL) or (
        "phrase" in asked and _PHRASE.fullmatch(said) and _NO_PHRASE.isdisjoint(said.split())
    ):
        pass
    elif not meaning & Meaning.PASSWORD or not (len(said.split()) <= _MOST_WORDS and _is_word(said)):
        words = [word.strip(_AROUND) for word in said.split()[:_MOST_READ]]
        pair = _LOGIN.fullmatch(said) if meaning & Meaning.PASSWORD else None
        said = pair["value"] if pair else next((word for word in words if _is_given(word, meaning, asked)), "")
    if said:
        start = text.find(said)
        yield Span(start, start + len(said), "password")


def _is_given(word: str, meaning: int, question: str) -> bool:
    """Whether a word of an answer is the secret itself: `it's still the default, admin12`."""
    if meaning & Meaning.PASSWORD:
        return is_stronger_password(word)
    return is_strong_key(word) and bool(name_positions(make_text(question)))


def _for_code_or_phrase(question: str) -> bool:
    """Whether a question is for the digits of a code, for a TAN or for the words of a wallet."""
    return _OTHER_QUESTIONS.search(question) is not None and not _NAMES_A_FIELD.search(question)


def _is_word(said: str) -> bool:
    if " " in said:
        return is_passphrase(said)
    return (is_password(said) and not said.isalpha()) or (len(said) >= _SHORTEST_WORD and said.lower() not in _REPLIES)


def _question(text: str) -> str:
    """Return the last sentence, and the one before it if the last names nothing: `This needs a token. Can you paste it?`"""
    last = _last_sentence(text)
    if text.rstrip().endswith(("?", "？")) and len(last.split()) <= _MOST_WORDS_OF_PRONOUN and _PRONOUN.search(last):
        before = text[: text.rindex(last)].rstrip(" .!?？。！\n")
        return f"{_last_sentence(before)} {last}"
    return last


def _last_sentence(text: str) -> str:
    text = text.rstrip(" .!?:？。：\n*_`")
    cuts = [match.end() for match in _SENTENCE.finditer(text)]
    return text[cuts[-1] :] if cuts else text


def _of_another_thing(text: str) -> bool:
    meanings = [meaning_of(word) for word in TOKEN.findall(text.lower())]
    for meaning in meanings if not any(meaning & Meaning.STRONG for meaning in meanings) else ():
        if meaning & Meaning.PASSWORD:  # what follows is whose password it is: `of the camera`
            return False
        if meaning & _ANOTHER_THING and not meaning & (Meaning.OWNER | Meaning.IS | ANCHORED):
            return True
    return False


def _meaning(text: str) -> int:
    meaning = 0
    for word in TOKEN.findall(text.lower()):
        meaning |= meaning_of(word)
        if not word.isascii():
            for _, _, inner in words_within(word):
                meaning |= inner
    return meaning
