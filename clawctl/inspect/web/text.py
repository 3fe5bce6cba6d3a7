"""Formats numbers, and text from users and models, for the pages."""

import re
import time
import unicodedata
from typing import Any

from markupsafe import Markup, escape

from clawctl.printing import plain

# Control characters, characters that reverse or hide text, and unencodable ones. Joiners stay: scripts and emoji need them.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_MAX_MARKS = 200  # in one text; further hidden characters are dropped without a mark


def visible(text: Any, limit: int | None = None) -> Markup:
    """Text as HTML. Each hidden or reversing character becomes a mark with its name. Text longer than `limit` is cut."""
    whole = str(text).replace("\r\n", "\n")
    shown = whole if limit is None or len(whole) <= limit else whole[:limit]
    parts, end, marks = [], 0, 0
    for match in _HIDDEN.finditer(shown):
        parts.append(escape(shown[end : match.start()]))
        end = match.end()
        if (marks := marks + 1) <= _MAX_MARKS:
            parts.append(Markup('<span class="ctl" title="{}">{}</span>').format(_name_of(match[0]), f"{ord(match[0]):04X}"))
    parts.append(escape(shown[end:]))
    return Markup("").join(parts)


def marked(text: str) -> str:
    """The same as `visible` for plain text: "⟨202E⟩"."""
    return _HIDDEN.sub(lambda match: f"⟨{ord(match[0]):04X}⟩", text.replace("\r\n", "\n"))


def _name_of(character: str) -> str:
    return f"U+{ord(character):04X} {unicodedata.name(character, 'control character')}"


def cut(text: Any, limit: int) -> str:
    """The text on one line, without control characters, cut to `limit`."""
    return plain(" ".join(plain(str(text)[: 8 * limit]).split()), limit)


def short(value: Any) -> str:
    """A number for display, or a dash for None."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
