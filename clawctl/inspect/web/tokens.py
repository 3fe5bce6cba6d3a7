"""The tokens of a trained answer, each with its numbers and a colour."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from clawctl.inspect.why import by_token

_RATIOS = (0.02, 0.1, 0.2, 0.5)  # from each of these |log ratio| values on, the colour is one level stronger
_MAX_TOKENS = 1000  # the number of tokens on a page


def coloured(record: dict[str, Any], texts: Sequence[str], query: Mapping[str, str]) -> dict[str, Any]:
    """The tokens of a page, and the streams that can colour them: "ratio", and the advantage or divergence of each term.

    A colour is a CSS class from "n4" (far below) over "z" to "p4" (far above)."""
    tokens = by_token(record, list(texts))
    terms = list(tokens[0]["terms"]) if tokens else []
    names = ["ratio", *terms]
    colour = query.get("colour", "ratio")
    colour = colour if colour in names else "ratio"
    begin = max(0, int(query["from"])) if query.get("from", "").isdecimal() else 0
    values = [_value(token, colour) for token in tokens]
    largest = max((abs(value) for value in values if value is not None and math.isfinite(value)), default=0.0)
    for token, value in zip(tokens, values, strict=True):
        token["value"], token["colour"] = value, _level(value, colour, largest)
    shown = tokens[begin : begin + _MAX_TOKENS]
    after = begin + _MAX_TOKENS if begin + _MAX_TOKENS < len(tokens) else None
    return {"shown": shown, "count": len(tokens), "names": names, "terms": terms, "colour": colour, "begin": begin, "after": after}


def _value(token: dict[str, Any], colour: str) -> float | None:
    if colour == "ratio":
        return float(token["ratio"])
    term = token["terms"][colour]
    value = term.get("advantage", term.get("divergence"))
    return None if value is None else float(value)


def _level(value: float | None, colour: str, largest: float) -> str:
    if value is None or not math.isfinite(value):
        return "z"
    if colour == "ratio":
        moved = math.log(value) if value > 0 else -math.inf
        level = sum(abs(moved) >= bound for bound in _RATIOS)
    else:
        moved, level = value, math.ceil(4 * abs(value) / largest - 1e-9) if largest else 0
    return "z" if level == 0 else f"{'p' if moved > 0 else 'n'}{level}"
