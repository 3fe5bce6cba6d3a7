# ruff: noqa: E501 - expressions and templates stay lines
"""Finds secrets in forms that identify them: one-time secrets, wallets, PINs, constructors, joined literals."""

import re
from collections.abc import Callable, Iterator
from functools import partial

from clawctl.extensions.secrets.commands import SAFE_FLAG, is_given
from clawctl.extensions.secrets.formats import FORMAT, ISSUED, is_issued, is_key
from clawctl.extensions.secrets.forms import forms_of
from clawctl.extensions.secrets.names import is_secret_under
from clawctl.extensions.secrets.text import BLOBS, COMMAS, QUOTES, AnchorGroups, Anchors, Span, Text, positions_of, regex, tried_at
from clawctl.extensions.secrets.values import (
    DIGIT,
    entropy,
    is_chosen,
    is_opaque,
    is_passphrase,
    is_random,
    is_stand_in,
    is_strong_key,
    is_strong_password,
    is_stronger_password,
    is_wordy,
    mixed,
)  # fmt: skip


def _is_seed(value: str) -> bool:
    bare = re.sub("[ -]", "", value)
    return len(bare) >= 16 and entropy(bare) >= 3.0 and (DIGIT.search(bare) is not None or bare.isupper())


def _is_pair(value: str) -> bool:
    _user, _, secret = value.partition(":")
    return is_strong_password(secret, 6) and not is_wordy(secret)


def _is_salt(value: str) -> bool:
    """Whether the value has letters and at least six different special characters, like generated salts. It may contain spaces."""
    return len(set(_SIGN.findall(value))) >= 6 and mixed(value)


_SIGN = regex(r"[^\w\s]")


def _is_loose(value: str) -> bool:
    return not is_stand_in(value) and not SAFE_FLAG.match(value)


def _is_generated(value: str) -> bool:
    """Whether the value mixes letters, digits and special characters and looks generated."""
    return is_stronger_password(value) and (is_chosen(value) or re.search(r"\w[!#$%^&*+=~?]+\w|[!#$%*?]", value) is not None)


def _is_derived(value: str) -> bool:
    """Whether the value is digits, or capitals and digits: `the last 8 of the serial, i.e. GN330T5C`."""
    bare = value.rstrip(".,;)")
    return (
        (bare.isdigit() and len(bare) <= 12)
        or (mixed(bare) and bare.isalnum() and not bare.islower())
        or is_stronger_password(bare)
    )


def _is_network_word(value: str) -> bool:
    """Whether the value is words and a number (`aurora-8812`), or looks generated."""
    return is_stronger_password(value) or (_WORDS_AND_NUMBER.fullmatch(value) is not None and not is_stand_in(value))


_WORDS_AND_NUMBER = regex(r"[^\W\d_]{3,14}(?:[-_.][^\W\d_]{2,14}){0,3}[-_.]?\d{2,6}[!?#*]?")


# The conditions that values of the forms in `forms.txt` must meet.
_CHECKS: dict[str, Callable[[str], bool]] = {
    "anything": bool, "argument": partial(is_given, loose=True), "derived": _is_derived, "generated": _is_generated,
    "network key": _is_network_word, "no path": lambda value: is_stronger_password(value) and value.count("/") < 2,
    "no stand-in": _is_loose, "opaque": is_opaque, "pair": _is_pair, "passphrase": is_passphrase, "random": is_random, "salt": _is_salt,
    "second word": lambda value: _is_loose(value.partition(" ")[2]), "seed": _is_seed,
    "short password": partial(is_strong_password, min_chars=6), "strong key": is_strong_key, "strong password": is_strong_password,
    "strong password or passphrase": lambda value: is_strong_password(value) or is_passphrase(value),
    "stronger password": is_stronger_password,
    "stronger password or passphrase": lambda value: is_passphrase(value) or is_stronger_password(value),
    "text": lambda value: not is_stand_in(value),
}  # fmt: skip
_FORMS = forms_of("labelled")
_HEX_PAIR = regex(r"(?:=|\.[a-z]{2,6}[\"']?[ :=]{1,3})[\"']?(?P<value>[0-9a-f]{8,64}:[0-9a-f]{8,64})(?![\w:])")
_JWK = regex(r"""(?:d|p|q|dp|dq|qi|k)\\{0,3}["']\s{0,3}:\s{0,3}\\{0,3}["'](?P<value>[\w-]{20,2048})""")


_CHOICE = AnchorGroups([form.anchors for form in _FORMS])


@tried_at(_CHOICE, BLOBS)
def in_labelled(piece: Text) -> Iterator[Span]:
    text = piece.text
    for number, positions in _CHOICE.positions(piece):
        form, check = _FORMS[number], _CHECKS[_FORMS[number].check]
        for at in positions:
            match = form.pattern.match(text, at)
            if match and check(match["value"]) and (not form.before or form.before.search(text, max(0, at - 64), at)):
                yield Span(*match.span("value"), "password")
    for start, end in piece.blobs:
        if text.find(":", start, end) >= 0:
            pair = _HEX_PAIR.search(text, max(0, start - 4), end)
            if pair and all(mixed(part) for part in pair["value"].split(":")):
                yield Span(*pair.span("value"), "password")
    if "kty" in text:
        for quote in "\"'":
            for at in [at for name in "dpqk" for at in positions_of(text, quote + name)]:
                if (match := _JWK.match(text, at + 1)) and entropy(match["value"][:128]) >= 3.5:
                    yield Span(*match.span("value"), "password")


_ARGUMENT = regex(
    r"""\(\s{0,4}(?:[\w.]{1,24},[ ]?|["'][^"'\n]{1,40}["'],[ ]?)?b?["'`](?P<value>[A-Za-z0-9_-]{20,400}={0,2})["'`](?:\.\w{2,12}\(\))?\s{0,4}[,)]"""
)
_BEFORE_ARGUMENT = 56  # characters
_CONSTRUCTOR = regex(
    r"(?:(?i:client|api|sdk|service|connection|connector|init|initialize|configure|setup|authenticate|login|tracker|analytics|gateway|mailer"
    r"|geocoder|provider|auth|connect|identify|activate|fernet|hmac(?:\.new)?|sign|verify|cipher|crypt|secretbox|aes|stringsession|algoliasearch|mandrill|mailchimp|stripe|twilio|pusher|sentry|segment|mixpanel)|(?i:client|api|sdk|service|connection|connector|gateway|mailer|bot|provider|auth)(?:::|->|\.)(?:new|create|build|init|with_key|from_key)|\bnew[ ](?:\w+\.)?[A-Z]\w{1,30})$"
)
_NO_CLIENT = regex(
    r"(?i)(?:id|guid|hash|digest|sha\d*|md5|commit|checksum|etag|version|error|exception|regexp?|string|url|date|buffer|test|file|name|image|blob)$"
)


@tried_at(BLOBS)
def in_constructors(piece: Text) -> Iterator[Span]:
    """Find an opaque value as the first argument of a call to a service: `new Client("…")`, `sdk.init('…')`."""
    text = piece.text
    windows = [(max(0, start - _BEFORE_ARGUMENT), start) for start, _ in piece.blobs]
    for at in [first + at for first, start in windows for at in positions_of(text[first:start], "(")]:
        if match := _ARGUMENT.match(text, at):
            before = text[max(0, at - 48) : at]
            if (
                _CONSTRUCTOR.search(before)
                and not _NO_CLIENT.search(before)
                and is_opaque(match["value"])
                and not match["value"].startswith(("pk_live_", "pk_test_"))
            ):
                yield Span(*match.span("value"), "password")


_LITERAL = r"""(?:"[^"\n\\]{0,200}"|'[^'\n\\]{0,200}')"""
_CHAIN = regex(rf"""{_LITERAL}(?:\s{{0,12}}(?:\+|\.{{1,2}}|&|\|\||\\)?\s{{0,12}}[bfru]?{_LITERAL}){{1,12}}""")
_JOIN = regex(r"""["'](?<!["'].)\s{0,12}(?:\+|\.{1,2}|&|\|\||\\)?\s{0,12}[bfru]?["'](?!["'])""")
_PARTS = regex(_LITERAL)
# Content security policy of a page.
_POLICY = regex(r"self|none|unsafe-[\w-]{4,24}|strict-dynamic|report-sample|sha\d{3}-[\w+/-]{40,90}={0,2}")
_ASSIGNED_TO = regex(r"([A-Za-z_][\w.-]{1,60}+)[\"'\])]{0,2}(?:[ ]?:[ ]?\w{1,20})?[ ]{0,4}(?::=|=>|=|:)\s{0,12}\(?\s{0,12}[bfru]?$")


_SIGN_BEFORE = regex("[=:]")
_SHORTEST_KEY = 16  # characters

# What may be between two literals is left out before they are looked for.
_ALIKE, _BETWEEN = bytes.maketrans(b"'", b'"'), b" \t\r\n\x0b\x0c\x1c\x1d\x1e\x1f+.&|\\bfru"


@tried_at(QUOTES)
def in_chains(piece: Text) -> Iterator[Span]:
    """Find a secret that is split into joined literals; yields each literal."""
    text = piece.text
    quotes = piece.code_points.translate(_ALIKE, _BETWEEN).replace(b'"""', b"")
    if b'""' not in quotes or not _JOIN.search(text):
        return
    for match in _CHAIN.finditer(text):
        start = match.start()
        literals = [(start + part.start() + 1, part[0][1:-1]) for part in _PARTS.finditer(match[0])]
        joined = "".join(literal for _, literal in literals)
        sign = _SIGN_BEFORE.search(text, max(0, start - 28), start)
        named = _ASSIGNED_TO.search(text, max(0, start - 96), start) if sign else None
        key = FORMAT.search(joined) or ISSUED.search(joined) if max(map(len, joined.split()), default=0) >= _SHORTEST_KEY else None
        if not (named or key) or any(_POLICY.fullmatch(literal) for _, literal in literals):
            continue
        if (named and is_secret_under(named[1], joined, True)) or (
            key and len(key[0]) * 2 > len(joined) and (is_issued(key) if "issuer" in key.re.groupindex else is_key(key))
        ):
            for start, literal in literals:
                if literal:
                    yield Span(start, start + len(literal), "password")


# 64 bytes: a key pair of a wallet
_KEY_BYTES = regex(r"\[[ \n]{0,4}(?:\d{1,3},[ \n]{0,4}){63}\d{1,3}[ \n]{0,4}\]")


@tried_at(COMMAS, to_value_end=False)
def in_bytes(piece: Text) -> Iterator[Span]:
    """Find keys written as lists of bytes."""
    for match in _KEY_BYTES.finditer(piece.text):
        yield Span(*match.span(), "password")


_CODES = Anchors(" is your ")
_CODE_BEFORE = regex(r"(?<![\w.,:/-])(?:[A-Z]{1,2}-)?(?P<value>\d{3,4}[ -]\d{3,4}|\d{4,8})[\"'>)*]{0,2}$")
_CODE_NAMED = regex(r" is your (?:[\w'-]{1,20} ){0,4}(?:code|otp|pin|password|passcode)\b", re.IGNORECASE)


@tried_at(_CODES, to_value_end=False)
def in_codes(piece: Text) -> Iterator[Span]:
    """Find codes as a service sends them: `482913 is your verification code`."""
    for at in _CODES.positions(piece):
        start = max(0, at - 24)
        if _CODE_NAMED.match(piece.text, at) and (match := _CODE_BEFORE.search(piece.text[start:at])):
            yield Span(start + match.start("value"), start + match.end("value"), "password")


_INSERTS = Anchors("insert into ")
_INSERT = regex(
    r"(?i)insert[ ]into[ ][^\s(]{1,80}\s{0,4}\((?P<columns>[^()]{1,400})\)\s{0,4}values\s{0,4}(?P<rows>(?:\((?:[^()'\"]|'[^'\n]{0,200}'|\"[^\"\n]{0,200}\"){1,600}\)\s{0,4},?\s{0,4}){1,8})"
)
_CELL = regex(r"""\s*(?:'(?P<one>[^'\n]{0,200})'|"(?P<two>[^"\n]{0,200})"|(?P<other>[^,()'"]{0,80}))\s*(?P<end>[,)])""")


@tried_at(_INSERTS)
def in_inserts(piece: Text) -> Iterator[Span]:
    """Find values of columns whose names announce a secret: `INSERT INTO users (name, password) VALUES ('ann', '…')`."""
    for at in _INSERTS.positions(piece):
        match = _INSERT.match(piece.text, at)
        if match is None:
            continue
        names = [column.strip(" \t\n`\"'[]") for column in match["columns"].split(",")]
        place, cursor = 0, match.start("rows")
        while cursor < match.end("rows"):
            if piece.text[cursor] in "(, \t\r\n" and place == 0:
                cursor += 1
                continue
            cell = _CELL.match(piece.text, cursor, match.end("rows"))
            if cell is None:
                break
            group = "one" if cell["one"] is not None else "two"
            if cell[group] and place < len(names) and is_secret_under(names[place], cell[group], True):
                yield Span(*cell.span(group), "password")
            place, cursor = (0 if cell["end"] == ")" else place + 1), cell.end()
