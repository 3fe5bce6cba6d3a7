"""Every limit of serve, over real HTTP: too large, too slow, too many."""

import asyncio
import resource
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import orjson
import pytest
import uvloop
from asking import body, post
from served import Server, perturbed

from clawctl.config import LimitsConfig
from clawctl.run.keys import add_key, remove_key
from clawctl.run.policies import move_live, publish_policy
from clawctl.run.rows import Policy
from clawctl.serve.limits import GatheringTransport, limited
from scripts.asgi import serving
from tests.waiting import until

LIMITS = {"body_mb": 0.01, "header_kb": 4, "header_s": 2, "body_s": 1, "stalled_s": 1, "connections": 16, "concurrent_per_key": 2}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[Server]:
    """A server with narrow limits."""
    with Server(tmp_path_factory.mktemp("small") / "run", model_path, limits=LIMITS) as running:
        yield running
        assert running.stop() == 0, running.log.read_text()
        assert "Traceback" not in running.log.read_text()


def address(server: Server) -> tuple[str, int]:
    host, port = server.url.split("//")[1].split("/")[0].split(":")
    return host, int(port)


def dial(server: Server) -> socket.socket:
    return socket.create_connection(address(server), timeout=30)


def told(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """Status and JSON of the only answer on a connection that the server closes."""
    data = b""
    while more := connection.recv(65536):
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    assert b"application/json" in head, data
    return int(head.split()[1]), orjson.loads(body)


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer key\r\n"


# ---- too large -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [b"GET /health HTTP/1.1\r\nX: " + b"a" * 6000 + b"\r\n\r\n", b"GET /" + b"a" * 6000, b"GET / HTTP/1.1\r\nX: " + b"b" * 9000],
)
def test_headers_that_are_too_large_are_431_even_if_they_never_end(small: Server, head: bytes) -> None:
    with dial(small) as connection:
        connection.sendall(head)
        status, answer = told(connection)
    assert (status, answer["error"]["message"]) == (431, "the headers are larger than 4 KB")


def test_a_body_that_is_too_large_is_413_declared_or_not(small: Server) -> None:
    answer = post(small, b"x" * 20_000)
    assert (answer.status_code, answer.json()["error"]["message"]) == (413, "the body is larger than 0.01 MB")
    with dial(small) as connection:
        connection.sendall(
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"2710\r\n" + b"x" * 10_000 + b"\r\n2710\r\n" + b"x" * 10_000
        )
        status, _ = told(connection)
    assert status == 413


# ---- too slow --------------------------------------------------------------------------------------------------------------


def test_slow_headers_and_slow_bodies_are_408_and_silence_is_hung_up_on(small: Server) -> None:
    with dial(small) as silent, dial(small) as slow, dial(small) as blank, dial(small) as lazy:
        slow.sendall(b"GET /health HTT")
        blank.sendall(b"\r\n")
        lazy.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        status, answer = told(lazy)
        assert (status, answer["error"]["message"]) == (408, "the body did not arrive within 1 seconds")
        status, answer = told(slow)
        assert (status, answer["error"]["message"]) == (408, "the headers did not arrive within 2 seconds")
        assert silent.recv(100) == b""
        assert blank.recv(1) in (b"", b"H")


def test_a_client_that_reads_nothing_is_disconnected_and_its_answer_is_cancelled() -> None:
    ended: list[int] = []

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.create_task(disconnected(receive))
        frames = 0
        while not gone.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
            frames += 1
        ended.append(frames)

    settings = {"http": limited(LimitsConfig(stalled_s=0.5)), "ws": "none", "log_config": None}
    with serving(endless, **settings) as url, socket.create_connection(("127.0.0.1", urlsplit(url).port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda: bool(ended))
        assert ended[0] < 1000  # 64 MB: data that is not read is not produced either
        until(lambda: is_reset(connection))


async def disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def test_requests_that_pile_up_on_one_connection_end_it(small: Server) -> None:
    with dial(small) as connection:
        until(lambda: not piled_up(connection))
    assert small.health()["status"] == "ok"


def piled_up(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
    except OSError:
        return False
    return True


def is_reset(connection: socket.socket) -> bool:
    try:
        connection.send(b"\r\n")
    except OSError:
        return True
    return False


# ---- too many --------------------------------------------------------------------------------------------------------------


def test_one_connection_too_many_is_503_when_all_are_busy(small: Server) -> None:
    connections = [dial(small) for _ in range(16)]
    try:
        for connection in connections:
            connection.sendall(HEAD + b"Content-Length: 10\r\n\r\n")
        with dial(small) as one_more:
            status, answer = told(one_more)
        assert (status, answer["error"]["type"]) == (503, "server_error")
    finally:
        for connection in connections:
            connection.close()
    until(lambda: healthy(small))


def test_idle_connections_are_closed_for_new_ones_unused_ones_and_the_oldest_first(small: Server) -> None:
    ask = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    connections = [dial(small) for _ in range(4)]
    for connection in connections:
        connection.sendall(ask)
        assert connection.recv(65536)
    silent = [dial(small) for _ in range(40)]
    try:
        for connection in silent[-2:] + connections:
            connection.sendall(ask)
            assert connection.recv(65536), "it was closed"
        assert small.say("hello").choices
        assert is_closed(silent[0])
    finally:
        for connection in connections + silent:
            connection.close()
    until(lambda: healthy(small))


def test_a_flood_of_idle_connections_does_not_use_up_the_files_of_the_stage(tmp_path: Path, model_path: Path) -> None:
    with NarrowServer(tmp_path / "run", model_path) as server:
        stream = server.say("hello", stream=True, max_tokens=1000, temperature=2)
        flood = [dial(server) for _ in range(400)]
        try:
            for _ in range(3):
                assert server.say("hello").choices
            policy = Policy(1, 0, 1, None, "full", str(model_path), [], None, {}, 0.0)
            publish_policy(server.run, policy, perturbed(model_path, 1).save_pretrained)
            move_live(server.run, 1)
            until(lambda: server.health()["live"] == 1)
            assert list(stream)
        finally:
            for connection in flood:
                connection.close()
        assert server.stop() == 0
        assert "Too many open files" not in server.log.read_text()


def is_closed(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1)
    except OSError:
        return True


class NarrowServer(Server):
    """A server that may open 200 files."""

    @staticmethod
    def starting(*arguments: Any, **settings: Any) -> Any:
        process = Server.starting(*arguments, **settings)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (200, 200))
        return process


def healthy(server: Server) -> bool:
    try:
        return bool(server.health()["status"] == "ok")
    except (httpx.HTTPError, KeyError):
        return False


def test_a_key_runs_so_many_requests_at_a_time_and_another_key_is_not_its_neighbour(small: Server) -> None:
    anna = add_key(small.run, "anna")
    until(lambda: post(small, body(), anna).status_code == 200)
    for _ in range(8):  # the random model may end early
        running = [small.say("hello", stream=True, n=4, max_tokens=2000, temperature=2) for _ in range(2)]
        for stream in running:
            next(iter(stream))
        refused = post(small, body())
        other = post(small, body(), anna)
        for stream in running:
            stream.close()
        until(lambda: small.health()["requests"]["running"] == 0)
        if refused.status_code == 429:
            break
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert other.status_code == 200
    assert post(small, body()).status_code == 200
    assert {line["key"] for line in small.captured()} == {"default", "anna"}
    remove_key(small.run, "anna")
    until(lambda: post(small, body(), anna).status_code == 401)


def test_a_running_stream_of_a_removed_key_ends_and_what_was_sampled_is_captured(small: Server) -> None:
    for number in range(8):  # the random model may end early
        key = add_key(small.run, name := f"guest-{number}")
        until(lambda key=key: post(small, body(), key).status_code == 200)
        streams = {
            owner: small.client.with_options(api_key=given).chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": owner}], stream=True, max_tokens=2000, temperature=2
            )
            for owner, given in ((name, key), ("default", "key"))
        }
        for stream in streams.values():
            next(iter(stream))
        remove_key(small.run, name)
        with suppress(openai.APIError):  # the server ends it, unless the answer has ended
            list(streams[name])
        status = next(line["status"] for line in reversed(small.captured()) if line["key"] == name)
        streams["default"].close()
        until(lambda: small.health()["requests"]["running"] == 0)
        if status == "cancelled":
            break
    assert status == "cancelled"


def test_a_whole_answer_of_a_removed_key_is_refused_with_the_reason(small: Server) -> None:
    for number in range(8):  # the random model may end early
        key = add_key(small.run, name := f"whole-{number}")
        until(lambda key=key: post(small, body(), key).status_code == 200)
        with ThreadPoolExecutor(1) as threads:
            pending = threads.submit(post, small, body(max_tokens=2000, temperature=2, n=4), key)
            until(lambda pending=pending: pending.done() or small.health()["requests"]["running"] > 0)
            remove_key(small.run, name)
            answer = pending.result()
        if answer.status_code != 200:
            break
    assert answer.status_code == 401
    assert "removed or replaced" in answer.json()["error"]["message"]


def test_what_is_written_in_one_step_of_the_event_loop_is_sent_at_once_and_before_the_end() -> None:
    async def main() -> tuple[bool, bytes, bytes]:
        ours, peer = socket.socketpair()
        loop = asyncio.get_running_loop()
        inner, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
        transport = GatheringTransport(inner, loop)
        peer.setblocking(False)
        with peer:
            transport.write(b"head, ")
            transport.write(b"body")
            try:
                peer.recv(100)
                is_held = False
            except BlockingIOError:
                is_held = True
            sent = await loop.sock_recv(peer, 100)
            transport.write(b"end")
            transport.close()
            return is_held, sent, await loop.sock_recv(peer, 100) + await loop.sock_recv(peer, 100)

    assert asyncio.run(main()) == (True, b"head, body", b"end")


def test_what_is_held_for_a_connection_that_closes_in_the_same_step_is_dropped() -> None:
    async def main() -> list[dict[str, object]]:
        ours, peer = socket.socketpair()
        loop, errors = asyncio.get_running_loop(), list[dict[str, object]]()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        inner, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
        transport = GatheringTransport(inner, loop)
        with peer:
            inner.abort()
            await asyncio.sleep(0.01)
            transport.write(b"too late")
            await asyncio.sleep(0.01)
        return errors

    assert uvloop.run(main()) == []
