"""Finds private keys: PEM, PGP and PuTTY, complete or truncated."""

import re
from collections.abc import Iterator

from clawctl.extensions.secrets.text import Anchors, Span, Text, positions_of, regex, tried_at

_PEM = regex(r"-{4,5} ?BEGIN (?:[A-Z0-9 ]{0,24}PRIVATE KEY(?: BLOCK)?|OpenVPN Static key V1) ?-{4,5}")
_PEM_END = regex(r"-{4,5} ?END (?:[A-Z0-9 ]{0,24}PRIVATE KEY(?: BLOCK)?|OpenVPN Static key V1) ?-{4,5}")
_PEM_BODY = regex(r"""(?:[A-Za-z0-9+/=\s\\:,.()>|"'*#&;%]|-(?!----))*""")  # line ends may be escaped, quoted or indented
_PUTTY = regex(
    # Possibly quoted
    r"Private-Lines: \d{1,4}(?P<value>(?:(?:\s|\\r|\\n){1,4}(?:[>|*#]{1,4}[ \t]{0,4})?[A-Za-z0-9+/=]{4,80}){1,400})"
)


_HEADS = Anchors("private key", "openvpn static", "private-lines: ")


@tried_at(_HEADS, to_value_end=False)
def private_keys(piece: Text) -> Iterator[Span]:
    """Find private keys up to their end line. Without an end line, the match ends with the body of the key."""
    text, done = piece.text, 0 if "PRIVATE KEY" in piece.text or "OpenVPN Static" in piece.text else len(piece.text)
    while header := _PEM.search(text, done):
        start, done = header.span()
        body = _PEM_BODY.match(text, done)
        end = body.end() if body else done
        if len(re.sub(r"\\[nrt]|[^A-Za-z0-9+/=]", "", text[done : min(end, done + 2048)])) >= 32 and _DENSE_BODY.search(
            text, done, end
        ):
            closing = _PEM_END.match(text, end)
            done = closing.end() if closing else len(text[:end].rstrip())
            yield Span(start, done, "private_key")
    for at in positions_of(text, "Private-Lines: "):
        if match := _PUTTY.match(text, at):
            yield Span(*match.span("value"), "private_key")


_DENSE_BODY = regex(r"[A-Za-z0-9+/=]{24}")
