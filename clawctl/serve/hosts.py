"""Controls browser access to this server: host names (`Hosts`) and web pages (`Cors`).

Without a check of host names, a web page could point its own name at 127.0.0.1 and read answers that need no key. An IP address
cannot be redirected, so every address is allowed; names must be known. A request with a valid key may use any name, because a web
page has no key.

Web pages may read answers only if the recipe names them (`serve.cors_origins`). A browser does not send a key by itself, and
cookies are never used, so a page needs its own key like any client. With `*`, a page of any origin may read answers to requests
with a key, but nothing without one.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from clawctl.config import ServeConfig
from clawctl.serve.dialects import Refusal

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")


class Hosts:
    """The host names that requests without a key may use."""

    def __init__(self, serve: ServeConfig) -> None:
        self._names = {_plain(name) for name in ("localhost", serve.host, *serve.allowed_hosts)}
        if not _is_loopback(serve.host):
            self._names.add(_plain(socket.gethostname()))

    def check(self, hosts: Sequence[str], origins: Sequence[str]) -> None:
        """Check a request without a key. `hosts` and `origins`: all values of these headers. Raises Refusal."""
        for host in hosts:
            match = _HOST.fullmatch(host.strip())
            if match is None or not self._is_allowed_name(match[1]):
                problem = f"{host[:100]!r} is not an allowed host name: send a key, or add the name to serve.allowed_hosts"
                raise Refusal(421, problem, code="unknown_host")
        for origin in origins:
            if not self._is_allowed_name(_name_of(origin)):
                problem = f"a web page of {origin[:100]!r} may not read this: send a key, or add its name to serve.allowed_hosts"
                raise Refusal(403, problem, code="unknown_origin")

    def _is_allowed_name(self, name: str | None) -> bool:
        if _ANY in self._names:
            return True
        if name is None:
            return False
        name = _plain(name)
        if name in self._names or name.endswith(".localhost") or _is_address(name):
            return True
        return any(f"{_ANY}{name[at:]}" in self._names for at in _dots(name))


def _name_of(origin: str) -> str | None:
    """The host name of an origin; None if it is opaque ("null") or invalid."""
    try:
        return urlsplit(origin.strip()).hostname
    except ValueError:
        return None


def _plain(name: str) -> str:
    return name.strip().strip("[]").rstrip(".").lower()


def _dots(name: str) -> Iterable[int]:
    return (at for at, letter in enumerate(name) if letter == ".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return _plain(host) == "localhost" or (_is_address(_plain(host)) and ipaddress.ip_address(_plain(host)).is_loopback)


Headers = list[tuple[bytes, bytes]]
_ANY = "*"
_AGE_S = b"600"  # seconds that a browser may cache a preflight response
# Response headers that a page may read in addition to the CORS-safelisted ones.
_READABLE = b"x-request-id, request-id, retry-after, allow, x-clawctl-ignored, x-clawctl-sampling"
_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+(\s*,\s*[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")
_LONGEST = 4096  # maximum length of the list of headers that a page wants to send


class Cors:
    """The CORS headers for web pages, by origin."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = {origin.lower() for origin in origins}

    def response_headers(self, origin: str | None, has_key: bool) -> Headers:
        """The headers of an answer to a request with this `Origin`."""
        if not self._origins:
            return []
        vary = [(b"vary", b"Origin")]
        if origin is None or not self._allows(origin, has_key):
            return vary
        return [*vary, (b"access-control-allow-origin", origin.encode("latin-1")), (b"access-control-expose-headers", _READABLE)]

    def is_preflight(self, headers: Mapping[str, str]) -> bool:
        """Whether the request is a preflight and CORS is enabled. `preflight` then answers it, regardless of the host name."""
        return bool(self._origins) and "origin" in headers and "access-control-request-method" in headers

    def preflight(self, headers: Mapping[str, str], allowed: str) -> Headers:
        """The headers that answer a preflight request, in addition to `response_headers`. Raises Refusal for a forbidden page."""
        origin = headers.get("origin")
        if origin is None or not self.is_preflight(headers):
            return []
        if not self._allows(origin, True):
            raise Refusal(
                403, f"pages of {origin[:100]!r} may not send requests: add the origin to serve.cors_origins", code="unknown_origin"
            )
        answered: Headers = [(b"access-control-allow-methods", allowed.encode()), (b"access-control-max-age", _AGE_S)]
        requested = headers.get("access-control-request-headers", "").strip()
        if len(requested) <= _LONGEST and _NAMES.fullmatch(requested):
            answered.append((b"access-control-allow-headers", requested.encode("latin-1")))
        if headers.get("access-control-request-private-network") == "true":
            answered.append((b"access-control-allow-private-network", b"true"))
        return answered

    def _allows(self, origin: str, has_key: bool) -> bool:
        return origin.lower() in self._origins or (_ANY in self._origins and has_key)
