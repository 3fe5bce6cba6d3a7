"""Text of users and models, and numbers, as the pages show them."""

import re
import time
import unicodedata
from typing import Any

from markupsafe import Markup, escape

from clawctl.printing import plain

# Controls, marks that reverse or hide text, and characters that cannot be encoded. Joiners stay: scripts and emoji need them.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_MOST_MARKS = 200  # of a text: after that they are left out


def visible(text: Any, limit: int | None = None) -> Markup:
    """Text as HTML, in which every hidden or reversing character is a mark with its name. Longer text is cut."""
    whole = str(text).replace("\r\n", "\n")
    shown = whole if limit is None or len(whole) <= limit else whole[:limit]
    parts, end, marks = [], 0, 0
    for match in _HIDDEN.finditer(shown):
        parts.append(escape(shown[end : match.start()]))
        end = match.end()
        if (marks := marks + 1) <= _MOST_MARKS:
            parts.append(Markup('<span class="ctl" title="{}">{}</span>').format(_name_of(match[0]), f"{ord(match[0]):04X}"))
    parts.append(escape(shown[end:]))
    return Markup("").join(parts)


def marked(text: str) -> str:
    """The same for plain text: "⟨202E⟩"."""
    return _HIDDEN.sub(lambda match: f"⟨{ord(match[0]):04X}⟩", text.replace("\r\n", "\n"))


def _name_of(character: str) -> str:
    return f"U+{ord(character):04X} {unicodedata.name(character, 'control character')}"


def cut(text: Any, limit: int) -> str:
    """One line, without controls."""
    return plain(" ".join(plain(str(text)[: 8 * limit]).split()), limit)


def short(value: Any) -> str:
    """A number for people; a dash for none."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
