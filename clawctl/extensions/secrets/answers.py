# ruff: noqa: E501 - expressions stay lines
"""Finds what answers a question for a secret: `Please enter your PIN.`, then `4829`.

After a question (`questions.py`) everything in the answer that looks like a secret is one, wherever it stands (`hm it was 6027 i think?`).
A single ordinary word is one only if it is the whole answer, or is joined to what was asked for (`the word is harpsichord`).
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Literal

from clawctl.extensions.secrets.lexicon import TOKEN, Meaning, meaning_of, plain, words_within
from clawctl.extensions.secrets.questions import WORDING, Wanted, sentences_of, wanted_by
from clawctl.extensions.secrets.text import Span, regex
from clawctl.extensions.secrets.values import (
    NAMING,
    TECHNICAL,
    is_passphrase,
    is_password,
    is_stand_in,
    is_strong_key,
    is_stronger_password,
    is_wordy,
)
from clawctl.extensions.secrets.vocabulary import IDS, LISTS

Evidence = Literal["form", "words", "name"]
_YES_OR_NO, _KNOWN = (regex(WORDING[name].strip()) for name in ("YES OR NO", "KNOWN"))
_MOST_WORDS, _MOST_WORDS_BESIDE = 5, 12
_MOST_READ = 1000  # characters of an answer; what is longer is pasted, and read by the other rules alone
_SHORTEST_WORD = 6
_TELLING = frozenset(LISTS["telling"].split())
_SHORTEST_CODE = 6  # more digits are no count, whatever follows
_REFUSALS = frozenset(WORDING["REFUSALS"].split())
_REPLIES = _REFUSALS | frozenset(WORDING["REPLIES"].split())
_OF_CLAUSES = frozenset(WORDING["CLAUSES"].split())
_IDS = IDS - {"in"}  # `she types in 7264`
_STOP = frozenset(map(plain, LISTS["no password words"].split()))
_ORDINARY = _STOP | NAMING | _REPLIES
_CODE = Meaning.STRONG | Meaning.PIN | Meaning.WEAK

_NUMBER = regex(r"(?<![^\W\u3040-\u9fff\uac00-\ud7af])(?<![.,:/-])\d(?:[ -]?\d){2,60}(?![^\W\u3040-\u9fff\uac00-\ud7af]|[.,:/-]\w)")
_DIGIT_BY_DIGIT = regex(r"\d(?:[ -]\d){2,}")
_OTHER_NUMBER = regex(r"[№#] ?\d|\b(?!PIN|PUK|TAN|OTP|CV[CV]|NCK)[A-Z]{2,4} \d|\b(?&at a time) (?:[01]\d|2[0-3])[0-5]\d$")
_NUMBER_WORDS = frozenset(LISTS["number"].split())
_PHONE = regex(r"0\d[\d -]{8,14}")
_YEAR = regex(r"(?:19|20)\d\d")
_DATE = regex(r"\d{4}[- ]\d\d?[- ]\d\d?|\d\d?[- ]\d\d?[- ](?:19|20)\d\d")
_MEASURE = regex(
    r"(?i)\d{1,5}(?:st|nd|rd|th|(?&number behind)|[ap]\.?m|h|mins?|s|sec|x|px|k|[kmgt]i?b|kg|g|km|cm|mm|m|[cf]|kw|w|v)|[a-z]{1,3}[-.]?\d{1,3}[a-z]?|\d{1,3}[a-z]|v?\d+(?:[.:/]\d+)+\w*|\d{1,2}[ap]m|\d{1,2}h\d\d|\d{1,3}-[^\W\d_]+|(?:id_)?(?:ed|x)25519\w*|1password|\d+-[a-z]|[a-z]+-\d+(?:\.\d+)+(?:-\w+)?|0x[0-9a-f]{1,16}"
)
# An address, markup, a path, code, or the name of a file
_ADDRESS = regex(r"[/~|-]|\S*(?:[<>()`=]|://|\w/\w)|\S+@\S*\.\S|[\w.-]+\.(?:[a-z]\w{0,3}|[a-z]{5})$|[a-z]+\d*(?:_[a-z]+\d*)+$")
_NUMBERED = regex(r"(?:[A-Z]{3,9}|[A-Za-z][a-z]{2,8})[-_]?\d{1,2}")  # `page12`
_SPELLED = regex(r"(?<![\w-])(?:\w[- ]){4,24}\w(?![\w-])")
_TURNS = regex(r"(?<![\w/])\d\d?(?:(?: / |,? (?&then) )\d\d?){2,7}(?![\w/])")  # `12 / 36 / 04`, `4 then 1 then 7`
_DIAL = regex(
    r"(?i)\b(?:left|right|(?:anti-?|counter-?)?clockwise)\b[^.\d\n]{0,24} to (?P<value>\d\d?)\b"
)  # `left four turns to 38`
_DICTATED = regex(
    r"(?<![^\W_])(?:[^\W_]{1,12} )?[^\W_]{1,14}(?:, (?:[^\W_]{1,12} )?[^\W_]{1,14}){4,30}(?=\W|$)"
)  # `capital B, r, four, x`
_SENTENCE_END = regex(r"[!?…;\n]")
_BETWEEN_DIGITS, _FEWEST_SPOKEN = regex(r"[ ,.…-]{1,4}"), 3
_QUOTED = regex(r"(?<!\bunder )(?<!\bin )[\"“”„«「『'‘](?P<value>[^\"“”„«»「」『』\n]{3,60}?)[\"”“»」』'’](?!\w)")
_GROUPS = regex(
    r"(?<![\w-])(?=[A-Z0-9 -]{0,80}\d)(?=[A-Z0-9 -]{0,80}[A-Z])[A-Z0-9]{3,8}(?:-[A-Z0-9]{3,8}|(?: [A-Z0-9]{3,8}){2}){1,9}(?![\w-])"
)
_SEED = regex(r"(?m)(?:^|[.:!?] )(?P<value>[a-z]{3,8}(?: [a-z]{3,8}){11,23})(?=$|[.,;!?]| [-–—] )")
_LINE_OF_SEED, _FEWEST_OF_SEED = regex(r"(?<![^\W_])[a-z]{3,8}(?: [a-z]{3,8}){5,23}(?=$|[.,;!?\n])"), 6  # of a phrase in parts
_PHRASE = regex(r"[^\W\d_A-Z]{1,12}(?: [^\W\d_A-Z]{1,12}){2,23}")
_SIGNED = regex(r"[^\W\d_]{3,}[&*#$%^+=!~][^\W\d_]{2,}|[a-z]{3,}[A-Z][a-z]{3,}[!?*#]?")
_RUN = regex(r"[^\s\u3000-\u9fff\uac00-\ud7af\uff00-\uff65]{4,}")
_ASSIGNED = regex(r"\w{2,20}=(?=[^=])")  # `value=…`
_KEYPAD = regex(r"\d{1,3}[A-Z]\d{1,3}|[A-Z]\d{4,5}|\d{4,5}[A-Z]")  # `58A2`, as doors have
_KEY = regex(r"(?=\S*\d)(?=\S*[a-z])(?=\S*[A-Z])[A-Za-z0-9+/_-]{24,}={0,2}")  # base64, which may have slashes
_ENDINGS = regex(r"(?i)(?:(?&endings)|ment)$")
_JOINED = regex(r"[^\W\d_]{3,14}(?:[-_.][^\W\d_]{2,14}){2,5}")
_PART = regex(r"(?:^|[.,;:!?…(\n]) ?(?P<value>[a-z]{3,10}(?: [a-z]{3,10}){2,5})(?=[.,;:!?…)\n]|$)")
_FILLER = regex(r"(?i)^(?:ok(?:ay)?|sure|fine|yes|yeah|here)[:,.] ")
_NAME_FIRST = regex(r"\s*((?![IO]\b)[A-ZÀ-ÞĀ-Ž][^\W\d_A-Z]{3,20})[,.;!]? ?(?:$|[,;(])")
_NAMED = regex(r"(?i:" + WORDING["NAMED"].strip() + r")[^.,;:!?\n]{0,24}? (?P<value>[A-ZÀ-ÞĀ-Ž][^\W\d_]{2,20})[.!]*$")
_REMARK = regex(rf"(?i)(?<![^\W_])(?:{WORDING['SPELLING'].strip().replace(chr(10), '|')})(?![^\W_])")
_SLASHED = regex(r"(?=[^/]*[A-Z])(?=\S*[a-z])(?=\S*\d)\w{2,20}/\w{2,20}")  # `Anchor0/NW9`
_SAYS = regex(r"(?i)(?<![^\W_])(?:it['’]?s|is|was) $")
_SIGN_OF_PATH = regex(r"[/~\\]")
_HOW_MANY = regex(r"(?i)\bhow many\b")  # words a phrase has
_NAME = regex(r"[\dA-ZÀ-ÞĀ-Ž][\w'’-]*(?: (?:[^\W\d_]{1,3} ){0,2}[\dA-ZÀ-ÞĀ-Ž][\w'’-]*)*")  # `Rue de la Paix`
_LEAD = regex(WORDING["JOINS"].strip() + " ")
_CLAUSE, _SET_APART = regex(r"[.,:;!?…\n(«“\"]"), '(\n»”"'
_MOST_SPELLED = 5
_FRAGMENT = regex(
    rf"(?i)(?<![^\W_])(?:{WORDING['PARTS'].strip()})[ :,-]+(?P<value>\d(?:[ -]?\d){{0,5}})(?![\w:./-])|(?<![\w:./-])(?P<right>\d{{1,6}}),? (?:{WORDING['NOT'].strip()}) \d{{1,6}}(?![\w:./-])"
)
_OPAQUE = regex(r"(?i)(?![\da-f-]+$)\S{6,}")  # and no hash or UUID
_ENDS_PART = regex(r" *(?:[.,;:!?…)\n]|$)")
_AT_THE_END = regex(r": (?P<value>[^\W\d_]{3,}(?: [^\W\d_]{3,}){0,5})(?=[.,;!?]|$)")
_TOLD = regex(WORDING["JOINS"].strip() + r"[ ]{1,2}[\"'“„«]?(?P<value>[^\W\d_]{5,24})[\"'”“»]?(?=[ ]*(?:[.,;!?)\n😀-🙏]|$)|[ ](?:so|(?&and)|(?&but))[ ])")  # fmt: skip
_AROUND = ".,;:!?()[]<>{}\"'`*“”„«»‘’「」…"


def in_answer(question: str, text: str) -> Iterator[Span]:
    """Find everything in an answer that looks like what the question asks for."""
    wanted, text = wanted_by(question), text[:_MOST_READ]
    spans = list(_candidates(wanted, text, len(text.split()))) if wanted and text.strip() else []
    if wanted & Wanted.WORDS and not spans and (name := _NAMED.search(text.strip())):
        spans = [(text.find(name["value"]), text.find(name["value"]) + len(name["value"]))]
    if wanted & Wanted.WORDS and (name := _NAME_FIRST.match(text)) and _ORDINARY.isdisjoint((name[1].lower(), plain(name[1]))):
        spans = [name.span(1)]
    last = sentences_of(question)[0]
    counted = _HOW_MANY.search(last)
    if not spans and not counted and (_KNOWN.search(last) or not _YES_OR_NO.match(last)):
        spans = list(_word(wanted, text)) or list(_last_word(wanted, text))
    for remark in _REMARK.finditer(text) if not spans and not counted and wanted & ~Wanted.DIGITS else ():
        spans += _spelled(text, remark.start(), remark.end())
    again = {(match.start(), match.end()) for start, stop in spans for match in re.finditer(re.escape(text[start:stop]), text)}
    end = 0
    for start, stop in sorted(again, key=lambda span: (span[0], -span[1])):
        if start >= end:
            yield Span(start, stop, "password")
            end = stop


def evidence_of(text: str, start: int, end: int) -> Evidence:
    """Why a part of an answer is a secret: its form, a word before its digits (`claims host with 662190`), or the question alone."""
    value = text[start:end]
    if any(map(str.isalpha, value)):
        if _LINE_OF_SEED.fullmatch(value):
            return "form"
        return "form" if is_stronger_password(value) and _OPAQUE.fullmatch(value) else "words"
    if any(match.span(group) == (start, end) for match in _FRAGMENT.finditer(text) for group in ("value", "right")):
        return "form"
    near = [meaning_of(word) for word in TOKEN.findall(text[max(0, start - 32) : start].lower())[-3:]]
    joined = (
        value == text.strip()
        or bool(near and near[-1] & Meaning.IS)
        or any(meaning & (_CODE | Meaning.KEYBOX | Meaning.LOCK) for meaning in near)
    )
    return "name" if joined else "words"


def _candidates(wanted: Wanted, text: str, word_count: int) -> Iterator[tuple[int, int]]:
    for match in _NUMBER.finditer(text):
        if _is_code(text, match, word_count):
            yield match.span()
    for match in (*_SPELLED.finditer(text), *_TURNS.finditer(text), *_GROUPS.finditer(text), *_DICTATED.finditer(text)):
        yield match.span()
    for match in _DIAL.finditer(text) if wanted & Wanted.DIGITS else ():
        yield match.span("value")
    for match in _FRAGMENT.finditer(text) if wanted & Wanted.DIGITS and word_count <= _MOST_WORDS_BESIDE else ():
        if not meaning_of((TOKEN.findall(text[match.end() : match.end() + 24].lower()) or [""])[0]) & Meaning.AFTER:
            yield match.span("value" if match["value"] else "right")
    yield from _spoken(text)
    for match in _RUN.finditer(text):
        bare = match[0].strip(_AROUND) + ("!" if match[0].endswith("!") else "")
        bare = _ASSIGNED.sub("", bare)
        start = match.start() + match[0].find(bare)
        if _is_typed(bare, wanted) or (_SLASHED.fullmatch(bare) and wanted & Wanted.TEXT and _SAYS.search(text, 0, start)):
            yield start, start + len(bare)
    if wanted & (Wanted.TEXT | Wanted.WORDS):
        for match in _SEED.finditer(text):
            yield match.span("value")
        for match in _LINE_OF_SEED.finditer(text) if wanted & Wanted.WORDS else ():
            start = max((word.end() + 1 for word in TOKEN.finditer(match[0]) if _is_usual(word[0])), default=0)
            if match[0].count(" ", start) >= _FEWEST_OF_SEED - 1 and not _is_clause(match[0][start:]):
                yield match.start() + start, match.end()
        for match in _QUOTED.finditer(text):
            if _is_chosen(match["value"], wanted):
                yield match.span("value")
        for match in _PART.finditer(text):
            if is_passphrase(match["value"]) and _REFUSALS.isdisjoint((*match["value"].split(), *text.split(None, 3)[:3])):
                yield match.span("value")
        for word, following in pairwise(TOKEN.finditer(text)):
            if meaning_of(word[0]) & Meaning.PASSWORD and _is_labelled(text, word.end(), following):
                yield following.span()
        for match in (*_TOLD.finditer(text), *_AT_THE_END.finditer(text.rstrip())):
            if _ORDINARY.isdisjoint((plain(match["value"]), match["value"].lower())):
                yield match.span("value")


def _spelled(text: str, remark: int, after: int) -> Iterator[tuple[int, int]]:
    """Find what a remark on its letters follows: `its bananaphone all lowercase`, `over the grey fence (with spaces)`."""
    head = text[:remark].rstrip(" ,;.?!…(\n–—-\"'”»")
    start = max((match.end() for match in _CLAUSE.finditer(head)), default=0)
    words = list(re.finditer(r"\S+", head[start:]))
    if not words or text[after:].lstrip(")").startswith("?") or not _REFUSALS.isdisjoint(plain(word[0]) for word in words):
        return
    if _SET_APART.find((text[len(head) : remark].strip(" ") or " ")[0]) < 0:  # else the clause is set apart, and all of it was told
        usual = (number for number, word in enumerate(words, 1) if _is_usual(word[0].lower()))
        words = words[max(usual, default=0) :]
    if words and len(words) <= _MOST_SPELLED + 1 and len(words[-1][0]) > 3:
        yield start + words[0].start(), start + words[-1].end()


def _is_usual(word: str) -> bool:
    return (
        word in _ORDINARY
        or plain(word) in _ORDINARY
        or bool(meaning_of(word) & (Meaning.IS | Meaning.OPENS | _CODE | Meaning.PASSWORD))
    )


def _spoken(text: str) -> Iterator[tuple[int, int]]:
    """Find three or more digits in words: `cuatro siete cero nueve`."""
    run: list[re.Match[str]] = []
    for word in TOKEN.finditer(text):
        is_digit = bool(meaning_of(word[0].lower()) & (Meaning.DIGIT | Meaning.TWICE))
        run = (
            [*run, word]
            if is_digit and (not run or _BETWEEN_DIGITS.fullmatch(text, run[-1].end(), word.start()))
            else [word] * is_digit
        )
        if len(run) >= _FEWEST_SPOKEN:
            yield run[0].start(), word.end()


def _is_labelled(text: str, end: int, word: re.Match[str]) -> bool:
    """Whether a word directly follows the word for a password, and ends a part of the sentence: `hasło wiewiórka`."""
    direct = text[end : word.start()] in (" ", ": ") and _ENDS_PART.match(text, word.end()) is not None
    return direct and len(word[0]) >= _SHORTEST_WORD and plain(word[0]) not in _ORDINARY


def _is_code(text: str, match: re.Match[str], word_count: int) -> bool:
    """Whether digits are a code, and not a count, a date, or the number of something."""
    digits = re.sub("[ -]", "", match[0])
    before = TOKEN.findall(_SENTENCE_END.split(text[max(0, match.start() - 24) : match.start()].lower())[-1])[-2:]
    is_announced = word_count <= _MOST_WORDS or bool(before and (meaning_of(before[-1]) & Meaning.IS or before[-1] in _TELLING))
    if (_DIGIT_BY_DIGIT.fullmatch(match[0]) or text.startswith("#", match.end())) and len(digits) > 3:
        return True
    if len(digits) == 3 and (match.start() == 0 or not text[match.end() :].strip(" .!")):  # `731 i think, it is scratched`
        is_announced = True
    if _DATE.fullmatch(match[0]) or (len(match[0]) <= 4 and not is_announced and (len(digits) == 3 or _YEAR.fullmatch(digits))):
        return False
    after = TOKEN.match(text[match.end() : match.end() + 24].lower().lstrip())
    if after and any(start == 0 and meaning & Meaning.AFTER for start, _, meaning in words_within(after[0])):
        return False
    as_number = bool(before) and (bool(meaning_of(before[-1]) & Meaning.IS) or before[-1] in _NUMBER_WORDS)
    named = before[:-1] if as_number else before[-1:]
    if _OTHER_NUMBER.search(text, max(0, match.start() - 8), match.end()) or _PHONE.fullmatch(match[0]):
        return False
    another = any((meaning_of(word) & Meaning.BEFORE or word in _IDS) and not meaning_of(word) & _CODE for word in named)
    return not another and not (after and len(digits) < _SHORTEST_CODE and meaning_of(after[0]) & Meaning.AFTER)


def _is_typed(bare: str, wanted: Wanted) -> bool:
    """Whether a run without spaces is a password or a key, and not a word, a measure, an address or a path."""
    if _KEYPAD.fullmatch(bare):
        return bool(wanted & Wanted.DIGITS)
    if wanted & Wanted.KEY and _KEY.fullmatch(bare) and not is_wordy(bare):
        return True
    if len(bare) < 5 or _ADDRESS.match(bare) or is_stand_in(bare) or (bare[0].isalpha() and TECHNICAL.match(bare)):
        return False
    if _MEASURE.fullmatch(bare) or (not wanted & Wanted.TEXT and _NUMBERED.fullmatch(bare)):
        return False
    letters, digits = any(map(str.isalpha, bare)), sum(map(str.isdigit, bare))
    if letters and digits:
        return bare.isascii() or bare.isalnum() or is_password(bare)
    if _SIGNED.fullmatch(bare):
        return bool(wanted & (Wanted.TEXT | Wanted.KEY))
    if _JOINED.fullmatch(bare) and not ("_" in bare and bare.isupper()):
        return bool(wanted & (Wanted.TEXT | Wanted.KEY)) and re.split("[-_.]", bare.lower())[0] not in NAMING
    return is_stronger_password(bare) if wanted & Wanted.TEXT else is_strong_key(bare)


def _is_chosen(value: str, wanted: Wanted) -> bool:
    """Whether quoted words are a phrase, and not a message or a name."""
    words = re.split(r"[ ,]+", value.lower().strip())
    typical = sum(word in NAMING or plain(word) in _STOP for word in words)
    return (
        len(words) <= (12 if wanted & Wanted.WORDS else 6)
        and 2 * typical <= len(words) * bool(wanted & Wanted.WORDS)
        and not is_stand_in(value)
    )


def _word(wanted: Wanted, text: str) -> Iterator[tuple[int, int]]:
    """Find an answer that is one ordinary word or a phrase."""
    said = text.strip().strip(".!\"'`").partition("\n")[0]
    said = _FILLER.sub("", said)
    words = said.split()
    if wanted & Wanted.WORDS and _PHRASE.fullmatch(said) and _REFUSALS.isdisjoint(words) and not _is_clause(said):
        pass
    elif wanted & Wanted.WORDS:  # up to the first remark: `Donatella Brusaferro 😂 che donna`
        said = re.split(r"(?<!\bMr)(?<!\bMs)(?<!\bDr)(?<!\bMrs)\.|[,;:!?()\u2014\U0001f300-\U0001faff]| [-–] ", said, maxsplit=1)[
            0
        ].strip()
        if (
            not 1 <= len(said.split()) <= 4
            or _SIGN_OF_PATH.search(said)
            or not _REPLIES.isdisjoint(map(plain, said.split()))
            or _is_clause(said)
        ):
            return
    elif not (wanted & Wanted.TEXT and len(words) <= _MOST_WORDS and _is_word(said)):
        said = re.split(r"[,.!?]", said, maxsplit=1)[0]  # `banana?? is that even allowed`
        if not (wanted & Wanted.TEXT and said.isalpha() and said != text.strip() and _is_word(said)) or _ENDINGS.search(said):
            return
    if len(said) > 2:
        yield text.find(said), text.find(said) + len(said)


def _last_word(wanted: Wanted, text: str) -> Iterator[tuple[int, int]]:
    """Find a word that is the last sentence of an answer: `Is it safe to tell you? Well. oldtimer`."""
    *before, last = re.split(r"[.!?…]+\s+|\n", text.strip())
    said = last.strip(_AROUND)
    if wanted & Wanted.WORDS:
        said = _LEAD.sub("", said)
        is_answer = len(said.split()) <= _MOST_WORDS and _NAME.fullmatch(said) is not None and not _is_clause(said)
    else:
        is_answer = bool(wanted & Wanted.TEXT) and said.isalpha() and _is_word(said) and not _ENDINGS.search(said)
    is_answer |= bool(wanted & (Wanted.TEXT | Wanted.WORDS)) and _JOINED.fullmatch(said) is not None  # `red_fox_ladder`
    if before and is_answer and len(said) > _SHORTEST_WORD - 2:
        yield text.rfind(said), text.rfind(said) + len(said)


def _is_clause(said: str) -> bool:
    """Whether words talk about the question (`i have it on the paper`), because one of them is a pronoun or an auxiliary verb."""
    first, *others = said.split() or [""]
    return not _OF_CLAUSES.isdisjoint(
        (first.lower(), *(word.lower() if word[0] == "I" else word for word in others))
    )  # not `4 May`


def _is_word(said: str) -> bool:
    if not said or not _RUN.fullmatch(said.replace(" ", "_").ljust(5, "_")):  # a script without spaces
        return False
    if " " in said:
        return is_passphrase(said)
    return (is_password(said) and not said.isalpha()) or (len(said) >= _SHORTEST_WORD and plain(said) not in _REPLIES)
