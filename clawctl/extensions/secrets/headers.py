# ruff: noqa: E501 - expressions and templates stay lines
"""Finds tokens in headers and cookies."""

import re
from collections.abc import Iterator

from clawctl.extensions.secrets.encoded import is_login
from clawctl.extensions.secrets.text import Anchors, Span, Text, regex, tried_at
from clawctl.extensions.secrets.values import CODE, EXAMPLE, UUID_ALONE, entropy, is_stand_in, is_strong_key, is_wordy, mixed

_JWT = regex(
    r"eyJ[\w-]{8,4000}(?:\r?\n[ >]{0,8}[\w-]{8,4000}){0,2}\.[\w-]{8,4000}(?:\r?\n[ >]{0,8}[\w-]{8,4000}){0,2}(?:\.[\w-]{0,4000}){0,3}"
)
_JWT_REST = regex(r"(?:\r?\n[ >]{0,8}(?=[\w.-]{0,200}\d)(?=[\w.-]{0,200}[A-Z])[\w-]{16,1000}(?:\.[\w-]{16,1000})?)")
_JWT_LINE = regex(r"[ >]{0,8}(?P<part>[\w.-]{1,1000}+)[ ]{0,2}(?:\r?\n|$)")
_JWT_LINES = 80
_JWT_HEADER = 512  # maximum number of characters before the first dot
_JWT_DOTS = 5  # an encrypted JWT has four, plus a full stop
_HEADER = regex(
    r"""(?i)(?:\bbearer[ ]+(?:token[ ]+)?|\b(?:proxy-)?authorization\\{0,3}["']?(?:\s{0,3}[:=,]\s{0,3}\\{0,3}["']?(?:basic|token|digest|apikey|key|bot|bearer|)[ ]*|\s{1,3}["']?(?:basic|token|digest|apikey|key|bot|bearer)[ ]+))"""
    r"""(?P<value>[\w.~+/=%-]{8,4096})"""
)
_COOKIE = regex(r"""[ \t"']{0,4}(?P<name>[\w.-]{1,64})=(?P<value>[^\s;,"'\\<>]{16,2048})""")
_SESSION = regex(
    r"(?i)(?:sess(?:ion)?_?(?:id\w{0,8}|token|key|secret)?|(?<![A-Za-z0-9_-])sid)=[\x22\x27]?(?P<value>[\w%.+/=-]{16,512})"
)
_SIGNED = regex(r"(?i)sig(?:nature)?(?:=|%3d)(?P<value>[\w%+/=-]{24,512}|[0-9a-f]{16,23}(?=&))")

_AUTH = Anchors("bearer", "authorization")
_BASICS = Anchors("basic ")
_BASIC = regex(r"(?i)basic[ ]{1,3}(?P<value>[A-Za-z0-9+/_-]{12,512}={0,2})(?![A-Za-z0-9+/_=-])")
_COOKIES = Anchors("cookie")
_SESSIONS = Anchors("sess", "sid=")
_SIGS = Anchors("sig=", "signature=", "sig%3d", "signature%3d")
_JWTS = Anchors("eyj")


def _wrapped_end(text: str, at: int) -> int:
    """Return the end of a JWT that a program has wrapped at a fixed width, wherever its dots are, or `at` if none starts there.

    A JWT may not start inside a longer run; otherwise every "eyJ" of a run would scan the same characters again.
    """
    if at and (text[at - 1].isalnum() or text[at - 1] in "_.-"):
        return at
    parts: list[str] = []
    end = at
    dots = 0
    while len(parts) < _JWT_LINES and (line := _JWT_LINE.match(text, end)):
        part = line["part"]
        if parts and len(part) > len(parts[0]):
            break
        parts.append(part)
        end = line.end("part")
        dots += part.count(".")
        if dots > _JWT_DOTS or (not dots and end - at > _JWT_HEADER):
            return at
        if len(part) < len(parts[0]) or line.end() == len(text):
            break
        end = line.end()
    joined = "".join(parts)
    is_whole = len(parts) > 1 and len(parts[0]) >= 16 and joined.count(".") in (2, 4) and ".." not in joined.rstrip(".")
    return end if is_whole and joined.startswith("eyJ") else at


@tried_at(_JWTS, _AUTH, _BASICS, _COOKIES, _SESSIONS, _SIGS)
def tokens(piece: Text) -> Iterator[Span]:
    text, lower = piece.text, piece.ascii
    at = text.find("eyJ")
    while at >= 0:
        end = at + 1
        if not (at and text[at - 1].isalnum()):
            if match := _JWT.match(text, at):
                rest = _JWT_REST.match(text, match.end())
                end = rest.end() if rest else match.end()
            end = max(end, _wrapped_end(text, at))
        if end > at + 1:
            yield Span(at, end, "token")
        at = text.find("eyJ", end)
    for at in _AUTH.positions(piece):
        if (match := _HEADER.match(text, at)) and _is_credential(match):
            yield Span(*match.span("value"), "token")
        if lower.startswith("a", at) and (match := _SCHEME.match(text, at)):
            yield from _parameters(text, match.end())
            if match["value"] and is_strong_key(match["value"]) and not is_stand_in(match["value"]):
                yield Span(*match.span("value"), "token")
    for at in _BASICS.positions(piece):
        if (match := _BASIC.match(text, at)) and is_login("auth", match["value"]):
            yield Span(*match.span("value"), "token")
    for at in _COOKIES.positions(piece):
        yield from _cookies(text, at)
    for at in _SESSIONS.positions(piece):
        match = _SESSION.match(text, at)
        if match and "_" not in text[at : at + 9] and is_strong_key(match["value"]) and not UUID_ALONE.fullmatch(match["value"]):
            yield Span(*match.span("value"), "token")
    for at in _SIGS.positions(piece):
        if (match := _SIGNED.match(text, at)) and is_strong_key(match["value"]):
            yield Span(*match.span("value"), "token")


_SCHEME = regex(
    r"""(?i)authorization\\{0,3}["']?\]?\s{0,3}(?::|=>?|,)\s{0,3}\\{0,3}[bf]?["'`]?[a-z][\w-]{1,30}[ ]+(?=(?P<value>[\w.~+/=:%|$!-]{12,4096})?)"""
)
_PARAMETER = regex(r"""[ ,]{0,3}(?P<name>[A-Za-z][\w-]{0,30})=\\{0,3}["']?(?P<value>[^\s"',;\\]{0,1024})\\{0,3}["']?""")
_OPEN_PARAMETERS = frozenset(
    ("username", "realm", "uri", "algorithm", "qop", "nc", "signedheaders", "keyid", "headers", "oauth_consumer_key")
)


def _parameters(text: str, at: int) -> Iterator[Span]:
    """Find secret parameters: `Digest username="x", response="…"`; `AWS4-HMAC-SHA256 Credential=…, Signature=…`."""
    for _ in range(16):
        match = _PARAMETER.match(text, at)
        if match is None:
            return
        at = match.end()
        if match["name"].lower() not in _OPEN_PARAMETERS and is_strong_key(match["value"]) and not is_stand_in(match["value"]):
            yield Span(*match.span("value"), "token")


def _cookies(text: str, at: int) -> Iterator[Span]:
    """Find opaque cookie values and session ids in one cookie line."""
    begin = text.find(":", at, at + 10)
    line_end = text.find("\n", at, at + 2048)
    end = min(line_end if line_end >= 0 else at + 2048, len(text))
    if begin < 0:
        return
    at = begin + 1
    while at < end and (match := _COOKIE.match(text, at)):
        if _OF_VISITORS.match(match["name"]):
            pass
        elif is_strong_key(match["value"]) or (_SESSION_NAME.search(match["name"]) and _is_drawn_by_server(match["value"])):
            yield Span(*match.span("value"), "token")
        following = text.find(";", match.end(), end)
        at = following + 1 if following >= 0 else end


# Analytics cookies, which hold no login.
_OF_VISITORS = regex(r"(?i)_ga|_gid|_gcl|_fb|_hj|_pk_|_uet|_clck|__utm|__cf_bm|ajs_|mp_|amplitude|optimizely|cookieconsent")
_SESSION_NAME = regex(r"(?i)sess|sid$")


def _is_drawn_by_server(value: str) -> bool:
    return len(value) >= 20 and mixed(value) and entropy(value) >= 3.5 and not is_stand_in(value)


def _is_credential(match: re.Match[str]) -> bool:
    """Whether the value is a credential and not prose (`bearer of bad news`). `Basic` credentials are short base64, possibly
    without digits.
    """
    value, named = match["value"], "authorization" in match[0].lower()
    if EXAMPLE.search(value) or CODE.match(value) or ("-" in value and is_wordy(value)):
        return False
    return (
        (mixed(value) and (named or entropy(value) >= 3.0 or len(value) < 16))
        or (named and " " in match[0] and entropy(value) >= 2.5 and len(value) >= 12 and not value.islower())
        or ("basic" in match[0].lower() and named and entropy(value) >= 2.5)
    )
