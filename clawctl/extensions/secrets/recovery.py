# ruff: noqa: E501 - expressions stay lines
"""Finds recovery codes and keys of wireless networks, which look like ordinary words or numbers."""

import re
from collections.abc import Iterator

from clawctl.extensions.secrets.text import BEYOND, Anchors, Span, Text, phrases, regex, tried_at
from clawctl.extensions.secrets.values import DIGIT, mixed

_NETWORK = Anchors("wi-fi", "wifi", "wlan", "wpa")
_LABEL = r"(?:(?&network)-?)?(?&network key)"
_WIRELESS = r"(?:wi-?fi|wlan|wpa\d?)"
_REST = (
    r"(?:(?!(?&other labels of routers))[^\n\d(]){0,48}?(?:\([^()\n]{1,16}\))?[ ]?[:=]?[ ]{0,2}(?:\r?\n[ \t]{0,8})?[\"'`*]{0,2}"
    r"(?P<value>\d{8,24}|\d{4,12}(?:[ -]\d{2,8}){1,6})(?![\w.:-]|[ ]\d)"
)
# Other words such as the network name may occur between the label and its digits, but not the names of other router numbers.
_NETWORK_KEY = regex(
    rf"(?i)(?:{_WIRELESS}[^\n]{{0,60}}?(?:\n[^\n]{{0,60}}){{0,2}}?(?<![^\W\d_]){_LABEL}(?![^\W\d_])|{_WIRELESS}[ -]?(?&network)?[ -]?{_LABEL})"
    + _REST
)
_LABEL_BEFORE = regex(rf"(?i)(?<![^\W\d_]){_LABEL}(?:[ ]\w{{1,4}}[.'’]?){{0,2}}[ '’]?$")
_REST_OF_LABEL = regex(rf"(?i){_WIRELESS}" + _REST)


@tried_at(_NETWORK, to_value_end=False)
def in_network_keys(piece: Text) -> Iterator[Span]:
    """Find the default keys of routers, which are digits."""
    text = piece.text
    for at in _NETWORK.positions(piece):
        labelled = _LABEL_BEFORE.search(text, max(0, at - 24), at) is not None
        if (match := (_REST_OF_LABEL if labelled else _NETWORK_KEY).match(text, at)) and len(
            re.sub(r"\D", "", match["value"])
        ) >= 8:
            yield Span(*match.span("value"), "password")


_RECOVERY = regex(r"(?i)(?&recovery codes)")
_RECOVERIES = Anchors(*phrases("anchors of recovery codes"))
_CODE = regex(
    r"(?P<code>(?-i:(?:(?=[a-z]{1,2}\d+[a-z]|\d{1,2}[a-z]+\d)[a-z0-9]{4}|(?=[a-z]{0,3}\d[a-z\d]{0,3} [a-z]{0,3}\d)(?=\d{0,3}[a-z]|\d{4} \d{0,3}[a-z])[a-z0-9]{4})(?:[ ][a-z0-9]{4}){1,7}(?![\w-]))|[A-Za-z0-9]{3,24}(?:-[A-Za-z0-9]{3,12}){0,9}|\d{3,6}(?:[ ]\d{3,6}){1,7}|(?-i:(?=[A-Za-z ]{0,24}\d)(?=[a-z0-9 ]{0,24}[A-Z])[A-Za-z0-9]{4}(?:[ ][A-Za-z0-9]{4}){2,11}))(?![\w-])"
)
_LEAD = regex(
    r"""(?i)(?:["'’]?s?\]?\)?[ ]{0,2}(?:\((?:[^()\n]{1,40})\)[ ]?)?)(?:(?:[ ][\w.'’@-]{1,20}){0,7}?[ ]{0,2}(?:[:=]|(?:(?&is)|(?&are))\b|(?&particles)、?|->|→)?[ ]{0,2}[*_"'`(\[]{0,3}[ \t\r\n>*•|`"'\[\\-]{0,12}(?:\d{1,2}[.)][ ]{1,3})?[`"'*]{0,2})"""
)
_NEXT = regex(
    r"""(?i)[`"'*\])]{0,2}[ \t]{0,8}(?:,|;|\||/|&|·|\b(?:(?&and)|(?&or))\b)?[ \t]{0,8}(?:and[ ])?(?:\r?\n[ \t>*•|-]{0,8}){0,2}(?:\d{1,2}[.):][ ]{1,3}|-[ ]|\[[ x]?\][ ])?[`"'*]{0,2}"""
)
_MAX_CODES = 24


@tried_at(_RECOVERIES, BEYOND, to_value_end=False)
def in_recovery_codes(piece: Text) -> Iterator[Span]:
    """Find recovery codes after or below their name, in many languages and in any number."""
    text = piece.text
    done = -1
    for at in _RECOVERIES.positions(piece):
        if at < done:
            continue
        name = _RECOVERY.match(text, at)
        if name is None:
            continue
        done = name.end()
        for length in range(_MAX_LEADS):
            lead = _LEAD.match(text, done) if length == 0 else _SHORT_LEAD.match(text, done)
            codes = _codes_from(text, lead.end()) if lead else []
            if codes:
                done = codes[-1].end()
                yield from (Span(*code.span("code"), "password") for code in codes)
                break


_MAX_LEADS = 2
_SHORT_LEAD = regex(r"[^\n:]{0,80}:[ \t]{0,4}[\r\n>*•|`\"'\[ \t-]{0,12}(?:\d{1,2}[.)][ ]{1,3})?[`\"'*]{0,2}")


def _codes_from(text: str, at: int) -> list[re.Match[str]]:
    codes: list[re.Match[str]] = []
    while len(codes) < _MAX_CODES and (code := _CODE.match(text, at)):
        if not _may_be_code(code["code"]):
            break
        codes.append(code)
        between = _NEXT.match(text, code.end())
        if between is None or between.end() == code.end():
            break
        at = between.end()
    with_digit = sum(DIGIT.search(code["code"]) is not None for code in codes)
    if len(codes) == 1:
        value = codes[0]["code"]
        return codes if (mixed(value) and len(value) >= 7) or len(re.sub(r"\D", "", value)) >= 6 else []
    return codes if 2 * with_digit > len(codes) else []


def _may_be_code(value: str) -> bool:
    return (
        (DIGIT.search(value) is not None and (len(value) >= 6))
        or ("-" in value and len(value) >= 9)
        or (value.isdigit() and len(value) >= 4)
    )
