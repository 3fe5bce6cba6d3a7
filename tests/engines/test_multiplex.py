"""Many calls over one connection to an ASGI application in place of vLLM's. Each gets the same as over its own connection."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from clawctl.engines.vllm.inside.clawctl_multiplex import CANCEL, FD, PIECE, Frames, answer_over_socket, frame
from clawctl.engines.vllm.multiplex import Multiplexed
from clawctl.http_client import Client, RequestFailed

FRAMES = st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 5), st.binary(max_size=40)), max_size=8)
TURNS = 200


@given(FRAMES, st.lists(st.integers(1, 60), min_size=1, max_size=40))
def test_frames_are_the_same_however_the_bytes_are_cut(frames: list[tuple[int, int, bytes]], cuts: list[int]) -> None:
    sent, reader, at = b"".join(frame(*parts) for parts in frames), Frames(), 0
    read = []
    for cut in [*cuts, len(sent)]:
        read += reader.read(sent[at : at + cut])
        at += cut
    assert read == frames


def test_invalid_frames_are_refused() -> None:
    with pytest.raises(ValueError, match="no frame"):
        list(Frames().read(b"HTTP/1.1 200 OK\r\n"))


class Said:
    """Receives the body of one call."""

    def __init__(self) -> None:
        self.body, self.over, self.error = b"", asyncio.Event(), ""

    def feed(self, data: bytes) -> None:
        self.body += data

    def ended(self, error: str | None) -> None:
        self.error = error or ""
        self.over.set()


class Engine:
    """The application, and the requests that it received."""

    def __init__(self) -> None:
        routes = [("/echo", self.echo), ("/refuse", self.refuse), ("/break", self.breaks), ("/endless", self.endless)]
        self.app = Starlette(routes=[Route(path, handle, methods=["POST"]) for path, handle in routes])
        self.app.state.args = SimpleNamespace(api_server_count=1)
        self.headers: dict[str, str] = {}
        self.told = 0
        self.gone = asyncio.Event()

    async def echo(self, request: Request) -> Response:
        self.headers = dict(request.headers)
        words = (await request.body()).split()

        async def pieces() -> Any:
            for word in words:
                yield word + b" "
                await asyncio.sleep(0)

        return StreamingResponse(pieces())

    async def refuse(self, request: Request) -> Response:
        return JSONResponse({"error": "too long"}, 400)

    async def breaks(self, request: Request) -> Response:
        async def pieces() -> Any:
            yield b"half"
            raise ValueError("in the middle")

        return StreamingResponse(pieces())

    async def endless(self, request: Request) -> Response:
        async def pieces() -> Any:
            try:
                while True:
                    yield b"x" * 1000
                    self.told += 1
                    await asyncio.sleep(0)
            finally:
                self.gone.set()

        return StreamingResponse(pieces())


def over_one_line(monkeypatch: pytest.MonkeyPatch, act: Callable[[Multiplexed, Engine, socket.socket], Awaitable[None]]) -> None:
    async def main() -> None:
        ours, its = socket.socketpair()
        client, engine = Multiplexed(Client("http://127.0.0.1:9", "key")), Engine()
        monkeypatch.setenv(FD, str(its.detach()))
        monkeypatch.setenv("VLLM_API_KEY", "secret")
        await client.share(ours)
        await answer_over_socket(engine.app)
        await asyncio.sleep(0.05)
        async with asyncio.timeout(30):
            await act(client, engine, ours)
        await client.close()

    asyncio.run(main())


def test_calls_that_run_at_once_have_each_their_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(client: Multiplexed, engine: Engine, ours: socket.socket) -> None:
        takers = [Said() for _ in range(50)]
        bodies = [b" ".join(b"%d-%d" % (i, j) for j in range(i)) + b" " for i in range(50)]
        calls = await asyncio.gather(*(client.stream("/echo", body, said) for body, said in zip(bodies, takers, strict=True)))
        await asyncio.gather(*(said.over.wait() for said in takers))
        assert [call.status for call in calls] == [200] * 50
        assert [said.body.strip() for said in takers] == [body.strip() for body in bodies]
        assert [said.error for said in takers] == [""] * 50
        assert engine.headers["authorization"] == "Bearer secret"
        assert engine.headers["content-type"] == "application/json"

    over_one_line(monkeypatch, act)


def test_a_large_body_comes_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(client: Multiplexed, engine: Engine, ours: socket.socket) -> None:
        said, body = Said(), b"y" * 20_000_000
        await client.stream("/echo", body, said)
        await said.over.wait()
        assert said.body == body + b" "

    over_one_line(monkeypatch, act)


def test_a_refusal_has_its_status_and_body(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(client: Multiplexed, engine: Engine, ours: socket.socket) -> None:
        said = Said()
        call = await client.stream("/refuse", b"{}", said)
        assert (call.status, await call.read()) == (400, b'{"error":"too long"}')
        call = await client.stream("/nowhere", b"{}", said)
        assert (call.status, await call.read()) == (404, b"Not Found")
        assert not said.over.is_set()

    over_one_line(monkeypatch, act)


def test_an_interrupted_answer_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(client: Multiplexed, engine: Engine, ours: socket.socket) -> None:
        said = Said()
        await client.stream("/break", b"{}", said)
        await said.over.wait()
        assert (said.body, said.error) == (b"half", "the server broke off its answer")

    over_one_line(monkeypatch, act)


def test_an_answer_that_its_taker_cannot_read_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Choking(Said):
        def feed(self, data: bytes) -> None:
            raise TypeError("this is no text")

    async def act(client: Multiplexed, engine: Engine, ours: socket.socket) -> None:
        choking, said = Choking(), Said()
        _, call = await asyncio.gather(client.stream("/endless", b"{}", choking), client.stream("/echo", b"a b c", said))
        await asyncio.gather(choking.over.wait(), said.over.wait(), engine.gone.wait())
        assert choking.error == "it cannot be read"
        assert (call.status, said.body, said.error) == (200, b"a b c ", "")

    over_one_line(monkeypatch, act)


def test_the_server_stops_when_the_client_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(client: Multiplexed, engine: Engine, ours: socket.socket) -> None:
        said = Said()
        call = await client.stream("/endless", b"{}", said)
        call.release()
        await engine.gone.wait()
        heard = len(said.body)
        await asyncio.sleep(0.05)
        assert len(said.body) == heard
        asking = asyncio.create_task(client.stream("/endless", b"{}", said))
        await asyncio.sleep(0)
        asking.cancel()  # before there is an answer
        engine.gone.clear()
        await engine.gone.wait()

    over_one_line(monkeypatch, act)


def test_a_lost_connection_ends_every_call_and_later_ones_have_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(client: Multiplexed, engine: Engine, ours: socket.socket) -> None:
        said = Said()
        await client.stream("/endless", b"{}", said)
        ours.shutdown(socket.SHUT_RDWR)
        await said.over.wait()
        assert said.error == "the connection was lost"
        await engine.gone.wait()
        with pytest.raises(RequestFailed, match="cannot be reached"):  # no server listens at the plain client's port
            await client.stream("/echo", b"{}", said)

    over_one_line(monkeypatch, act)


def test_a_server_that_is_not_read_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(client: Multiplexed, engine: Engine, ours: socket.socket) -> None:
        said = Said()
        call = await client.stream("/endless", b"{}", said)
        line: Any = call.link  # type: ignore[union-attr]
        line._transport.pause_reading()
        await asyncio.sleep(0.3)
        waits_at = engine.told
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert engine.told == waits_at
        line._transport.resume_reading()
        await asyncio.sleep(0.1)
        assert engine.told > waits_at
        call.release()
        await engine.gone.wait()

    over_one_line(monkeypatch, act)


def test_one_of_several_servers_leaves_the_calls_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        ours, its = socket.socketpair()
        with ours, its:
            monkeypatch.setenv(FD, str(its.fileno()))
            app = SimpleNamespace(state=SimpleNamespace(args=SimpleNamespace(api_server_count=2)))
            await answer_over_socket(app)
            ours.setblocking(False)
            with pytest.raises(BlockingIOError):  # it sends no READY, so no call uses it
                ours.recv(1)

    asyncio.run(main())


def test_a_cancellation_is_an_empty_frame() -> None:
    assert frame(7, CANCEL) == b"\0\0\0\0\0\0\0\7\2"
    assert frame(258, PIECE, b"ab") == b"\0\0\0\2\0\0\1\2\4ab"
