"""Types for the text that rules search, and the anchors that limit where rules are tried."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, AnyStr, ClassVar, Literal, cast, get_args

from ahocorasick_rs import AhoCorasick, Implementation

from clawctl.extensions.secrets.tables import table

Kind = Literal["api_key", "token", "password", "private_key", "card", "email", "phone"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Bits of `Text.present` that stand for no anchor: runs that may be a key, digits, letters beyond ASCII, a hyphen, four digits in a
# row or letters beyond ASCII, which include other digits, a quote, and as many commas as a list of 64 has.
BLOBS, DIGITS, BEYOND, HYPHENS, FOUR_DIGITS, QUOTES, COMMAS = 1, 2, 4, 8, 16, 32, 64
_FIRST_BIT = 7
# All of `\s` in a set of letters that is searched often: a set without categories is a bitmap.
SPACES = "\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


class _Uncompiled:
    """An expression that is compiled on first use: there are hundreds, and a short text such as a log line needs few. It keeps the
    methods that were used. Threads may use it at once."""

    def __init__(self, expression: str, flags: int) -> None:
        self._expression, self._flags = expression, flags

    def __getattr__(self, name: str) -> Any:
        method = getattr(re.compile(expanded(self._expression), self._flags), name)
        setattr(self, name, method)
        return method


def regex(expression: str, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern. `(?&is)` in it matches any entry of the list `is` in `phrases.txt`."""
    return cast(re.Pattern[str], _Uncompiled(expression, flags))


_PHRASES = {name: lines.strip("\n").replace("\n", "|") for name, lines in table("phrases.txt").items()}
_REFERENCE = re.compile(r"\(\?&([a-z ]+)\)")
_ALTERNATIVES = re.compile(r"(?:\\.|\[[^\]]*\]|\((?:[^()]|\([^()]*\))*\)|[^|])+")
_LITERAL_FIRST = re.compile(r"[^\W\d_](?![?*+{])")


def expanded(expression: str) -> str:
    return _REFERENCE.sub(lambda name: f"(?:{expanded(grouped(_PHRASES[name[1]]))})", expression)


def grouped(alternatives: str) -> str:
    """Group alternatives by their first letter, so that few of hundreds are tried at a place. The order of those that can match at
    the same place stays.
    """
    groups: list[dict[str, list[str]]] = [{}]
    for entry in _ALTERNATIVES.findall(alternatives):
        if not _LITERAL_FIRST.match(entry):
            groups += [{"": [entry]}, {}]
        else:
            groups[-1].setdefault(entry[0].lower(), []).append(entry)
    return "|".join(
        entries[0] if len(entries) == 1 else f"{letter}(?:{'|'.join(entry[1:] for entry in entries)})"
        for group in groups
        for letter, entries in group.items()
    )


def phrases(name: str) -> list[str]:
    """Return the entries of a list of `phrases.txt`."""
    return _PHRASES[name].replace("·", " ").split("|")


@dataclass(frozen=True, slots=True)
class Span:
    start: int
    end: int
    kind: Kind


@dataclass(slots=True)
class Text:
    """A piece of text to search, also in derived forms of the same length."""

    text: str
    lower: str
    # Lower case, with `?` for each non-ASCII letter; searching it for words is fastest
    ascii: str
    code_points: bytes  # `ascii` as bytes, which are translated and searched fastest
    digits: bytes  # `0` for each ASCII digit and a space for everything else, behind a space
    blobs: list[tuple[int, int]]  # spans of the runs that may be a key
    places: dict[str, list[int]]  # the anchors of all rules that occur in it, and their positions
    present: int  # bits of the `Anchors` that occur in it
    beyond: bool = True  # whether it has non-ASCII letters
    # Computed on first use: positions of words that may name a secret, and words of other scripts
    names: list[int] | None = None
    named: dict[int, Any] = field(default_factory=dict)  # by position: the name there
    words: "list[tuple[int, int, int]] | None" = None


def make_text(text: str) -> Text:
    lower = folded(text)
    code_points = lower.encode("ascii", "replace")
    plain = lower if text.isascii() else code_points.decode()
    places: defaultdict[str, list[int]] = defaultdict(list)
    anchors, automaton = _automaton(len(Anchors.bits))
    for number, start, _ in automaton.find_matches_as_indexes(plain, overlapping=True):
        places[anchors[number]].append(start)
    blobs = _blobs(text, code_points)
    letters = "" if plain is lower else beyond_ascii(text)
    beyond = bool(letters) and _BEYOND.search(letters) is not None
    digits = b" " + code_points.translate(_OF_DIGITS)
    present = BLOBS * bool(blobs) | BEYOND * beyond
    present |= DIGITS * (b"0" in digits or (beyond and _DIGIT.search(letters) is not None))
    present |= FOUR_DIGITS * (beyond or b"0000" in digits) | HYPHENS * (b"-" in code_points)
    present |= QUOTES * (b'"' in code_points or b"'" in code_points) | COMMAS * (code_points.count(b",") >= 63)
    for anchor in places:
        present |= Anchors.bits[anchor]
    return Text(text, lower, plain, code_points, digits, blobs, places, present, beyond)


def folded(text: str) -> str:
    """Return `text` in lower case with every character at its position. Only İ has a longer lower-case form; a test tries all of
    Unicode.
    """
    return text.replace("İ", "i").lower()


def beyond_ascii(text: str) -> str:
    """Return the letters of a text beyond ASCII. In bytes, that takes a fifth of the time of an expression."""
    return text.encode("utf-8", "surrogatepass").translate(None, _ASCII).decode("utf-8", "surrogatepass")


_ASCII = bytes(range(128))
_DIGIT = regex(r"\d")
_OF_DIGITS = bytes(48 if 48 <= code < 58 else 32 for code in range(256))
_BEYOND = regex(r"[\d\u00aa-\u00ba\u00c0-\u1fff\u2c00-\u2dff\u3005-\u3007\u3040-\ud7ff\uf900-\ufdff\ufe70-\ufeff\uff21-\uffdc]")


_NOT_LATIN = "\u0370"


def anchors_of(words: str) -> list[str]:
    """Return the words of a list separated by commas, in which `&new` stands for the list `new` of `phrases.txt`."""
    return [word for part in words.split(",") for word in (phrases(part[1:]) if part.startswith("&") else [part])]


class Anchors:
    """Lower-case strings at which a rule is tried. One automaton finds those of all rules in one pass over a text."""

    bits: ClassVar[dict[str, int]] = {}  # for all rules: the bits of the `Anchors` that have an anchor
    _made: ClassVar[int] = _FIRST_BIT

    def __init__(self, *anchors: str) -> None:
        # Letters of Latin scripts are `?` in `Text.ascii`. Words of other scripts are searched for alone.
        self.beyond = tuple(word for word in anchors if max(word) >= _NOT_LATIN)
        self.anchors = frozenset(word.encode("ascii", "replace").decode() for word in anchors if max(word) < _NOT_LATIN)
        self.bit = 1 << Anchors._made
        Anchors._made += 1
        for anchor in self.anchors:
            Anchors.bits[anchor] = Anchors.bits.get(anchor, 0) | self.bit

    def positions(self, piece: Text) -> list[int]:
        """Return the positions of the anchors, in order."""
        places = [position for _, at in self.occurrences(piece) for position in at] if piece.present & self.bit else []
        return sorted(places + [at for word in self.beyond for at in positions_of(piece.lower, word)] if piece.beyond else places)

    def occurrences(self, piece: Text) -> list[tuple[str, list[int]]]:
        """Return each anchor that occurs in the piece, and its positions."""
        if not piece.present & self.bit:
            return []
        return [(anchor, piece.places[anchor]) for anchor in self.anchors.intersection(piece.places)]


@lru_cache(maxsize=1)
def _automaton(_: int) -> tuple[list[str], AhoCorasick]:
    anchors = list(Anchors.bits)
    return anchors, AhoCorasick(anchors, implementation=Implementation.DFA, store_patterns=False)


class AnchorGroups:
    """Many `Anchors` combined: one look-up for the words of the text replaces one look-up for each rule."""

    def __init__(self, of: Sequence[Anchors]) -> None:
        self._all = Anchors(*dict.fromkeys(anchor for anchors in of for anchor in (*anchors.anchors, *anchors.beyond)))
        self.bit = self._all.bit
        self._of: dict[str, list[int]] = {}
        for number, anchors in enumerate(of):
            for anchor in (*anchors.anchors, *anchors.beyond):
                self._of.setdefault(anchor, []).append(number)

    def positions(self, piece: Text) -> list[tuple[int, list[int]]]:
        """Return the numbers of the `Anchors` that occur in the piece, in order, and their positions."""
        positions: dict[int, list[int]] = {}
        beyond = [(word, positions_of(piece.lower, word)) for word in self._all.beyond] if piece.beyond else []
        for anchor, at in (*self._all.occurrences(piece), *((word, at) for word, at in beyond if at)):
            for number in self._of[anchor]:
                positions[number] = sorted(positions[number] + at) if number in positions else at
        return sorted(positions.items())


Find = Callable[[Text], Iterator[Span]]


@dataclass(frozen=True, slots=True)
class AnchoredSearch:
    """A way to find secrets, which is tried only on a text that has one of the bits `needs` (`Text.present`)."""

    needs: int
    find: Find
    to_value_end: bool  # whether long values are extended to their end


def tried_at(*needs: "Anchors | AnchorGroups | int", to_value_end: bool = True) -> Callable[[Find], AnchoredSearch]:
    """Limit a function to texts that have one of these anchors or features."""
    bits = 0
    for need in needs:
        bits |= need if isinstance(need, int) else need.bit
    return lambda find: AnchoredSearch(bits, find, to_value_end)


_LONG_ENOUGH = 17
_OF_BLOBS = bytes(120 if chr(code) in "_.+/=~:|%$@-" or (code < 128 and chr(code).isalnum()) else 32 for code in range(256))
_OF_KEYS = regex("[0-9A-Z]")
_MEDIA = regex(r"(?:iVBORw0KGgo|/9j/|R0lGOD|UklGR|Qk0|SUQz|T2dnUw|AAAA[A-Za-z0-9]{4}ZnR5c|d09G[MR]|AAEAAAA|JVBERi0|T1RUTw|GkXfo)")


def _blobs(text: str, code_points: bytes) -> list[tuple[int, int]]:
    """Return the spans of runs that may be a key: those with a digit or a capital, except base64 data of a media file.

    `find` in bytes of two classes takes a sixth of the time of an expression.
    """
    classes, spans, at = code_points.translate(_OF_BLOBS), [], 0
    while (at := classes.find(b"x" * _LONG_ENOUGH, at)) >= 0:
        end = classes.find(b" ", at)
        end = end if end >= 0 else len(text)
        if _OF_KEYS.search(text, at, end) and not (text.endswith("base64,", 0, at) and _MEDIA.match(text, at)):
            spans.append((at, end))
        at = end
    return spans


_REST_OF = regex(r"[\w%+/=~.$:-]*")


def spans_of(search: AnchoredSearch, piece: Text) -> Iterator[Span]:
    """Yield what a search finds. A value longer than its rule reads leaves no tail."""
    if not search.to_value_end:
        yield from search.find(piece)
        return
    reached = 0
    for span in search.find(piece):
        if span.end - span.start < 100:
            yield span
            continue
        if not span.start < span.end <= reached:
            rest = _REST_OF.match(piece.text, span.end)
            reached = rest.end() if rest else span.end
        yield Span(span.start, max(span.end, reached), span.kind)


def positions_of(text: AnyStr, word: AnyStr) -> list[int]:
    """Return the positions of `word` in `text`."""
    positions: list[int] = []
    at = text.find(word)
    while at >= 0:
        positions.append(at)
        at = text.find(word, at + len(word))
    return positions
