"""The client of `inside/clawctl_multiplex.py`: carries all calls to clawctl's own vLLM over one connection."""

import asyncio
import logging
import socket
from itertools import count
from typing import cast

from clawctl.engines.vllm.inside.clawctl_multiplex import CANCEL, END, PIECE, READY, REQUEST, STATUS, Frames, frame
from clawctl.http_client import Client, HttpResponse, RequestFailed, Stream
from clawctl.http_streams import ResponseReceiver, StreamCall

_log = logging.getLogger("clawctl.serve")


class Call:
    """One call over the shared connection."""

    def __init__(self, link: "ChildLink", number: int, receiver: ResponseReceiver) -> None:
        self.link, self.number = link, number
        self._receiver: ResponseReceiver | None = receiver
        self._body = bytearray()  # body of a response without a receiver
        self._error: str | None = None
        self._whole = asyncio.Event()
        self.begun: asyncio.Future[int] = asyncio.get_running_loop().create_future()  # the status of the response

    def handle(self, kind: int, content: bytes) -> None:
        if kind == PIECE and self._receiver is not None:
            self._receiver.feed(content)
        elif kind == PIECE:
            self._body += content
        elif kind == STATUS and not self.begun.done():
            self.begun.set_result(int(content))
            self._receiver = self._receiver if int(content) == 200 else None

    def end(self, error: str | None) -> None:
        receiver, self._receiver, self._error = self._receiver, None, error
        self._whole.set()
        if not self.begun.done():
            self.begun.set_exception(RequestFailed(error or "there was no answer"))
        elif receiver is not None:
            receiver.ended(error)

    @property
    def status(self) -> int:
        return self.begun.result()

    async def read(self) -> bytes:
        """See `Stream.read`."""
        try:
            await self._whole.wait()
        finally:
            self.release()
        if self._error is not None:
            raise RequestFailed(self._error)
        return bytes(self._body)

    def release(self) -> None:
        """Discard the rest of the answer."""
        self.link.cancel(self)


class ChildLink(asyncio.Protocol):
    """The client's end of the connection."""

    def __init__(self) -> None:
        self.ready = False  # the server accepts calls over it
        self._frames, self._numbers = Frames(), count(1)
        self._calls: dict[int, Call] = {}
        self._transport: asyncio.Transport | None = None

    def call(self, path: str, body: bytes, receiver: ResponseReceiver) -> Call:
        call = Call(self, next(self._numbers) & 0xFFFFFFFF, receiver)
        self._calls[call.number] = call
        self._write(frame(call.number, REQUEST, path.encode() + b"\n" + body))
        return call

    def cancel(self, call: Call) -> None:
        """Discard the rest of the answer."""
        if self._calls.pop(call.number, None) is not None:
            self._write(frame(call.number, CANCEL))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _write(self, data: bytes) -> None:
        """Send immediately, so that the server begins with this request while clawctl reads the next one."""
        if self._transport is not None:
            self._transport.write(data)

    # ---- callbacks of asyncio --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for number, kind, content in self._frames.read(data):
            if kind == READY:
                self.ready = True
            elif kind == END:
                if (call := self._calls.pop(number, None)) is not None:
                    call.end(content.decode() or None)
            elif (call := self._calls.get(number)) is not None:
                try:
                    call.handle(kind, content)
                except Exception:  # noqa: BLE001 - a failure of one call must not end the others on its connection
                    _log.exception("cannot read an answer")
                    self.cancel(call)
                    call.end("it cannot be read")

    def connection_lost(self, exc: Exception | None) -> None:
        self.ready, self._transport = False, None
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.end("the connection was lost")


class Multiplexed:
    """A client whose streams share one connection, once its server supports it. Before that, and after the connection is lost, each
    stream has its own."""

    def __init__(self, plain: Client) -> None:
        self._plain, self._link = plain, ChildLink()

    async def share(self, end: socket.socket) -> None:
        """Use `end` as the shared connection from now on."""
        self._link.close()
        end.setblocking(False)
        _, self._link = await asyncio.get_running_loop().create_unix_connection(ChildLink, sock=end)

    async def request(self, path: str, body: bytes, timeout_s: float | None = None, method: str = "POST") -> HttpResponse:
        return await self._plain.request(path, body, timeout_s, method)

    async def stream(self, path: str, body: bytes, receiver: ResponseReceiver) -> Stream | StreamCall | Call:
        """See `Client.stream`."""
        if not self._link.ready:
            return await self._plain.stream(path, body, receiver)
        call = self._link.call(path, body, receiver)
        try:
            await call.begun
        except asyncio.CancelledError:
            call.release()
            raise
        return call

    async def close(self) -> None:
        self._link.close()
        await self._plain.close()
