# ruff: noqa: E501 - expressions stay lines
"""Whether a text asks for a secret, and of which kind: `They want the account PIN. Do you know it?`

A question is read generously: it may name the secret in one of its last sentences. The words are data: `questions.txt`, `lexicon.txt`.
"""

import functools
from enum import Flag, auto
from operator import or_

from clawctl.extensions.secrets.lexicon import ANCHORED, TOKEN, Meaning, meaning_of, words_within
from clawctl.extensions.secrets.names import name_positions
from clawctl.extensions.secrets.tables import table
from clawctl.extensions.secrets.text import make_text, regex
from clawctl.extensions.secrets.vocabulary import NO_VALUES


class Wanted(Flag):
    """What a question asks for."""

    NOTHING = 0
    DIGITS = auto()  # a PIN, a code
    KEY = auto()  # an API key, a token
    TEXT = auto()  # a password
    WORDS = auto()  # a phrase, a code word, the answer to a security question


WORDING: dict[str, str] = table("questions.txt")
_SENTENCE = regex(r"[.!?][\"'”»)*_`]{0,2}(?=\s+\S)|[。！？\n](?=\s*\S)")
_MARKUP = regex(r"</?[A-Za-z][^<>\n]{0,80}>|\]\([^()\n]{1,200}\)")
_NO_PROSE = ("-", "*", "#", "|", "<", ">", "{", "[", "`", "+", "$", "=")
_SPACELESS = "\u2e80"  # scripts without spaces begin here
_ASKS_FOR = {
    kind: regex(
        "(?i)" + "|".join(line if line >= _SPACELESS else rf"(?<![^\W_])(?:{line})" for line in WORDING[name].split("\n") if line)
    )
    for kind, name in (
        (Wanted.DIGITS, "DIGITS"),
        (Wanted.KEY, "KEY"),
        (Wanted.DIGITS | Wanted.KEY, "ACCESS"),
        (Wanted.WORDS, "WORDS"),
    )
}
_NAMES_A_FIELD = regex(
    rf"(?i)\b(?:password|passphrase|passcode|pin|token|key|secret) (?:{'|'.join(sorted(word for word in NO_VALUES if len(word) > 2))})\b"
)
_GOES_ON = regex(WORDING["GO ON"].strip())
_PRONOUN = regex(r"(?i)\b(?:it|that|them|one|those|both)\b")
_MOST_WORDS_AFTER = 12
_REQUESTS = regex(
    r"(?i)(?:(?:please|kindly|now|then|so|ok),? )*(?:give|tell|enter|type|send|read|provide|say) (?:me|us|in|out|the|your)\b"
)  # and a remark may follow
_BARE, _LONGEST_BARE = regex(WORDING["BARE"].strip()), 80
_OTHERWISE = regex(WORDING["OTHERWISE"].strip())
_ENTER, _LOG_IN, _OF_NO_SECRET = (regex(WORDING[name].strip()) for name in ("ENTER", "LOG IN", "NO SECRET"))
_RECALLS = regex("(?i)" + WORDING["RECALLS"].strip().replace("\n", "|"))
_OWN = regex(WORDING["OWN"].strip())
_PROGRAMS = regex(WORDING["PROGRAMS"].strip())
_ANOTHER_THING = Meaning.HARMLESS | Meaning.BEFORE


@functools.lru_cache(maxsize=1 << 12)  # a conversation is sent again with each turn
def asks(text: str, by_person: bool = False) -> bool:
    """Whether a text ends with a question for a secret, and not for what numbers usually name (`Which port …?`). What a person
    writes is one only if it asks for a secret to be told (`What was my PIN?`); other requests are about code, keys and passwords.
    """
    return (not by_person or _recalls(sentences_of(text)[0]) or _is_bare(text)) and bool(wanted_by(text))


def continues(text: str) -> bool:
    """Whether a text asks for what was asked for before, and names nothing: `And the rest?`, `Go ahead.`"""
    return len(text) <= _LONGEST_BARE and _GOES_ON.match(sentences_of(text)[0]) is not None


def wanted_by(text: str) -> Wanted:
    """What the question asks for. If it is short and names nothing, what the sentences beside it name: `This needs a token. Can you
    paste it?`"""
    last, others = sentences_of(text)
    if _NAMES_A_FIELD.search(last) or _OF_NO_SECRET.search(last) or (_OTHERWISE.search(last) and not _of(last) & Wanted.DIGITS):
        return Wanted.NOTHING
    if wanted := _of(last) | _may_be_of(last):
        return wanted
    if _ENTER.search(last) and any(_LOG_IN.search(sentence) for sentence in (last, *others)):
        return Wanted.DIGITS | Wanted.KEY
    if requested := [sentence for sentence in others if _REQUESTS.match(sentence)]:
        return functools.reduce(or_, map(_of, requested), wanted)
    length = len(last.split()) if " " in last else len(last) / 2
    if (length > _MOST_WORDS_AFTER and not _PRONOUN.search(last)) or _names_another_thing(last):
        return Wanted.NOTHING
    named = (_of(sentence) | _may_be_of(sentence) for sentence in others if not _NAMES_A_FIELD.search(sentence))
    return functools.reduce(or_, named, wanted)


def _recalls(question: str) -> bool:
    """Whether a person asks for something of their own that the other side knows: `What was my PIN?`"""
    recalls = any(pattern.search(question) for pattern in (_RECALLS, _ENTER, _ASKS_FOR[Wanted.DIGITS | Wanted.KEY]))
    if not recalls or _PROGRAMS.search(question):  # first, because it is cheap and mostly so
        return False
    return bool(_OWN.search(question) or _meaning(question) & Meaning.LOCK) and bool(_of(question) | _may_be_of(question))


def _is_bare(text: str) -> bool:
    """Whether a person names a thing and no more: `bike lock combo?`, `Passphrase for the backup drive please`"""
    return len(text) <= _LONGEST_BARE and _BARE.fullmatch(text.strip()) is not None and not _PROGRAMS.search(text)


def _may_be_of(question: str) -> Wanted:
    """What a question names with words that have other meanings as well: a code, the door."""
    meanings = [meaning_of(word) for word in TOKEN.findall(question.lower())]
    opens = [meaning & Meaning.LOCK for meaning in meanings] if _meaning(question) & (Meaning.OPENS | Meaning.KEYS) else []
    if any(opens) and not _of_another_thing(question):
        return Wanted.DIGITS
    if _PROGRAMS.search(question) and not any(meaning & (Meaning.LOCK | Meaning.OWNER) for meaning in meanings):
        return Wanted.NOTHING
    beside = [0, *meanings, 0]
    for before, meaning, after in zip(beside, meanings, beside[2:], strict=False):  # `error code`, `code of the page`
        if meaning & Meaning.WEAK and not (meaning | before | after) & _ANOTHER_THING:
            return Wanted.DIGITS
    return Wanted.DIGITS if _meaning(question) & Meaning.WEAK and not _of_another_thing(question) else Wanted.NOTHING


def _of(sentence: str) -> Wanted:
    """What a sentence names."""
    wanted, meaning = Wanted.NOTHING, _meaning(sentence)
    of_lock = meaning & Meaning.WEAK and meaning & Meaning.LOCK
    if meaning & (Meaning.STRONG | Meaning.PIN | Meaning.KEYBOX) or of_lock:
        wanted |= Wanted.DIGITS
    if meaning & Meaning.PASSWORD:
        wanted |= Wanted.TEXT
    if name_positions(make_text(sentence)) and not _of_another_thing(sentence):
        wanted |= Wanted.KEY
    for kind, pattern in _ASKS_FOR.items():
        if pattern.search(sentence):
            wanted |= kind
    return wanted


def sentences_of(text: str) -> tuple[str, list[str]]:
    """The last question of the last three sentences, or the last sentence, and the others. They are in the last line, or in the last
    two if these are prose."""
    lines = [line.strip() for line in _MARKUP.sub(" ", text[-600:]).split("\n") if line.strip(" \n*_`\"'»”")]
    prose = len(lines) > 1 and not any(line.startswith(_NO_PROSE) for line in lines[-2:])
    text = "\n".join(lines[-2:]) if prose else (lines or [""])[-1]
    starts = [0, *(match.end() for match in _SENTENCE.finditer(text))][-3:]
    sentences = [text[start:stop].strip() for start, stop in zip(starts, [*starts[1:], None], strict=True)]
    questions = [sentence for sentence in sentences if "?" in sentence[-3:] or "？" in sentence[-3:]]
    last = (questions or sentences)[-1]
    return last.rstrip(" .!?:？。：\"'*_`»”"), [sentence for sentence in sentences if sentence != last]


def _names_another_thing(text: str) -> bool:
    return any(
        meaning_of(word) & _ANOTHER_THING and not meaning_of(word) & (Meaning.OWNER | Meaning.IS) for word in TOKEN.findall(text)
    )


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
