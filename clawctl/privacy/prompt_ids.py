"""Finds in token ids what was found in a conversation, and puts a placeholder of the same length in its place.

The ids decode to the conversation as the model reads it: the client's strings and, between them, the template's. A string of the
conversation was searched in its context, so only the text between the strings is searched here. The stored words and the stored ids
therefore hide the same secrets.
"""

import re
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import orjson

Range = tuple[int, int]
_PIECE = 256  # ids decoded at once; a place is then found with few further calls
_LONGEST_LETTER = 4  # ids that one character may need
_MOST_MISSES = 256  # strings that the template wrote in another form, before the rest counts as the template's text
_LONGEST_PATH = 12  # levels of a message that are searched for strings
_LONGEST_WORD = 256  # characters
_LAST_WORD, _ENDS_WORD = re.compile(r"\S*\Z"), "<[| \t\n\r"
_NOT_SHOWN = frozenset(("role", "type"))  # the template writes them in its own words
PLACEHOLDER = re.compile(r"\[redacted:\w+\]")


@dataclass(frozen=True, slots=True)
class Finding:
    """A secret: `text[start:end]` of a string in the conversation."""

    text: str
    start: int
    end: int

    @property
    def value(self) -> str:
        return self.text[self.start : self.end]


def strings_of(value: Any, depth: int = _LONGEST_PATH) -> Iterator[str]:
    """Yield the strings of a message in order, without its keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict) and depth:
        for key, inner in value.items():
            if key not in _NOT_SHOWN:
                yield from strings_of(inner, depth - 1)
    elif isinstance(value, list) and depth:
        for inner in value:
            yield from strings_of(inner, depth - 1)


def findings(original: Any, clean: Any) -> list[Finding] | None:
    """Return what `clean` hides of `original`, or None if that cannot be derived."""
    if original == clean:
        return []
    if isinstance(original, str) and isinstance(clean, str):
        return _in_string(original, clean)
    if isinstance(original, int | float) and isinstance(clean, str):
        return _in_string(str(original), clean)
    if isinstance(original, dict) and isinstance(clean, dict) and original.keys() == clean.keys():
        return _joined(findings(inner, clean[key]) for key, inner in original.items())
    if isinstance(original, list) and isinstance(clean, list) and len(original) == len(clean):
        return _joined(findings(*pair) for pair in zip(original, clean, strict=True)) or _in_string(
            "".join(strings_of(original)), "".join(strings_of(clean))
        )
    return None


def _joined(parts: Iterable[list[Finding] | None]) -> list[Finding] | None:
    result: list[Finding] = []
    for part in parts:
        if part is None:
            return None
        result += part
    return result


def _in_string(original: str, clean: str) -> list[Finding] | None:
    kept = PLACEHOLDER.split(clean)
    if len(kept) > 1 and original.startswith(kept[0]) and original.endswith(kept[-1]):
        result, at = [], len(kept[0])
        for number, text in enumerate(kept[1:], 2):
            end = len(original) - len(text) if number == len(kept) else original.find(text, at)
            if end < at:
                break
            if end > at:
                result.append(Finding(original, at, end))
            at = end + len(text)
        else:
            return result
    try:  # tool arguments, which are written anew
        before, after = orjson.loads(original), orjson.loads(clean)
    except orjson.JSONDecodeError:
        return None
    return None if isinstance(before, str) else findings(before, after)


def occurrences(text: str, value: str) -> Iterator[Range]:
    """Yield where `value` stands in `text` as whole words. An expression takes thirty times as long as `find`."""
    at = text.find(value) if value else -1
    while at >= 0:
        end = at + len(value)
        goes_on = (value[0].isalnum() and text[at - 1 : at].isalnum()) or (value[-1].isalnum() and text[end : end + 1].isalnum())
        if not goes_on:
            yield at, end
        at = text.find(value, at + 1 if goes_on else end)


@dataclass(slots=True)
class DecodedIds:
    """Ids, their text, and which parts of the text are strings of the conversation."""

    ids: Sequence[int]
    decode: Callable[[list[int]], str]
    text: str = ""
    pieces: list[Range] = field(default_factory=list)  # where each piece starts: its first id and its first character
    covered: list[Range] = field(default_factory=list)
    places: dict[str, list[int]] = field(default_factory=dict)  # from each string of the conversation to where it starts

    def read(self, pause: Callable[[], None]) -> None:
        parts, start, at = [], 0, 0
        while start < len(self.ids):
            end = min(len(self.ids), start + _PIECE)
            part = self.decode(list(self.ids[start:end]))
            while part.endswith("\ufffd") and end < min(len(self.ids), start + _PIECE + _LONGEST_LETTER):
                end += 1  # no character is cut
                part = self.decode(list(self.ids[start:end]))
            self.pieces.append((start, at))
            parts.append(part)
            start, at = end, at + len(part)
            pause()
        self.text = "".join(parts)

    def align(self, strings: Iterable[str]) -> None:
        """Find the strings in the text, in their order."""
        at = misses = 0
        for string in strings:
            shown = string.strip()
            start = self.text.find(shown, at) if len(shown) > 1 and misses < _MOST_MISSES else -1
            if start < 0:
                misses += 1
                continue
            self.places.setdefault(string, []).append(start - (len(string) - len(string.lstrip())))
            at = start + len(shown)
            self.covered.append((start, at))

    def gaps(self) -> list[Range]:
        """The parts of the text that are no string of the conversation, with the words that they complete."""
        starts = [0, *(end for _, end in self.covered)]
        ends = [*(start for start, _ in self.covered), len(self.text)]
        return [(self._word_start(start), end) for start, end in zip(starts, ends, strict=True) if end > start]

    def _word_start(self, at: int) -> int:
        if self.text[at] in _ENDS_WORD:
            return at
        return at - len(_LAST_WORD.search(self.text, max(0, at - _LONGEST_WORD), at)[0])  # type: ignore[index]

    def locate(self, finding: Finding, times: int) -> list[Range]:
        """Where a secret of `times` equal strings stands in the text; nowhere if the template wrote it in another form."""
        if len(starts := self.places.get(finding.text, ())) >= times:
            return [(start + finding.start, start + finding.end) for start in starts]
        forms = dict.fromkeys((finding.value, orjson.dumps(finding.value).decode()[1:-1], finding.value.strip()))
        return next((ranges for form in forms if form and (ranges := list(occurrences(self.text, form)))), [])

    def id_range(self, start: int, end: int) -> Range:
        """The ids that have a part of `text[start:end]`."""
        return self._id_at(start, after=False), self._id_at(end, after=True)

    def _id_at(self, position: int, after: bool) -> int:
        piece = max(0, bisect_right(self.pieces, position - after, key=lambda entry: entry[1]) - 1)
        first, at = self.pieces[piece]
        last = self.pieces[piece + 1][0] if piece + 1 < len(self.pieces) else len(self.ids)
        low, high = first, last  # the text of `ids[first:low]` ends at or before the place
        while low < high:
            middle = (low + high + 1) // 2
            if at + len(self.decode(list(self.ids[first:middle]))) <= position - after:
                low = middle
            else:
                high = middle - 1
        return min(low + after, len(self.ids))


@dataclass(slots=True)
class ReadPrompts:
    """The prompts of one API key that were read before: by their digest, the number of messages and the ranges of hidden ids."""

    size: int
    by_length: OrderedDict[tuple[int, bytes], tuple[int, list[Range]]] = field(default_factory=OrderedDict)

    def longest(self, ids: "array[int]", messages: int) -> tuple[int, int, list[Range]]:
        """The longest prompt that `ids` continue: its length, its number of messages, and its hidden ranges."""
        chain, done, best = blake2b(digest_size=16), 0, (0, 0, list[Range]())
        for length in sorted({length for length, _ in self.by_length if length <= len(ids)}):
            chain.update(memoryview(ids)[done:length])
            done = length
            entry = self.by_length.get((length, chain.digest()))
            if entry is not None and entry[0] <= messages:
                best = (length, *entry)
        return best

    def add(self, ids: "array[int]", messages: int, hidden: list[Range]) -> None:
        digest = blake2b(memoryview(ids), digest_size=16).digest()
        self.by_length[len(ids), digest] = messages, hidden
        while len(self.by_length) > self.size:
            self.by_length.popitem(last=False)


def hide(ids: Sequence[int], ranges: Iterable[Range], placeholder: Callable[[int], list[int] | None]) -> list[int] | None:
    """Return the ids with placeholders in these ranges, or None if there is no placeholder."""
    result = list(ids)
    for start, end in ranges:
        standing = placeholder(end - start)
        if standing is None or len(standing) != end - start:
            return None
        result[start:end] = standing
    return result
