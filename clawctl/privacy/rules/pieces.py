"""A piece of text that is looked through, and what a rule finds in it."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import ClassVar, Literal, get_args

Kind = Literal["api_key", "token", "password", "private_key", "card", "email", "phone"]
BESIDE_A_NAME = "a value beside a name like password or key"
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Span:
    start: int
    end: int
    kind: Kind
    rule: str = ""  # the name of the rule that found it


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text that is looked through, and the same in forms of the same length."""

    text: str
    lower: str
    ascii: str  # in lower case too, with `?` for letters beyond ASCII: words are found in it fastest
    blobs: list[tuple[int, int]]  # where the runs are that may be a key
    words: frozenset[str]  # the words of all anchors that stand in it
    spelled: frozenset[str] = frozenset()  # its runs of two ASCII letters or more, in lower case
    beyond: bool = True  # whether it has letters beyond ASCII
    found: dict[str, list[int]] = field(default_factory=dict)  # where an anchor stands: several rules ask for the same
    names: list[int] = field(default_factory=list)  # where a word stands that may name a secret, once somebody has asked


def make_text(text: str, lower: str) -> Text:
    plain = lower if text.isascii() else lower.encode("ascii", "replace").decode()
    spelled = frozenset(_WORDS.findall(plain))
    return Text(
        text, lower, plain, _blobs(text), _anchored(spelled), spelled, not text.isascii() and _BEYOND.search(text) is not None
    )


_BEYOND = re.compile("[\u00aa-\u00ba\u00c0-\u1fff\u2c00-\u2dff\u3005-\u3007\u3040-\ud7ff\uf900-\ufdff\ufe70-\ufeff\uff21-\uffdc]")


class Anchors:
    """Strings in lower case that stand where a rule is worth trying. Looked for only where all their words stand."""

    words: ClassVar[set[str]] = set()  # of all anchors

    def __init__(self, *anchors: str) -> None:
        self.each = [(frozenset(_WORDS.findall(anchor)), anchor) for anchor in anchors]
        self._by_longest: dict[str, list[int]] = {}
        for number, (needed, _) in enumerate(self.each):
            self._by_longest.setdefault(max(needed, key=lambda word: (len(word), word), default=""), []).append(number)
            Anchors.words.update(needed)
        self._longest = frozenset(self._by_longest)

    def absent(self, piece: Text) -> bool:
        return self._longest.isdisjoint(piece.words)

    def places(self, piece: Text) -> list[int]:
        """Where they stand, one anchor after the other."""
        return [place for _, at in self.standing(piece) for place in at]

    def standing(self, piece: Text) -> Iterator[tuple[str, list[int]]]:
        """Each anchor that stands in it, and where."""
        words, known = piece.words, piece.found
        for number in sorted([number for word in self._longest & words for number in self._by_longest[word]]):
            needed, anchor = self.each[number]
            at = known.get(anchor)
            if at is None:
                at = known[anchor] = places(piece.ascii, anchor) if needed <= words else []
            if at:
                yield anchor, at


class ManyAnchors:
    """Many anchors in one: what is looked at are the words of the text, not each of the anchors."""

    def __init__(self, of: Sequence[Anchors]) -> None:
        self._all = Anchors(*dict.fromkeys(anchor for anchors in of for _, anchor in anchors.each))
        self._of: dict[str, list[int]] = {}
        for number, anchors in enumerate(of):
            for _, anchor in anchors.each:
                self._of.setdefault(anchor, []).append(number)

    def places(self, piece: Text) -> list[tuple[int, list[int]]]:
        """The numbers of those that stand in it, in order, and where."""
        found: dict[int, list[int]] = {}
        for anchor, at in self._all.standing(piece):
            for number in self._of[anchor]:
                found[number] = found[number] + at if number in found else at
        return sorted(found.items())


_WORDS = re.compile(r"[a-z]{2,}")
_LONGEST_WORD, _MOST_WORDS = 24, 1 << 16  # that are remembered


class _Vocabulary(dict[str, tuple[str, ...]]):
    """Which anchors' words stand in a word. Those of a language come again and again: searching for each anchor costs more."""

    def __missing__(self, word: str) -> tuple[str, ...]:
        found = tuple(anchor for anchor in Anchors.words if anchor in word) if _any_of(len(Anchors.words)).search(word) else ()
        if len(word) <= _LONGEST_WORD:
            if len(self) >= _MOST_WORDS:
                self.clear()
            self[word] = found
        return found


@lru_cache(maxsize=1)
def _any_of(_: int) -> re.Pattern[str]:
    by_start: dict[str, list[str]] = {}
    for word in sorted(Anchors.words):
        by_start.setdefault(word[:1], []).append(word[1:])
    return re.compile("|".join(f"{start}(?:{'|'.join(rest)})" for start, rest in by_start.items()))  # each letter is tried once


_VOCABULARY = _Vocabulary()


def _anchored(words: frozenset[str]) -> frozenset[str]:
    return frozenset(chain(("",), *map(_VOCABULARY.__getitem__, words)))


Finder = Callable[[Text], Iterator[Span]]

_BLOB = re.compile(r"(?<![A-Za-z0-9_.+/=~:|%$@-])[A-Za-z0-9_.+/=~:|%$@-]{17,}")
_MEDIA = re.compile(
    r"(?:iVBORw0KGgo|/9j/|R0lGOD|UklGR|Qk0|SUQz|T2dnUw|AAAA[A-Za-z0-9]{4}ZnR5c|d09G[MR]|AAEAAAA|JVBERi0|T1RUTw|GkXfo)"
)


def _blobs(text: str) -> list[tuple[int, int]]:
    """The runs that may be a key. What follows `;base64,` and begins as a picture does is none."""
    return [
        blob.span()
        for blob in _BLOB.finditer(text)
        if not (_MEDIA.match(text, blob.start()) and text.endswith("base64,", 0, blob.start()))
    ]


_REST_OF = re.compile(r"[\w%+/=~.$:-]*")


def whole(finder: Finder) -> Finder:
    """A long value to its end: what is longer than its rule reads leaves no tail."""

    def find(piece: Text) -> Iterator[Span]:
        reached = 0
        for span in finder(piece):
            if span.end - span.start < 100:
                yield span
                continue
            if not span.start < span.end <= reached:
                rest = _REST_OF.match(piece.text, span.end)
                reached = rest.end() if rest else span.end
            yield Span(span.start, max(span.end, reached), span.kind)

    return find


def places(text: str, word: str) -> list[int]:
    """Where `word` stands in `text`."""
    found: list[int] = []
    at = text.find(word)
    while at >= 0:
        found.append(at)
        at = text.find(word, at + len(word))
    return found
