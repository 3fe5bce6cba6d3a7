# ruff: noqa: E501 - expressions and templates stay lines
"""Finds secrets in addresses, and secrets passed to commands and calls."""

import re
from collections import Counter
from collections.abc import Iterator

from clawctl.extensions.secrets.forms import blocks_of, forms_of
from clawctl.extensions.secrets.text import FOUR_DIGITS, AnchorGroups, Anchors, Span, Text, regex, tried_at
from clawctl.extensions.secrets.values import (
    DIGIT,
    TECHNICAL,
    has_dense_run,
    is_passphrase,
    is_placeholder,
    is_stand_in,
    is_strong_password,
    is_wordy,
)  # fmt: skip
from clawctl.extensions.secrets.vocabulary import words_of

_ADDRESS = regex(
    r"""://(?:[^\s/:@'"<>\\]{0,96}:(?P<value>[^\s"'<>\\]{3,128})@(?=[\w.$\[{-])|(?P<token>[A-Za-z0-9_-]{20,255})(?::(?:x-oauth-basic)?)?@)"""
)
# Address to which a browser reports errors; its key is public
_PUBLIC_DSN = regex(r"[0-9a-f]{32}@(?:[\w-]{1,40}\.){0,4}sentry\.")
_ORACLES = Anchors("thin:", "oci:", "sqlplus ")
_ORACLE = regex(r"(?i)(?:thin|oci|sqlplus|sqlldr)[: ][^\s/@:]{1,64}/(?P<value>[^\s/@\"']{3,128})@")


_URLS = Anchors("://")


@tried_at(_URLS, _ORACLES)
def in_addresses(piece: Text) -> Iterator[Span]:
    text = piece.text
    at = text.find("://")
    while at >= 0:
        match = _ADDRESS.match(text, at)
        if match and match["token"] and has_dense_run(match["token"]) and not _PUBLIC_DSN.match(text, match.start("token")):
            yield Span(*match.span("token"), "password")
        elif match and match["value"]:
            value, user = match["value"], text[at + 3 : match.start("value") - 1]
            if user.startswith("["):  # an IPv6 address
                at = text.find("://", at + 3)
                continue
            port = re.match(r"\d{1,5}(?:[/?#]|$)", value) and "/" in value
            if not port and not is_placeholder(value) and (value.lower() != user.lower()) and not value.startswith("//"):
                yield Span(*match.span("value"), "password")
        at = text.find("://", at + 3)
    if "@" in text:
        for at in _ORACLES.positions(piece):
            if (match := _ORACLE.match(text, at)) and not is_placeholder(match["value"]):
                yield Span(*match.span("value"), "password")


_PGPASS = regex(r":(?:\d{4,5}|\*):[^\s:]{1,64}:[^\s:]{1,64}:(?P<value>[^\s:]{3,128})(?=\s|$)")
_ANY_PORT = Anchors(":*:")
_GROUPS = regex(r"(?<![\w:])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{1,4}$")  # an IPv6 address


@tried_at(FOUR_DIGITS, _ANY_PORT)
def in_lines(piece: Text) -> Iterator[Span]:
    """Find passwords in lines of `.pgpass`."""
    text = piece.text
    for line in _PGPASS.finditer(text):
        if (
            not is_placeholder(line["value"])
            and not line["value"].isdigit()
            and line["value"][0] != "/"
            and not _GROUPS.search(text, max(0, line.start() - 40), line.end())
        ):
            yield Span(*line.span("value"), "password")


# A value that looks like an option is not a secret
_SECRET = r"[\"']?(?P<value>(?!--?[A-Za-z][A-Za-z-]{0,24}(?:[\s=\"']|$))[^\s\"']{4,129})"
# A flag and its value, tried only if the command occurs earlier in the line.
_FLAGGED = tuple(
    (regex(rf"(?:^|[^\w-])(?:{command})"), regex(flag.replace("VALUE", _SECRET))) for command, flag in blocks_of("flags")
)
_COMMANDS = forms_of("commands")
_CHOICE = AnchorGroups([form.anchors for form in _COMMANDS])
_LONG_OPTION = regex(
    r"(?i)--(?=[a-z])[\w-]{0,24}(?:password|passwd|passphrase|pass|token|secret|(?:api|access|secret|account|private|admin|storage|master|license|encryption)-?key|auth)[ =]\\{0,3}[\"']?(?P<value>[^\s\"'\\-][^\s\"'\\]{3,256})"
)
_NAMES_OF_OPTIONS = Anchors("pass", "token", "secret", "key", "auth")
_FLAGS = Anchors(*(f" -{flag}" for flag in ["p", "a", "w", "u", "n", "x", "k", "t", "-user", "-auth", "-proxy-user", "-pass"]))
_TOOLS = Anchors(*words_of("tools with flags"))
_LONGEST_OPTION = 36  # characters before the name
_MAX_FLAGS = 24  # per line
SAFE_FLAG = regex(r"(?i)(?:stdin|file|env|prompt|ask|from|[\w-]+file)\b")


@tried_at(_CHOICE, _NAMES_OF_OPTIONS, _FLAGS)
def in_commands(piece: Text) -> Iterator[Span]:
    text = piece.text
    for number, positions in _CHOICE.positions(piece):
        form = _COMMANDS[number]
        for at in positions:
            if (match := form.pattern.match(text, at)) and is_given(match["value"], loose=form.check == "loose"):
                yield Span(*match.span("value"), "password")
    for at in _NAMES_OF_OPTIONS.positions(piece) if "--" in text else ():
        option = text.rfind("--", max(0, at - _LONGEST_OPTION), at)
        if option >= 0 and (match := _LONG_OPTION.match(text, option)) and is_given(match["value"], loose=True):
            yield Span(*match.span("value"), "password")
    tried: Counter[int] = Counter()
    for at in _FLAGS.positions(piece) if piece.present & _TOOLS.bit else []:
        line = max(text.rfind("\n", max(0, at - 300), at) + 1, at - 300)
        tried[line >> 8] += 1
        if tried[line >> 8] > _MAX_FLAGS:
            continue
        for command, flag in _FLAGGED:
            match = flag.match(text, at)
            if match and is_given(match["value"], loose=False) and command.search(text, line, at):
                yield Span(*match.span("value"), "password")


_SETTING = regex(r"[A-Za-z_][A-Za-z0-9_-]{1,40}=(?:\w*,?$|[\w.]+\)+[:,;]?$)")
_NUMBER = regex(r"\d{6,12}")
_BASE64 = regex(r"(?=[^\n]*[A-Z0-9]{2})(?=[^\n]*[A-Z])(?=[^\n]*\d)[A-Za-z0-9+/]{40,512}={0,2}")


def is_given(value: str, loose: bool) -> bool:
    """Whether the argument of a command is a password. `loose`: the flag may also take other values."""
    good = (
        (
            (is_strong_password(value) or _NUMBER.fullmatch(value))
            and not value.isalpha()
            and (value.count("/") < 2 or _BASE64.fullmatch(value))
            and not _SETTING.match(value)
        )
        if loose
        else not (value[0].isdigit() and TECHNICAL.match(value)) or _NUMBER.fullmatch(value)
    )
    return bool(good) and not is_stand_in(value) and not SAFE_FLAG.match(value)


_CALL = regex(
    r"""\w{0,24}+[ ]{0,2}=?[ ]{0,2}(?:new[ ])?(?:\w{1,24}+[.:]{0,2}){0,3}[(\[{]{1,2}(?=(?P<arguments>(?:[^()\n"']|"[^"\n]{0,128}"|'[^'\n]{0,128}'|["']){0,240}+(?:\n[^()\n]{0,120}){0,3}))""",
    re.IGNORECASE,
)
_ARGUMENT = regex(r"""\\{0,2}["'](?P<value>[^"'\n\\]{0,128})\\{0,2}["']""")
_CALLS = Anchors("auth", "login", "cred", "connect", "bind", "logon", "signin", "sign_in")
_SURE_CALL = regex(
    r"""(?ix) (?:basic_?auth|_?login|log_?on|sign_?in|\bauth|credentials?|ldap\w{0,8}_?bind|simple_bind\w{0,2}|(?:mysqli?|pg|oci|odbc|mssql|sqlsrv|ssh2|ftp|imap)_\w{0,6}(?:connect|auth\w{0,10}|login)|getconnection|createconnection|(?:ssh\w{0,6}|client|conn\w{0,8}|db|mysql\w{0,6}|ftp|imap|smtp|session)\.connect) [ ]{0,2}(?:=[ ]{0,2})?(?:new[ ])?(?:\w{1,24}[.:]{0,2}){0,3}[(\[]$"""
)


_TYPED = Anchors(").type(", ").fill(", ").send_keys(", ").sendkeys(", ").setvalue(")
_FIELD = regex(r"""(?i)(?:pass(?:wor[dt]|wd|code|phrase)|secret|\bpin|token|api[_-]?key)[\w-]{0,16}["'\])]{1,3}$""")
_TYPED_TEXT = regex(r"""\)\.\w+\([ ]?["'](?P<value>[^"'\n\\]{4,128})["']""")


def in_fields(piece: Text) -> Iterator[Span]:
    """Find literals that a browser test types into a field for a secret: `get("#password").type("…")`."""
    for at in _TYPED.positions(piece):
        match = _TYPED_TEXT.match(piece.text, at)
        if match and _FIELD.search(piece.text, max(0, at - 64), at) and not is_stand_in(match["value"]):
            yield Span(*match.span("value"), "password")


_CHARACTERS = Anchors(".tochararray(")


@tried_at(_CALLS, _TYPED, _CHARACTERS)
def in_calls(piece: Text) -> Iterator[Span]:
    """Find string literals after the first argument of a call that logs in: `login("ann", "…")`, `auth=("ann", "…")`."""
    text = piece.text
    yield from in_characters(piece)
    yield from in_fields(piece)
    for at in _CALLS.positions(piece):
        match = _CALL.match(text, at)
        if match is None:
            continue
        start = match.start("arguments")
        sure = _SURE_CALL.search(text, max(0, at - 16), start) is not None
        first, comma = True, match["arguments"].find(",")
        for argument in _ARGUMENT.finditer(text, start, match.end("arguments")):
            if comma < 0 or argument.start() < start + comma:
                continue
            value = argument["value"]
            before = text[max(start, argument.start() - 4) : argument.start()].rstrip()
            if first and before[-1:] in (",", "(", "[") and _is_argument(value, sure):
                yield Span(*argument.span("value"), "password")
                first = False


_LITERAL = regex(r"\"(?P<value>[^\"\n]{4,128})\"$")


def in_characters(piece: Text) -> Iterator[Span]:
    """Find `"…".toCharArray()`, which is how Java code passes a password."""
    for at in _CHARACTERS.positions(piece):
        match = _LITERAL.search(piece.text, max(0, at - 130), at)
        if match and is_strong_password(match["value"], 5):
            yield Span(*match.span("value"), "password")


def _is_argument(value: str, sure: bool) -> bool:
    if is_passphrase(value):
        return sure or value[4:5] != " " or len(value) == 19
    if " " in value or not 4 <= len(value) <= 128 or is_stand_in(value):
        return False
    if sure:
        return DIGIT.search(value) is not None and is_strong_password(value, 5) and value.count("/") < 2
    return is_strong_password(value, 6) and not is_wordy(value.rstrip("!?"))
