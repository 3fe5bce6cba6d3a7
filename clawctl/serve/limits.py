"""Limits for clients: size and speed of a request, connections, and running requests per key.

Sizes and speeds are enforced on the connection itself, below the routes. A client that sends its headers byte by byte, or does not
read its answer, never reaches a route. With as many such clients as there are connections, nobody else would be answered: uvicorn
limits the number of running requests, but not the time that headers or a body take.
"""

import asyncio
import logging
import resource
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from clawctl.config import LimitsConfig

_log = logging.getLogger("clawctl.serve")
_GRACE_S = 5.0  # the routes refuse a slow body with a message; this is for clients that keep sending after that
_MAX_RESERVE = 2048  # file descriptors for captures, policies, engines and their files
_MAX_PIPELINED = 64  # requests that wait on one connection; real clients wait for an answer before they send the next request


@dataclass(frozen=True, slots=True)
class Descriptors:
    """The allocation of this process's file descriptors."""

    connections: int  # maximum number of open connections
    backlog: int  # connections that the kernel queues until they are accepted; all of them may arrive at once


def share_descriptors(connections: int, per_connection: int = 1) -> Descriptors:
    """Raise the descriptor limit as far as `connections` need and the system allows, and keep a reserve for the stage's own files.
    `per_connection`: descriptors per connection (a stream to an upstream needs another one)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections * per_connection + 2 * _MAX_RESERVE
    allowed = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
            soft = allowed
    if soft == resource.RLIM_INFINITY:
        return Descriptors(connections, _MAX_RESERVE)
    reserve = min(_MAX_RESERVE, soft // 3)
    return Descriptors(max(1, min(connections, (soft - reserve) // per_connection)), max(16, reserve // 2))


def limited(limits: LimitsConfig, connections: int | None = None) -> type[HttpToolsProtocol]:
    """A uvicorn HTTP protocol that enforces `limits`. If `connections` is smaller than their limit, it applies instead."""

    class Limited(LimitedProtocol):
        bounds = limits
        max_connections = limits.connections if connections is None else min(connections, limits.connections)
        open: ClassVar[dict[LimitedProtocol, None]] = {}

    return Limited


class GatheringTransport:
    """A transport that sends what is written in one step of the event loop with one call. uvicorn writes the head of a response and
    each piece of its body by themselves."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self._send)
        self._held.append(data)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._held:
            held, self._held = self._held, []
            if self._transport.is_closing():
                return  # the client left within this step: uvloop's closed transports raise
            self._transport.write(held[0] if len(held) == 1 else b"".join(held))


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits on sizes, speeds and the number of connections."""

    bounds: LimitsConfig = LimitsConfig()
    max_connections: int = bounds.connections
    open: ClassVar[dict["LimitedProtocol", None]]  # oldest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._head_bytes = self._parsed_bytes = 0  # of the request whose headers are arriving
        self._in_head = True  # also between requests, when only headers may follow
        self._refusal: tuple[int, str] | None = None
        self._head_complete = False  # a complete request head has arrived
        super().connection_made(GatheringTransport(transport, self.loop))  # type: ignore[arg-type]
        self.open[self] = None
        if len(self.open) > self.max_connections and not self._close_idle_connection():
            self._refuse(503, f"the server has {self.max_connections} connections, which is the limit")
            return
        self._expect_by(self.bounds.header_s)

    def _close_idle_connection(self) -> bool:
        """Close the oldest connection that has not sent a request yet, or else the oldest one that is idle. False if all are
        busy."""
        others = [connection for connection in self.open if connection is not self]
        idle = next((connection for connection in others if not connection._head_complete), None) or next(
            (connection for connection in others if connection._is_idle()), None
        )
        if idle is not None:
            self.open.pop(idle, None)
            idle.transport.abort()
        return idle is not None

    def _is_idle(self) -> bool:
        return (self.cycle is None or self.cycle.response_complete) and not self.pipeline

    def connection_lost(self, exc: Exception | None) -> None:
        self.open.pop(self, None)
        self._expect_by(None)
        self._stop_waiting()
        super().connection_lost(exc)

    # ---- coming in -------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
            if self._deadline is None:
                self._expect_by(self.bounds.header_s)
        super().data_received(data)
        # Parsed data is no longer part of a header. This detects a header that never ends; on_header detects a long one.
        if self._in_head and self._head_bytes > self.bounds.header_kb << 10 and not self.transport.is_closing():
            self._refuse(*self._too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._parsed_bytes = True, 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._parsed_bytes += size
        if self._parsed_bytes > self.bounds.header_kb << 10:
            self._refusal = self._too_large()
            raise ValueError("the headers are too large")  # the parser stops and `send_400_response` is called

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes, self._head_complete = False, 0, True
        self._expect_by(self.bounds.body_s + _GRACE_S)
        super().on_headers_complete()
        # uvicorn keeps reading after each answer, regardless of the number of waiting requests.
        if len(self.pipeline) > _MAX_PIPELINED:
            raise ValueError("too many requests are waiting on this connection")

    def on_message_complete(self) -> None:
        self._in_head, self._head_bytes = True, 0
        self._expect_by(None)
        super().on_message_complete()

    def _too_large(self) -> tuple[int, str]:
        return 431, f"the headers are larger than {self.bounds.header_kb} KB"

    def _expect_by(self, seconds: float | None) -> None:
        """Set the deadline for the next part of the request."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._deadline_passed)

    def _deadline_passed(self) -> None:
        self._deadline = None
        if self._in_head and self._head_bytes and (self.cycle is None or self.cycle.response_complete):
            self._refuse(408, f"the headers did not arrive within {self.bounds.header_s:g} seconds")
        elif self._in_head:
            self.transport.close()  # no request was sent
        else:
            self.transport.abort()

    # ---- going out -------------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_waiting()
        self._stalled = self.loop.call_later(self.bounds.stalled_s, self._disconnect_stalled)

    def _disconnect_stalled(self) -> None:
        _log.info("disconnected a client that read nothing for %g seconds", self.bounds.stalled_s)
        self.transport.abort()

    def resume_writing(self) -> None:
        self._stop_waiting()
        super().resume_writing()

    def _stop_waiting(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls this for bytes that are not HTTP."""
        self._refuse(*(self._refusal or (400, msg)))

    def _refuse(self, status: int, message: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()  # an answer is being sent, and the client would take the message for a part of it
            return
        error: dict[str, Any] = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        body = orjson.dumps({"error": error | ({"type": "server_error"} if status >= 500 else {})})
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()
