"""Types for the text that rules search, and the anchors that limit where rules are tried."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, compress, islice
from typing import ClassVar, Literal, get_args

Kind = Literal["api_key", "token", "password", "private_key", "card", "email", "phone"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Span:
    start: int
    end: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text to search, also in derived forms of the same length."""

    text: str
    lower: str
    # Lower case, with `?` for each non-ASCII letter; searching it for words is fastest
    ascii: str
    blobs: list[tuple[int, int]]  # spans of the runs that may be a key
    runs: frozenset[str]  # its runs of ASCII letters, in lower case
    anchored: dict[str, list[int]]  # the anchors of all rules that occur in it, and their positions
    beyond: bool = True  # whether it has non-ASCII letters
    # Positions of words that may name a secret, computed on first use
    names: list[int] = field(default_factory=list)


def make_text(text: str) -> Text:
    lower = folded(text)
    plain = lower if text.isascii() else lower.encode("ascii", "replace").decode()
    parts = _SPLIT.split(plain)
    runs = parts[1::2]
    known = frozenset(("", *runs))
    once = _add_runs(known)
    anchored = _anchored(plain, known, _within(runs, islice(accumulate(map(len, parts)), 0, None, 2)))
    for run in once:
        _VOCABULARY.pop(run, None)
    return Text(text, lower, plain, _blobs(text), known, anchored, not text.isascii() and _BEYOND.search(text) is not None)


def folded(text: str) -> str:
    """Return `text` in lower case with every character at its position. Only İ has a longer lower-case form; a test tries all of
    Unicode.
    """
    return text.replace("İ", "i").lower()


def _within(runs: list[str], starts: Iterator[int]) -> dict[str, list[int]]:
    """Return the positions of anchor words. Runs without such words, which are most of them, are skipped without a Python step."""
    positions_by_word: dict[str, list[int]] = {}
    for run, start in compress(zip(runs, starts, strict=False), map(_VOCABULARY.get, runs)):
        for word, at in _VOCABULARY[run]:
            if word in positions_by_word:
                positions_by_word[word].append(start + at)
            else:
                positions_by_word[word] = [start + at]
    return positions_by_word


def _anchored(plain: str, runs: frozenset[str], within: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return the positions of each anchor. One pass serves all rules; a rule without anchors in the text then costs one look-up."""
    positions_by_anchor: dict[str, list[int]] = {}
    for word, starts in within.items():
        for anchor, inner in Anchors.by_part[word]:
            at = starts if anchor == word else [start - inner for start in starts if plain.startswith(anchor, start - inner)]
            if at:
                positions_by_anchor[anchor] = at
    for word in Anchors.by_run.keys() & runs:
        for anchor in Anchors.by_run[word]:
            if at := positions_of(plain, anchor):
                positions_by_anchor[anchor] = at
    return positions_by_anchor


_SPLIT = re.compile(r"([a-z]+)")
_BEYOND = re.compile("[\u00aa-\u00ba\u00c0-\u1fff\u2c00-\u2dff\u3005-\u3007\u3040-\ud7ff\uf900-\ufdff\ufe70-\ufeff\uff21-\uffdc]")


class Anchors:
    """Lower-case strings at which a rule is tried. Each anchor is found through one of its words.

    A word that other characters enclose within its anchor must be a whole run of letters; any other word may be part of a run.
    """

    # For all rules: part of a run → anchors, and the position of the part in each
    by_part: ClassVar[dict[str, list[tuple[str, int]]]] = {}
    by_run: ClassVar[dict[str, list[str]]] = {}
    known: ClassVar[set[str]] = set()

    def __init__(self, *anchors: str) -> None:
        self.numbers = {anchor: number for number, anchor in enumerate(anchors)}
        for anchor in self.numbers.keys() - Anchors.known:
            Anchors.known.add(anchor)
            is_whole_run, word, at = _word_of(anchor)
            if is_whole_run:
                Anchors.by_run.setdefault(word, []).append(anchor)
            else:
                Anchors.by_part.setdefault(word, []).append((anchor, at))

    def absent(self, piece: Text) -> bool:
        return self.numbers.keys().isdisjoint(piece.anchored)

    def positions(self, piece: Text) -> list[int]:
        """Return the positions of the anchors, anchor by anchor."""
        return [place for _, at in self.occurrences(piece) for place in at]

    def occurrences(self, piece: Text) -> list[tuple[str, list[int]]]:
        """Return each anchor that occurs in the piece, and its positions."""
        anchors = self.numbers.keys() & piece.anchored.keys()
        return [(anchor, piece.anchored[anchor]) for anchor in sorted(anchors, key=self.numbers.__getitem__)] if anchors else []


def _word_of(anchor: str) -> tuple[bool, str, int]:
    """Return the word by which an anchor is found: whether it is a whole run, the word, and its position in the anchor.

    The longest word is chosen as the rarest. A single letter is always a whole run. The empty word occurs in every text.
    """
    words = []
    for word in _WORDS.finditer(anchor):
        whole = word.end() < len(anchor) and (word.start() > 0 or word.end() == 1)
        if whole or len(word[0]) > 1:
            words.append((len(word[0]) + 2 * whole, whole, word[0], word.start()))
    _, whole, longest, at = max(words, default=(0, True, "", 0))
    return whole, longest, at


class AnchorGroups:
    """Many `Anchors` combined: one look-up by the words of the text replaces one look-up per rule."""

    def __init__(self, of: Sequence[Anchors]) -> None:
        self._all = Anchors(*dict.fromkeys(anchor for anchors in of for anchor in anchors.numbers))
        self._of: dict[str, list[int]] = {}
        for number, anchors in enumerate(of):
            for anchor in anchors.numbers:
                self._of.setdefault(anchor, []).append(number)

    def positions(self, piece: Text) -> list[tuple[int, list[int]]]:
        """Return the numbers of the `Anchors` that occur in the piece, in order, and their positions."""
        positions: dict[int, list[int]] = {}
        for anchor, at in self._all.occurrences(piece):
            for number in self._of[anchor]:
                positions[number] = positions[number] + at if number in positions else at
        return sorted(positions.items())


_WORDS = re.compile(r"[a-z]+")
_LONGEST_WORD, _MAX_WORDS = 24, 1 << 16  # limits for remembered runs


# The anchor words in each run, and their positions. Runs recur, so remembering them is cheaper than searching for each anchor.
_VOCABULARY: dict[str, tuple[tuple[str, int], ...]] = {}


def _add_runs(runs: frozenset[str]) -> list[str]:
    """Add the runs to the vocabulary. Returns the runs that are too long to be words; the caller removes them after use."""
    if len(_VOCABULARY) > _MAX_WORDS:
        _VOCABULARY.clear()
    new = runs - _VOCABULARY.keys()
    for run in new:
        anchors: tuple[tuple[str, int], ...] = ()
        if _any_of(len(Anchors.by_part)).search(run):
            anchors = tuple((word, at) for word in Anchors.by_part if word in run for at in positions_of(run, word))
        _VOCABULARY[run] = anchors
    return [run for run in new if len(run) > _LONGEST_WORD]


@lru_cache(maxsize=1)
def _any_of(_: int) -> re.Pattern[str]:
    by_start: dict[str, list[str]] = {}
    for word in sorted(Anchors.by_part):
        by_start.setdefault(word[:1], []).append(word[1:])
    # Each first letter is tried once
    return re.compile("|".join(f"{start}(?:{'|'.join(rest)})" for start, rest in by_start.items()))


Find = Callable[[Text], Iterator[Span]]

_BLOB = re.compile(r"(?<![A-Za-z0-9_.+/=~:|%$@-])[A-Za-z0-9_.+/=~:|%$@-]{17,}")
_MEDIA = re.compile(
    r"(?:iVBORw0KGgo|/9j/|R0lGOD|UklGR|Qk0|SUQz|T2dnUw|AAAA[A-Za-z0-9]{4}ZnR5c|d09G[MR]|AAEAAAA|JVBERi0|T1RUTw|GkXfo)"
)


def _blobs(text: str) -> list[tuple[int, int]]:
    """Return the spans of runs that may be a key. Base64 data that starts like a media file is excluded."""
    return [
        blob.span()
        for blob in _BLOB.finditer(text)
        if not (_MEDIA.match(text, blob.start()) and text.endswith("base64,", 0, blob.start()))
    ]


_REST_OF = re.compile(r"[\w%+/=~.$:-]*")


def to_value_end(finder: Find) -> Find:
    """Extend long values to their end, so that a value longer than its rule reads leaves no tail."""

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


def positions_of(text: str, word: str) -> list[int]:
    """Return the positions of `word` in `text`."""
    positions: list[int] = []
    at = text.find(word)
    while at >= 0:
        positions.append(at)
        at = text.find(word, at + len(word))
    return positions
