# ruff: noqa: E501 - expressions stay lines
"""Finds word-like passwords stated in a sentence, in many languages, and answers to security questions."""

import re
from collections.abc import Iterator

from clawctl.extensions.secrets.digit_codes import PASSWORDS_AT, SECRET_NAME, code_words
from clawctl.extensions.secrets.lexicon import TOKEN, Meaning, meaning_of, plain
from clawctl.extensions.secrets.text import BEYOND, Anchors, Span, Text, phrases, regex, tried_at
from clawctl.extensions.secrets.values import (
    NAMING,
    TECHNICAL,
    is_passphrase,
    is_stand_in,
    is_stronger_password,
    is_words,
    reads_as_prose,
)
from clawctl.extensions.secrets.vocabulary import LISTS

_STOP = frozenset(map(plain, LISTS["no password words"].split()))
_ENDINGS = regex(r"(?&endings)$")
_JOIN = regex(
    r"(?i)[ \t]{0,2}(?::|=|：|→|->)[ \t]{0,3}|(?:[ \t]{1,3}|(?<=['’]))(?&is)(?: (?&now))?[ \t]{1,3}:?[ \t]{0,2}|[ \t]{1,3}[-–—][ \t]{1,3}|[ \t]{1,2}(?=[«„“\"‚‘「『])"
)
_TOLD = regex(
    r"(?P<open>[\"'`«„“‚‘「『*_]{0,3})[ ]?(?P<value>[^\s\"`«»„“”「」『』。，、！؟،]{4,64})(?=[\s\"`«»„“”「」『』。，、！؟،]|$)"
)
_QUOTED = regex(r"[«„“‚‘「『\"'`]{1,2}[ ]?(?P<value>[^«»„“”‘’「」『』\"`\n]{3,60}?)[ ]?[»“”’」』\"'`]")
_ENDS = regex(r"[\"'`»”’」』*_)]{0,3}(?:[.,;!?。，、)]|[ ]?[(（]|[ \t]*(?:\n|$)|[ ][-–—][ ]|[ ](?:(?&and)|(?&but))[ ])")
_CODEWORDS = regex(r"(?i)(?&code word)")
_ANSWERS = regex(r"(?i)(?&answer to a known question)")
_ANCHORED = Anchors(*phrases("anchors of code words"))
_QUESTIONS = Anchors(*phrases("questions"))
_NEW_ANCHORS, _NEW_BEYOND = Anchors(*phrases("new")), Anchors(*phrases("new beyond"))


@tried_at(_ANCHORED, _QUESTIONS, _NEW_ANCHORS, PASSWORDS_AT, BEYOND)
def in_disclosures(piece: Text) -> Iterator[Span]:
    """Find statements such as `das Telefon-Kennwort ist Lampewiese`, `кодовое слово «…»`, `maiden name: …`, `the new one is
    otter-lamp-91`.
    """
    yield from _after_codewords(piece)
    yield from _after_passwords(piece)
    yield from _renewed_passwords(piece)
    yield from _security_answers(piece)


def _after_codewords(piece: Text) -> Iterator[Span]:
    text = piece.text
    for at in _ANCHORED.positions(piece):
        for pattern in (_CODEWORDS, _ANSWERS):
            begin = max(0, at - 10)
            named = pattern.search(text, begin, at + 60)
            if named is None or named.start() > at + 2:
                continue
            yield from _value_after(text, named.end(), phrase=True)
            yield from _phrase_after(text, named.start(), named.end())
            break


def _after_passwords(piece: Text) -> Iterator[Span]:
    """Find values after a word for a password, optional other words and a joining word or sign."""
    text = piece.text
    for start, end, _ in code_words(piece, SECRET_NAME):
        if (
            text[start - 1 : start].isalnum()
            or text[start - 1 : start] in ("_", ".", "$", ":")
            or text[end : end + 1].isalnum()
            or text[end : end + 1] in ("_", "(", "[")
        ):
            continue
        yield from _value_after(text, end, phrase=False)
        yield from _phrase_after(text, start, end)


def _phrase_after(text: str, start: int, end: int) -> Iterator[Span]:
    """Find a phrase, or text that the reader is asked to type, after its name from `start` to `end`."""
    for pattern, check in (
        (_ORDERED, _is_chosen_word),
        (_NEXT, _is_numbered_name),
        (_QUOTED_PHRASE, _is_quoted_phrase),
        (_SPOKEN_PHRASE, _is_spoken_phrase),
    ):
        match = pattern.match(text, end)
        if match is None or (pattern is _SPOKEN_PHRASE and not _OF_HOTLINE.search(text, max(0, start - 24), match.start("value"))):
            continue
        value = match["value"].rstrip(".,;:?)")
        if check(value):
            yield Span(match.start("value"), match.start("value") + len(value), "password")
            return


# Text that the reader is asked to type: `for the password use maple-803-Kettle`, `pour le mot de passe mets …`.
_ORDERED = regex(r"(?i)[\"'`:,*]{0,3}(?:[ ][\w'’@.-]{1,16}){0,3}?[,:]?[ ](?&type)[ ][\"'`„“«*]{0,2}(?P<value>[^\s\"'`»”“]{7,64})")
_NEXT = regex(r"[ ][\"'`]?(?P<value>[^\s\"'`]{7,64})")  # `the initial password Otter-73-Pine`
# Quoted words that follow their label after some other words: `Passphrase on my key is “guitar acoustic fossil adapt”`.
_QUOTED_PHRASE = regex(
    r"(?i)[\"'`:*]{0,2}(?:[ ](?:[\w'’@./-]{1,20}|\([^()\n]{1,24}\)),?){0,8}?[ ]{0,2}(?:(?&is)|is now|reads|:|=|→|->)[ ]{0,2}[«„“‚‘\"'`][ \u00a0]?(?P<value>[^\W\d_][^«»„“”\"`\n]{8,70}[^\W\d_])[ \u00a0]?[»”“\"'`’]"
)
_SPOKEN_PHRASE = regex(
    r"(?i)(?P<gap>(?:[ ][\w'’.-]{1,20}){0,7}?)[ ](?&is)[ ](?P<value>[^\W\d_]{4,14}[ ][^\W\d_]{4,14})(?=[.,;!?)]|[ ](?&and)[ ]|[ ]*(?:\n|$))"
)
_OF_HOTLINE = regex(r"(?i)(?&spoken to)")


def _is_chosen_word(value: str) -> bool:
    """Whether the value is words joined with a number, or looks generated. Names of algorithms and password managers are
    excluded.
    """
    if is_stand_in(value) or TECHNICAL.match(value) or "/" in value:
        return False
    return _JOINED_WORDS.fullmatch(value) is not None or is_stronger_password(value)


def _is_numbered_name(value: str) -> bool:
    """Whether the value is words joined with a number, with a capital."""
    is_joined = _JOINED_WORDS.fullmatch(value) is not None and not value.islower() and any(map(str.isdigit, value))
    return is_joined and not is_stand_in(value) and TECHNICAL.match(value) is None


_JOINED_WORDS = regex(
    r"[^\W\d_]{3,14}[-_.!](?:[^\W\d_]{2,14}[-_.!]){0,3}(?:\d{2,6}(?:[-_.!][^\W\d_]{2,14})?|[^\W\d_]{2,14}\d{2,4})[!?#*]?"
)


_WORD_OF_PHRASE = regex(r"(?:a|an|at|by|in|of|on|to)|[^\W\d_]{3,14}(?:['’][^\W\d_]{1,8})?|[^\W\d_]['’][^\W\d_]{3,10}")


def _is_quoted_phrase(value: str) -> bool:
    """Whether the value is three to eight words, none of which is typical of a sentence or a message."""
    words = re.split("[ ,]+", value.lower())
    return (
        3 <= len(words) <= 8
        and all(_WORD_OF_PHRASE.fullmatch(word) for word in words)
        and not any(
            (plain(word) in _STOP or word in NAMING or plain(word).endswith(("ed", "ly"))) and len(word) > 2 for word in words
        )
    )


def _is_spoken_phrase(value: str) -> bool:
    return _is_quoted_phrase(f"{value} other") and not any(_ENDINGS.search(word) for word in value.split())


_ANSWER = regex(
    r"(?i)(?:(?<![^\W\d_])(?&answer)(?![^\W\d_])|(?&answer beyond)|->|→)"
    r"(?P<gap>(?:[ ](?:(?&is)|(?&with))\b|[ ]?(?:[:=：]|(?&particles))|[ ]?->|[ ]?→|[ ](?:[a-z]{2,10}[ ])?(?=[\"'`„“«])|[ ](?=\S{0,40}[0-9]))+)[ ]{0,2}[\"'`„“«*]{0,2}(?P<value>[^\s\"'`»”“。，]{4,40}(?:(?<![,;])[ ](?-i:[A-Z])[^\s\"'`»”“.,]{2,20})?)"
)


def _security_answers(piece: Text) -> Iterator[Span]:
    """Find answers to security questions, whatever is between question and answer: `security question (first pet): I answer
    zk3Biscotte`.
    """
    text = piece.text
    for at in _QUESTIONS.positions(piece):
        for answer in _ANSWER.finditer(text, at + 4, at + 260):
            value = answer["value"].rstrip(".,;:?)'’*_!")
            if not answer["gap"].strip() and not any(map(str.isdigit, value)):
                continue
            if _is_disclosed(value.partition(" ")[0], True, answer["gap"]):
                yield Span(answer.start("value"), answer.start("value") + len(value), "password")
                break


def _value_after(text: str, end: int, phrase: bool) -> Iterator[Span]:
    at = end
    for _ in range(3):
        join = _JOIN.search(text, at, min(len(text), end + 70))
        if join is None:
            return
        gap = text[end : join.start()]
        if _NEXT_FIELD.search(gap):
            return
        if re.search(r"[\n.!?;|{}<>=()\[\]]", gap) and not re.fullmatch(
            r"[^\n.!?;|{}<>=]{0,40}\([^()\n]{1,30}\)[^\n.!?;|{}<>=]{0,30}", gap
        ):
            return
        if join[0].strip().lower() == "to" and _ENGLISH.search(text, max(0, end - 12), end) and not _CHANGED.search(gap):
            at = join.end()
            continue
        value = _QUOTED.match(text, join.end())
        if value is not None and _may_be_quoted(value["value"], phrase, gap):
            yield Span(*value.span("value"), "password")
            return
        match = _TOLD.match(text, join.end())
        if match is not None:
            bare = match["value"].rstrip(".,;:?)'’*_")
            if _is_disclosed(bare, phrase, gap) and (not bare.isalpha() or _ENDS.match(text, match.start("value") + len(bare))):
                yield Span(match.start("value"), match.start("value") + len(bare), "password")
                return
        at = join.end()


_NEXT_FIELD = regex(r"[\"'`],")  # `"password":"***","ip":`
_ENGLISH = regex(r"(?i)(?:password|passphrase|passcode|passwd|pass|pw)s?$")
_CHANGED = regex(r"(?i)(?:chang|updat|rotat|alter|switch)ed\b|\b(?:set|reset|now|back|it|this|equals?|equal)\b")


def _may_be_quoted(value: str, phrase: bool, gap: str) -> bool:
    folded = plain(value)
    if (
        is_stand_in(value, quoted=True)
        or TECHNICAL.match(value)
        or folded in _STOP
        or value.lower() in NAMING
        or value.count(" ") > 4
    ):
        return False
    if phrase:
        return True
    return (
        len(gap.split()) >= 1
        and " " not in value
        and len(value) >= 5
        and not value.islower()
        and not re.search(r"[_()=/\\]", value)
        and not value.isdigit()
        and (not value.isalpha() or (len(gap.split()) <= 6 and any(meaning_of(word) & _PERSONAL for word in TOKEN.findall(gap))))
    )


_TITLED = regex(r"[A-Z][a-z]{2,13}(?:_[A-Za-z]{1,14}){2,5}")  # `Bottle_of_ships`; names in code begin small
_PERSONAL = Meaning.LOCK | Meaning.OWNER | Meaning.YOURS


def _is_disclosed(value: str, phrase: bool, gap: str) -> bool:
    """Whether the value is a password. `words`: its name promises a word."""
    if (
        not 4 <= len(value) <= 64
        or is_stand_in(value)
        or TECHNICAL.match(value)
        or plain(value) in _STOP
        or value.lower() in NAMING
    ):
        return False
    if re.search(r"[()\[\]{}<>=\\]|://|::|\.\w{1,4}$|^[-$%/.@]|\w/\w", value):
        return False
    if value.isalpha():
        if phrase:
            return (value[0].isupper() or not value.isascii() or len(value) >= 5) and not _ENDINGS.search(value)
        if not value.isascii() and value[0].lower() == value[0]:
            return False
        if (_is_jumbled(value) and gap.split()) or (is_words(value) and value[0].isupper() and gap.split()):
            return True
        return (
            value[0].isupper()
            and value[1:].islower()
            and len(value) >= 6
            and 2 <= len(gap.split()) <= 6
            and not _ENDINGS.search(value)
        )
    if value.replace("-", "").isdigit():
        return False
    letters = sum(map(str.isalpha, value))
    if letters < 3:
        return False
    if any(map(str.isdigit, value)):
        return (
            len(value) >= 6
            and re.fullmatch(r"\d{1,5}[-.]?[^\W\d_]+|[^\W\d_]{1,5}-?\d{1,3}|\d+[.:]\d+\w*", value) is None
            and not reads_as_prose(value)
        )
    return (
        is_passphrase(value)
        or _TITLED.fullmatch(value) is not None
        or (is_words(value) and value[0].isupper() and len(gap.split()) >= 1 and "." not in value)
    )


def _is_jumbled(value: str) -> bool:
    """Whether the value has eight or more letters with capitals in unusual places (`ZAomSqqGGVVT`)."""
    return (
        len(value) >= 8
        and value.isascii()
        and re.search(r"[a-z][A-Z]{2}|[A-Z]{2}[a-z]+[A-Z]", value) is not None
        and len(re.sub(r"[A-Z]?[a-z]{3,}", "", value)) * 2 >= len(value)
    )


_NEW = regex(r"(?i)(?&the new one is)[: ]{1,3}[\"'`«„“*]{0,2}(?P<value>[^\s\"'`»”]{6,64})")
_NEW_OTHER = regex(r"(?&the new one beyond)[ :：—-]{0,4}[\"'`«]?(?P<value>[!-~]{6,64})")
_PHRASED = regex(r"[A-Za-z]{3,12}(?:[-_.][A-Za-z]{3,12}){1,5}[-_.]?\d{1,4}[!?#*]?")


def _renewed_passwords(piece: Text) -> Iterator[Span]:
    text = piece.text
    for at in _NEW_ANCHORS.positions(piece):
        if match := _NEW.match(text, at):
            value = match["value"].rstrip(".,;:)")
            if _PHRASED.fullmatch(value) or (_is_disclosed(value, False, "") and not value.isalpha()):
                yield Span(match.start("value"), match.start("value") + len(value), "password")
    for at in _NEW_BEYOND.positions(piece):
        if (match := _NEW_OTHER.match(piece.lower, at)) and _is_disclosed(
            value := text[match.start("value") : match.end("value")].rstrip(".,;:)"), False, ""
        ):
            yield Span(match.start("value"), match.start("value") + len(value), "password")
