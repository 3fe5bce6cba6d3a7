"""POSTs over kept connections, against servers that write what they like on the wire."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.judge.calls import Calls
from clawctl.judge.posts import Broken, Posts, Unreachable
from clawctl.run_dir import RunDir

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.splitlines() if line.startswith(b"content-length"))
    return head + await reader.readexactly(length)


def against(serve: Serve, ask: Callable, timeout_s: float = 5.0) -> Any:
    """What `ask(posts, url)` gives while `serve` answers each connection."""

    async def both() -> Any:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await serve(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        posts = Posts(timeout_s, {"x-turn-type": "judge"}, trust_env=False)
        try:
            return await ask(posts, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/chat/completions")
        finally:
            await posts.close()
            server.close()

    return asyncio.run(both())


def saying(*pieces: bytes, stay: bool = True) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.01)
            if not stay:
                return

    return serve


async def once(posts: Posts, url: str) -> tuple[int, bytes]:
    answer = await posts.post(url, "key", b"{}")
    return answer.status, answer.body


def test_the_request_is_plain_http_with_our_headers_and_whole_body() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await read_request(reader))
        writer.write(OK)
        await writer.drain()

    assert against(serve, lambda posts, url: posts.post(url, "key", '{"a":"ü"}'.encode())).body == b"ok"
    head, _, body = seen[0].partition(b"\r\n\r\n")
    lines = head.decode().splitlines()
    assert lines[0] == "POST /v1/chat/completions HTTP/1.1"
    assert {"authorization: Bearer key", "x-turn-type: judge", "content-type: application/json", "content-length: 10"} <= set(lines)
    assert body.decode() == '{"a":"ü"}'


@pytest.mark.parametrize(
    "pieces",
    [
        (OK,),
        (b"HTTP/1.1 200 OK\r\nconte", b"nt-length: 2\r\n\r", b"\no", b"k"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n", b"1\r\nk\r\n0\r\n\r\n"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", OK),
        (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK,),
    ],
    ids=["whole", "in pieces", "chunked", "continue", "early hints"],
)
def test_an_answer_may_come_in_any_form(pieces) -> None:
    assert against(saying(*pieces), once) == (200, b"ok")


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_an_answer_without_a_length_ends_with_its_connection(version) -> None:
    assert against(saying(b"HTTP/" + version + b" 200 OK\r\n\r\no", b"k", stay=False), once) == (200, b"ok")


def test_a_refusal_has_its_body_and_says_when_to_come_back() -> None:
    busy = b"HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\ncontent-length: 4\r\n\r\nbusy"
    answer = against(saying(busy), lambda posts, url: posts.post(url, "", b"{}"))
    assert (answer.status, answer.body, answer.retry_after) == (429, b"busy", "7")


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ((b"nonsense\r\n\r\n",), "does not speak HTTP"),
        ((b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf",), "broke off"),
        ((b"HTTP/1.1 200 OK\r\ncontent-len",), "broke off"),
        ((b"",), "broke off"),
    ],
    ids=["no http", "half a body", "half a head", "nothing"],
)
def test_half_an_answer_is_none(pieces, why) -> None:
    with pytest.raises(Broken, match=why):
        against(saying(*pieces, stay=False), once)


def test_a_server_that_does_not_answer_in_time_is_given_up_and_its_late_answer_is_nobody_elses() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            slow = b"slow" in await read_request(reader)
            await asyncio.sleep(0.4 if slow else 0)
            writer.write(OK.replace(b"ok", b"!!") if slow else OK)
            await writer.drain()

    async def ask(posts: Posts, url: str) -> list[bytes]:
        with pytest.raises(Broken, match=r"no answer in 0\.2 s"):
            await posts.post(url, "", b"slow")
        await asyncio.sleep(0.3)
        return [(await posts.post(url, "", b"{}")).body for _ in range(3)]

    assert against(serve, ask, timeout_s=0.2) == [b"ok"] * 3


def test_a_connection_is_kept_and_one_that_the_server_closed_meanwhile_is_no_trouble() -> None:
    opened: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(0)
        for _ in range(3):  # then it is closed without a word
            await read_request(reader)
            opened[-1] += 1
            writer.write(OK)
            await writer.drain()

    async def ask(posts: Posts, url: str) -> list[bytes]:
        return [(await posts.post(url, "", b"{}")).body for _ in range(7)]

    assert against(serve, ask) == [b"ok"] * 7
    assert opened == [3, 3, 1]


def test_a_server_that_says_it_will_close_is_not_asked_there_again() -> None:
    closing = OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")

    async def ask(posts: Posts, url: str) -> list[bytes]:
        return [(await posts.post(url, "", b"{}")).body for _ in range(2)]

    assert against(saying(closing, stay=False), ask) == [b"ok"] * 2


def test_words_out_of_turn_are_never_taken_for_the_next_answer() -> None:
    async def ask(posts: Posts, url: str) -> list[bytes]:
        first = (await posts.post(url, "", b"{}")).body
        await asyncio.sleep(0.1)
        return [first, (await posts.post(url, "", b"{}")).body]

    assert against(saying(OK, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n!!"), ask) == [b"ok"] * 2


def test_nobody_there_is_told_apart_from_a_call_that_broke() -> None:
    async def ask() -> None:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        await Posts(1.0, {}, trust_env=True).post(f"http://127.0.0.1:{port}/v1", "", b"{}")

    with pytest.raises(Unreachable, match="cannot be reached"):
        asyncio.run(ask())


def test_a_proxy_that_the_environment_names_is_asked_and_only_for_given_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)
        await writer.drain()

    async def ask(posts: Posts, url: str) -> bytes:
        monkeypatch.setenv("http_proxy", url.removesuffix("/v1/chat/completions"))
        monkeypatch.setenv("no_proxy", "judge.inside")
        trusting = Posts(2.0, {}, trust_env=True)
        try:
            return (await trusting.post("http://judge.example/v1/chat/completions", "key", b"{}")).body
        finally:
            await trusting.close()

    assert against(serve, ask) == b"ok"
    assert asked[0].startswith(b"POST http://judge.example/v1/chat/completions HTTP/1.1")


@pytest.mark.parametrize("key", ["two\r\nlines", "a\tb", "kéy"])
def test_a_key_that_no_header_may_hold_is_a_problem_with_a_cure(run: RunDir, key: str) -> None:
    with pytest.raises(ClawError, match=r"judge\.api_key") as refused:
        Calls(run, Recipe.model_validate({"judge": {"endpoint": "http://127.0.0.1:9/v1", "api_key": key}}))
    assert refused.value.exit_code == 2
