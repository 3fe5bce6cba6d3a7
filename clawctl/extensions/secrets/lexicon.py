"""Words that occur around codes, grouped by their meaning for a nearby number (`lexicon.txt`).

`stem*` matches the start of a word, `*stem*` a part of it, and `=word` is compared with its accents. All other entries match whole
words. Words in Latin and Greek letters are compared without accents. In scripts without spaces every entry matches a part of a run
of letters.
"""

import unicodedata
from functools import lru_cache

from clawctl.extensions.secrets.tables import table
from clawctl.extensions.secrets.text import regex


class Meaning:
    """What a word means for a number near it. Meanings are bits of one integer, because many words are looked up."""

    NOTHING = 0
    STRONG = 1  # the number is a secret: PIN, PUK, CVV, TAN
    WEAK = 2  # the number is a secret if another word says what it opens: code, combination
    PASSWORD = 4
    LOCK = 8  # what a code opens: door, alarm, safe
    KEYBOX = 16
    OWNER = 32  # other things a code belongs to: card, phone, verification
    HARMLESS = 64  # a code with another meaning: postal, error, bar
    BEFORE = 128  # a number directly after it is its number: room, page, order
    AFTER = 256  # a number directly before it is a count or a measure: digits, minutes
    IS = 512  # joins a number to what it is
    OPENS = 1024  # an action performed with a code: opens, press, type
    DIGIT = 2048  # zero to nine as a word
    TWICE = 4096  # double, triple
    KEYS = 8192  # refers to access
    AND = 16384
    WHEN = 1 << 16  # a year or a time directly after it is just that
    YOURS = 1 << 17
    PLACE = 1 << 19  # words for what a code opens that are also common in other texts
    SECRECY = 1 << 18  # mentions sharing or secrecy
    PIN = 32768  # PIN alone: it has four digits or more, and other meanings


WORDS: dict[int, str] = {getattr(Meaning, name): words for name, words in table("lexicon.txt").items()}

_SPACELESS = "\u3040-\u30ff\u3400-\u9fff\u0e01-\u0e4e〇"
# Letters of the other scripts and their vowel signs. Digits and punctuation are left out.
_LETTERS = (
    "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02af\u0300-\u037d\u0386-\u0481\u048a-\u0556\u0561-\u0587\u0591-\u05bd\u05bf-\u05c2\u05d0-\u05f2"
    "\u0610-\u061a\u0620-\u065f\u066e-\u06d3\u06d5-\u06ef\u06fa-\u06ff\u0900-\u0963\u0971-\u09e5\u0a01-\u0a65\u0a70-\u0ae5\u0b01-\u0b65"
    "\u0b82-\u0be5\u0c00-\u0c65\u0c80-\u0ce5\u0d00-\u0d65\u10a0-\u11ff\u1e00-\u1fff\u200c\uac00-\ud7a3"
)
TOKEN = regex(rf"[{_LETTERS}]{{1,40}}(?:['’][{_LETTERS}]{{1,20}})?|[{_SPACELESS}]{{1,40}}")
_IS_SPACELESS = regex(f"[{_SPACELESS}]")


@lru_cache(maxsize=1 << 14)
def plain(word: str) -> str:
    """Return the word in lower case, with Latin and Greek letters stripped of accents."""
    word = word.lower().replace("’", "'")
    if word.isascii() or (max(word) >= "\u0400" and not "\u1e00" <= max(word) < "\u2000"):
        return word
    bare = "".join(letter for letter in unicodedata.normalize("NFKD", word) if not unicodedata.combining(letter))
    return bare.translate(_PLAIN)


_PLAIN = str.maketrans({"ı": "i", "ł": "l", "ø": "o", "ß": "ss", "æ": "ae", "đ": "d", "ð": "d", "œ": "oe", "ς": "σ"})


class _Lexicon:
    def __init__(self) -> None:
        self.exact: dict[str, int] = {}
        self.accented: dict[str, int] = {}
        self.stems: dict[str, int] = {}
        self.parts: dict[str, int] = {}
        self.within: dict[str, int] = {}  # for scripts without spaces
        for meaning_of, block in WORDS.items():
            for entry in dict.fromkeys(block.split()):
                table, word = self._table(entry)
                table[word] = table.get(word, Meaning.NOTHING) | meaning_of
        self.parts_by_first: dict[str, list[str]] = {}
        for word in self.parts:
            self.parts_by_first.setdefault(word[0], []).append(word)
        self.within_by_first: dict[str, list[str]] = {}
        for word in sorted(self.within, key=len, reverse=True):
            self.within_by_first.setdefault(word[0], []).append(word)

    def _table(self, entry: str) -> tuple[dict[str, int], str]:
        if entry.startswith("="):
            return self.accented, entry[1:]
        word = plain(entry.strip("*").replace("\u200c", ""))
        if _IS_SPACELESS.match(entry):
            return self.within, word
        if entry.startswith("*") and len(word) > 1:
            return self.parts, word
        return (self.stems, word) if entry.endswith("*") and len(entry) > 1 else (self.exact, word)


_LEXICON = _Lexicon()
_COMPOUND_ENDS = tuple(table("vocabulary.txt")["ends of compounds"].split())
# `Türcode`, `portkod`, `ovikoodi`: the word also names what the code opens.
_COMPOUND = regex(rf"(?P<of>.{{2,24}}?)s?(?P<word>{'|'.join(_COMPOUND_ENDS)})$")
_OF_CODES = Meaning.LOCK | Meaning.OWNER | Meaning.KEYBOX


@lru_cache(maxsize=1 << 15)
def meaning_of(word: str) -> int:
    """Return the meanings of a word in a script with spaces."""
    bare = plain(word).replace("\u200c", "")
    meanings = _LEXICON.accented.get(word.lower(), Meaning.NOTHING) | _LEXICON.exact.get(bare, Meaning.NOTHING)
    if "'" in bare:
        meanings |= meaning_of(bare.partition("'")[2]) | (
            _LEXICON.exact.get(bare.partition("'")[0], Meaning.NOTHING) & ~Meaning.DIGIT
        )
    for length in range(2, len(bare) + 1):
        meanings |= _LEXICON.stems.get(bare[:length], Meaning.NOTHING)
    if not bare.isascii():
        for at, letter in enumerate(bare):
            for part in _LEXICON.parts_by_first.get(letter, ()):
                if bare.startswith(part, at) and (at == 0 or len(part) > 2):
                    meanings |= _LEXICON.parts[part]
    if (
        not meanings & (Meaning.STRONG | Meaning.WEAK | Meaning.PASSWORD)
        and bare.endswith(_COMPOUND_ENDS)
        and (compound := _COMPOUND.fullmatch(bare))
    ):
        of = meaning_of(compound["of"]) | meaning_of(bare[: compound.start("word")])
        if not of & (_OF_CODES | Meaning.HARMLESS):  # `Haustürcode`, `sykkellåskode`: try the last parts of a longer compound
            of |= next(
                (
                    meaning
                    for cut in range(1, len(compound["of"]) - 2)
                    if (meaning := _LEXICON.exact.get(compound["of"][cut:], Meaning.NOTHING)) & _OF_CODES
                ),
                of,
            )
        if of & Meaning.HARMLESS:
            meanings |= Meaning.HARMLESS
        elif of & _OF_CODES:
            meanings |= Meaning.STRONG
    return meanings


@lru_cache(maxsize=1 << 13)
def words_within(run: str) -> tuple[tuple[int, int, int], ...]:
    """Return start, end and meanings of the words in a run of letters without spaces. The longest match wins."""
    words: list[tuple[int, int, int]] = []
    at, low = 0, run.lower()
    while at < len(low):
        for word in _LEXICON.within_by_first.get(low[at], ()):
            if low.startswith(word, at):
                words.append((at, at + len(word), _LEXICON.within[word]))
                at += len(word)
                break
        else:
            at += 1
    return tuple(words)


NAMES = Meaning.STRONG | Meaning.PIN | Meaning.WEAK | Meaning.PASSWORD
ANCHORED = NAMES | Meaning.LOCK | Meaning.KEYBOX


def anchor_words(of: int) -> dict[str, tuple[bool, bool]]:
    """Return the words in ASCII that may have one of the meanings, as parts of a run of letters: whether letters may precede and
    follow each of them.
    """
    ends = dict.fromkeys((*_COMPOUND_ENDS, "tan") if of & NAMES & ~Meaning.PASSWORD else (), NAMES)
    return {
        word: (word in ends, word in _LEXICON.stems)
        for words in (_LEXICON.exact, _LEXICON.stems, _LEXICON.accented, ends)
        for word, meaning in words.items()
        if word.isascii() and len(word) > 1 and meaning & of and not (meaning & Meaning.PLACE and not meaning & NAMES)
    }
