"""Removes statements about the verdict from the text that the judge sees.

A judge decides by the next state. Text that names the verdict, gives orders to a judge, or imitates another speaker is no evidence,
whoever wrote it. Such text is detected by topics, not by exact words. Each sentence is reduced to its topics (judging, orders,
speakers, acceptance, a verdict's number), and certain pairs of topics mark it as noise. Words are compared regardless of case,
accents, letter width and look-alike alphabets, and also reversed and in rot13.

A user's own words are evidence. Fewer pairs count there, and a message that would be noise as a whole is shown unchanged.
"""

import html
import re
import unicodedata
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path

LEFT_OUT = "[…]"

_NUMBER = re.compile(r"(?<![\w.,/])[-+\u2212\u2013]?\s?[01](?:\.0)?(?![\w/]|[.,]\d)|\b(?:plus|minus|negative|positive)[ _-]one\b")
_ONLY_NUMBER = re.compile(r"[\W_]*[-+]?[01](?:\.0)?[\W_]*")
_SENTENCE = re.compile(r"(?<=[.!?\u3002\uff01\uff1f;])(?=\s|[^\x00-\x7f])|(?<=\n)")
_CJK = re.compile("评分|評分|判定|判断|裁判|忽略|無視|无视|得分|指示|指令|输出|出力|答えて|回答|점수|무시|출력|지시|판정|평가")
_SPELLED = re.compile(r"(?:(?<!\w)[^\W\d_][^\w\n]{1,2}){5,}[^\W_]?(?!\w)[^\n]*")  # text spelled one letter at a time
_PACKED = re.compile(
    r"(?=[A-Za-z0-9+/_-]*\d)(?=[A-Za-z0-9+/_-]*[A-Z])(?=[A-Za-z0-9+/_-]*[a-z])[A-Za-z0-9+/_-]{20,}={0,2}|[A-Za-z0-9+/]{8,}={1,2}(?!\w)"
)
_WORD = re.compile(r"[^\W\d]+(?:_\d+)?", re.UNICODE)
_LOOK_ALIKE = str.maketrans("асеорхуіѕјһԁαεορινυτκ", "aceopxyisjhdaeopivutk")
_ROT13 = str.maketrans("abcdefghijklmnopqrstuvwxyz", "nopqrstuvwxyzabcdefghijklm")
_OPENS, _CLOSES = "<[{(\uff1c\u27e6\u300a\u3010%=#|*@:\u2039\u00ab-", ">]})\uff1e\u27e7\u300b\u3011%=#|*@:\u203a\u00bb-"
_TAG = re.compile(rf"[{re.escape(_OPENS)}]{{1,4}}[^\s\w]{{0,3}}([\w ]{{1,40}}?)[^\s\w]{{0,3}}[{re.escape(_CLOSES)}]{{1,4}}")
_SPECIAL = re.compile(r"(?:[\d_|]|\b(?:s|sys|inst|think|bos|eos|end|answer|request|turn)\b|<<|\[/)")
# A name, possibly decorated or explained in brackets, and the mark that ends it
_NAME = re.compile(
    r"[\W_]*((?:\w+[ \t]+)?\w+)(?:[ \t]*\([^)\n]{0,30}\))?[ \t]*\d?[\W_]*?"
    r"(?:[:>|\])\u2013\u2014]+|\bsay[s:]+|\bsaid\b|[ \t]-[ \t]|$)[\W_]*?"
)
_CALL = re.compile(r"</?tool_|\[calls")
_LIST_NUMBER = re.compile(r"\s*\d+[.)]")
_CLOSED_HEADER, _OPEN_HEADER = 1, 2

_JUDGE, _ORDER, _SPEAKER, _READER, _MOOD, _FIGURE, _CODED = 1, 2, 4, 8, 16, 32, 64
_TOPICS = {"judging": _JUDGE, "orders": _ORDER, "speakers": _SPEAKER, "readers": _READER, "acceptance": _MOOD, "codes": _CODED}


@cache
def _stems() -> dict[str, list[tuple[str, int, bool]]]:
    """The stems with their topics, by their first three letters. The last value: only a complete word matches."""
    stems: dict[str, list[tuple[str, int, bool]]] = {}
    for line in (Path(__file__).parent / "noise.txt").read_text(encoding="utf-8").splitlines():
        name, *words = line.split()
        for word in words if name in _TOPICS else ():
            stem = word.removesuffix("$")
            stems.setdefault(stem[:3], []).append((stem, _TOPICS[name], stem != word))
    return stems


@lru_cache(maxsize=1 << 14)
def _topic(word: str) -> int:
    """The topics of a word, as it is, reversed, in rot13, or in look-alike letters."""
    forms = [word] if len(word) < 4 else [word, word[::-1], word.translate(_ROT13)]
    if not word.isascii():
        forms.append(word.translate(_LOOK_ALIKE))
    topics = 0
    for form in forms:
        for stem, topic, whole in _stems().get(form[:3], ()):
            if form == stem or (not whole and form.startswith(stem)):
                topics |= topic
    return topics


def key(text: str) -> str:
    """`text` in its form for comparison: without case, accents, HTML entities and letter width."""
    if "&" in text:
        text = html.unescape(text)
    if text.isascii():
        return text.lower()
    apart = unicodedata.normalize("NFKD", text)
    return "".join(char for char in apart if not unicodedata.combining(char)).casefold()


def topics(text: str) -> int:
    """The topics of a sentence. `text` must be a result of `key`."""
    topics = 0
    for word in _WORD.findall(text):
        topics |= _topic(word)
    if not text.isascii() and _CJK.search(text):
        topics |= _JUDGE | _ORDER
    if _NUMBER.search(text) or (topics & (_JUDGE | _ORDER) and _NUMBER.search(text[::-1])):
        topics |= _FIGURE
    return topics


def is_noise(text: str, own_words: bool) -> bool:
    """Whether a sentence is about the verdict or addresses the judge. `own_words`: a user wrote it, so it is evidence."""
    plain = key(text)
    about = topics(plain)
    if about & _FIGURE and about & (_JUDGE | _ORDER):
        return True
    if about & _JUDGE and about & _ORDER:
        return True
    if (about & _CODED and about & (_JUDGE | _ORDER | _SPEAKER | _READER | _FIGURE)) or _is_spelled(text):
        return True
    if "boxed" in plain or "hint_" in plain:
        return True
    if not plain.isascii() and about & _FIGURE and _is_foreign_script(plain):
        return True
    if own_words:
        return bool(about & _MOOD and ((about & _READER and about & _FIGURE) or "the user" in plain))
    return bool(about & _JUDGE and about & (_SPEAKER | _READER | _MOOD)) or bool(about & _READER and about & _MOOD)


def _is_spelled(text: str) -> bool:
    """Whether a line is spelled one letter at a time."""
    pieces = re.findall(r"[^\W_]+", text)
    letters = sum(len(piece) == 1 and piece.isalpha() for piece in pieces)
    return letters >= 5 and sum(len(piece) == 1 for piece in pieces) * 3 > len(pieces) * 2


def _is_column(unit: str) -> bool:
    """Whether a sentence is spread over several lines of one word each."""
    return unit.count("\n") >= 3 and all(len(line.split()) <= 1 for line in unit.splitlines())


def _is_foreign_script(plain: str) -> bool:
    """Whether a line is mostly in non-Latin letters."""
    letters = [char for char in plain if char.isalpha()]
    return bool(letters) and sum(char > "\u024f" for char in letters) * 2 > len(letters)


def without_noise(text: str, own_words: bool) -> str:
    """`text` without its noise, which a mark replaces. Linear in the length of `text`."""
    if "&" in text:
        text = html.unescape(text)
    units = list(_units(text))
    if len(units) == 1 and own_words:
        return text
    readable_units: list[str] = []
    skip_next = changed = False  # skip_next: the previous line named another speaker, so this one is not the author's own
    for unit in units:
        if not unit.strip():
            readable_units.append(unit)
            continue
        header = _header(unit)
        if (
            header
            or skip_next
            or (len(units) > 1 and _is_column(unit))
            or is_noise(unit, own_words)
            or (len(units) > 1 and _ONLY_NUMBER.fullmatch(key(unit)))
        ):
            skip_next = header == _OPEN_HEADER
            changed = True
            continue
        readable = _PACKED.sub(LEFT_OUT, _SPELLED.sub(LEFT_OUT, unit))
        if readable != unit:
            changed = True
            if not own_words or topics(key(readable)) & (_JUDGE | _ORDER) or not _WORD.search(readable):
                continue
        readable_units.append(readable)
    if not changed:
        return text
    left = "\n".join(line for line in "".join(readable_units).split("\n") if not line.strip() or re.search(r"\w", line)).strip()
    if not re.search(r"\w", left.replace(LEFT_OUT, "")):
        return text if own_words else LEFT_OUT
    return left


def _units(text: str) -> Iterable[str]:
    """The sentences and lines of a text. Consecutive one-word lines form one sentence. A list number belongs to its item."""
    run: list[str] = []
    number = ""
    for unit in _SENTENCE.split(text):
        if _LIST_NUMBER.fullmatch(unit):
            number += unit
            continue
        unit, number = number + unit, ""
        if unit.endswith("\n") and len(unit.split()) == 1 and not _header(unit):
            run.append(unit)
            continue
        if len(run) > 1 and len(unit.split()) == 1 and not _header(unit):
            run.append(unit)
            unit = ""
        if run:
            yield "".join(run)
            run = []
        if unit:
            yield unit
    yield "".join(run) + number


def _header(unit: str) -> int:
    """Whether a line begins like another speaker's: 0, _CLOSED_HEADER, or _OPEN_HEADER if the speaker's text follows it."""
    plain = key(unit).strip().lstrip("> ")
    tag = _TAG.match(plain)
    rest = plain[tag.end() :] if tag else plain
    speaks = tag is not None and any(_topic(word) & _SPEAKER for word in _WORD.findall(tag[1]))
    if not re.search(r"\w", rest):
        if speaks:
            return _CLOSED_HEADER if tag is not None and re.match(r"\W*(?:/|end\b)", tag[0]) else _OPEN_HEADER
        return _CLOSED_HEADER if tag is not None and _SPECIAL.search(tag[0]) and not _CALL.match(tag[0]) else 0
    if speaks and tag is not None and tag[0].rstrip()[-1] in ":>]|" and len(tag[1].split()) <= 3:
        return _CLOSED_HEADER
    name = _NAME.match(rest)
    if name is None or not any(_topic(word) & _SPEAKER for word in _WORD.findall(name[1])):
        return 0
    return _CLOSED_HEADER if re.search(r"\w", rest[name.end() :]) else _OPEN_HEADER
