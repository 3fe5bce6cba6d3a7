"""Web pages that may read answers: only those that the recipe names (`serve.cors_origins`).

A browser sends no key by itself, and cookies are never used, so a page needs its own key like any client. With `*` a page of any
origin may read answers to requests with a key, and nothing without one.
"""

import re
from collections.abc import Mapping, Sequence

from clawctl.serve.dialects import Refusal

Headers = list[tuple[bytes, bytes]]
_ANY = "*"
_AGE_S = b"600"  # a browser need not ask again so long
# Of our headers, those that a page may read beside the usual ones.
_TOLD = b"x-request-id, request-id, retry-after, allow, x-clawctl-ignored, x-clawctl-sampling"
_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+(\s*,\s*[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")
_LONGEST = 4096  # length of the list of headers that a page wants to send


class Cors:
    """The CORS headers for pages by origin."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = {origin.lower() for origin in origins}

    def marks(self, origin: str | None, has_key: bool) -> Headers:
        """The headers of an answer to a request with this `Origin`."""
        if not self._origins:
            return []
        vary = [(b"vary", b"Origin")]
        if origin is None or not self._allows(origin, has_key):
            return vary
        return [*vary, (b"access-control-allow-origin", origin.encode("latin-1")), (b"access-control-expose-headers", _TOLD)]

    def asks(self, headers: Mapping[str, str]) -> bool:
        """Whether a browser asks for a page, and pages are served at all: `preflight` answers it, under whichever name it came."""
        return bool(self._origins) and "origin" in headers and "access-control-request-method" in headers

    def preflight(self, headers: Mapping[str, str], allowed: str) -> Headers:
        """The headers that answer a browser's question before it asks, besides `marks`. Raises Refusal for a page that may not."""
        origin = headers.get("origin")
        if origin is None or not self.asks(headers):
            return []
        if not self._allows(origin, True):
            raise Refusal(
                403, f"pages of {origin[:100]!r} may not send requests: add the origin to serve.cors_origins", code="unknown_origin"
            )
        told: Headers = [(b"access-control-allow-methods", allowed.encode()), (b"access-control-max-age", _AGE_S)]
        wanted = headers.get("access-control-request-headers", "").strip()
        if len(wanted) <= _LONGEST and _NAMES.fullmatch(wanted):
            told.append((b"access-control-allow-headers", wanted.encode("latin-1")))
        if headers.get("access-control-request-private-network") == "true":
            told.append((b"access-control-allow-private-network", b"true"))
        return told

    def _allows(self, origin: str, has_key: bool) -> bool:
        return origin.lower() in self._origins or (_ANY in self._origins and has_key)
