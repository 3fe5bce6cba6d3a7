"""The axes along which an answer varies. `write` writes an answer from a value for each axis, and `measure` reads the values back.

The two are inverse: `measure(write(problem, style)) == style` for every style.
"""

import re
from collections.abc import Mapping
from random import Random

from scripts.wishes.problems import NAMES, THINGS, WordProblem

Style = Mapping[str, str]
"""A value for each axis: {"case": "upper", "emoji": "none", …}."""

# The values of each axis, with their frequency if no wish is made. The first value is the usual one.
AXES: dict[str, dict[str, float]] = {
    "case": {"normal": 0.91, "upper": 0.05, "lower": 0.04},
    "language": {"english": 0.90, "german": 0.05, "spanish": 0.05},
    "digits": {"digits": 0.92, "words": 0.08},
    "signs": {"signs": 0.90, "words": 0.10},
    "order": {"sum first": 0.90, "answer first": 0.10},
    "length": {"two sentences": 0.85, "one sentence": 0.08, "with check": 0.07},
    "layout": {"line": 0.92, "list": 0.08},
    "steps": {"none": 0.90, "first then": 0.10},
    "units": {"bare": 0.82, "units": 0.18},
    "rounding": {"exact": 0.94, "rounded": 0.06},
    "bold": {"plain": 0.90, "bold": 0.10},
    "tone": {"sure": 0.93, "unsure": 0.07},
    "stress": {"calm": 0.92, "excited": 0.08},
    "greeting": {"none": 0.88, "greets": 0.12},
    "name": {"none": 0.92, "named": 0.08},
    "praise": {"none": 0.95, "praises": 0.05},
    "signoff": {"none": 0.90, "says bye": 0.10},
    "emoji": {"none": 0.93, "emoji": 0.07},
}
USUAL: dict[str, str] = {axis: next(iter(values)) for axis, values in AXES.items()}

_ONES = {
    "english": "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty",
    "german": "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn zwanzig",
    "spanish": "cero uno dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince dieciséis diecisiete "
    "dieciocho diecinueve veinte",
}
NUMBERS: dict[str, list[str]] = {language: words.split() for language, words in _ONES.items()}
_WORDS: dict[str, dict[str, str]] = {
    "english": {
        "+": "plus", "-": "minus", "x": "times", "=": "equals", "lead": "the answer is", "so": "so", "as": "because",
        "first": "first", "then": "then", "last": "last", "check": "check", "about": "about", "unsure": "I think",
        "greets": "Hello", "praises": "Good question", "bye": "Bye",
    },
    "german": {
        "+": "plus", "-": "minus", "x": "mal", "=": "gleich", "lead": "die Antwort ist", "so": "also", "as": "denn",
        "first": "zuerst", "then": "dann", "last": "zuletzt", "check": "Probe", "about": "etwa", "unsure": "ich glaube,",
        "greets": "Hallo", "praises": "Gute Frage", "bye": "Tschüss",
    },
    "spanish": {
        "+": "más", "-": "menos", "x": "por", "=": "igual a", "lead": "la respuesta es", "so": "luego", "as": "porque",
        "first": "primero", "then": "después", "last": "al final", "check": "prueba", "about": "casi", "unsure": "creo que",
        "greets": "Hola", "praises": "Buena pregunta", "bye": "Adiós",
    },
}  # fmt: skip
EMOJI = ("🙂", "🎉", "⭐")
LANGUAGES = tuple(_WORDS)


def draw_style(rng: Random, wants: Style | None = None) -> dict[str, str]:
    """Draw a value for each axis by its frequency. `wants` overrides the drawn values."""
    free = {axis: rng.choices(list(values), list(values.values()))[0] for axis, values in AXES.items()}
    return {**free, **(wants or {})}


def write(problem: WordProblem, style: Style, rng: Random, off_by: int = 0) -> str:
    """Write the answer to `problem` in `style`. `off_by` is added to the result to make it wrong."""
    words = _WORDS[style["language"]]
    result = problem.c + off_by
    parts = _parts(problem, result, style, words)
    mark = "!" if style["stress"] == "excited" else "."
    before = [
        *([f"{words['greets']}{mark}"] if style["greeting"] == "greets" else []),
        *([f"{words['praises']}{mark}"] if style["praise"] == "praises" else []),
    ]
    body = [f"{_capital(part)}{mark}" for part in parts]
    after = [
        *([f"{words['bye']}{mark}"] if style["signoff"] == "says bye" else []),
        *([rng.choice(EMOJI)] if style["emoji"] == "emoji" else []),
    ]
    if style["layout"] == "list":
        text = "\n".join([*([" ".join(before)] if before else []), *(f"- {part}" for part in body)])
        text += "\n" + " ".join(after) if after else ""
    else:
        text = " ".join([*before, *body, *after])
    return {"upper": text.upper(), "lower": text.lower(), "normal": text}[style["case"]]


def _parts(problem: WordProblem, result: int, style: Style, words: Mapping[str, str]) -> list[str]:
    """The sentences of the body, without initial capitals and final punctuation."""

    def number(n: int) -> str:
        return NUMBERS[style["language"]][n] if style["digits"] == "words" and 0 <= n <= 20 else str(n)

    def equation(a: int, op: str, b: int, c: int) -> str:
        sign, equals = (words[op], words["="]) if style["signs"] == "words" else (op, "=")
        return f"{number(a)} {sign} {number(b)} {equals} {number(c)}"

    working = equation(problem.a, problem.op, problem.b, result)
    shown = f"**{number(result)}**" if style["bold"] == "bold" else number(result)
    unit = f" {THINGS[problem.thing][LANGUAGES.index(style['language'])]}" if style["units"] == "units" else ""
    rounded = f" ({words['about']} {number(min(20, (result + 5) // 10 * 10))})" if style["rounding"] == "rounded" else ""
    unsure = f"{words['unsure']} " if style["tone"] == "unsure" else ""
    named = f", {problem.name}" if style["name"] == "named" else ""
    answer = f"{unsure}{words['lead']} {shown}{unit}{rounded}{named}"
    pair = [answer, working] if style["order"] == "answer first" else [working, answer]
    if style["steps"] == "first then":
        pair = [f"{words['first']}: {pair[0]}", f"{words['then']}: {pair[1]}"]
    if style["length"] == "one sentence":
        return [f"{pair[0]}, {words['as' if style['order'] == 'answer first' else 'so']} {pair[1]}"]
    if style["length"] == "with check":
        a, op, b = (result, "-", problem.b) if problem.op == "+" else (result, "+", problem.b)
        if problem.op == "x":
            a, op, b = problem.b, "x", problem.a
        checked = equation(a, op, b, result if op == "x" else a - b if op == "-" else a + b)
        return [*pair, f"{words['check']}: {checked}"]
    return pair


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _any(name: str) -> str:
    return "|".join(re.escape(_WORDS[language][name]) for language in LANGUAGES)


_LEAD = {language: re.compile(rf"\b{_WORDS[language]['lead']}\s+(?:\*\*)?(\w+)", re.IGNORECASE) for language in LANGUAGES}
_EQUALS = re.compile(rf"=|\b(?:{_any('=')})\b", re.IGNORECASE)
_SEEN = {
    name: re.compile(rf"(?<!\w)(?:{_any(name)})(?!\w)", re.IGNORECASE)
    for name in ("first", "check", "about", "unsure", "greets", "praises", "bye")
}
_JOINED = re.compile(rf",\s+(?:{_any('so')}|{_any('as')})\s", re.IGNORECASE)
_LACKS_CAPITAL = re.compile(rf"(?m)(?:^|^- |[.!] )[^\W\d_]|\bantwort\b|\bi think\b|\b(?:{'|'.join(NAMES).lower()})\b")
_NAME = re.compile(rf"\b(?:{'|'.join(NAMES)})\b", re.IGNORECASE)
_THING = re.compile(rf"\b(?:{'|'.join(word for words in THINGS.values() for word in words)})\b", re.IGNORECASE)


def language_of(answer: str) -> str | None:
    """The language of the sentence that gives the answer, or None if there is no such sentence."""
    return next((language for language, lead in _LEAD.items() if lead.search(answer)), None)


def measure(answer: str) -> dict[str, str | None]:
    """The value of each axis. None if the answer does not show it: an answer without a sum has no order, for example."""
    language = language_of(answer)
    lead, equals = (_LEAD[language].search(answer) if language else None), _EQUALS.search(answer)
    letters = [letter for letter in answer if letter.isalpha()]
    # "5 + 3 = 8, so the answer is 8." has no place for a capital letter, so its case counts as normal
    case = "upper" if answer.isupper() else "lower" if answer.islower() and _LACKS_CAPITAL.search(answer) else "normal"

    def seen(name: str, yes: str, no: str) -> str:
        return yes if _SEEN[name].search(answer) else no

    return {
        "case": case if letters else None,
        "language": language,
        "digits": ("digits" if re.search(r"\d", answer) else "words") if lead else None,
        "signs": ("signs" if "=" in answer else "words") if equals else None,
        "order": ("sum first" if equals.start() < lead.start() else "answer first") if lead and equals else None,
        "length": "with check" if _SEEN["check"].search(answer) else "one sentence" if _JOINED.search(answer) else "two sentences",
        "layout": "list" if re.search(r"(?m)^- ", answer) else "line",
        "steps": seen("first", "first then", "none"),
        "units": "units" if _THING.search(answer) else "bare",
        "rounding": seen("about", "rounded", "exact"),
        "bold": "bold" if "**" in answer else "plain",
        "tone": seen("unsure", "unsure", "sure"),
        "stress": "excited" if "!" in answer else "calm",
        "greeting": seen("greets", "greets", "none"),
        "name": "named" if _NAME.search(answer) else "none",
        "praise": seen("praises", "praises", "none"),
        "signoff": seen("bye", "says bye", "none"),
        "emoji": "emoji" if any(sign in answer for sign in EMOJI) else "none",
    }


def is_correct(problem: WordProblem, answer: str) -> bool:
    """Whether the number after "the answer is" is right, in digits or words, in any of the languages."""
    language = language_of(answer)
    match = _LEAD[language].search(answer) if language else None
    if match is None or language is None:
        return False
    word = match[1].lower()
    return word in (str(problem.c), NUMBERS[language][problem.c])
