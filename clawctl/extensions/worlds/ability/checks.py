"""Checks of a reply. A check is a function of the reply's text and the task's arguments, and returns whether the reply is right."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clawctl.eval.suites.answers import language_of

_NUMBER = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?|[-−]?\.\d+")
_FRACTION = re.compile(r"(-?\d+)\s*/\s*(\d+)")
_SENTENCE_END = re.compile(r"[.!?…]+[\"”'’)]*(?:\s+|\Z)")  # does not match the point in 3.50
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_FENCE = re.compile(r"```[^\n]*\n(.*?)```", re.DOTALL)
_SMALL = frozenset(["a", "an", "and", "as", "at", "but", "by", "for", "in", "of", "on", "or", "the", "to", "with"])


def words(text: str) -> list[str]:
    return _WORD.findall(text)


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def json_in(text: str) -> Any:
    """The JSON document in a reply that consists of it, with or without a code fence. None if there is none."""
    fenced = _FENCE.search(text)
    try:
        return json.loads(fenced[1] if fenced else text)
    except ValueError:
        return None


def number_in(text: str) -> float | None:
    """The last number in a reply, which is the result if the reply shows its working."""
    if (fraction := _FRACTION.search(text)) and not _NUMBER.search(text[fraction.end() :]) and int(fraction[2]):
        return int(fraction[1]) / int(fraction[2])
    numbers = _NUMBER.findall(text)
    return float(numbers[-1].replace(",", "").replace("−", "-")) if numbers else None


def code_in(text: str) -> str:
    """The code in a reply: its longest fenced block, or the whole text."""
    return max(_FENCE.findall(text), key=len, default=text)


def _rows(text: str) -> list[list[str]]:
    rows = [[cell.strip().lower() for cell in line.strip("|").split("|")] for line in lines(text) if "|" in line]
    return [row for row in rows if not all(set(cell) <= set("-: ") for cell in row)]


def _same(text: str, wanted: str) -> bool:
    return [line.strip() for line in text.strip().splitlines()] == wanted.splitlines()


CHECKS: Mapping[str, Callable[..., bool]] = {
    "bullets": lambda text, count: sum(line.startswith(("- ", "* ", "• ")) for line in lines(text)) == count,
    "contains": lambda text, part: part.lower() in text.lower(),
    "contains_exact": lambda text, part: part in text,
    "ends_with": lambda text, end: text.rstrip().endswith(end),
    "exact": _same,
    "exact_of": lambda text, choices: text.strip() in choices,
    "fenced": lambda text, inner: re.fullmatch(rf"```\w*\n{re.escape(inner)}\n```", text.strip()) is not None,
    "items": lambda text, count, sign: len([part for part in text.strip().split(sign) if part.strip()]) == count,
    "json_equals": lambda text, value: json_in(text) == value,
    "lacks": lambda text, part: part.lower() not in text.lower(),
    "lacks_digits": lambda text: not any(sign.isdigit() for sign in text),
    "lacks_word": lambda text, word: word not in [listed.lower() for listed in words(text)],
    "line_words_at_most": lambda text, limit: all(len(words(line)) <= limit for line in lines(text)),
    "lines": lambda text, count: len(lines(text)) == count,
    "lowercase": lambda text: text == text.lower() and any(map(str.isalpha, text)),
    "no_bullets": lambda text: not any(re.match(r"[-*•]|\d+[.)]", line) for line in lines(text)),
    "numbered": lambda text, count: [line.split(" ")[0] for line in lines(text)] == [f"{number + 1}." for number in range(count)],
    "only_lines": lambda text, start: all(line.startswith(start) for line in lines(text)),
    "paragraphs": lambda text, count: len([part for part in re.split(r"\n\s*\n", text.strip()) if part.strip()]) == count,
    "sentences": lambda text, count: len([part for part in _SENTENCE_END.split(text) if words(part)]) == count,
    "starts_with": lambda text, start: text.lstrip().lower().startswith(start.lower()),
    "table": lambda text, width, head, rows: _rows(text) == [head, *rows] and all(len(row) == width for row in _rows(text)),
    "title_case": lambda text: all(word[0].isupper() or word.lower() in _SMALL or word[0].isdigit() for word in words(text)),
    "uppercase": lambda text: text == text.upper() and any(map(str.isalpha, text)),
    "words": lambda text, count: len(words(text)) == count,
    "words_at_least": lambda text, least: len(words(text)) >= least,
    "words_at_most": lambda text, limit: len(words(text)) <= limit,
    "words_begin": lambda text, start: all(word.lower().startswith(start) for word in words(text)),
}


def follows(text: str, checks: Sequence[Sequence[Any]]) -> bool:
    """Whether a reply passes all checks. Each check is a name in CHECKS with its arguments. An empty reply fails."""
    return bool(text.strip()) and all(CHECKS[name](text.strip(), *given) for name, *given in checks)


def is_number(text: str, expected: float) -> bool:
    number = number_in(text)
    return number is not None and abs(number - expected) <= 1e-6 * max(1.0, abs(expected))


def is_said_in(text: str, language: str, any_of: Sequence[str]) -> bool:
    """Whether a reply contains one of these words and is in this language. An unknown language counts as right."""
    written = language_of(text)
    alike = {"ja": {"ja", "zh"}}.get(language, {language})  # a short Japanese sentence may consist of Han characters
    return (written is None or written in alike) and any(word in text.lower() for word in any_of)


def makes_call(calls: Sequence[tuple[str | None, Any]], expected: Mapping[str, Any] | None) -> bool:
    """Whether exactly the expected call was made. None: the reply must not make a call."""
    if expected is None:
        return not calls
    if len(calls) != 1 or calls[0][0] != expected["name"] or not isinstance(calls[0][1], dict):
        return False
    given, wanted = calls[0][1], expected["arguments"]
    return given.keys() == wanted.keys() and all(_alike(given[name], value) for name, value in wanted.items())


def _alike(given: Any, wanted: Any) -> bool:
    if isinstance(wanted, str):
        return isinstance(given, str) and _plain(given) == _plain(wanted)
    if isinstance(wanted, bool) or isinstance(given, bool):
        return given is wanted
    return isinstance(given, int | float) and float(given) == float(wanted)


def _plain(text: str) -> str:
    return " ".join(text.casefold().strip(" .,!?'\"").removeprefix("./").split())
