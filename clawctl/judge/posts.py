"""POSTs of JSON over HTTP/1.1 on kept connections: what a judge call needs of HTTP, at a tenth of a general client's cost.

A judge model that shares its processors with this stage would pay for that cost in answers. Where the environment names a proxy for
an endpoint, httpx asks instead: it knows proxies.
"""

import asyncio
import ssl
import time
import urllib.request
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import httpx

_IDLE_S = 3.0  # a connection idle for longer is not used again: servers close theirs after 5 s (uvicorn) or more
_CONNECT_S = 10.0
_Reply = tuple[int, str | None, bytes]  # status, Retry-After, body


class Unreachable(Exception):
    """Nobody listens there; the message says where."""


class Broken(Exception):
    """The call was sent and has no answer: the connection broke, timed out, or spoke something else than HTTP."""


@dataclass(frozen=True, slots=True)
class Answer:
    url: str
    status: int
    body: bytes
    retry_after: str | None  # the header


class Posts:
    """A client for any number of servers and calls at a time."""

    def __init__(self, timeout_s: float, headers: dict[str, str], trust_env: bool) -> None:
        """`trust_env`: proxies and certificates that the environment names are used, as httpx does."""
        self._timeout_s, self._headers, self._trust_env = timeout_s, headers, trust_env
        self._idle: dict[tuple[str, int, bool], list[_Connection]] = {}
        self._heads: dict[tuple[str, str], bytes] = {}
        self._through_proxy: dict[str, bool] = {}
        self._proxied: httpx.AsyncClient | None = None
        self._context: ssl.SSLContext | None = None

    async def post(self, url: str, key: str, body: bytes) -> Answer:
        """The whole answer, whatever its status. Raises Unreachable and Broken."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await (self._by_proxy if self._has_proxy(url) else self._straight)(url, key, body)
        except TimeoutError as error:
            raise Broken(f"no answer in {self._timeout_s:g} s") from error

    async def close(self) -> None:
        for kept in self._idle.values():
            for connection in kept:
                connection.close()
        self._idle.clear()
        if self._proxied is not None:
            await self._proxied.aclose()

    async def _straight(self, url: str, key: str, body: bytes) -> Answer:
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        server = (parts.hostname or "", parts.port or (443 if tls else 80), tls)
        kept = self._idle.setdefault(server, [])
        request = b"%bcontent-length: %d\r\n\r\n%b" % (self._head(url, key), len(body), body)
        while True:
            connection = _pop_live(kept)
            fresh = connection is None
            if connection is None:
                connection = await self._connect(*server)
            try:
                status, retry_after, answer = await connection.ask(request)
            except Broken:
                connection.close()
                if fresh or connection.began:
                    raise
                continue  # a kept connection that the server had closed meanwhile is no trouble: another is taken
            except BaseException:
                connection.close()
                raise
            if connection.reusable:
                kept.append(connection)
            else:
                connection.close()
            return Answer(url, status, answer, retry_after)

    def _head(self, url: str, key: str) -> bytes:
        """The request's head up to its length, made once."""
        head = self._heads.get((url, key))
        if head is None:
            parts = urlsplit(url)
            named = {"host": parts.netloc.rpartition("@")[2], **self._all_headers(key)}
            lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
            head = self._heads[url, key] = f"POST {parts.path or '/'} HTTP/1.1\r\n{lines}".encode("ascii")
        return head

    def _all_headers(self, key: str) -> dict[str, str]:
        authorization = {"authorization": f"Bearer {key}"} if key else {}
        return {**self._headers, **authorization, "content-type": "application/json", "accept-encoding": "identity"}

    async def _connect(self, host: str, port: int, tls: bool) -> "_Connection":
        if tls and self._context is None:
            self._context = httpx.create_ssl_context(trust_env=self._trust_env)
        try:
            async with asyncio.timeout(_CONNECT_S):
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_connection(_Connection, host, port, ssl=self._context if tls else None)
        except (OSError, TimeoutError) as error:
            raise Unreachable(f"{host}:{port} cannot be reached: {error or 'it does not answer'}") from error
        return connection

    def _has_proxy(self, url: str) -> bool:
        found = self._through_proxy.get(url)
        if found is None:
            parts, proxies = urlsplit(url), urllib.request.getproxies() if self._trust_env else {}
            named = bool({parts.scheme, "all"} & proxies.keys())
            found = self._through_proxy[url] = named and not urllib.request.proxy_bypass(parts.hostname or "")
        return found

    async def _by_proxy(self, url: str, key: str, body: bytes) -> Answer:
        if self._proxied is None:
            self._proxied = httpx.AsyncClient(timeout=httpx.Timeout(None, connect=_CONNECT_S))
        try:
            found = await self._proxied.post(url, content=body, headers=self._all_headers(key))
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            raise Unreachable(f"{url} cannot be reached: {error}") from error
        except httpx.TransportError as error:
            raise Broken(type(error).__name__) from error
        return Answer(url, found.status_code, found.content, found.headers.get("retry-after"))


def _pop_live(kept: list["_Connection"]) -> "_Connection | None":
    """The connection that was used last, if it is still good."""
    while kept:
        connection = kept.pop()
        if connection.reusable and time.monotonic() - connection.idle_since < _IDLE_S:
            return connection
        connection.close()
    return None


class _Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[_Reply] | None = None
        self.reusable = self.began = False  # began: the server has answered something
        self.idle_since = 0.0

    async def ask(self, request: bytes) -> _Reply:
        if self._transport is None or self._transport.is_closing():
            raise Broken("the connection is closed")
        self._parser: Any = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._retry_after: str | None = None
        self._sized = self._headed = self.reusable = self.began = False
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    # ---- what asyncio says -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.began = True
        if self._answer is None or self._answer.done():
            self.close()  # it speaks out of turn
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._broke_off(f"the server does not speak HTTP: {error}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and self._answer is not None and not self._answer.done() and self._headed and not self._sized:
            self.on_message_complete()  # an answer without a length ends with its connection
        self.reusable = False
        self._broke_off(f"the connection broke off{f': {exc}' if exc else ''}")

    # ---- what httptools says ---------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        lowered = name.lower()
        if lowered == b"retry-after":
            self._retry_after = value.decode("latin-1")
        elif lowered in (b"content-length", b"transfer-encoding"):
            self._sized = True

    def on_headers_complete(self) -> None:
        self._headed = True

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # "continue", "early hints": the answer follows
            self._headed = self._sized = False
            return
        self.reusable, self.idle_since = bool(self._parser.should_keep_alive()), time.monotonic()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((status, self._retry_after, b"".join(self._body)))

    def _broke_off(self, why: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Broken(why))
