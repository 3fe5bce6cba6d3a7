"""Decodes text in base64 and hex."""

import base64
import binascii
import re
from collections.abc import Iterator

from clawctl.extensions.secrets.text import Text, regex

_BASE64 = regex(r"(?<![A-Za-z0-9+/_-])(?:[A-Za-z0-9+/]{16,}|[A-Za-z0-9_-]{16,})={0,2}(?![A-Za-z0-9+/_-])")
_HEX = regex(r"(?<![A-Za-z0-9])(?:[2-7][0-9a-fA-F]){16,}(?![A-Za-z0-9])")


def encoded(piece: Text) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and decoded text of base64 and hex runs that decode to text."""
    for start, end in piece.blobs:
        for match in _BASE64.finditer(piece.text, start, end):
            run = match[0]
            if run.islower() and run.isalpha():
                continue
            decoded = _decoded(run)
            if decoded is not None:
                yield *match.span(), decoded
            elif hexed := _HEX.match(run):
                decoded = bytes.fromhex(hexed[0]).decode("ascii", "replace")
                if decoded.isprintable():
                    yield match.start(), match.start() + hexed.end(), decoded


def is_login(name: str, value: str) -> bool:
    """Whether the value is a user and password in base64, as in Docker's `auth`."""
    if not name.lower().endswith(("auth", "authorization")) or _BASE64.fullmatch(value) is None:
        return False
    decoded = _decoded(value)
    return decoded is not None and _LOGIN.fullmatch(decoded) is not None


_LOGIN = regex(r"[\w.@+$-]{0,64}:\S{3,256}")


def _decoded(run: str) -> str | None:
    run = run.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        if not _is_text(binascii.a2b_base64(run[:16])):
            return None
        decoded = base64.b64decode(run[: len(run) - (len(run) % 4 == 1)] + "=" * (-len(run) % 4))
    except (binascii.Error, ValueError):
        return None
    return decoded.decode("utf-8", "replace") if _is_text(decoded[:4096]) else None


_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f-\xff]")


def _is_text(decoded: bytes) -> bool:
    return _NO_TEXT.search(decoded) is None
