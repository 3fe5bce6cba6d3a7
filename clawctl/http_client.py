"""The HTTP client of clawctl: `Client` for many calls or streams on an event loop, `fetch` for a single blocking call.

Calls go through aiohttp, and so do streams through a proxy. Other streams have connections of their own (`http_streams.py`), and
clawctl's own vLLM has a faster way still (`clawctl.engines.vllm.multiplex`). Cancelling a call closes its connection. Callers that
retry use the delays of `clawctl.backoff`.
"""

import asyncio
import ssl
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import certifi
from yarl import URL

from clawctl.http_streams import ERROR_BYTES, IDLE_S, Disconnected, ResponseReceiver, StreamCall, Streams
from clawctl.http_streams import RequestFailed as RequestFailed
from clawctl.http_streams import Unreachable as Unreachable

CONNECT_S = 10.0
LONGEST_ANSWER = 64 << 20  # bytes of a complete answer; larger answers are rejected
_THIS_MACHINE = ("127.0.0.1", "::1", "localhost")


class TimedOut(RequestFailed):
    """The server accepted the connection, but its answer did not arrive in time."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    url: str
    status: int
    body: bytes
    retry_after: str | None  # the header


class Stream:
    """A response whose headers have arrived. With a receiver, a task passes the body on to it."""

    def __init__(self, response: aiohttp.ClientResponse, longest: int, receiver: ResponseReceiver | None) -> None:
        self._response, self._longest, self.status = response, longest, response.status
        self._passing_on = None if receiver is None else asyncio.ensure_future(self._pass_on(receiver))

    @property
    def retry_after(self) -> str | None:
        return self._response.headers.get("retry-after")

    async def _pass_on(self, receiver: ResponseReceiver) -> None:
        error: str | None = "the answer cannot be read"
        try:
            with _failures(self._response.url):
                async for data in self._response.content.iter_any():
                    receiver.feed(data)
            error = None
        except RequestFailed as failure:
            error = str(failure)
        finally:
            if self._passing_on is not None:  # otherwise nobody needs the rest
                receiver.ended(error)

    async def read(self) -> bytes:
        """The complete body of a response without a receiver. Of an error, only the beginning is kept. Raises RequestFailed."""
        pieces, size, ok = list[bytes](), 0, self.status == 200
        try:
            with _failures(self._response.url):
                async for data in self._response.content.iter_any():
                    size += len(data)
                    if size > self._longest and ok:
                        raise RequestFailed(f"its answer is longer than {self._longest >> 20} MiB")
                    pieces.append(data)
                    if size > ERROR_BYTES and not ok:
                        break
            return b"".join(pieces)
        finally:
            self.release()

    def release(self) -> None:
        """Return the connection of a finished response to the pool. The connection of any other response is closed."""
        task, self._passing_on = self._passing_on, None
        if task is not None:
            task.cancel()
        self._response.release() if self._response.content.at_eof() else self._response.close()


class Client:
    """Requests to one server, any number of them concurrently. Bodies are JSON. Close it on the event loop that used it."""

    def __init__(
        self,
        url: str,
        key: str | None,
        headers: Mapping[str, str] | None = None,
        longest: int = LONGEST_ANSWER,
        proxy: str | None = None,
        connect_s: float = CONNECT_S,
    ) -> None:
        """`longest`: the maximum number of bytes of a complete answer; streams have no limit. `proxy`: URL of an HTTP proxy."""
        self.url, self._longest, self._proxy, self._connect_s = url.rstrip("/"), longest, proxy, connect_s
        self._headers = {**json_headers(key), **(headers or {})}
        self._session: aiohttp.ClientSession | None = None
        self._streams: Streams | None = None

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def request(
        self,
        path: str,
        body: bytes = b"",
        timeout_s: float | None = None,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """The complete answer, with any status. `headers` are added to those of the client. Raises RequestFailed, Unreachable if no
        server listens, and TimedOut."""
        try:
            async with asyncio.timeout(timeout_s):
                stream = await self._by_aiohttp(path, body, None, method, headers)
                return HttpResponse(self.url + path, stream.status, await stream.read(), stream.retry_after)
        except TimeoutError as error:
            raise TimedOut(f"no answer in {timeout_s:g} s") from error

    async def stream(self, path: str, body: bytes, receiver: ResponseReceiver) -> Stream | StreamCall:
        """The response to a POST, once its headers have arrived. With status 200 the body goes to `receiver`; otherwise `read`
        returns it. The caller releases the response. Raises RequestFailed."""
        if self._proxy is not None or "@" in self.url:
            return await self._by_aiohttp(path, body, receiver)
        if self._streams is None:
            with _failures(URL(self.url)):
                self._streams = Streams(self.url, self._headers, self._tls_context(), self._connect_s)
        return await self._streams.stream(path, body, receiver)

    async def _by_aiohttp(
        self,
        path: str,
        body: bytes,
        receiver: ResponseReceiver | None,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
    ) -> Stream:
        session, url, all_headers = self._opened(), URL(self.url + path, encoded=True), {**self._headers, **(headers or {})}
        while True:
            reused = SimpleNamespace(is_reused=False)
            try:
                with _failures(url):
                    response = await session.request(
                        method, url, data=body, headers=all_headers, proxy=self._proxy, allow_redirects=False,
                        trace_request_ctx=reused,
                    )  # fmt: skip
            except Disconnected:
                if reused.is_reused:
                    continue  # the server has closed a kept connection in the meantime
                raise
            if response.status == 101:
                response.close()
                raise RequestFailed("the server does not speak HTTP any more")
            return Stream(response, self._longest, receiver if response.status == 200 else None)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            trace = aiohttp.TraceConfig()
            trace.on_connection_reuseconn.append(_mark_reused)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=self._tls_context() or True, keepalive_timeout=IDLE_S),
                request_class=_Request,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("user-agent",),
                auto_decompress=False,
                trace_configs=[trace],
            )
        return self._session

    def _tls_context(self) -> ssl.SSLContext | None:
        return _tls_context() if self.url.startswith("https:") else None

    async def close(self) -> None:
        if self._streams is not None:
            self._streams.close()
        if self._session is not None:
            await self._session.close()


class _Request(aiohttp.ClientRequest):
    async def send(self, conn: Any) -> aiohttp.ClientResponse:
        """Refuses a kept connection on which data has arrived that no request asked for: it would be taken for the answer."""
        if conn.protocol.should_close:
            conn.close()
            raise aiohttp.ServerDisconnectedError
        return await super().send(conn)


async def _mark_reused(session: object, context: SimpleNamespace, params: object) -> None:
    context.trace_request_ctx.is_reused = True


@contextmanager
def _failures(url: URL) -> Iterator[None]:
    """Raises RequestFailed for aiohttp's exceptions."""
    try:
        yield
    except (aiohttp.ClientHttpProxyError, aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        reason = f"the proxy answers {error.status}" if isinstance(error, aiohttp.ClientHttpProxyError) else error
        raise Unreachable(f"{url.host}:{url.port} cannot be reached: {reason}") from error
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
        raise Disconnected("the connection was lost") from error
    except aiohttp.ClientResponseError as error:
        raise RequestFailed(f"the server does not speak HTTP: {error.message}") from error
    except aiohttp.ClientError as error:
        raise RequestFailed("the connection was lost") from error
    except ValueError as error:  # a line break in a header, or an invalid URL
        raise RequestFailed(str(error)) from error


def fetch(
    method: str,
    url: str,
    body: bytes = b"",
    key: str | None = None,
    headers: dict[str, str] | None = None,
    timeout_s: float = 60.0,
    connect_s: float = CONNECT_S,
) -> HttpResponse:
    """One blocking request over its own connection, through the environment's proxy if one is set. Redirects are not followed. For
    threads without an event loop. Raises like `Client.request`."""
    parts = urlsplit(url)
    server = f"{parts.scheme}://{parts.netloc}"

    async def once() -> HttpResponse:
        async with Client(server, key, headers, proxy=proxy_for(url), connect_s=connect_s) as client:
            return await client.request(url.removeprefix(server), body, timeout_s, method)

    return asyncio.run(once())


def _tls_context() -> ssl.SSLContext:
    """A context that trusts the system's certificates, and certifi's because a bare container has none. SSL_CERT_FILE and
    SSL_CERT_DIR replace both."""
    context, paths = ssl.create_default_context(), ssl.get_default_verify_paths()
    if paths.cafile in (None, paths.openssl_cafile) and paths.capath in (None, paths.openssl_capath):
        context.load_verify_locations(certifi.where())
    return context


def json_headers(key: str | None) -> dict[str, str]:
    authorization = {"authorization": f"Bearer {key}"} if key else {}
    return {**authorization, "content-type": "application/json", "accept-encoding": "identity"}


def proxy_for(url: str) -> str | None:
    """The proxy that the environment sets for `url` (`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`), if any. Requests to
    this machine never use a proxy."""
    parts, proxies = urlsplit(url), urllib.request.getproxies()
    host, proxy = parts.hostname or "", proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or host in _THIS_MACHINE or urllib.request.proxy_bypass(host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
