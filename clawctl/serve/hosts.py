"""The host names of this server.

Without a check of host names, a web page could point its own name at 127.0.0.1 and read answers that need no key. An IP address
cannot be redirected, so every address is allowed; names must be known. A request with a valid key may use any name, because a web
page has no key. (starlette's TrustedHostMiddleware knows neither keys nor addresses.)

Web pages may read answers only if the recipe names them (`serve.cors_origins`, see `server.py`).
"""

import ipaddress
import re
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from clawctl.config import ServeConfig
from clawctl.engines.requests import Refusal

_ANY = "*"
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
        return any(f"{_ANY}{name[at:]}" in self._names for at, letter in enumerate(name) if letter == ".")


def _name_of(origin: str) -> str | None:
    """The host name of an origin; None if it is opaque ("null") or invalid."""
    try:
        return urlsplit(origin.strip()).hostname
    except ValueError:
        return None


def _plain(name: str) -> str:
    return name.strip().strip("[]").rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return _plain(host) == "localhost" or (_is_address(_plain(host)) and ipaddress.ip_address(_plain(host)).is_loopback)
