"""Finds browser sessions in cookies."""

from collections.abc import Collection, Iterator

from clawctl.extensions.secrets.text import Anchors, Span, Text, positions_of, regex, tried_at
from clawctl.extensions.secrets.values import DIGIT, is_stand_in

_SESSIONS = regex(
    r"(?i)(?:[\w.-]{0,30}sess(?:ion)?[\w.-]{0,24}|(?:connect\.)?sid|ssid|hsid|apisid|sapisid|nid_aut|nid_ses|[\w.-]{0,20}auth[\w.-]{0,20}|[\w.-]{0,24}token[\w.-]{0,16}|jwt|ct0|xs|fr|datr|li_at|sp_dc|sp_key|sso|kdt|twid|at-main|x-main|sess-at-main|cf_clearance|\.?roblosecurity|__secure-[\w-]{1,24}|__host-[\w-]{1,24}|remember[\w-]{0,40}|wordpress_logged_in[\w-]{0,40}|laravel[\w-]{0,24}|steamloginsecure|steamrefresh_steam|jsessionid|phpsessid|asp\.net_sessionid|estsauth\w{0,12}|rtfa|fedauth|bduss|stoken|passport\w{0,16}|sessdata|bili_jct|z_c0|uid_tt|netflixid|securenetflixid|cookie2|_tb_token_|pt_key|pt_pin|skey|p_skey)"
)
_NOT_SESSIONS = regex(r"(?i)csrf_?(?:param|header)|_ga|ig_did|guest|author|consent|expire|lang|theme|timezone")
_COOKIES = Anchors('"value"', "'value'")
_COOKIE_BACK = regex(r"""(?P<q>["'])value(?P=q)\s{0,3}:\s{0,3}(?P=q)(?P<value>[^"'\n]{6,4096})(?P=q)""")
_NAME_BEHIND = regex(r"""(?P<q>["'])name(?P=q)\s{0,3}:\s{0,3}(?P=q)(?P<name>[\w.-]{1,60})(?P=q)""")
_HEADERS = Anchors("cookie")
_CRUMB = regex(r"(?P<name>[\w.-]{1,60})=(?P<value>[^;\s\"'`,]{8,4096})")
_JARS = Anchors("true\t")
_JAR = regex(r"(?:TRUE|FALSE)\t/[^\t\n]{0,100}\t(?:TRUE|FALSE)\t\d{1,12}\t(?P<name>[^\t\n]{1,60})\t(?P<value>[^\t\n]{8,4096})")


@tried_at(_COOKIES, _HEADERS, _JARS)
def in_cookies(piece: Text) -> Iterator[Span]:
    """Find browser sessions: cookies exported as JSON or as a cookie jar, and cookie headers in code."""
    text = piece.text
    if not _COOKIES.absent(piece) and "name" in text:
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
    if not _HEADERS.absent(piece):
        done = 0
        for at in _HEADERS.positions(piece):
            if at < done:
                continue
            line = text.find("\n", at, at + 4000)
            done = line if line >= 0 else min(len(text), at + 4000)
            for match in _CRUMB.finditer(text, at, done):
                if _is_session(match["name"]) and _is_session_value(match["value"]):
                    yield Span(*match.span("value"), "password")
    if not _JARS.absent(piece):
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
