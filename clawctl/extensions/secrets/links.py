"""Finds addresses that are secrets themselves: whoever has the link is logged in, may write there, or uses up a quota."""

import re
from collections.abc import Iterator

from clawctl.extensions.secrets.text import BLOBS, Anchors, Span, Text, regex, tried_at
from clawctl.extensions.secrets.values import EXAMPLE, UUID_ALONE, is_opaque, is_strong_key
from clawctl.extensions.secrets.vocabulary import LISTS, words_of

# Path segments that precede such a secret. In an ordinary path a word follows, which is not a secret.
_PURPOSES = LISTS["purposes of links"].split()
_ANCHORS = Anchors(*(f"/{purpose}/" for purpose in _PURPOSES), *words_of("addresses of links"))
_LINK = regex(
    rf"(?i)(?:hooks?(?:b2)?(?:\.[\w.-]{{1,60}})?(?::\d{{1,5}})?/(?:[a-z]{{1,16}}/){{0,3}}|/(?:{'|'.join(_PURPOSES)})/(?:[a-z]{{2,12}}/){{0,2}}|/services/(?=T)|/bot(?=\d{{5,14}}:)"
    r"|infura\.io/(?:ws/)?v3/|alchemy\.com/v2/|rpc\.ankr\.com/(?:[a-z_]{2,24}/){1,2}|qui[ck]{1,2}node\.pro/|getblock\.io/(?:[a-z]{2,12}/){0,3}|blastapi\.io/|chainstack\.com/|moralis-nodes\.com/[a-z]{2,16}/"
    r"|hc-ping\.com/|healthchecks\.io/ping/|nosnch\.in/(?=[a-f0-9]{10})|cronitor\.link/p/|pagerduty\.com/integration/|macros/s/|betteruptime\.com/api/v1/heartbeat/)"
    r"(?P<value>[\w@/+.=%:~-]{8,512})"
)
_SHORT = regex(r"(?i)(?:/api/push/(?P<value>(?=[A-Za-z]*\d)[A-Za-z0-9]{10,40})|nosnch\.in/(?P<snitch>[a-f0-9]{10}))(?![\w-])")
_QUERY = regex(
    r"(?i)[?&;](?:sig|key|code|sign|auth|hash|x-amz-signature|x-goog-signature|signature|token|t|st|pwd|passcode|rlkey|resourcekey|ticket|secret|magic|invite|apikey|appid|subscription-key)=(?P<value>[\w%.~+/=-]{20,1024})"
)


@tried_at(_ANCHORS, BLOBS)
def in_links(piece: Text) -> Iterator[Span]:
    """Find secret links: `https://app.example/auth/verify/8f…`, `hooks.example/…`, `https://mainnet.infura.io/v3/69…`,
    `?token=…`.
    """
    text = piece.text
    done = -1
    for at in _ANCHORS.positions(piece):
        if at < done:  # inside a path that was already searched
            continue
        link = _LINK.search(text, at, at + 600) if text.startswith("script.google", at) else _LINK.match(text, at)
        addressed = _in_address(text, at)
        done = link.end() if link and addressed else done
        if link and addressed and (first := _opaque_part(link["value"])) is not None:
            yield Span(link.start("value") + first, link.end("value"), "token")
        elif addressed and (short := _SHORT.search(text, max(0, at - 4), at + 60)):
            yield Span(*short.span(short.lastgroup or 0), "token")
    at = -1
    while (at := min((position for position in (text.find(mark, at + 1) for mark in "?&") if position >= 0), default=-1)) >= 0:
        query = _QUERY.match(text, at)
        if query and is_strong_key(query["value"]) and not EXAMPLE.search(query["value"][:200]):
            yield Span(*query.span("value"), "token")


def _in_address(text: str, at: int) -> bool:
    """Whether `at` is inside a URL, or a webhook host starts there."""
    before = text[max(0, at - 120) : at]
    return "://" in re.split(r"[\s\"'<>`]", before)[-1] or text.startswith(("hooks.", "hook."), at)


def _opaque_part(path: str) -> int | None:
    """Return the start of the first path segment that is not a word, or None."""
    at = 0
    for part in path.split("/"):
        if any(
            len(piece) >= 16 and (is_opaque(piece) or is_strong_key(piece) or UUID_ALONE.fullmatch(piece))
            for piece in re.split("[:@]", part)
        ):
            return at
        at += len(part) + 1
    return None
