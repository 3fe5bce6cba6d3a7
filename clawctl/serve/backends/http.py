"""A lean HTTP/1.1 client for streams: pieces of a body go to whom they concern as they are read, without a task in between."""

import asyncio
import ssl
import time
from collections import deque
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

_IDLE_S = 3.0  # a connection idle for longer is not used again: servers close theirs after 5 s (uvicorn) or more
_CONNECT_S = 10.0
_ERROR_BYTES = 64 << 10


class UpstreamGone(Exception):
    """The server cannot be reached, or broke off."""


class Taker(Protocol):
    """Whom the body of a response with status 200 concerns."""

    def feed(self, data: bytes) -> None: ...

    def ended(self, error: str | None) -> None:
        """The body is complete, or broke off for this reason."""
        ...


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._taker: Taker | None = None
        self._status: asyncio.Future[int] | None = None
        self._error_body = b""
        self._read: list[bytes] = []  # pieces of the body from one read: the taker gets them together
        self.on_body = self._read.append  # httptools calls it for each piece, that is, in a stream, for each token
        self._whole: asyncio.Future[None] | None = None
        self.began = False  # the server has answered something
        self.open = True
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    async def send(self, head: bytes, body: bytes, taker: Taker) -> int:
        """Send a request; the status when the response's head is there. Raises UpstreamGone."""
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._taker, self._status, self._whole = taker, loop.create_future(), loop.create_future()
        self._error_body, self.began = b"", False
        self._transport.write(head + body)
        return await self._status

    async def error_body(self) -> bytes:
        """The whole body of a response whose status was not 200."""
        assert self._whole is not None
        await self._whole
        return self._error_body

    def close(self) -> None:
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    # ---- what asyncio says -----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self.began = True
        if self._whole is None or self._whole.done():
            self.close()  # it speaks out of turn
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._broke_off(f"the server does not speak HTTP: {error}")
            self.close()
        else:
            self._pass_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._broke_off(f"the connection broke off{f': {exc}' if exc else ''}")

    # ---- what httptools says ---------------------------------------------------------------------------------------------

    def on_headers_complete(self) -> None:
        assert self._status is not None
        if not self._status.done():
            self._status.set_result(self._parser.get_status_code())

    def _pass_on(self) -> None:
        if not self._read:
            return
        data = b"".join(self._read)
        self._read.clear()
        if self._parser.get_status_code() == 200 and self._taker is not None:
            self._taker.feed(data)
        elif len(self._error_body) < _ERROR_BYTES:
            self._error_body += data

    def on_message_complete(self) -> None:
        self._pass_on()
        assert self._whole is not None
        self.open = self.open and self._parser.should_keep_alive()
        self.idle_since = time.monotonic()
        if not self._whole.done():
            self._whole.set_result(None)
        if self._parser.get_status_code() == 200 and self._taker is not None:
            self._taker.ended(None)
        self._taker = None

    def _broke_off(self, why: str) -> None:
        self._pass_on()
        if self._status is not None and not self._status.done():
            self._status.set_exception(UpstreamGone(why))
        elif self._taker is not None:
            self._taker.ended(why)
        if self._whole is not None and not self._whole.done():
            self._whole.set_result(None)
        self._taker = None

    @property
    def free(self) -> bool:
        """Whether another request may follow."""
        return self.open and self._whole is not None and self._whole.done()


class Client:
    """POSTs to one server, over connections that are kept."""

    def __init__(self, url: str, key: str | None) -> None:
        parts = urlsplit(url)
        self._host, self._tls = parts.hostname or "", parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        authorization = f"authorization: Bearer {key}\r\n" if key else ""
        self._common = f"host: {parts.netloc.rpartition('@')[2]}\r\n{authorization}content-type: application/json\r\n"
        self._idle: deque[Connection] = deque()

    async def post(self, path: str, body: bytes, taker: Taker) -> tuple[Connection, int]:
        """The connection and the status of the response, whose body goes to `taker`. Raises UpstreamGone."""
        head = f"POST {self._prefix}{path} HTTP/1.1\r\n{self._common}content-length: {len(body)}\r\n\r\n".encode()
        while True:
            connection, fresh = self._kept(), False
            if connection is None:
                connection, fresh = await self._connect(), True
            try:
                return connection, await connection.send(head, body, taker)
            except UpstreamGone:
                if fresh or connection.began:
                    raise  # a kept connection that the server had closed meanwhile is no trouble: another is taken
            except asyncio.CancelledError:
                connection.close()
                raise

    def give_back(self, connection: Connection) -> None:
        """The request is over; what is still coming is not wanted."""
        if connection.free:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _kept(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.open and time.monotonic() - connection.idle_since < _IDLE_S:
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        context = ssl.create_default_context() if self._tls else None
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, connection = await loop.create_connection(Connection, self._host, self._port, ssl=context)
        except (OSError, TimeoutError) as error:
            raise UpstreamGone(f"{self._host} port {self._port} cannot be reached: {error or 'it does not answer'}") from error
        return connection


class Whole:
    """A taker that keeps the body."""

    def __init__(self) -> None:
        self.body = b""
        self.error: str | None = None
        self._done = asyncio.Event()

    def feed(self, data: bytes) -> None:
        self.body += data

    def ended(self, error: str | None) -> None:
        self.error = error
        self._done.set()

    async def wait(self) -> bytes:
        await self._done.wait()
        if self.error is not None:
            raise UpstreamGone(self.error)
        return self.body


async def post_whole(client: Client, path: str, body: bytes) -> tuple[int, bytes]:
    """Status and body. Raises UpstreamGone."""
    taker = Whole()
    connection, status = await client.post(path, body, taker)
    try:
        return status, await (taker.wait() if status == 200 else connection.error_body())
    finally:
        client.give_back(connection)
