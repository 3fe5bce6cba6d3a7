"""A text as a reader sees it: without invisible characters, with plain letters, and with escapes undone.

A view maps each of its positions to a position in the text. Views are only used to locate secrets and are never written.
"""

import html
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

_ROUNDS = 3  # nested escapes that are undone: JSON in JSON in a shell command
# Blocks with characters whose compatible form is ASCII; a test checks all of Unicode.
_BLOCKS = (
    (0x85, 0x86), (0xA0, 0x3400), (0xA69C, 0xA69E), (0xA700, 0xAB70), (0xFB00, 0xFB50), (0xFE00, 0x10000), (0x10780, 0x107C0),
    (0x1BCA0, 0x1BCA4), (0x1CCD6, 0x1CCFA),
    (0x1D173, 0x1D17B), (0x1D400, 0x1D800), (0x1F100, 0x1F200), (0x1FBF0, 0x1FBFA), (0xE0000, 0xE0200),
)  # fmt: skip
_FILLERS = "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0"  # invisible characters that are not format characters


@dataclass(frozen=True, slots=True)
class View:
    """A text and the origin of its segments: segment n starts at `at[n]` in the view and at `source[n]` in the text below."""

    text: str
    at: list[int]
    source: list[int]
    below: "View | None" = None

    def to_original(self, start: int, end: int) -> tuple[int, int]:
        """Return the span in the original text. A partially covered replaced segment counts as a whole."""
        if self.at:
            first, last = bisect_right(self.at, start) - 1, bisect_right(self.at, end - 1) - 1
            begin = self.source[first] + (start - self.at[first] if self._is_kept(first) else 0)
            stop = self.source[last] + (end - self.at[last]) if self._is_kept(last) else self.source[last + 1]
            start, end = begin, stop
        return (start, end) if self.below is None else self.below.to_original(start, end)

    def _is_kept(self, segment: int) -> bool:
        return segment % 2 == 0  # kept and replaced segments alternate


def replaced(below: View, pattern: re.Pattern[str], by: Callable[[re.Match[str]], str]) -> View:
    """Return `below` with each match of `pattern` replaced."""
    pieces: list[str] = []
    at, source = [0], [0]
    view_end = source_end = 0
    for match in pattern.finditer(below.text):
        unchanged, new = below.text[source_end : match.start()], by(match)
        pieces += [unchanged, new]
        at += [view_end + len(unchanged), view_end + len(unchanged) + len(new)]
        source += [match.start(), match.end()]
        view_end, source_end = at[-1], match.end()
    if not pieces:
        return below
    return View("".join([*pieces, below.text[source_end:]]), at, source, below)


def plain_view(text: str) -> View:
    """Return `text` with compatible letters, digits and spaces as ASCII, and without invisible characters."""
    view = View(text, [], [])
    if "\x1b" in text or "^[[" in text:
        view = _uncoloured(view)
        text = view.text
    if text.isascii():
        return view
    letters = set(text.encode("utf-8", "surrogatepass").translate(None, bytes(range(128))).decode("utf-8", "surrogatepass"))
    if odd := [
        letter for letter in letters if letter in _PLAIN
    ]:  # a text has few of the thousands, and a set of all of them is slow
        view = replaced(view, re.compile(f"[{''.join(map(re.escape, sorted(odd)))}]"), lambda match: _PLAIN[match[0]])
    return view if _TWIN_LETTERS.isdisjoint(letters) else replaced(view, _FOREIGN_IN_WORD, lambda m: m[0].translate(_TWINS))


def unescaped_view(view: View) -> View | None:
    """Return `view` with escapes of JSON, HTML and URLs undone, or None if there are none."""
    unescaped = view
    for _ in range(_ROUNDS):
        below, unescaped = unescaped, replaced(unescaped, ESCAPES, _unescape)
        if unescaped is below:
            break
    if "\x1b" in unescaped.text:
        unescaped = _uncoloured(unescaped)
    return None if unescaped is view else unescaped


def printable_view(view: View) -> View | None:
    """Return `view` with the escapes of quoted-printable mail undone (`Passwort=3A …`), or None if there are none."""
    text = view.text
    if "=" not in text or not ("=3" in text or "=C" in text or "uoted-printable" in text) or not _MARK_OF_MAIL.search(text):
        return None
    printable = replaced(view, _PRINTABLE, _decode_quoted_printable)
    return None if printable is view else printable


_MARK_OF_MAIL = re.compile("=3[AD]|=C[23]=|uoted-printable")
_PRINTABLE = re.compile(r"(?:=[0-9A-F]{2})+|=\r?\n")


def _decode_quoted_printable(match: re.Match[str]) -> str:
    return "" if match[0][1] in "\r\n" else bytes.fromhex(match[0].replace("=", "")).decode("utf-8", "replace")


def _uncoloured(view: View) -> View:
    """Remove terminal escape sequences for colour and cursor movement: a key is often printed directly after one."""
    return replaced(view, _TERMINAL, lambda _: "")


ESCAPES = re.compile(
    r"""\\(?:e(?=\[) | u\{[0-9A-Fa-f]{1,6}\} | u[0-9A-Fa-f]{4} | x[0-9A-Fa-f]{2} | [0-3][0-7]{2} | ["'`\\/bfnrt])
    | &(?:\#\d{1,7} | \#[xX][0-9A-Fa-f]{1,6} | [a-zA-Z]{2,8});
    | %[0-9A-Fa-f]{2}""",
    re.VERBOSE,
)
_TERMINAL = re.compile(
    r"(?:\x1b|\^\[)\[[0-9;:?]{0,32}[ -/]{0,4}[A-Za-z~]|\x1b\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)|\x1b[()][A-Za-z0-9]|\x1b[=>78cDEHM]"
)
_LETTERS = {"e": "\x1b", "n": "\n", "r": "\r", "t": "\t", "b": " ", "f": " "}


def _unescape(match: re.Match[str]) -> str:
    escape = match[0]
    if escape[0] == "&":
        return html.unescape(escape)
    if escape[0] == "%":
        return chr(int(escape[1:], 16))
    kind, digits = escape[1], escape[2:].strip("{}")
    if kind in "ux":
        number = int(digits, 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else " "
    return chr(int(escape[1:], 8)) if kind.isdigit() else _LETTERS.get(kind, kind)


def _plain_forms() -> dict[str, str]:
    forms = dict.fromkeys(_FILLERS, "")
    for first, end in _BLOCKS:
        for number in range(first, end):
            letter = chr(number)
            if unicodedata.category(letter) in ("Cf", "Mn", "Me") and (
                number < 0x370 or number > 0x1FFF or number in (0x61C, 0x180E)
            ):
                forms[letter] = ""
            elif 0xE000 <= number < 0xF900 or 0x3099 <= number <= 0x309A:
                continue
            elif letter.isspace():
                forms[letter] = " "
            else:
                form = unicodedata.normalize("NFKC", letter)
                if form != letter and form.isascii() and (form.isalnum() or len(form) == 1 or form == "..."):
                    forms[letter] = form
    return forms


# Letters of other scripts that look like Latin ones, inside words that are otherwise Latin.
_TWINS = str.maketrans("аеорсухіјѕԁһԛԝАВЕКМНОРСТХЅІЈοαενρτυικΟΑΕΡΤ", "aeopcyxijsdhqwABEKMHOPCTXSIJoaevptuikOAEPT")
_TWIN_LETTERS = frozenset(map(chr, _TWINS))
_FOREIGN_IN_WORD = re.compile(f"(?<=[A-Za-z])[{''.join(sorted(_TWIN_LETTERS))}]{{1,3}}(?=[A-Za-z])")
_PLAIN = _plain_forms()
