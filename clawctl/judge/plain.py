"""The ordinary sentences of a message: a person's own words, without pasted, quoted or decorated text.

People judge an answer in ordinary sentences. Lines of any other form (markup, JSON, settings, list items, code, quotations, unusual
letters, columns of single words) may have any author. They are dropped if an ordinary sentence remains, and kept otherwise. The
rules depend on the form of a line only, never on its content.
"""

import re
import unicodedata
from collections.abc import Iterator
from itertools import pairwise

from clawctl.run.notes import UNSPACED

_LETTERS = 0.4  # the least share of letters among the characters of an ordinary line
_LONGEST = 40  # the longest word, in letters, except in scripts without spaces
_COLUMN = 3  # the number of consecutive one-word lines that form a column

_WORD = re.compile(r"[^\W\d_]+")
_FENCE = re.compile(r"[ ]{0,3}(?:`{3,}|~{3,})")
_OPENING = re.compile(r"\s*(?:<[^/<>\s!][^<>]{0,80}>|\[[A-Za-z][\w |]{0,30}\]|\{\{?[#%]\s*\w[^{}]{0,40}\}\}?)\s*$")
_CLOSING = re.compile(r"\s*(?:<\s?/|<[^<>]{0,40}\bend\b[^<>]{0,10}>|\[/|\{\{?[/%]\s*\w)")
_RULE = re.compile(r"\s*(?=([-=*#_~+.]{2,}))\1.*[-=*#_~+.]{2,}\s*$")  # --- title ---
_ANNOUNCES = re.compile(r"[:\uff1a]\s*$")
_WHOLE_SENTENCES = re.compile(r".*(?:[.!?](?=\s)|[\u3002\uff01\uff1f])")
_MAIL_HEAD = re.compile(r"\s*[^\W\d_][\w-]{1,20}:\s*\S")  # From: anna
_SHAPED = re.compile(r"(?:\t| {4}|\s*(?:[<\[{|#/\\=~>@%$&;+\u2022\u25cf]|\*(?!\w|\*\w)|[-\u2013\u2014](?!\w)|\d+[.)](?=\s)))")
_SETTING = re.compile(r"""\s*["']?(?:[\w.$-]+["']?\s?(?:[:=])|[\w.$-]+[ ][\w.$-]+["']?\s?[:=](?!(?:\s*\S+){4}))(?=\s*\S)""")


def plain_words(text: str, role: str) -> str:
    """The ordinary sentences of a message of `role`, or `text` if there are none. Linear in the length of `text`.

    The form matters in user messages only, because assistants and tools legitimately send lists and code.
    """
    if role != "user":
        return text
    lines = text.split("\n")
    lines_left = _ordinary_lines(lines)
    if not any(_WORD.search(line) for line in lines_left):
        return text
    return text if lines_left == lines else "\n".join(line for line in lines_left if line.strip())


def own_sentences(text: str) -> str:
    """The ordinary sentences before text that a person pasted: before a line that announces it, a rule, or the head of a mail.

    Empty if there are none. Here a sentence of another author does more harm than a lost one.
    """
    lines = text.split("\n")
    closed = max(
        (at for at, line in enumerate(lines) if _CLOSING.match(line)), default=-1
    )  # text behind an end mark may be their own
    pastes = (
        at for at, pair in enumerate(pairwise([*lines, ""])) if _begins_paste(*pair) or (at > closed and _OPENING.match(pair[0]))
    )
    end = next(pastes, len(lines))
    before = _WHOLE_SENTENCES.findall("".join(lines[end : end + 1]))  # "Shorter, please. Summarise this:"
    return "\n".join(line for line in _ordinary_lines([*lines[:end], *before]) if line.strip())


def _begins_paste(line: str, following: str) -> bool:
    return bool(_ANNOUNCES.search(line) or _RULE.match(line) or (_MAIL_HEAD.match(line) and _MAIL_HEAD.match(following)))


def _ordinary_lines(lines: list[str]) -> list[str]:
    return [line for line, good in zip(lines, _ordinary(lines), strict=True) if good or not line.strip()]


def _ordinary(lines: list[str]) -> list[bool]:
    """For each line, whether it consists of ordinary sentences."""
    good = [_looks_ordinary(line) for line in lines]
    for first, end in _regions(lines):
        good[first:end] = [False] * (end - first)
    for first, end in _columns(lines):
        good[first:end] = [False] * (end - first)
    return good


def _looks_ordinary(line: str) -> bool:
    line_words = _WORD.findall(line)
    if not line_words or _SHAPED.match(line) or _SETTING.match(line):
        return False
    if any(len(word) > _LONGEST and not UNSPACED.match(word) for word in line_words):
        return False
    letters = "".join(line_words)
    if len(letters) < _LETTERS * sum(not char.isspace() for char in line):
        return False
    if len(line_words) > 4 and sum(len(word) == 1 for word in line_words) * 2 > len(line_words) and letters.isascii():
        return False  # text spelled one letter at a time
    changed = 0 if line.isascii() else sum(unicodedata.normalize("NFKC", char) != char for char in letters)
    return changed * 3 <= len(letters)


def _regions(lines: list[str]) -> Iterator[tuple[int, int]]:
    """Line ranges of fenced code, and of text between a tag and its end or between two rules."""
    opened: dict[str, int] = {}
    for at, line in enumerate(lines):
        if _FENCE.match(line):
            if "fence" in opened:
                yield opened.pop("fence"), at + 1
            else:
                opened["fence"] = at
        elif _CLOSING.match(line):
            if "tag" in opened:
                yield opened.pop("tag"), at + 1
        elif _OPENING.match(line):
            opened.setdefault("tag", at)
        elif _RULE.match(line):
            if "rule" in opened:
                yield opened["rule"], at + 1
            opened["rule"] = at
    if "fence" in opened:  # an unclosed fence extends to the next empty line
        first = opened["fence"]
        yield first, next((at for at in range(first, len(lines)) if not lines[at].strip()), len(lines))


def _columns(lines: list[str]) -> Iterator[tuple[int, int]]:
    """Line ranges of columns: consecutive lines of one word each."""
    begin = 0
    for at in range(len(lines) + 1):
        if at == len(lines) or len(lines[at].split()) != 1:
            if at - begin >= _COLUMN:
                yield begin, at
            begin = at + 1
