# ruff: noqa: E501 - expressions stay lines
"""Finds secrets of personal items: disks, gift cards, games, calendars, routers, smart homes, browser sessions."""

import re
from collections.abc import Callable, Collection, Iterator

from clawctl.extensions.secrets.text import (
    BEYOND,
    BLOBS,
    AnchorGroups,
    Anchors,
    Span,
    Text,
    anchors_of,
    positions_of,
    regex,
    tried_at,
)
from clawctl.extensions.secrets.values import DIGIT, is_stand_in, is_strong_key, mixed
from clawctl.extensions.secrets.vocabulary import PLAIN_FOURS

_DISK = regex(r"(?<![\d-])\d{6}(?:-\d{6}){7}(?![\d-])")  # BitLocker
_TURN = r"(?<![^\W\d_])(?&turn)(?![^\W\d_])"
_THEN = r"[ ,;/-]{1,3}(?:(?&then) ){0,2}"
_SERIAL = r"[A-Z0-9]{4,6}(?:-[A-Z0-9]{4,6}){2,5}"


def _is_serial(value: str) -> bool:
    return not value.replace("-", "").isdigit() and len(set(value)) > 5


def _is_fours(value: str) -> bool:
    words = re.split("[ -]", value)
    return PLAIN_FOURS.isdisjoint(words) and len(set(words)) > 2 and "xxxx" not in words


def _is_loose(value: str) -> bool:
    return not is_stand_in(value)


def _is_backup(value: str) -> bool:
    return DIGIT.search(value) is not None and len(value) >= 6 and not is_stand_in(value)


# For each entry: anchor words, the pattern tried at each anchor, and the check that its value must pass.
_FORMS: tuple[tuple[Anchors, re.Pattern[str], Callable[[str], bool]], ...] = tuple(
    (Anchors(*anchors_of(words)), regex(pattern), check)
    for words, pattern, check in (
        ("&app passwords", r"[^\n]{0,120}?(?:[:：=]|\b(?&is)|(?&particles)|[ ]-)?[\s\"'`*]{1,4}(?<![A-Za-z])(?P<value>[a-z]{4}(?:[ -][a-z]{4}){3})(?![a-z]|[ -][a-z])", _is_fours),
        ("app password,app-specific,app-passw", r"[^\n]{0,80}?[\s\"'`*:](?P<value>[a-z]{4}(?:[ -][a-z]{4}){3})(?=[ ]{0,2}(?:[(.,\n\"'`*]|$))", _is_fours),
        ("&gift cards", rf"[^\n]{{0,60}}(?:\n[^\n]{{0,50}}){{0,3}}?[\s:：\"'`*(](?P<value>{_SERIAL}|[A-Z0-9]{{14,16}})(?![\w-])", lambda value: (_is_serial(value) and mixed(value)) or ("-" in value and _is_serial(value))),
        ("&product keys", r"[^\n]{0,70}(?:\n[^\n]{0,30})?[\s:：=\"'`*(](?P<value>[A-Z0-9]{5}(?:-[A-Z0-9]{5}){2,5}|[A-Z0-9]{4}(?:-[A-Z0-9]{4}){3,5})(?![\w-])", _is_serial),
        ("&backup codes", r"[^\n:：=]{0,40}[:：=][ ]{0,3}[\"'`*]{0,2}(?P<value>[A-Za-z0-9]{4,12}(?:[- ]?[0-9][A-Za-z0-9]{3,7}){0,4})(?![\w-])", _is_backup),
        ("&codes of shared files", r"[^\n]{0,3}(?:[:： ]|(?&particles)){1,4}(?P<value>[A-Za-z0-9]{4,8})(?![A-Za-z0-9])", bool),
        ("pwd=", r"(?<=[?&])pwd=(?P<value>[A-Za-z0-9]{4,8})(?![A-Za-z0-9])", bool),
        ("/private-", r"/private-(?P<value>[0-9a-f]{16,64})(?=/)", bool),
        ("/owa/calendar/", r"/owa/calendar/[\w@.-]{10,120}/(?P<value>[0-9a-f]{16,80})(?=/)", bool),
        ("/published/2/", r"/published/2/(?P<value>[\w-]{30,200})", bool),
        ("/ical/,/ics/,ical?,icalfeed,/calendar/", r"[^\s\"']{0,120}?[?&/](?:t|token|s|k|key|auth|u)=?(?P<value>[A-Za-z0-9_-]{16,120})(?=\.ics|[&\s\"']|$)", lambda value: is_strong_key(value)),
        ("&key content", r"[^\n:：]{0,24}[ \t]{0,30}[:：][ \t]{1,4}(?P<value>[^\n\r]{8,63}?)(?=[ \t]*(?:\r?\n|$))", bool),
        ("wireless.", r"wireless\.[\w@\[\].-]{1,60}\.(?:key\d?|sae_password|wpa_psk)=(?P<quote>[\"']?)(?P<value>[^\"'\s]{5,63})(?P=quote)", _is_loose),
        ("option key,option wpakey", r"option[ \t]{1,4}(?:wpa)?key\d?[ \t]{1,4}(?P<quote>[\"'])(?P<value>[^\"'\n]{8,63})(?P=quote)", _is_loose),
        ("wifi-sec.psk,security.psk,wifi-sec.wep,wifi connect", r"(?:[\w.-]{0,30}psk|wifi connect[^\n]{0,60}?password)[ =][\"']?(?P<value>[^\s\"'<$]{5,63})", _is_loose),
        ("encryption:", r"encryption:[ ]{0,4}(?:\r?\n[ \t]{1,12})?key:[ ]{1,4}[\"']?(?P<value>[A-Za-z0-9+/]{40,64}={0,2})", bool),
        ("local_key,localkey", r"(?i)local_?key[\"']?[ ]{0,4}[:=][ ]{0,4}[\"']?(?P<value>[^\s\"',;]{16,32})", _is_loose),
        ("noise_psk,bindkey,mesh_key,irk,network_key,zha_key,aes_key,s2_access,s0_legacy,s2_auth,s2_unauth", r"(?i)\w{2,24}[\"']?[ ]{0,4}[:=][ ]{0,4}[\"']?(?P<value>[0-9a-fA-F]{32,64}|[A-Za-z0-9+/]{40,64}={0,2})(?![\w+/])", mixed),
        ("&banking", r"(?i)[\s\S]{0,160}?(?&number of a login)(?:[^\n\d]{0,30})(?P<value>\d(?:[ -]?\d){3,11})(?![\w-])", bool),
        ("&numbers of logins", r"(?i)[\w'’]{1,12}(?:[ ](?&access))?[^\n\d]{0,12}(?&bank)[^\n\d]{0,30}(?P<value>\d(?:[ -]?\d){3,11})(?![\w-])", bool),
        ("&passnumbers", r"(?i)\w{4,20}(?: number)?[^\n\d]{0,40}?[ :=](?P<value>\d(?:[ -]?\d){3,11})(?![\w-])", bool),
        ("&dials", rf"(?i)[^\n]{{0,60}}?(?P<value>{_TURN}[ :]{{0,2}}(?:(?&up to) )?\d{{1,2}}(?:{_THEN}{_TURN}[ :]{{0,2}}(?:(?&up to) )?\d{{1,2}}(?!\d)){{2,4}}|\d{{1,2}} ?{_TURN}(?:{_THEN}\d{{1,2}} ?{_TURN}){{2,4}}|\d{{1,2}} ?{_TURN}{_THEN}\d{{1,2}} ?{_TURN}{_THEN}\d{{1,2}})(?![\w%])", bool),
        ("&devices", r"(?i)[^\n.]{0,30}?(?&unlock)\w{0,6}(?:[ ](?:code|pin|it|by|(?&is)|(?&with)|the|screen|phone|typing)){0,4}['’]?s?[ :=]{1,3}(?P<value>\d{4,8})(?![\w%.:/-]|[ ]?(?:ms|times|second|attempt|level|user|mal|km|x)\b)", bool),
        ("&keypads", r"(?i)[\w ]{3,14}?(?&keypad)\b(?:[ ](?&at)[ ][^\n\d.]{1,30}?)?(?:[ ](?:wants|takes|needs|is|expects|(?&the)|(?&with)|:|->|code|then|type|enter))*[ :]{1,3}#?(?P<value>\d{4,8})(?:[*#]|(?=[ ](?&typed behind)|[.,;)]?(?:\s|$)))(?![ ]?(?&buttons))", bool),
        ("totp,otp_secret,otpsecret,totpsecret,two_factor_secret,2fa_secret", r"(?i)(?:totp|otp)[\w-]{0,12}[\"']?[ ]{0,4}[:=][ ]{0,4}[\"']?(?:steam://)?(?P<value>[A-Z2-7]{16,64})(?![A-Za-z0-9])", bool),
        ("steam://", r"steam://(?P<value>[A-Z2-7]{16,64})(?![A-Za-z0-9])", bool),
    )
)  # fmt: skip
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


_CHOICE = AnchorGroups([anchors for anchors, *_ in _FORMS])


@tried_at(_CHOICE, BLOBS, BEYOND)
def in_personal_items(piece: Text) -> Iterator[Span]:
    text = piece.text
    for start, end in piece.blobs:
        if end - start >= 55:
            for match in _DISK.finditer(text, start, end):
                yield Span(*match.span(), "password")
    for number, positions in _CHOICE.positions(piece):
        _, pattern, check = _FORMS[number]
        for at in positions:
            if (named := pattern.match(text, at)) and check(named["value"]):
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
