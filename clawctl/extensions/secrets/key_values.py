# ruff: noqa: E501 - expressions and templates stay lines
"""Finds values beside a name: assignments, pairs, elements, tables and sentences."""

import re
from collections.abc import Iterator
from urllib.parse import unquote

from clawctl.extensions.secrets.encoded import is_login
from clawctl.extensions.secrets.names import NAMES_AT, Named, is_secret_under, name_positions, named_at
from clawctl.extensions.secrets.terminal import in_row
from clawctl.extensions.secrets.text import BEYOND, Span, Text, regex, tried_at
from clawctl.extensions.secrets.values import (
    DIGIT,
    NAMING,
    TECHNICAL,
    is_fingerprint,
    is_long_key,
    is_odd,
    is_password,
    is_stand_in,
    is_strong_key,
    is_strong_password,
    is_stronger_password,
    is_words,
)
from clawctl.extensions.secrets.vocabulary import LISTS

_MAX_NAMES = 400  # per piece

_Q = r"""\\{0,3}["'`“”«»„]"""
_QUOTED = rf"""(?P<quote>{_Q})(?P<quoted>(?:[^\n\\"'`“”«»„]|(?!(?P=quote))(?:\\.|[^\n\\])){{3,256}}+)(?:(?P=quote)|(?=[”»“]))"""
_BARE = r"""(?P<bare>(?!(?i:null|none|nil|undefined|true|false)[,;)\]}])(?:[^\s"'`<>,;&\\|]|[,;&|<>](?![\s/]|$|[\w .-]{1,30}=|["'][\w .-]{1,40}["']\s{0,3}:)|\\(?![nrt"'`\\\s])|["'`](?=\w)){3,256}+)"""
_TYPE = r"(?:[ ]As[ ]\w{1,16}[ ](?==)|[ ]?:[ ]?(?:[&\w<>\[\].?*]{1,24}[ ]{1,2}|(?:str|string|bytes|String)(?:\?|<\w+>)?)(?==)|[ ]<\w{1,12}>[ ]{0,2}(?==))?"
_WRAP = r"""(?:(?:\[\]byte|Buffer\.from|SecureString|String|str|bytes|literal|plain|secret)?\(\s{0,12}(?=[bruf]?\\{0,3}["'])|\(\s{0,12}(?=[bruf]?\\{0,3}["']))?(?:[bruf]{1,2}(?=\\{0,3}["']))?"""
_ASSIGN = regex(
    rf"""(?:{_Q})?(?:[ ]\d{{1,2}}(?=:))?[\])}}*_]{{0,3}}{_TYPE}(?:[ \t]{{0,12}}|\s{{1,12}}(?=:\s{{0,12}}"))(?::=|=>|->|<-|={{1,3}}|\?=|\|\|=|:{{1,2}}(?!/)|→|➜|%=)[*_]{{0,2}}[ \t]{{0,12}}"""
    rf"""(?:(?:[|>][+-]?|!!?\w{{1,8}}(?=[ ]))?[ \t]{{0,8}}(?:\r?\n(?:[ \t>]{{1,16}}|(?=")))?)?{_WRAP}(?:\"\"(?=\")|''(?='))?(?:{_QUOTED}|{_Q}?{_BARE})"""
)
_ENCODED = regex(
    r"(?i)(?:%22|%27|%5D){0,2}(?:%3D|%3A|=)(?:%20|\+)?(?:%22|%27)?(?P<value>(?:[\w.~!*()$@/+-]|%(?!26|22|27|3B|7D|2C)[0-9a-f]{2}){4,512})"
)
_COPULA = r"(?:[ \t]{1,3}(?:(?&is)|(?&also is))(?=[ \t:])|['’]s(?=[ ])|[ \t]{0,3}(?:=|:|-(?=[ ])|–|—|→|->|(?&particles)|：))"
_PROSE = regex(
    rf"""(?:{_Q})?[*_]{{0,2}}(?:(?<![\"'`])(?:[ \t]{{1,3}}(?:[\w'’@./-]{{1,20}}|\([^()\n]{{1,30}}\))){{1,6}}?)??{_COPULA}(?:[ \t]{{1,2}}(?&now)(?=[ :]))?[ \t]{{0,3}}[:*_]{{0,3}}[ \t]{{0,3}}[*_]{{0,2}}(?P<open>{_Q})?(?P<value>[^\s"`“”«»„\\]{{4,128}})"""
)  # in lower case
_NOT_PROSE = frozenset((",", ".", ";", ")", "(", "/", "|", "\n", "]", "}", "<", ">", ""))
_CJK = regex(rf"""[ \t]{{0,2}}(?:(?&particles)|:|=)?[ \t]{{0,2}}(?:{_Q}|[「『])?(?P<value>[!-~]{{4,128}})""")
_PAIR = regex(
    rf"""(?:{_Q})?\s{{0,4}}[,}}>]?\s{{0,60}}(?:-\s{{1,4}})?(?:{_Q})?(?:value|content|default|val)(?:{_Q})?\s{{0,4}}[:=]\s{{0,4}}(?:{_QUOTED}|{_BARE})""",
    re.IGNORECASE,
)
_DEFAULT = regex(rf"""(?:{_Q})?\s{{0,4}}\{{[^{{}}]{{0,160}}?\b(?:default|value)\s{{0,4}}=\s{{0,4}}{_QUOTED}""")
_ELEMENT = regex(r"""[^<>\n]{0,180}>\s{0,8}(?:<!\[CDATA\[)?(?P<value>[^<>\n]{3,256})\s{0,12}(?:</|\]\]>)""")
_NEXT_ELEMENT = regex(
    r"""(?:[ :]{0,2}(?:</\w{1,12}>\s{0,20}){1,2}|[^<>\n]{0,80}>\s{0,20}(?=(?i:<value|<string)))<\w{1,12}[^<>\n]{0,60}>(?:<\w{1,8}>)?(?P<value>[^<>\s]{4,256})</"""
)
_COMMA = regex(rf"""(?:{_Q})?\s{{0,4}},\s{{0,16}}{_QUOTED}""")
_SPACE = regex(
    rf"""(?:{_Q}|[*_]{{1,2}}|(?&completes a label))?(?:[ \t]{{1,2}}(?=[^\x00-\x7f])[^\W\d_]{{1,16}}){{0,3}}[ \t]{{1,12}}(?:\d[ ])?{_Q}?(?P<value>[^\s"'`“”«»„]{{4,256}})"""
)
_ROW = regex(r"[,;\t](?P<value>[^\s,;\"']{6,128})(?=\r?\n|$)")  # a row with two columns
_QUOTED_NEXT = regex(rf"""[ \t]{{1,4}}{_QUOTED}""")
_CELL = regex(r"[`*_]{0,2}[ \t]{0,12}\|[ \t]{0,12}[`*_]{0,2}(?P<value>[^\s|`]{6,256})")  # the next cell of the same table row
_CALLED = regex(rf"""\(\s{{0,4}}{_QUOTED}\s{{0,4}}\)""")
_NEXT_LINE = regex(
    r"[^\n:]{0,40}:[ \t]{0,4}(?:\[[a-z ]{4,24}\]|\*{3,32})?[ \t]{0,4}\r?\n(?P<value>[^\s\"'`]{6,128})[ \t]*(?:\r?\n|$)"
)  # text typed at a prompt
_COPULAS = frozenset(LISTS["is"].split())


@tried_at(NAMES_AT, BEYOND)
def in_key_values(piece: Text) -> Iterator[Span]:
    """Find values beside the names of secrets."""
    text = piece.text
    done, names = 0, 0
    for at in name_positions(piece):
        if at < done:
            continue
        named = named_at(piece, at)
        if named is None:
            continue
        done, names = named.end, names + 1
        # Not text that a person wrote: redact all of it instead of searching it
        if names > _MAX_NAMES:
            yield Span(0, len(text), "password")
            return
        for span in _values_of(text, piece.lower, named):
            done = max(done, min(span.end, at + 300))
            yield span


def _values_of(text: str, lower: str, named: Named) -> Iterator[Span]:
    """Find the values beside a name, in any notation."""
    before = text[max(0, named.begin - 90) : named.begin]
    if (before.endswith((" ", "/", ":")) and _NO_VALUE.search(before if before[-1] == ":" else before[-12:])) or (
        text.endswith("${", 0, named.begin) and text.startswith(("?", ":?", "+", ":+"), named.end)
    ):
        return
    if _SEALED.match(text, named.end) and "encryptedData" in text[max(0, named.begin - 4000) : named.begin]:
        return
    if span := _assigned_value(text, named.begin, named.end, named.name, named.kind):
        yield span
    elif named.kind != "part" and not named.name.lower().endswith("_pat"):  # patterns are named like this as well
        yield from _adjacent_values(text, lower, named.begin, named.end, named.name, named.kind)


_SEALED = regex(r"[\"']?:[ ]{0,4}[\"']?Ag[A-Za-z0-9+/]{200}")  # ciphertext of a SealedSecret
# A type name follows
_NO_VALUE = regex(r"\b(?:type|interface|struct|enum|trait)[ ]$|checksum/$|arn:[\w:-]{4,80}:$")


def _assigned_value(text: str, begin: int, end: int, name: str, kind: str) -> Span | None:
    if (
        text.startswith("%", end)
        and (encoded := _ENCODED.match(text, end))
        and is_secret_under(name, unquote(encoded["value"]), True)
    ):
        return Span(*encoded.span("value"), "password")
    if kind == "password" and _is_constant(name) and (phrase := _PHRASE_OF_ENVIRONMENT.match(text, end)):
        group = "within" if _OPENED.search(text, max(0, begin - 40), begin) else "quoted"
        if phrase[group] and not is_stand_in(phrase[group]):
            return Span(*phrase.span(group), "password")
    for pattern in (_ASSIGN, _PAIR):
        match = pattern.match(text, end)
        if match is None:
            continue
        quoted = match["quoted"] is not None
        if not quoted and "==" in text[end : match.start("bare")]:  # a comparison
            continue
        group = "quoted" if quoted else "bare"
        value = match[group]
        if not quoted:
            value = value.rstrip(".:)]}")
        if pattern is _PAIR and kind == "password" and not (is_odd(value) or len(value) >= 8):
            continue
        if is_secret_under(name, value, quoted) or (not quoted and _is_env_word(text, begin, match, value, kind)):
            start = match.start(group)
            return Span(start, start + len(value), "password")
        if is_login(name, value):
            return Span(match.start(group), match.start(group) + len(value), "password")
    return None


# `DB_PASSWORD="three words or more"`, `Environment="DB_PASSWORD=three words or more"`
_PHRASE_OF_ENVIRONMENT = regex(
    r"""=(?:(?P<quote>["'])(?P<quoted>\w{2,16}(?:[ ]\w{1,16}){2,9})(?P=quote)|(?P<within>\w{2,16}(?:[ ]\w{1,16}){2,9})["'])"""
)
_OPENED = regex(r"[\s=(\[]?[\"'][A-Z0-9_]*$")


def _is_env_word(text: str, begin: int, match: re.Match[str], value: str, kind: str) -> bool:
    """Whether a value of plain words is a password by its position: `DB_PASSWORD=blauwolke` alone on its line,
    `?password=Poppy_Field`, `--set db.password=moss-agate`.
    """
    if (
        kind != "password"
        or not 7 <= len(value) <= 60
        or not ((value.isalpha() and value.lower() not in NAMING) or is_words(value))
    ):
        return False
    line_start = text.rfind("\n", max(0, begin - 40), begin) + 1 if begin else 0
    line = text[line_start:begin]
    if (
        line_start
        and len(line.split()) <= 2
        and ":" not in line
        and text[match.end() : match.end() + 1] in ("", "\n", "\r")
        and _USER_LINE.search(text, max(0, line_start - 120), line_start)
    ):
        return True
    if match.re.pattern == _PAIR.pattern:  # environment of a container
        return text[begin : begin + 4].isupper() and is_words(value) and text[match.end() : match.end() + 1] in ("", "\n", "\r")
    if not match[0].startswith("=") or match[0][1] != value[0]:
        return False
    if text[begin - 1 : begin] in ("?", "&", ";") or (is_words(value) and (text.startswith("-", begin) or _OPTION.search(line))):
        return True
    return re.fullmatch(r"(?:export |set )?[A-Za-z_.-]{0,32}", line) is not None and (
        text[match.end() : match.end() + 1] in ("", "\n", "\r")
        or (text[begin : begin + 4].isupper() and _COMMAND.match(text, match.end()) is not None)
    )


# The line above names the user: `Identifiant : mlegrand`.
_USER_LINE = regex(r"(?i)(?:^|\n)[ \t>*•-]{0,8}(?&user name)[ ]{0,2}[:=][ ]{1,3}[^\s]{2,64}[ \t]*\r?\n$")
_OPTION = regex(r"(?:^|\s)-{1,2}(?:[\w-]{0,24}|(?:e|env|set|set-string|build-arg|var)[ =][\"']?[\w.-]{0,40})$")
_COMMAND = regex(r" [a-z][\w./-]{1,40}(?: |$)")


def _adjacent_values(text: str, lower: str, begin: int, end: int, name: str, kind: str) -> Iterator[Span]:
    """Find values that no assignment sign joins to their name. An expression is tried only if its first sign is there."""
    first, near = text[end : end + 1], text[end : end + 32]
    has_element = ">" in text[end : end + 184]
    if has_element and text.rfind("<", max(0, begin - 60), begin) > text.rfind(">", max(0, begin - 60), begin):
        match = _ELEMENT.match(text, end)
        if (
            match
            and (is_password(match["value"].strip()) if kind == "password" else is_strong_key(match["value"].strip()))
            and not _is_sentence(match["value"])
        ):
            yield Span(*match.span("value"), "password")
            return
    strict = is_strong_password if kind == "password" else is_strong_key
    for pattern, check in (
        (_DEFAULT if "{" in near else None, lambda value: is_secret_under(name, value, True)),
        (_NEXT_ELEMENT if has_element or "<" in near else None, strict),
        (
            _CELL if "|" in near and _ROW_BEGINS.search(text, max(0, begin - 48), begin) else None,
            _is_cell if kind == "password" else is_strong_key,
        ),
        (_COMMA if "," in near else None, _is_default if kind == "password" and _is_constant(name) else strict),
        (
            _PROSE if first not in _NOT_PROSE else None,
            lambda value: strict(value) or (kind == "password" and _is_number_or_words(value)),
        ),
        (_CJK if not text[end - 1 : end].isascii() else None, strict),
        (_SPACE, _is_alone if kind == "password" else _is_key_alone),
        (_QUOTED_NEXT if first in (" ", "\t") and name.lower() != "pass" else None, strict),
        (_CALLED if first == "(" else None, strict),
        (_ROW if kind == "password" and text[begin - 1 : begin] in ("", "\n") else None, is_stronger_password),
        (_NEXT_LINE if kind == "password" else None, is_stronger_password),
    ):
        if pattern is None:
            continue
        match = _after_words(lower, pattern.match(lower, end)) if pattern is _PROSE else pattern.match(text, end)
        if match is None or (name.lower() == "pass" and "`" in match[0]):
            continue
        group = "quoted" if "quoted" in match.re.groupindex else "value"
        value = text[match.start(group) : match.end(group)]
        if pattern is _SPACE and _ASSIGNMENT.match(value):  # `method=password session_age=0s`
            continue
        if (
            pattern in (_COMMA, _CALLED, _QUOTED_NEXT)
            and not (pattern is _COMMA and _is_constant(name))
            and ((" " in value and kind == "password") or re.fullmatch(r"[a-z_]+\d?|[A-Z0-9]+(?:_[A-Z0-9]+)+", value))
        ):
            continue
        if check(value) and not (pattern is _PROSE and not strict(value) and not _IS.fullmatch(text, end, match.start(group))):
            start = match.start(group)
            length = len(value.rstrip(".,;:)]}>\"'`*_")) if pattern not in (_DEFAULT, _COMMA) else len(value)
            yield Span(start, start + length, "password")
            return
    yield from _in_table(text, begin, end, kind)
    if kind == "password":
        yield from in_row(text, begin)
        yield from _values_before(text, begin)


def _after_words(text: str, match: re.Match[str] | None) -> re.Match[str] | None:
    """Skip words that join a value to its name in one language but are ordinary words in another: `the password on that machine is
    …`.
    """
    for _ in range(_MAX_JOINING):
        if match is None or not match["value"].isalpha() or len(match["value"]) > 20:
            return match
        later = _PROSE.match(text, match.start("value") - 1)
        if later is None:
            return match
        match = later
    return match


_MAX_JOINING = 3
_ASSIGNMENT = regex(r"[a-z][\w.-]*=")

# What may occur between a name and a value that is a number or words.
_IS = regex(r"""(?i)(?:["'`*_]{0,2}[ ]?(?:(?&is)(?: now| still)?|=|:|(?&particles))[ :]{0,2}["'`“«„*_]{0,2})""")
_NUMBER = regex(r"\d{6,24}")


def _is_number_or_words(value: str) -> bool:
    """Whether the value is a number or words: `the password is 84013377`, `… is Harbor-Lights`."""
    bare = value.rstrip(".,;:?!)\"'`")
    return _NUMBER.fullmatch(bare) is not None or (is_words(bare) and bare[0].isupper() and "." not in bare)


_ROW_BEGINS = regex(r"(?:^|\n)\|?[ \t`*]{0,6}(?:[\w-]{1,16}[ ]){0,2}$")


def _is_cell(value: str) -> bool:
    """Whether a table cell is a password. A special character is required, because versions and ids have none."""
    return is_stronger_password(value) and re.search(r"[!@#$%^&*?~+=]", value) is not None


def _is_alone(value: str) -> bool:
    """Whether the value is a password although nothing separates it from its name."""
    return is_stronger_password(value) or (_CHOSEN.fullmatch(value.rstrip(".,;:)")) is not None and not TECHNICAL.match(value))


_CHOSEN = regex(r"(?!\w*\d(?:sum|url|hex))[A-Za-z]\d[a-z]{4,12}|[A-Z][a-z]{2,11}[-_.][a-z]{3,12}\d{1,4}")  # `m4gnolia`


def _is_key_alone(value: str) -> bool:
    """Whether the value is a key although nothing separates it from its name."""
    return is_long_key(value) and not is_fingerprint(value)


def _is_constant(name: str) -> bool:
    return name.isupper() and "_" in name


def _is_default(value: str) -> bool:
    """Whether a default is a password and not a setting's name or a single word: `define('DB_PASSWORD', '…')`,
    `getenv("DB_PASSWORD", "…")`.
    """
    return is_password(value) and not value.isalpha() and not _SETTING.fullmatch(value) and (is_odd(value) or is_words(value))


_SETTING = regex(r"[A-Z0-9]+(?:_[A-Z0-9]+)+|[a-z]+(?:_[a-z]+)+\d?")


def _values_before(text: str, begin: int) -> Iterator[Span]:
    """Find values before their name: `hunter2! is my password`, `use hunter2! as the password`."""
    if not text.endswith(" ", 0, begin):
        return
    words = text[max(0, begin - 96) : begin].split()
    for index in range(len(words) - 1, max(0, len(words) - 5), -1):
        if words[index].lower() in _COPULAS:
            word = words[index - 1]
            value = word.strip("\"'`")
            if is_stronger_password(value) or (word != value and is_strong_password(value, 6)):
                start = text.rfind(value, max(0, begin - 96), begin)
                yield Span(start, start + len(value), "password")
            return


def _is_sentence(value: str) -> bool:
    return value.count(" ") > 1 or not (is_odd(value) or len(value) >= 8)


_SPACED = regex(r"[A-Za-z]\w{1,24}[ ]{2,40}[A-Za-z]\w{1,24}[ ]*$|[A-Za-z][ ]{2,40}[A-Za-z]")
_WORD_AT = regex(r"[^\s\"']{5,256}")


def _below(text: str, column: int, at: int, kind: str) -> Iterator[Span]:
    """Find the words below a heading in columns separated by spaces (`kubectl`, `column -t`)."""
    for _ in range(_ROWS):
        stop = text.find("\n", at, at + 600)
        end = stop if stop >= 0 else min(len(text), at + 600)
        start = at + column
        if start >= end or (column and not text[start - 1].isspace()) or text[start].isspace():
            return
        word = _WORD_AT.match(text, start, end)
        if word and (is_strong_key(word[0]) if kind == "key" else is_stronger_password(word[0])):
            yield Span(*word.span(), "password")
        if stop < 0:
            return
        at = stop + 1


_ROWS = 12
_COLUMN_WORD = regex(r"[^\s<>*]{6,40}|[^\s<>*]{3,20}(?: [^\s<>*]{3,20}){1,3}")  # below a password, others are passwords as well
_TITLES = regex(
    r"\s*\S+\s*|(?:[\"']?[A-Za-z_]{2,16}(?: [A-Za-z]{2,12}){0,2}[\"']?[,;]){1,11}[\"']?[A-Za-z_]{2,16}(?: [A-Za-z]{2,12}){0,2}[\"']?\s*"
)
_RULE = regex(r"[ +|:=-]{3,300}")  # between the heading of a table and its rows


def _in_table(text: str, begin: int, end: int, kind: str) -> Iterator[Span]:
    """Find the column below a heading in Markdown, CSV, TSV or the output of a database shell."""
    line_start = text.rfind("\n", max(0, begin - 300), begin) + 1
    line_end = text.find("\n", end, end + 300)
    if line_end < 0 or (begin - line_start >= 300):
        return
    header = text[line_start:line_end]
    mark = next((mark for mark in "|\t,;" if mark in header), "")
    if not mark and "  " in header and _SPACED.search(header) and not DIGIT.search(header):
        yield from _below(text, begin - line_start, line_end + 1, kind)
    if not mark or len(header.split(mark)) > 24 or (mark in ",;" and (not _TITLES.fullmatch(header) or DIGIT.search(header))):
        return
    cells = [cell.strip(" \"'`*") for cell in header.split(mark)]
    if mark in ",;" and "" in cells:  # an element of a list in code
        return
    column, columns = header[: begin - line_start].count(mark), header.count(mark)
    alone = kind == "password" and cells[column] == text[begin:end]
    at, holds_passwords = line_end + 1, False
    for _ in range(_ROWS):
        stop = text.find("\n", at, at + 600)
        row = text[at : stop if stop >= 0 else min(len(text), at + 600)]
        if mark == "|" and _RULE.fullmatch(row) and stop >= 0:
            at = stop + 1
            continue
        cells = row.split(mark)
        if len(cells) != columns + 1:
            return
        cell = cells[column].strip(" \"'`*")
        if not re.fullmatch(r"[-:=+ ]*", cell) and (
            is_strong_key(cell)
            if kind == "key"
            else is_strong_password(cell)
            or (alone and (_NUMBER.fullmatch(cell) or is_words(cell)))
            or (holds_passwords and _COLUMN_WORD.fullmatch(cell))
        ):
            holds_passwords = kind == "password"
            start = at + sum(len(cell) + 1 for cell in cells[:column])
            start = text.find(cell, start)
            yield Span(start, start + len(cell), "password")
        if stop < 0:
            return
        at = stop + 1
