# ruff: noqa: E501 - expressions and templates stay lines
"""Lines from templates: many formats in many contexts, with and without a secret, in parts that share no template.

`labelled_tuned.txt` was written beside the rules. `labelled_held_out.txt` was written before them, by the same author. `labelled_seen.txt`,
`labelled_seen_second.txt` and `labelled_fresh.txt` are by three authors who had read neither the rules nor the other files. The failures of
all parts have been read since, and rules were changed for their classes, not for one of their lines. Each line of a file is one template, below the heading `# secret` or `# harmless`:

    <<NAME>>            a drawn secret, which must be removed completely
    <<NAME|FORM>>       the same in another form (`FORMS`)
    <NAME>              drawn text that is not a secret
    ⏎                   a line break
"""

import base64
import html
import random
import re
import string
from collections.abc import Callable
from functools import cache
from pathlib import Path
from urllib.parse import quote

from scripts.benchmarks.labelled_drawers import SECOND
from scripts.benchmarks.labelled_drawers_third import THIRD
from scripts.benchmarks.labelled_drawn import DRAWN, Draw
from scripts.benchmarks.labelled_lines import Line

HALVES = ("tuned", "held_out")
SEEN, SEEN_SECOND, FRESH = "seen", "seen_second", "fresh"  # in the order of their authors
_PLACE = re.compile(r"<<(\w+)(?:\|(\w+))?>>|<(\w+)>")
_WIDE = {ord(letter): ord(letter) + 0xFEE0 for letter in string.ascii_letters + string.digits}


def _zero_width(text: str) -> str:
    return "\u200b".join(text[at : at + 5] for at in range(0, len(text), 5))


FORMS: dict[str, Callable[[str], str]] = {
    "html": lambda text: html.escape(text).replace("!", "&#33;").replace("-", "&#x2d;", 1),
    "url": lambda text: quote(text, safe=""),
    "b64": lambda text: base64.b64encode(text.encode()).decode(),
    "hex": lambda text: text.encode().hex(),
    "unicode": lambda text: "".join(f"\\u{ord(letter):04x}" if index % 3 == 0 else letter for index, letter in enumerate(text)),
    "backslash": lambda text: text.replace("/", "\\/").replace("\n", "\\n"),
    "wide": lambda text: text.translate(_WIDE),
    "zero": _zero_width,
    "dots": lambda text: re.sub(r"[ -]?(\d{4})(?=.)", r"\1.", re.sub(r"\D", "", text)),
    "nbsp": lambda text: re.sub(r"(\d{4})(?=.)", "\\1\u00a0", re.sub(r"\D", "", text)),
    "lines": lambda text: f"{text[: len(text) // 2]}\n{text[len(text) // 2 :]}",
    "indent": lambda text: text.replace("\\n", "\n").replace("\n", "\n    "),
    "crlf": lambda text: text.replace("\\n", "\n").replace("\n", "\r\n"),
    "quoted": lambda text: text.replace("\\n", "\n").replace("\n", "\n> "),
    "concat": lambda text: f'{text[:15]}" + "{text[15:]}',
}


def templates(half: str) -> dict[str, list[str]]:
    """The templates of one half: "secret" and "harmless"."""
    by_kind: dict[str, list[str]] = {"secret": [], "harmless": []}
    heading = ""
    for line in (Path(__file__).parent / f"labelled_{half}.txt").read_text().splitlines():
        if line.startswith("# "):
            heading = line[2:]
        elif line:
            by_kind[heading].append(line)
    return by_kind


@cache
def _drawn(half: str) -> dict[str, Draw]:
    """Return the drawers of a part's names. Two authors may use the same name for different things."""
    return DRAWN | (THIRD if half == FRESH else SECOND)


def filled(template: str, draw: random.Random, half: str) -> Line:
    """Fill one template. The kind of the line is the template, so that a report can name it."""
    secrets: list[str] = []

    def put(match: re.Match[str]) -> str:
        secret, form, plain = match.groups()
        if plain is not None:
            return drawn[plain](draw) if plain in drawn else match[0]
        secrets.append(FORMS[form](drawn[secret](draw)) if form else drawn[secret](draw))
        return secrets[-1]

    drawn = _drawn(half)
    text = _PLACE.sub(put, template.replace("⏎", "\n"))
    return Line(text, secrets[0] if secrets else None, template)


def lines_of(half: str, rounds: int, seed: int = 0) -> list[Line]:
    """Fill each template of a half `rounds` times."""
    draw = random.Random(f"{half}:{seed}")
    by_kind = templates(half)
    return [filled(template, draw, half) for kind in ("secret", "harmless") for template in by_kind[kind] for _ in range(rounds)]
