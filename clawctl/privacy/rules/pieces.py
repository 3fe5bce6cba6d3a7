"""A piece of text that is looked through, and what a rule finds in it."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, compress, islice
from typing import ClassVar, Literal, NamedTuple, get_args

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
    runs: frozenset[str]  # its runs of ASCII letters, in lower case
    within: dict[str, list[int]]  # the words of anchors that stand in it as parts of runs, and where
    beyond: bool = True  # whether it has letters beyond ASCII
    found: dict[str, list[int]] = field(default_factory=dict)  # where an anchor stands: several rules ask for the same
    names: list[int] = field(default_factory=list)  # where a word stands that may name a secret, once somebody has asked


def make_text(text: str, lower: str) -> Text:
    plain = lower if text.isascii() else lower.encode("ascii", "replace").decode()
    parts = _SPLIT.split(plain)
    runs = parts[1::2]
    within = _within(runs, islice(accumulate(map(len, parts)), 0, None, 2))
    return Text(text, lower, plain, _blobs(text), frozenset(runs), within, not text.isascii() and _BEYOND.search(text) is not None)


def _within(runs: list[str], starts: Iterator[int]) -> dict[str, list[int]]:
    """Where the words of anchors stand. Most runs hold none: these are passed over without a step of Python."""
    found: dict[str, list[int]] = {"": []}
    for run, start in compress(zip(runs, starts, strict=False), map(_VOCABULARY.__getitem__, runs)):
        for word, at in _VOCABULARY[run]:
            if word in found:
                found[word].append(start + at)
            else:
                found[word] = [start + at]
    return found


_SPLIT = re.compile(r"([a-z]+)")
_BEYOND = re.compile("[\u00aa-\u00ba\u00c0-\u1fff\u2c00-\u2dff\u3005-\u3007\u3040-\ud7ff\uf900-\ufdff\ufe70-\ufeff\uff21-\uffdc]")


class _Anchor(NamedTuple):
    """A string in lower case that is looked for where one of its words stands."""

    number: int
    said: str
    word: str  # the longest of its words
    at: int  # where in it the word stands
    whole: bool  # other signs stand around the word, so it is a whole run of letters; else it may be a part of one

    def places(self, piece: "Text") -> list[int]:
        if self.whole or not self.word:
            return places(piece.ascii, self.said)
        at = piece.within[self.word]
        if self.said == self.word:
            return at
        return [start - self.at for start in at if piece.ascii.startswith(self.said, start - self.at)]


def _anchor(number: int, said: str) -> _Anchor:
    """By its longest word, or a whole one if that is short: parts of two letters stand in many runs."""
    words = [
        _Anchor(number, said, word[0], word.start(), word.start() > 0 and word.end() < len(said)) for word in _WORDS.finditer(said)
    ]
    words = [word for word in words if word.whole or len(word.word) > 1]
    return max(
        words,
        key=lambda each: (len(each.word) > 3, each.whole, len(each.word), each.word),
        default=_Anchor(number, said, "", 0, False),
    )


class Anchors:
    """Strings that stand where a rule is worth trying."""

    words: ClassVar[set[str]] = set()  # that may be parts of runs, of all anchors

    def __init__(self, *anchors: str) -> None:
        self.each = anchors
        self._parts: dict[str, list[_Anchor]] = {}
        self._runs: dict[str, list[_Anchor]] = {}
        for anchor in map(_anchor, range(len(anchors)), anchors):
            (self._runs if anchor.whole else self._parts).setdefault(anchor.word, []).append(anchor)
        Anchors.words.update(self._parts)

    def absent(self, piece: Text) -> bool:
        return self._parts.keys().isdisjoint(piece.within) and self._runs.keys().isdisjoint(piece.runs)

    def places(self, piece: Text) -> list[int]:
        """Where they stand, one anchor after the other."""
        return [place for _, at in self.standing(piece) for place in at]

    def standing(self, piece: Text) -> Iterator[tuple[str, list[int]]]:
        """Each anchor that stands in it, and where."""
        known = piece.found
        near = [anchor for word in self._parts.keys() & piece.within.keys() for anchor in self._parts[word]]
        if self._runs:
            near += [anchor for word in self._runs.keys() & piece.runs for anchor in self._runs[word]]
        for anchor in sorted(near):
            at = known.get(anchor.said)
            if at is None:
                at = known[anchor.said] = anchor.places(piece)
            if at:
                yield anchor.said, at


class ManyAnchors:
    """Many anchors in one: what is looked at are the words of the text, not each of the anchors."""

    def __init__(self, of: Sequence[Anchors]) -> None:
        self._all = Anchors(*dict.fromkeys(anchor for anchors in of for anchor in anchors.each))
        self._of: dict[str, list[int]] = {}
        for number, anchors in enumerate(of):
            for anchor in anchors.each:
                self._of.setdefault(anchor, []).append(number)

    def places(self, piece: Text) -> list[tuple[int, list[int]]]:
        """The numbers of those that stand in it, in order, and where."""
        found: dict[int, list[int]] = {}
        for anchor, at in self._all.standing(piece):
            for number in self._of[anchor]:
                found[number] = found[number] + at if number in found else at
        return sorted(found.items())


_WORDS = re.compile(r"[a-z]+")
_LONGEST_WORD, _MOST_WORDS = 24, 1 << 16  # that are remembered


class _Vocabulary(dict[str, tuple[tuple[str, int], ...]]):
    """Which anchors' words stand in a run, and where. Runs come again and again: searching for each anchor costs more."""

    def __missing__(self, run: str) -> tuple[tuple[str, int], ...]:
        found: tuple[tuple[str, int], ...] = ()
        if _any_of(len(Anchors.words)).search(run):
            found = tuple((word, at) for word in Anchors.words if word and word in run for at in places(run, word))
        if len(run) <= _LONGEST_WORD:
            if len(self) >= _MOST_WORDS:
                self.clear()
            self[run] = found
        return found


@lru_cache(maxsize=1)
def _any_of(_: int) -> re.Pattern[str]:
    by_start: dict[str, list[str]] = {}
    for word in sorted(filter(None, Anchors.words)):
        by_start.setdefault(word[:1], []).append(word[1:])
    return re.compile("|".join(f"{start}(?:{'|'.join(rest)})" for start, rest in by_start.items()))  # each letter is tried once


_VOCABULARY = _Vocabulary()


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
