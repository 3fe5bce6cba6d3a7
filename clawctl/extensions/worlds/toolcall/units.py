"""The unit, the currency or the base of a written number, which math-verify drops before it compares.

The names are those of sympy.physics.units, and of `units.txt`. Other nouns (`12 students`) are no units.
"""

import re
from collections import Counter
from functools import cache
from pathlib import Path

from clawctl.extensions.worlds.toolcall.number_words import in_digits

_SIGN = r"(?P<sign>\\?\$|[€£¥₹])?"
_VALUE = r"(?P<value>(?:\\[dtc]?frac|\\sqrt|\\pi|\\times|\\cdot|\\left|\\right|\\[,!;: ]|\{,\}|[-+\d.,:/*^(){}\s])+?)"
_BASE = re.compile(
    r"(?<![A-Za-z])\d[\dA-F]*\)?(?P<base>(?:_\{?|\s*\(?(?:\\text\{)?\s*\(?(?i:in )?(?i:base)[\s}$]*)(?:\\text\{)?(\w+?)[\s)}$.]*)$"
)
_UNIT = r"(?P<unit>(?:\\[A-Za-z]+|\\[,!;: ]|\^\s?\{?-?\d\}?|\^|[^\W\d_]|[{}()/.\s°%²³·¢-])*)"
_QUANTITY = re.compile(rf"(?:.*=)?\s*{_SIGN}\s*{_VALUE}{_UNIT}\$?", re.DOTALL)
_WRITTEN = re.compile(rf"{_SIGN}(?P<value>-?\d[\d,]*(?:\.\d+)?(?:/\d+)?)(?P<unit>[^\n.,;!?]{{0,60}})")
_LAYOUT = re.compile(r"\\(?:text|textbf|mathrm|mbox|rm|cdot)\b|\\[,!;: ]|[{}()·]")
_TOKEN = re.compile(r"\^\s?-?\d|/|[^\W\d_]+|[²³°%¢€£$¥₹]")
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3, "²": 2, "³": 3}
Unit = frozenset[tuple[str, int]]


def differ(wanted: str, given: str) -> bool:
    """Whether both answers have a base, or a unit or currency, and not the same. A reply without a box has the unit of the last
    number in it that is the wanted one."""
    boxed = given.startswith("\\boxed{")
    given = given[len("\\boxed{") : -1] if boxed else given
    bases = [in_digits(match[2].lower()) for text in (wanted, given) if (match := _BASE.search(text.strip()))]
    if len(bases) == 2:
        return bases[0] != bases[1]
    quantity = _QUANTITY.fullmatch(wanted.strip())
    if quantity is None or not re.search(r"\d", quantity["value"]):
        return False
    other = _QUANTITY.fullmatch(given.strip())
    if other is None and not boxed:
        number = quantity["value"].replace(",", "").rstrip("^{ ")
        other = next((match for match in reversed([*_WRITTEN.finditer(given)]) if match["value"].replace(",", "") == number), None)
    if other is None or sorted(quantity["unit"]) == sorted(other["unit"]) != []:
        return False  # 2mn and 2nm are products
    ours, theirs = (unit_of(match) for match in (quantity, other))
    return bool(ours and theirs) and ours != theirs


def is_quantity(text: str) -> bool:
    """Whether a text is a number, with or without a unit."""
    quantity = _QUANTITY.fullmatch(text.strip())
    return quantity is not None and re.search(r"\d", quantity["value"]) is not None


def number_of(text: str) -> str:
    """The number of a text that is a number and a known unit or a base. Any other text as it is."""
    if base := _BASE.search(text.strip()):
        return text.strip()[: base.start("base")]
    quantity = _QUANTITY.fullmatch(text.strip())
    is_product = quantity is None or (not quantity["sign"] and quantity["unit"][:1].isalpha())  # 2nm may be 2 * n * m
    value = "" if quantity is None or is_product or not unit_of(quantity) else quantity["value"].strip().rstrip("^{ ")
    return value if re.search(r"\d", value) and value.count("(") == value.count(")") else text


def unit_of(match: re.Match[str]) -> Unit:
    """The known units of a number, each with its power. Empty if there is none. They end before a word that is no unit."""
    sign = (match["sign"] or "").lstrip("\\")
    if sign == "$" and not match["sign"].startswith("\\") and "$" in match["unit"]:
        sign = ""  # $5$ is mathematics
    text = re.sub(r"\b([ap])\.\s?m\b", r"\1m", re.sub(r"\^?\s*\\circ|°", " degree ", match["unit"].removeprefix("$").split("$")[0]))
    powers, direction, power = Counter[str](), 1, 1
    last: list[tuple[str, int]] = []
    if re.fullmatch(r"(?:sq(?:uare)? |cu(?:bic)? )?in\.?(?:\^\d|[²³])?", text := " ".join(_LAYOUT.sub(" ", text).split())):
        text = re.sub(r"\bin\b", "inch", text)
    for token in _TOKEN.findall(f"{sign} {text}"):
        if token[0] == "^" or token in ("squared", "cubed", "²", "³"):
            times = _POWERS.get(token) or int(token.lstrip("^ "))
            for name, count in last:
                powers[name] += count * (times - 1)
        elif token in ("/", "per", "a", "an"):
            direction = -1
        elif token in _POWERS:
            power = _POWERS[token]
        elif parts := _parts(token):
            last = [(name, direction * power * count) for name, count in parts]
            powers.update(dict(last))
            direction = power = 1
        elif powers:
            break
    return frozenset((name, count) for name, count in powers.items() if count)


def _parts(word: str) -> tuple[tuple[str, int], ...]:
    from sympy.physics import units  # type: ignore[import-untyped]

    for name in (word, word.lower()) if len(word) > 1 else (word,):
        if name in _names():
            above, _, below = _names()[name].partition("/")
            return ((above, 1), (below, -1)) if below else ((above, 1),)
        if isinstance(quantity := getattr(units, name, None), units.Quantity):
            return ((str(quantity.name), 1),)
    return ()


@cache
def _names() -> dict[str, str]:
    lines = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    named = (line.partition(": ") for line in lines if not line.startswith("#"))
    return {name: unit for unit, _, names in named for name in names.split()}
