"""Finds secrets of personal items: disks, gift cards, games, calendars, routers, smart homes, browser sessions."""

import re
from collections.abc import Callable, Collection, Iterator

from clawctl.extensions.secrets.forms import forms_of
from clawctl.extensions.secrets.text import BEYOND, BLOBS, AnchorGroups, Anchors, Span, Text, positions_of, regex, tried_at
from clawctl.extensions.secrets.values import DIGIT, is_stand_in, is_strong_key, mixed
from clawctl.extensions.secrets.vocabulary import PLAIN_FOURS

_DISK = regex(r"(?<![\d-])\d{6}(?:-\d{6}){7}(?![\d-])")  # BitLocker


def _is_serial(value: str) -> bool:
    return not value.replace("-", "").isdigit() and len(set(value)) > 5


def _is_fours(value: str) -> bool:
    words = re.split("[ -]", value)
    return PLAIN_FOURS.isdisjoint(words) and len(set(words)) > 2 and "xxxx" not in words


def _is_loose(value: str) -> bool:
    return not is_stand_in(value)


def _is_backup(value: str) -> bool:
    return DIGIT.search(value) is not None and len(value) >= 6 and not is_stand_in(value)


# The conditions that values of the forms in `forms.txt` must meet.
_CHECKS: dict[str, Callable[[str], bool]] = {
    "anything": bool, "backup code": _is_backup, "gift card": lambda value: _is_serial(value) and ("-" in value or mixed(value)),
    "groups of four": _is_fours, "mixed": mixed, "no stand-in": _is_loose, "serial": _is_serial, "strong key": is_strong_key,
}  # fmt: skip
_FORMS = forms_of("personal items")
_SESSIONS = regex(
    r"(?i)(?:[\w.-]{0,30}sess(?:ion)?[\w.-]{0,24}|(?:connect\.)?sid|ssid|hsid|apisid|sapisid|nid_aut|nid_ses|[\w.-]{0,20}auth[\w.-]{0,20}|[\w.-]{0,24}token[\w.-]{0,16}|jwt|ct0|xs|fr|datr|li_at|sp_dc|sp_key|sso|kdt|twid|at-main|x-main|sess-at-main|cf_clearance|\.?roblosecurity|__secure-[\w-]{1,24}|__host-[\w-]{1,24}|remember[\w-]{0,40}|wordpress_logged_in[\w-]{0,40}|laravel[\w-]{0,24}|steamloginsecure|steamrefresh_steam|jsessionid|phpsessid|asp\.net_sessionid|estsauth\w{0,12}|rtfa|fedauth|bduss|stoken|passport\w{0,16}|sessdata|bili_jct|z_c0|uid_tt|netflixid|securenetflixid|cookie2|_tb_token_|pt_key|pt_pin|skey|p_skey)"
)
_NOT_SESSIONS = regex(r"(?i)csrf_?(?:param|header)|_ga|ig_did|guest|author|consent|expire|lang|theme|timezone")
_COOKIES = Anchors('"value"', "'value'")
_COOKIE = regex(
    r"""(?P<q>["'])name(?P=q)\s{0,3}:\s{0,3}(?P=q)(?P<name>[\w.-]{1,60})(?P=q),\s{0,12}(?P=q)value(?P=q)\s{0,3}:\s{0,3}(?P=q)(?P<value>[^"'\n]{6,4096})(?P=q)"""
)
_COOKIE_BACK = regex(r"""(?P<q>["'])value(?P=q)\s{0,3}:\s{0,3}(?P=q)(?P<value>[^"'\n]{6,4096})(?P=q)""")
_NAME_BEHIND = regex(r"""(?P<q>["'])name(?P=q)\s{0,3}:\s{0,3}(?P=q)(?P<name>[\w.-]{1,60})(?P=q)""")
_HEADERS = Anchors("cookie")
_CRUMB = regex(r"(?P<name>[\w.-]{1,60})=(?P<value>[^;\s\"'`,]{8,4096})")
_JARS = Anchors("true\t")
_JAR = regex(r"(?:TRUE|FALSE)\t/[^\t\n]{0,100}\t(?:TRUE|FALSE)\t\d{1,12}\t(?P<name>[^\t\n]{1,60})\t(?P<value>[^\t\n]{8,4096})")


_CHOICE = AnchorGroups([form.anchors for form in _FORMS])


@tried_at(_CHOICE, BLOBS, BEYOND)
def in_personal_items(piece: Text) -> Iterator[Span]:
    text = piece.text
    for start, end in piece.blobs:
        if end - start >= 55:
            for match in _DISK.finditer(text, start, end):
                yield Span(*match.span(), "password")
    for number, positions in _CHOICE.positions(piece):
        form, check = _FORMS[number], _CHECKS[_FORMS[number].check]
        for at in positions:
            if (named := form.pattern.match(text, at)) and check(named["value"]):
                yield Span(*named.span("value"), "password")


@tried_at(_COOKIES, _HEADERS, _JARS)
def in_cookies(piece: Text) -> Iterator[Span]:
    """Find browser sessions: cookies exported as JSON or as a cookie jar, and cookie headers in code."""
    text = piece.text
    if piece.present & _COOKIES.bit and "name" in text:
        for quote in "\"'":
            for at in positions_of(text, f"{quote}value{quote}"):
                before = list(_NAME_BEHIND.finditer(text, max(0, at - 160), at))
                crumb = _COOKIE_BACK.match(text, at)
                if crumb is None:
                    continue
                braces = text.rfind("}", max(0, at - 160), at)
                name = (
                    before[-1]
                    if before and before[-1].start() > braces
                    else _NAME_BEHIND.search(text, crumb.end(), min(len(text), crumb.end() + 300))
                )
                if (
                    name
                    and not (name.start() > crumb.end() and "{" in text[crumb.end() : name.start()])
                    and _is_session(name["name"])
                    and _is_session_value(crumb["value"])
                ):
                    yield Span(*crumb.span("value"), "password")
    if piece.present & _HEADERS.bit:
        done = 0
        for at in _HEADERS.positions(piece):
            if at < done:
                continue
            line = text.find("\n", at, at + 4000)
            done = line if line >= 0 else min(len(text), at + 4000)
            for match in _CRUMB.finditer(text, at, done):
                if _is_session(match["name"]) and _is_session_value(match["value"]):
                    yield Span(*match.span("value"), "password")
    if piece.present & _JARS.bit:
        for match in _JAR.finditer(text):
            if _is_session(match["name"]) and _is_session_value(match["value"]):
                yield Span(*match.span("value"), "password")


def is_cookie(name: str, value: str, keys: Collection[str]) -> bool:
    """Whether an exported cookie, `{"name": …, "value": …}`, holds a session. `keys` are all keys of the object."""
    if not _is_session(name) or not _is_session_value(value):
        return False
    return len(name) > 4 or not _OF_COOKIES.isdisjoint(str(key).lower() for key in keys)


_OF_COOKIES = frozenset(["domain", "path", "httponly", "http_only", "secure", "samesite", "expirationdate", "expires", "hostonly"])


def _is_session(name: str) -> bool:
    return _SESSIONS.fullmatch(name) is not None and _NOT_SESSIONS.search(name) is None


def _is_session_value(value: str) -> bool:
    return len(value) >= 8 and DIGIT.search(value) is not None and not is_stand_in(value) and len(set(value)) > 5
