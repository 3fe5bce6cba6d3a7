# ruff: noqa: E501 - expressions and lists of words stay lines
"""Finds passwords stated in ordinary prose, by their shape and by the topic of the sentence.

A token in prose is judged by three criteria. The first is how much its shape resembles a password. The second is whether the words
around it refer to access (log in, unlock, wifi, account, zip, bank, in many languages). The third is whether it is named as
something else (a host, a branch, a model). A weak shape needs a label, or a reference to access and a word that joins the two.
Every window is bounded.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from clawctl.extensions.secrets.context import PLAIN, TYPED, likeness
from clawctl.extensions.secrets.forms import forms_of
from clawctl.extensions.secrets.text import BEYOND, DIGITS, HYPHENS, AnchorGroups, Span, Text, regex, tried_at
from clawctl.extensions.secrets.values import NAMING, TECHNICAL, is_passphrase, is_stand_in
from clawctl.extensions.secrets.vocabulary import PLAIN_FOURS

# Where a token may be: at a digit next to a letter or a sign, or at the first hyphen of lower-case words joined by hyphens.
_CLASSES = bytes(97 if chr(code).isalpha() or chr(code) in "!#$%&*@^_+-" else 32 for code in range(128)) + bytes(128)
_HYPHENS = regex(r"-[a-z]{3,12}-[a-z]{3,12}-[a-z]{3}")
_TOKEN = regex(r"[A-Za-z0-9$!*][!#-&(-;=?-\[\]-_a-{}~]{5,47}")
_IN_TOKEN = bytes(120 if 33 <= code < 127 and chr(code) not in "\"'`<>|\\/" else 32 for code in range(256))
_LONGEST = 48
_CLOSING = ".,;:)]}"

# Words that refer to access, by language: en de fr es pt it nl pl cs tr sv/da/no fi ro hu id sw vi ru uk, then other scripts.
_ACCESS = regex(r"(?<![^\W_])(?&access words)|(?&access words beyond)")
# Words that name a password directly.
_LABEL = regex(r"(?<![^\W_])(?:(?&password)|pass\b|pw\b|pwd\b)|(?&password beyond)")
# Words that join a value to the words before it, or ask the reader to type it.
_JOIN = regex(
    r"(?:[:：=→–—]|->)[ \t\"'`“«„*]{0,4}$|(?:^|[\s,.'’(])(?:(?&is)|(?&with)|(?&type)|(?&now)|(?&joins a password))[\s:,]{1,3}[\"'`“«„*]{0,3}$|(?:(?&particles)|(?&type beyond))[\s:：]{0,2}[\"'「“]?$"
)
# A value with such a name is not a password.
_OTHER = regex(
    r"(?<![^\W_])(?&other things)s?(?:[ ]?[:#=]|[ ](?:(?&is)|are)\b)?(?:[\s\"'`(]{1,3}[^\s]{1,14}){0,1}[\s\"'`(:#]{0,3}$"
)
_CODE_SIGN = regex(r"[{}()\[\];=<>\\|$`]|::|//|\w\.\w+\(")
_WORD = regex(r"(?<![^\s(\"'“«„¿¡])[^\W\d_]{1,20}(?=[\s,.;:!?)\"'”»…]|$)")
_SPACELESS = regex("[\u3040-\u30ff\u3400-\u9fff\u0e01-\u0e4e\uac00-\ud7af]{3}")
# `lantern-ginger-674`, `Dragon_Mikan_43`. Lower-case words joined by underscores are an identifier.
_JOINED = regex(r"[A-Za-z]{3,12}(?:-[A-Za-z]{3,12}){1,3}-?\d{2,4}|[A-Z][a-z]{2,11}(?:_[A-Z][a-z]{2,11}){1,3}_?\d{2,4}")
_NUMBERED = regex(r"[A-Z][a-z]{2,14}(?!(?:19|20)\d\d(?!\d))\d{4,6}[A-Z]{0,3}")
_CHOSEN = regex(
    r"(?=[^A-Za-z]*(?:[A-Za-z][^A-Za-z]*){3})(?=\D*\d\D*\d)(?=[^@#$^&*+!?%=]*[@#$^&*+!?])(?=.{0,2}[A-Za-z])(?:[A-Z0-9][A-Za-z0-9@$!]{2,}|[a-z][A-Za-z0-9@$!]*[A-Z@$!][A-Za-z0-9@$!]*)[A-Za-z0-9@#$^&*+!?%_.-]{1,24}"
)
_NOT_CHOSEN = regex(
    r"(?i)[\w.+-]+@[\w-]+\.\w|\w+://|&\w+;|%[0-9a-f]{2}|[\d.,]+[%+*$]?\w{0,3}$|(?:us|au|ca|nz|hk|r|c|a)\$|[\w.-]+[?&]\w+=|\w{1,3}[*+&]\w{1,3}$|[a-z]{1,5}\d{1,5}[!?.+*]+$|\w+\+\d{1,2}$|\d+[a-z]{1,4}[+*!?]|[\w.]+@[v^~]?\d|[\w-]+\.[a-z]{2,4}[#?]|fritz!|[a-z_.-]{2,}=|[\w-]+@[v^~<>=*]{0,2}\d|[a-z]{2,}\d*\+[a-z]|(?-i:(?:[A-Z][a-z]?\d{1,2}){2})|[a-z]{1,8}\d{1,2}\.\d|[a-z]{2}\d\d[a-z0-9]{10,30}$|[a-z]{4,}\d{1,3}[!?.+*]+$|[a-z]{4,}(?:19|20)\d\d[!?.+*]+$|\w+#(?:l|issue|section|[a-z]+[-_][a-z])|(?-i:[a-z/-]+#\d+$)"
)
_WORD_AND_NUMBER = regex(r"[A-Z]?[a-z]+[-_]?\d{1,4}")  # `Acrobat2020`
_LIKE_A_NAME = regex(r"[A-Za-z]+\d+[!?+*]+|[A-Z]?[a-z]+#\d+[A-Z]?|[A-Z][a-z]+\d+[A-Z][a-z]*[!?.+]*")  # `Marble2158!`, `Suite#400B`
# After these words, a value in prose is just as often a name or a number.
_SOFT = regex(r"(?&access to many things)\Z")
_ADDRESS = regex(r"[\w.+-]{1,40}@[\w-]{1,40}\.[\w.-]{2,30}[ ,]{1,2}(?:(?&and)|slash|with|then|/)[ ]")
STRONG, WEAK = 2, 1
_BLOCK = 128
_MAX_TRIES = 3  # per form and block


@tried_at(DIGITS, HYPHENS, to_value_end=False)
def in_prose(piece: Text) -> Iterator[Span]:
    """Find passwords such as `entra con usuario gerente y pon Guitarra6684#`, `that zip opens with Akte50400EX`, `the disk one,
    which is lantern-ginger-674`.
    """
    access: dict[int, bool] = {}
    text = piece.text
    for match in _tokens(piece):
        value = match[0].rstrip(_CLOSING)
        if not (shape := _shape(value)):
            continue
        start, end = match.start(), match.start() + len(value)
        if len(match[0]) >= 48 or text[end : end + 1] in ("(", "=", "/", "\\") or text[end : end + 2] in (".c", "::"):
            continue
        if not _is_disclosed(piece, start, end, shape):  # first, because the words of access are many
            continue
        block = start // _BLOCK
        if block not in access:
            window = piece.lower[max(0, (block - 1) * _BLOCK) : (block + 2) * _BLOCK]
            access[block] = _ACCESS.search(window) is not None
        if access[block]:
            yield Span(start, end, "password")


def _tokens(piece: Text) -> Iterator[re.Match[str]]:
    """Yield the tokens that contain a number next to a letter or sign, and tokens of four or more words joined by hyphens."""
    text, reached = piece.text, 0
    of_tokens = piece.code_points.translate(_IN_TOKEN)
    for at in _mixed_numbers(piece):
        if at >= reached:
            token = _token_at(text, of_tokens, at, reached)
            reached = token.end() if token else at + 1
            if token:
                yield token
    for hyphen in _HYPHENS.finditer(text) if piece.present & HYPHENS else ():
        if token := _token_at(text, of_tokens, hyphen.start(), max(0, hyphen.start() - _LONGEST)):
            yield token


def _mixed_numbers(piece: Text) -> Iterator[int]:
    """Yield the positions of the numbers that are next to a letter or a sign."""
    classes, digits = piece.code_points.translate(_CLASSES), piece.digits + b" "
    begin = digits.find(b"0")
    while begin >= 0:
        end = digits.find(b" ", begin)  # positions in `digits` are one behind those in the text
        if classes[begin - 2 : begin - 1] == b"a" or classes[end - 1 : end] == b"a":
            yield begin - 1
        begin = digits.find(b"0", end)


def _token_at(text: str, of_tokens: bytes, at: int, reached: int) -> re.Match[str] | None:
    first = max(reached, at - _LONGEST)
    begin = max(first, of_tokens.rfind(b" ", first, at) + 1)
    if not text[begin:at].isascii():
        begin = next(place for place in range(at, begin, -1) if text[place - 1] > "\x7f")
    while text[begin : begin + 1] in ("(", "[", "{", ":", ","):
        begin += 1
    if begin == first > 0 or text[begin - 1 : begin] in ("/", "\\", "<", "|"):
        return None
    return _TOKEN.match(text, begin)


@lru_cache(maxsize=1 << 13)
def _shape(value: str) -> int:
    """Return how much a token looks like a chosen password: `STRONG`, `WEAK` or 0."""
    if not 6 <= len(value) <= 40 or TECHNICAL.match(value):
        return 0
    if joined := _JOINED.fullmatch(value):
        return WEAK * (not any(word.lower() in NAMING for word in re.split(r"[-_\d]+", joined[0])))
    if value.count("-") >= 3:
        return WEAK * is_passphrase(value)
    if _NUMBERED.fullmatch(value):
        return WEAK
    if _NOT_CHOSEN.match(value) or _WORD_AND_NUMBER.fullmatch(value):
        return 0
    if _LIKE_A_NAME.fullmatch(value):
        return WEAK
    if _CHOSEN.fullmatch(value):
        return STRONG
    grade = likeness(value)
    return STRONG if grade == TYPED else WEAK if grade == PLAIN and len(value) >= 8 else 0


def _is_disclosed(piece: Text, start: int, end: int, shape: int) -> bool:
    text, lower = piece.text, piece.lower
    line = max(text.rfind("\n", max(0, start - 120), start) + 1, start - 120)
    after = text.find("\n", end, end + 80)
    last = min(len(text), end + 80) if after < 0 else after
    before, behind = text[line:start], text[end:last]
    signs = len(_CODE_SIGN.findall(before))
    if signs > 2 or signs + len(_CODE_SIGN.findall(behind)) > 2 or before.count('"') + behind.count('"') > 4:
        return False
    count = len(_WORD.findall(before)) + len(_WORD.findall(behind))
    if count < 3 and not (_SPACELESS.search(before) or _SPACELESS.search(behind)):
        return False
    lead = lower[max(line, start - 90) : start]
    if _OTHER.search(lead):
        return False
    clause = lead[max(lead.rfind(". "), lead.rfind("? "), lead.rfind("! ")) + 1 :]
    if shape == STRONG:
        near = lower[max(line, start - 100) : min(last, end + 60)]
        return _ACCESS.search(near) is not None and (
            _JOIN.search(lead[-24:]) is not None or _LABEL.search(near) is not None or count >= 5
        )
    if _LABEL.search(clause[-56:]) and not _CODE_SIGN.search(clause[-56:]):
        return True
    if _ADDRESS.search(clause):
        return True
    firm = any(_SOFT.match(said[0]) is None for said in _ACCESS.finditer(clause))
    return _JOIN.search(lead[-24:]) is not None and (firm or _LABEL.search(lead) is not None)


_FORMS = forms_of("dumps")
_CHOICE = AnchorGroups([form.anchors for form in _FORMS])
_COUNTED = regex(r"(?i)\w+ (?&digits)")
_PIN_BEFORE = regex(r"(?i)\b(?&pin before)\b")


@tried_at(_CHOICE, BEYOND)
def in_dumps(piece: Text) -> Iterator[Span]:
    """Find keys in printed or copied forms: char arrays, dumps, card tracks, groups of four letters, codes sent by message."""
    text = piece.text
    positions = [(_FORMS[number].pattern, at) for number, places_ in _CHOICE.positions(piece) for at in places_]
    tried = dict[tuple[int, int], int]()
    for pattern, at in positions:
        block = (id(pattern), at // _BLOCK)
        tried[block] = tried.get(block, 0) + 1
        if tried[block] > _MAX_TRIES:
            continue
        match = pattern.match(text, at)
        if match is None or not _may_be(match["value"], text, at):
            continue
        yield Span(match.start("value"), match.start("value") + len(match["value"].rstrip()), "password")


def _may_be(value: str, text: str, at: int) -> bool:
    if re.fullmatch(r"[A-Za-z2-7]{4}(?:[ -][A-Za-z2-7]{4})+", value):
        groups = re.split("[ -]", value.lower())
        return PLAIN_FOURS.isdisjoint(groups) and value in (value.lower(), value.upper())
    if value.isdigit() and len(value) <= 8 and _COUNTED.match(text, at, at + 24):
        return _PIN_BEFORE.search(text[max(0, at - 48) : at]) is not None
    if value.isdigit() and len(value) == 4 and re.fullmatch("(?:19|20)\\d\\d", value):
        return False
    return len(set(value)) > 2 and not is_stand_in(value)
