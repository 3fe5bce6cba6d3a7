"""Reads a wish in plain words: the rule that tells whether an answer meets it, where there is one."""

import re
from collections.abc import Callable
from pathlib import Path

from scripts.benchmarks.real_scorers import meets, words_of

FUNCTION_WORDS = Path(__file__).parent / "function_words.txt"  # "french: le la les …", one language a line

_PHRASE = re.compile(r"[\"“'‘]([^\"”'’]{2,60})[\"”'’]|:\s*(\S.{1,60}?)\s*$")
_NAME = re.compile(r"\b(?:call|address)\s+(?:me|the user|us)\s+(?:as\s+)?(?:an?\s+|the\s+)?[\"“']?([A-Za-z][\w-]+)", re.IGNORECASE)
# What a wish says, and the scorer that reads it
_FORMS = (
    (r"\b(?:one|a single|a)\b[^.]{0,20}\bsentence\b(?!\s+or\b)|\bone[- ]liner?\b", "short"),
    (r"\bbullet|\blists?\b|\bdash(?:es)?\b", "list"),
    (r"\bemojis?\b|\bsmileys?\b", "emoji"),
    (r"\bcapitals?\b|\bcaps\b|\bupper-?case\b|\bblock letters\b", "capitals"),
    (r"\bspanish\b|\bespañol\b", "spanish"),
)
# Not "no more than one sentence", "why not use bullets?" or "nothing but a list"
_NEGATION = re.compile(
    r"(?:(?<!why )\b(?:no|not|never|without|avoid|stop|less|fewer)|n['’]t|\bdont)\b(?! (?:more|longer) than)"
    r"(?:\s+(?!but\b)[\w'’-]+){0,4}\s*[\"“'‘]?$",
    re.IGNORECASE,
)


def read_wish(wish: str) -> Callable[[str], bool] | None:
    """Whether an answer meets the wish, as a function of the answer; None if no rule reads this wish.

    "Never use emojis." is met by an answer without them.
    """
    rule = _read(wish)
    if rule is None:
        return None
    meets, at = rule
    return (lambda answer: not meets(answer)) if _NEGATION.search(wish[:at]) else meets


def _read(wish: str) -> tuple[Callable[[str], bool], int] | None:
    """The rule for what the wish names, and where it names it."""
    text = wish.lower()
    if name := _NAME.search(wish):
        return _says(name[1], anywhere=True), name.start()
    if phrase := _PHRASE.search(wish):
        words = (phrase[1] or phrase[2]).strip().rstrip(".")
        begins, ends = re.search(r"\b(?:begin|start)", text), re.search(r"\bend|\bfinish|\bclose\b", text)
        return _says(words, anywhere=not (begins or ends), begins=bool(begins)), phrase.start()
    for pattern, scorer in _FORMS:
        if form := re.search(pattern, text):
            return (lambda answer, name=scorer: meets(name, answer)), form.start()
    for language, words in languages().items():
        if named := re.search(rf"\b{language}\b", text):
            return _in_language(words), named.start()
    return None


def languages() -> dict[str, set[str]]:
    """The commonest short words of some languages, by the language's English name."""
    rows = (line.partition(":") for line in FUNCTION_WORDS.read_text(encoding="utf-8").splitlines() if line.strip())
    return {name: set(words.split()) for name, _, words in rows}


def _in_language(vocabulary: set[str]) -> Callable[[str], bool]:
    others = [words for words in languages().values() if words != vocabulary]

    def meets_wish(answer: str) -> bool:
        words = words_of(answer)
        count, most = sum(word in vocabulary for word in words), max(sum(word in other for word in words) for other in others)
        return count > most and count >= max(1, len(words) // 8)

    return meets_wish


def _says(phrase: str, anywhere: bool = False, begins: bool = False) -> Callable[[str], bool]:
    """Whether an answer contains, begins with or ends with a phrase, whatever its case and punctuation."""
    wanted = words_of(phrase)

    def meets_wish(answer: str) -> bool:
        words = words_of(answer)
        if anywhere:
            return any(words[at : at + len(wanted)] == wanted for at in range(len(words)))
        return (words[: len(wanted)] if begins else words[-len(wanted) :]) == wanted

    return meets_wish
