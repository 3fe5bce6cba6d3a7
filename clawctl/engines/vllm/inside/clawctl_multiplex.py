"""Carries many requests to an ASGI application over one connection. All answer data of one turn of the event loop is one write. A
step of the engine thus costs one `send` and one `recv`, instead of one of each per stream.

A frame is the length of its content (4 bytes, big-endian), the number of its request (4) and its kind (1), then the content:

    READY   the application accepts requests (number 0)
    REQUEST path, newline, body: a POST of JSON
    CANCEL  the client discards the rest of the answer
    STATUS  the answer's status, in decimal
    PIECE   a piece of the answer's body
    END     the end of the answer; the content is the reason if it broke off, else empty
"""

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

FD = "CLAWCTL_MULTIPLEX_FD"  # the environment variable with the socket's descriptor
READY, REQUEST, CANCEL, STATUS, PIECE, END = range(6)
_HEAD = struct.Struct(">IIB")
_LONGEST = 1 << 30  # a longer frame means that the sender uses another protocol


def frame(number: int, kind: int, content: bytes = b"") -> bytes:
    return _HEAD.pack(len(content), number, kind) + content


class Frames:
    """Extracts frames from the bytes of a connection, with any boundaries between reads."""

    def __init__(self) -> None:
        self._partial = bytearray()  # the start of an incomplete frame
        self._needed = _HEAD.size  # length at which `_partial` can be parsed further

    def read(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """(number, kind, content) of the complete frames. Raises ValueError for invalid data."""
        if self._partial:
            self._partial += data
            if len(self._partial) < self._needed:
                return
            data = bytes(self._partial)
            self._partial.clear()
        at, total = 0, len(data)
        while total - at >= _HEAD.size:
            length, number, kind = _HEAD.unpack_from(data, at)
            if length > _LONGEST or kind > END:
                raise ValueError("this is no frame")
            end = at + _HEAD.size + length
            if end > total:
                self._needed = end - at
                break
            yield number, kind, data[at + _HEAD.size : end]
            at = end
        else:
            self._needed = _HEAD.size
        self._partial += data[at:]


async def answer_over_socket(app: Any) -> None:
    """Accept requests over the socket that the process was started with, if any. Does nothing if there are several API servers,
    because they share the load."""
    descriptor = os.environ.get(FD)
    servers = getattr(getattr(app.state, "args", None), "api_server_count", None)
    if descriptor is None or servers not in (None, 1):
        return
    end = socket.socket(fileno=int(descriptor))
    end.setblocking(False)
    connection = partial(_Connection, app, os.environ["VLLM_API_KEY"])
    await asyncio.get_running_loop().create_unix_connection(connection, sock=end)


class _Connection(asyncio.Protocol):
    """The server's end of the connection."""

    def __init__(self, app: Any, key: str) -> None:
        self._app, self._key = app, key
        self._frames = Frames()
        self._requests: dict[int, _Request] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending: list[bytes] = []  # frames of this turn of the loop
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self.queue(0, READY)

    def data_received(self, data: bytes) -> None:
        for number, kind, content in self._frames.read(data):
            if kind == REQUEST:
                path, _, body = content.partition(b"\n")
                request = self._requests[number] = _Request(self, number, body)
                task = self._loop.create_task(self._answer(request, path.decode()))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif kind == CANCEL and number in self._requests:
                self._requests[number].left.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.writable.set()
        for request in self._requests.values():
            request.left.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def queue(self, number: int, kind: int, content: bytes = b"") -> None:
        if not self._pending:
            self._loop.call_soon(self._write)
        self._pending.append(frame(number, kind, content))

    def _write(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(b"".join(self._pending))
        self._pending.clear()

    async def _answer(self, request: "_Request", path: str) -> None:
        try:
            await self._app(_scope(path, self._key, len(request.body)), request.receive, request.send)
        except Exception:  # the server continues with other requests
            logging.getLogger("uvicorn.error").exception("an exception in the application")
        finally:
            del self._requests[request.number]
            self.queue(request.number, END, b"" if request.complete else b"the server broke off its answer")


class _Request:
    """One request in ASGI form."""

    def __init__(self, connection: _Connection, number: int, body: bytes) -> None:
        self._connection, self.number, self.body = connection, number, body
        self._read = False
        self.left = asyncio.Event()
        self.complete = False

    async def receive(self) -> dict[str, Any]:
        if not self._read:
            self._read = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if self.left.is_set():
            return
        if message["type"] == "http.response.start":
            self._connection.queue(self.number, STATUS, b"%d" % message["status"])
            return
        if piece := message.get("body"):
            self._connection.queue(self.number, PIECE, bytes(piece))
        if not message.get("more_body"):
            self.complete = True
            self.left.set()  # like a closed connection: tasks that wait for its end are notified
        if not self._connection.writable.is_set():
            await self._connection.writable.wait()


def _scope(path: str, key: str, length: int) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"host", b"127.0.0.1"),
            (b"authorization", b"Bearer " + key.encode()),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % length),
        ],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 0),
        "state": {},
    }
