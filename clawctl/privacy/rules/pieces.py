"""A piece of text that is looked through, and what a rule finds in it."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["api_key", "token", "password", "private_key", "card", "email", "phone"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Span:
    start: int
    end: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text that is looked through, and the same in forms of the same length."""

    text: str
    lower: str
    ascii: str  # in lower case too, with `?` for letters beyond ASCII: words are found in it fastest
    blobs: list[tuple[int, int]]  # where the runs are that may be a key


def make_text(text: str, lower: str) -> Text:
    return Text(text, lower, lower if text.isascii() else lower.encode("ascii", "replace").decode(), _blobs(text))


Finder = Callable[[Text], Iterator[Span]]

_BLOB = re.compile(r"(?<![A-Za-z0-9_.+/=~:|%$@-])[A-Za-z0-9_.+/=~:|%$@-]{18,}")
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


def places(lower: str, words: tuple[str, ...]) -> Iterator[int]:
    for word in words:
        at = lower.find(word)
        while at >= 0:
            yield at
            at = lower.find(word, at + len(word))
