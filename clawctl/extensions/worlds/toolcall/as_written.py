"""Answers that are compared as they are written: words, dates, choices, numbers of code, and what a program prints."""

import re
import unicodedata

TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\s?\{([^{}]*)\}")
BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")
_WORD = re.compile(r"(?<![\\A-Za-z])[^\W\d_]{3,}")
_DATE = re.compile(r"(?<![\d./-])\d+([-/.])\d+\1\d+(?![\d/-])")  # or a version
_BASED = re.compile(r"(?<!\w)0[xob][\da-f]+(?!\w)", re.IGNORECASE)  # a number of a programming language
_CHOICES = re.compile(r"\(?[A-Z]\)?(?:(?:, ?| and |, and )\(?[A-Z]\)?)+")
_CHOICE_AND_VALUE = re.compile(r"\\(?:text|textbf|mathrm)\s?\{\(?([A-Z])\)?\s?\}(?:\\[ ,;!]|[\s~:])+(.+)", re.DOTALL)
_FENCED = re.compile(r"```[^\n`]*\n(.*?)\n?```\W*$", re.DOTALL)
UNSURE = re.compile(r"\b(?:not|or|nor|never|neither|maybe|perhaps)\b|n't\b", re.IGNORECASE)
_NONE_OF = re.compile(r"\bnone of\b", re.IGNORECASE)
_REFUSED = re.compile(r"(?:\b(?:not|never)|n't)(?: be)?[\s$*:]*$", re.IGNORECASE)
_REPEATING = re.compile(r"(\d*)\.(\d*)\\(?:overline|bar)\s?\{(\d+)\}")
_NAMED = {
    "−": "-",
    "×": "\\times ",
    "·": "\\cdot ",
    "÷": "/",
    "∞": "\\infty ",
    "π": "\\pi ",
    "≤": "\\leq ",
    "≥": "\\geq ",
    "∅": "\\emptyset ",
    "∪": "\\cup ",
}
_SIGNS = re.compile(rf"[{''.join(_NAMED)}]|(?![0-9])\d|[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+|[¼½¾⅐-⅞]")
_ROOT = re.compile(r"√\(?(\w+)\)?")
_MIXED = re.compile(r"(-?\d+) +(\d+)/(\d+)")
_COMMA = re.compile(r"(?<=\d)\{,\}(?=\d)(?!\d{3}(?!\d))")  # of a decimal number: three digits behind it could be thousands
_THOUSANDS = re.compile(r"(?<![\w.,])\d{1,3}(?:(?:\\,\d{3})+|(?:\.\d{3}){2,})(?![\w.]*\d)")
_CASES = re.compile(r"\\begin\{cases\}([^&]*)\\end\{cases\}")
_BELOW = re.compile(r"\s*(<|\\leq?(?![A-Za-z])|≤)\s*")


def plain(text: str) -> str:
    """A text without its layout and quotes. Words have no case."""
    text = " ".join(TEXT.sub(r"\1", text).split()).strip("`*$'\" .")
    return text.rstrip("!").casefold() if _WORD.search(text) else text


def is_literal(reply: str, wanted: str) -> bool:
    """Whether a reply's box, its last block of code, or the end of its last line is the wanted answer, word for word."""
    boxes, fenced = BOXED.findall(reply), _FENCED.search(reply)
    if boxes or fenced:
        return plain(boxes[-1] if boxes else fenced[1] if fenced else "") == plain(wanted)
    last, text = plain(reply.strip().rpartition("\n")[2]), plain(wanted)
    if last == text:
        return True
    is_worded = _WORD.match(text) is not None or wanted[:1] in ("'", '"', "`")
    return is_worded and re.search(rf"(?:\w\w|:) [`*'\"]*{re.escape(text)}$", last) is not None


def is_refused(reply: str) -> bool:
    """Whether the words before the last box deny what is in it."""
    boxes = list(BOXED.finditer(reply))
    return bool(boxes) and _REFUSED.search(reply[: boxes[-1].start()]) is not None


def same_kind(reply: str, wanted: str) -> bool | None:
    """Whether a reply ends with the wanted date, number of code or choices, and neither denies nor doubts it. None if the wanted
    answer is none of these."""
    boxes = BOXED.findall(reply)
    text = TEXT.sub(r"\1", boxes[-1] if boxes else reply.strip().rpartition("\n")[2])
    wanted = TEXT.sub(r"\1", wanted)
    if not any(kind.fullmatch(wanted) for kind in (_DATE, _BASED, _CHOICES)):
        return None
    if UNSURE.search(text) or _NONE_OF.search(text):
        return False
    if _DATE.fullmatch(wanted):
        return [match[0] for match in _DATE.finditer(text)][-1:] == [wanted]
    if _BASED.fullmatch(wanted):
        return [int(number, 0) for number in _BASED.findall(text)][-1:] == [int(wanted, 0)]
    return set(re.findall(r"\b[A-Z]\b", text)) == set(re.findall(r"\b[A-Z]\b", wanted))


def choice_and_value(wanted: str) -> tuple[str, ...]:
    """The two answers in `\\textbf{(E)}\\ 75`. Empty if it is another."""
    match = _CHOICE_AND_VALUE.fullmatch(wanted)
    return match.groups() if match else ()


def bare(reply: str) -> str:
    """A reply without a box, whose last line is put into one if it is nothing but mathematics in LaTeX."""
    last = normal(reply.strip().rpartition("\n")[2])
    is_bare = "\\" in last and "$" not in last and not re.search(r"\\[(\[]|(?<!\\)\b[A-Za-z]{2}", re.sub(r"\\[A-Za-z]+", "", last))
    return rf"\boxed{{{last}}}" if is_bare else reply.replace("`", "") if "```" not in reply else reply


def grouped(text: str) -> str:
    """Numbers with a decimal point and no groups of thousands, where a text can mean nothing else: 3{,}5 and 1.000.000."""
    return _COMMA.sub(".", _THOUSANDS.sub(lambda number: re.sub(r"\D", "", number[0]), text))


def normal(text: str) -> str:
    """Mathematics in a form that math-verify reads: fractions for repeating decimals, intervals, and decimal digits of ASCII."""
    text = _SIGNS.sub(lambda sign: _latex(sign[0]), _ROOT.sub(r"\\sqrt{\1}", text)).replace("\\varnothing", "\\emptyset")
    text = _REPEATING.sub(lambda match: _fraction(*match.groups()), text)
    text = _CASES.sub(lambda cases: cases[1].replace(r"\\", ",").strip(), text)
    if mixed := _MIXED.fullmatch(text.strip()):
        return rf"{mixed[1]}\frac{{{mixed[2]}}}{{{mixed[3]}}}"
    parts = _BELOW.split(text)
    if len(parts) == 5 and re.fullmatch("[A-Za-z]", parts[2]):
        return f"{'(' if parts[1] == '<' else '['}{parts[0]}, {parts[4]}{')' if parts[3] == '<' else ']'}"
    return text


def _latex(sign: str) -> str:
    """A sign of Unicode in LaTeX: a decimal digit, superscripts, a fraction, or one that has a name there."""
    if sign in _NAMED:
        return _NAMED[sign]
    if sign.isdecimal():
        return str(int(sign))
    kind, *parts = unicodedata.decomposition(sign[0]).split()
    if kind == "<fraction>":
        above, _, below = (chr(int(part, 16)) for part in parts)
        return rf"\frac{{{above}}}{{{below}}}"
    return f"^{{{unicodedata.normalize('NFKC', sign)}}}"


def _fraction(whole: str, begin: str, repeated: str) -> str:
    above = int(whole + begin + repeated) - int(f"0{whole}{begin}")
    return rf"\frac{{{above}}}{{{10 ** len(begin) * (10 ** len(repeated) - 1)}}}"
