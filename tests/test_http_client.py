"""Whole answers and streams over kept connections, against servers that send arbitrary bytes."""

import asyncio
import base64
import email.utils
import ssl
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from clawctl.backoff import LONGEST_RETRY_AFTER_S, backoff_s, retry_after_s
from clawctl.engines.vllm.child import free_port
from clawctl.http_client import Client, HttpResponse, RequestFailed, TimedOut, Unreachable, fetch, proxy_for
from tests.wire import OK, Serve, against, read_request, saying

LONG = b"x" * 70_000


def asking(serve: Serve, ask: Callable[[Client], Awaitable[Any]]) -> Any:
    async def main(url: str) -> Any:
        async with Client(url, "key", {"x-turn-type": "judge"}) as client:
            return await ask(client)

    return against(serve, main)


Call = Callable[[Client, str], Awaitable[tuple[int, bytes]]]


async def complete(client: Client, path: str) -> tuple[int, bytes]:
    answer = await client.request(path, b"{}")
    return answer.status, answer.body


class Heard:
    """Receives the pieces of a stream."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.end: list[str | None] = []
        self.over = asyncio.Event()

    def feed(self, data: bytes) -> None:
        self.pieces.append(data)

    def ended(self, error: str | None) -> None:
        self.end.append(error)
        self.over.set()


async def as_stream(client: Client, path: str) -> tuple[int, bytes]:
    """The whole stream. Raises RequestFailed if it breaks off."""
    heard = Heard()
    stream = await client.stream(path, b"{}", heard)
    if stream.status != 200:
        return stream.status, await stream.read()
    try:
        await heard.over.wait()
    finally:
        stream.release()
    if heard.end != [None]:
        raise RequestFailed(str(heard.end))
    return 200, b"".join(heard.pieces)


both_ways = pytest.mark.parametrize("call", [complete, as_stream])


def bodies(call: Call, times: int, pause_s: float = 0.0) -> Callable[[Client], Awaitable[list[bytes]]]:
    async def ask(client: Client) -> list[bytes]:
        replies = []
        for _ in range(times):
            replies.append((await call(client, "/x"))[1])
            await asyncio.sleep(pause_s)
        return replies

    return ask


def once(call: Call) -> Callable[[Client], Awaitable[tuple[int, bytes]]]:
    return lambda client: call(client, "/x")


# ---- whole answers -------------------------------------------------------------------------------------------------------


@both_ways
def test_the_request_is_plain_http_with_our_headers_and_whole_body(call: Call) -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await read_request(reader))
        writer.write(OK)
        await writer.drain()

    assert asking(serve, lambda client: call(client, "/chat/completions")) == (200, b"ok")
    head, _, body = seen[0].partition(b"\r\n\r\n")
    lines = head.decode().splitlines()
    assert lines[0] == "POST /v1/chat/completions HTTP/1.1"
    lines = [line.partition(": ")[0].lower() + ": " + line.partition(": ")[2] for line in lines]
    assert {"authorization: Bearer key", "x-turn-type: judge", "content-type: application/json", "content-length: 2"} <= set(lines)
    assert sum(line.startswith("host: 127.0.0.1:") for line in lines) == 1
    assert body == b"{}"


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
@both_ways
def test_an_answer_may_come_in_any_form(call: Call, pieces) -> None:
    assert asking(saying(*pieces), once(call)) == (200, b"ok")


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@both_ways
def test_an_answer_without_a_length_ends_with_its_connection(call: Call, version) -> None:
    assert asking(saying(b"HTTP/" + version + b" 200 OK\r\n\r\no", b"k", stay=False), once(call)) == (200, b"ok")


@pytest.mark.parametrize("status", [200, 404])
@both_ways
def test_a_long_answer_is_whole(call: Call, status: int) -> None:
    assert asking(saying(b"HTTP/1.1 %d So\r\ncontent-length: %d\r\n\r\n%b" % (status, len(LONG), LONG)), once(call)) == (
        status,
        LONG,
    )


def flooding(status: int, pieces: int) -> tuple[Serve, list[int]]:
    """Announces an oversized body, and counts the pieces of 100 kB that it could send."""
    sent: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 %d So\r\ncontent-length: %d\r\n\r\n" % (status, pieces * 100_000))
        for piece in range(pieces):
            writer.write(b"x" * 100_000)
            await writer.drain()
            sent.append(piece)

    return serve, sent


def asking_for_little(serve: Serve, call: Call = complete) -> tuple[int, int]:
    """(status, length of the body) for a client that takes a megabyte at most."""

    async def main(url: str) -> tuple[int, int]:
        async with Client(url, "key", longest=1 << 20) as client:
            status, body = await call(client, "/x")
            return status, len(body)

    counts: tuple[int, int] = against(serve, main)
    return counts


def test_an_answer_that_is_too_long_is_none_and_is_not_read_to_its_end() -> None:
    serve, sent = flooding(200, 1000)
    with pytest.raises(RequestFailed, match="its answer is longer than 1 MiB"):
        asking_for_little(serve)
    assert len(sent) < 500


@both_ways
def test_an_endless_error_body_is_reported_by_its_beginning(call: Call) -> None:
    serve, sent = flooding(400, 1000)
    status, length = asking_for_little(serve, call)
    assert (status, 1 << 18 < length < 1 << 20, len(sent) < 500) == (400, True, True)


def test_an_answer_just_within_the_limit_is_whole() -> None:
    body = b"x" * (1 << 20)
    assert asking_for_little(saying(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))) == (200, 1 << 20)


def test_a_refusal_has_its_body_and_its_retry_after() -> None:
    busy = b"HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\ncontent-length: 4\r\n\r\nbusy"
    answer: HttpResponse = asking(saying(busy), lambda client: client.request("/x", b"{}"))
    assert (answer.status, answer.body, answer.retry_after) == (429, b"busy", "7")


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ((b"nonsense\r\n\r\n",), "does not speak HTTP"),
        ((b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nx",), "does not speak HTTP"),
        ((b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf",), "was lost"),
        ((b"HTTP/1.1 500 Oh\r\ncontent-length: 9\r\n\r\nhalf",), "was lost"),
        ((b"HTTP/1.1 200 OK\r\ncontent-len",), "was lost"),
        ((b"",), "was lost"),
    ],
    ids=["no http", "no http any more", "half a body", "half an error", "half a head", "nothing"],
)
@both_ways
def test_half_an_answer_is_none(call: Call, pieces, why) -> None:
    with pytest.raises(RequestFailed, match=why):
        asking(saying(*pieces, stay=False), once(call))


@both_ways
def test_an_unreachable_server_is_distinguished_from_a_broken_call(call: Call) -> None:
    async def ask() -> None:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        async with Client(f"http://127.0.0.1:{port}", None) as client:
            await call(client, "/v1")

    with pytest.raises(Unreachable, match="cannot be reached"):
        asyncio.run(ask())


# ---- kept connections ----------------------------------------------------------------------------------------------------


@both_ways
def test_a_connection_is_kept_and_one_that_the_server_closed_meanwhile_is_no_trouble(call: Call) -> None:
    opened: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(0)
        for _ in range(3):  # then it is closed without a word
            await read_request(reader)
            opened[-1] += 1
            writer.write(OK)
            await writer.drain()

    assert asking(serve, bodies(call, 7)) == [b"ok"] * 7
    assert opened == [3, 3, 1]


@both_ways
def test_a_connection_that_the_server_announces_to_close_is_not_reused(call: Call) -> None:
    closing = OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    assert asking(saying(closing, stay=False), bodies(call, 2)) == [b"ok"] * 2


ANOTHER = OK.replace(b"ok", b"!!")


@pytest.mark.parametrize(("pieces", "pause_s"), [((OK, ANOTHER), 0.3), ((OK + ANOTHER,), 0)], ids=["after it", "with it"])
@both_ways
def test_words_out_of_turn_are_never_taken_for_the_next_answer(call: Call, pieces: tuple[bytes, ...], pause_s: float) -> None:
    assert asking(saying(*pieces), bodies(call, 3, pause_s)) == [b"ok"] * 3


def test_half_an_unrequested_answer_fails_the_next_call() -> None:
    with pytest.raises(RequestFailed, match="does not speak HTTP"):
        asking(saying(OK + ANOTHER[:20], ANOTHER[20:]), bodies(complete, 2))


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n!!"], ids=["before", "within"])
@both_ways
def test_a_cancelled_call_closes_its_connection_and_its_late_answer_reaches_no_other_call(call: Call, begun: bytes) -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            if b"/slow" in await read_request(reader):
                writer.write(begun)
                assert await reader.read() == b""
                gone.set()
                return
            writer.write(OK)
            await writer.drain()

    async def ask(client: Client) -> list[bytes]:
        await call(client, "/x")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call(client, "/slow"), 0.1)
        later = await bodies(call, 3)(client)
        await asyncio.wait_for(gone.wait(), 5)
        return later

    assert asking(serve, ask) == [b"ok"] * 3


# ---- streams -------------------------------------------------------------------------------------------------------------


def streamed(*pieces: bytes, stay: bool = True) -> Heard:
    async def ask(client: Client) -> Heard:
        heard = Heard()
        stream = await client.stream("/x", b"{}", heard)
        assert stream.status == 200
        await asyncio.wait_for(heard.over.wait(), 5)
        stream.release()
        return heard

    return asking(saying(*pieces, stay=stay), ask)


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def test_pieces_are_delivered_as_they_are_read_and_those_of_one_read_together() -> None:
    heard = streamed(CHUNKED + b"1\r\na\r\n", b"1\r\nb\r\n1\r\nc\r\n", b"1\r\nd\r\n0\r\n\r\n")
    assert (heard.pieces, heard.end) == ([b"a", b"bc", b"d"], [None])


def test_a_stream_without_a_length_ends_with_its_connection() -> None:
    heard = streamed(b"HTTP/1.1 200 OK\r\n\r\na", b"b", stay=False)
    assert (heard.pieces, heard.end) == ([b"a", b"b"], [None])


def test_a_broken_stream_is_reported_once() -> None:
    heard = streamed(CHUNKED + b"1\r\na\r\n", stay=False)
    assert (heard.pieces, heard.end) == ([b"a"], ["the connection was lost"])


def test_an_errors_body_is_not_the_takers() -> None:
    async def ask(client: Client) -> tuple[int, bytes, list[bytes], list[str | None]]:
        heard = Heard()
        stream = await client.stream("/x", b"{}", heard)
        return stream.status, await stream.read(), heard.pieces, heard.end

    assert asking(saying(b"HTTP/1.1 400 No\r\ncontent-length: 2\r\n\r\n", b"n", b"o"), ask) == (400, b"no", [], [])


def test_a_receiver_that_fails_ends_its_own_stream_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Heard):
        def feed(self, data: bytes) -> None:
            raise ValueError

    async def ask(client: Client) -> tuple[list[str | None], tuple[int, bytes]]:
        failing = Failing()
        await client.stream("/x", b"{}", failing)
        await asyncio.wait_for(failing.over.wait(), 5)
        return failing.end, await as_stream(client, "/x")

    assert asking(saying(OK), ask) == (["the answer cannot be read"], (200, b"ok"))
    assert "cannot read an answer" in caplog.text


def test_streams_at_the_same_time_have_a_connection_each() -> None:
    async def ask(client: Client) -> list[tuple[int, bytes]]:
        return await asyncio.gather(*(as_stream(client, "/x") for _ in range(20)))

    assert asking(saying(OK), ask) == [(200, b"ok")] * 20


def test_a_stream_over_tls_trusts_the_certificates_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = self_signed(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def ask() -> list[tuple[int, bytes]]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(OK)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}/v1"
        async with server, Client(url, "key") as strange, Client(url, "key") as client:
            with pytest.raises(Unreachable, match="certificate"):
                await as_stream(strange, "/x")
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            return [await as_stream(client, "/x") for _ in range(2)]

    assert asyncio.run(ask()) == [(200, b"ok")] * 2


# ---- in time, and through a proxy -----------------------------------------------------------------------------------------


async def posted(url: str, body: bytes = b"{}", timeout_s: float = 20.0, longest: int = 8 << 20) -> HttpResponse:
    """One answer, through a proxy if the environment names one."""
    async with Client(url, "key", longest=longest, proxy=proxy_for(url)) as client:
        return await client.request("", body, timeout_s)


@pytest.mark.parametrize("key", ["key", ""])
def test_the_key_is_sent_if_there_is_one(key: str) -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await read_request(reader))
        writer.write(OK)
        await writer.drain()

    async def ask(url: str) -> HttpResponse:
        async with Client(url, key) as client:
            return await client.request("", b"{}")

    assert against(serve, ask).body == b"ok"
    assert seen[0].startswith(b"POST /v1 HTTP/1.1\r\n")
    assert (b"authorization: Bearer key" in seen[0]) == bool(key)


def test_headers_of_one_call_are_sent_with_it_alone_and_a_line_break_in_one_is_refused() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            seen.append(await read_request(reader))
            writer.write(OK)
            await writer.drain()

    async def ask(url: str) -> HttpResponse:
        async with Client(url, "key") as client:
            await client.request("", b"{}", headers={"x-session-id": "s1"})
            with pytest.raises(RequestFailed, match="header"):
                await client.request("", b"{}", headers={"x-session-id": "s1\r\nx-task-id: t"})
            return await client.request("", b"{}")

    against(serve, ask)
    assert [b"\r\nx-session-id: s1\r\n" in request for request in seen] == [True, False]


def test_a_call_times_out_and_its_late_answer_reaches_no_other_call() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            slow = b"slow" in await read_request(reader)
            await asyncio.sleep(0.4 if slow else 0)
            writer.write(OK.replace(b"ok", b"!!") if slow else OK)
            await writer.drain()

    async def ask(url: str) -> list[bytes]:
        async with Client(url, "") as client:
            with pytest.raises(RequestFailed, match=r"no answer in 0\.2 s"):
                await client.request("", b"slow", 0.2)
            await asyncio.sleep(0.3)
            return [(await client.request("", b"{}", 0.2)).body for _ in range(3)]

    assert against(serve, ask) == [b"ok"] * 3


@pytest.mark.parametrize("named", [False, True])
def test_an_unreachable_endpoint_or_proxy_is_distinguished_from_a_broken_call(monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    if named:
        monkeypatch.setenv("http_proxy", nobody)

    with pytest.raises(Unreachable, match="cannot be reached"):
        asyncio.run(posted("http://judge.example/v1" if named else nobody + "/v1"))


@pytest.mark.parametrize("named", [False, True], ids=["direct", "by a proxy"])
def test_an_answer_of_gigabytes_is_given_up(monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9000000000\r\n\r\n")
        while True:
            writer.write(b"x" * 1_000_000)
            await writer.drain()

    async def ask(url: str) -> None:
        monkeypatch.setenv("no_proxy", "" if named else "*")
        monkeypatch.setenv("http_proxy", url.removesuffix("/v1"))
        await posted("http://judge.example/v1" if named else url)

    with pytest.raises(RequestFailed, match="longer than 8 MiB"):
        against(serve, ask)


def test_a_proxy_from_the_environment_receives_the_complete_url(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)
        await writer.drain()

    async def ask(url: str) -> bytes:
        monkeypatch.setenv("http_proxy", url.removesuffix("/v1").replace("http://", "http://us%40er:secret@"))
        monkeypatch.setenv("no_proxy", "judge.inside")
        assert proxy_for("http://judge.inside/v1") is None
        assert [proxy_for(f"http://{host}:1/v1") for host in ("127.0.0.1", "[::1]", "localhost")] == [None] * 3
        return (await posted("http://judge.example/v1/chat/completions")).body

    assert against(serve, ask) == b"ok"
    assert requests[0].startswith(b"POST http://judge.example/v1/chat/completions HTTP/1.1")
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"us@er:secret") in requests[0]


def test_tls_goes_through_a_tunnel_of_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy sees the name of the server and ciphertext, not the request."""
    certificate, requests = self_signed(tmp_path), list[bytes]()
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await writer.start_tls(context)
        for _ in range(2):
            requests.append(await read_request(reader))
            writer.write(OK)
            await writer.drain()

    async def ask(url: str) -> list[bytes]:
        async with Client("https://localhost:4443/v1", "key", proxy=url.removesuffix("/v1")) as client:
            return [(await client.request("/x", b"{}", 10.0)).body for _ in range(2)]

    assert against(serve, ask) == [b"ok"] * 2
    assert requests[0].startswith(b"CONNECT localhost:4443 HTTP/1.1\r\nHost: localhost:4443\r\n")
    assert b"key" not in requests[0], "the key is not for the proxy"
    assert [request.startswith(b"POST /v1/x HTTP/1.1") for request in requests[1:]] == [True, True]


def test_a_proxy_that_opens_no_tunnel_is_named() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Who are you\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()

    async def ask(url: str) -> None:
        async with Client("https://judge.example/v1", None, proxy=url.removesuffix("/v1")) as client:
            await client.request("", b"{}", 5.0)

    with pytest.raises(Unreachable, match=r"judge\.example:443 cannot be reached: the proxy answers 407"):
        against(serve, ask)


def self_signed(folder: Path) -> Path:
    """A certificate of localhost with its key."""
    file = folder / "localhost.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, "-keyout", file, "-out", file]
    subprocess.run(command, check=True, capture_output=True)
    return file


# ---- waiting --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("2", 2.0),
        ("0.5", 0.5),
        ("-1", 0.0),
        ("999999", LONGEST_RETRY_AFTER_S),
        ("soon", None),
        ("nan", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_seconds_within_reason(header, seconds) -> None:
    assert retry_after_s(header) == seconds


def test_retry_after_may_be_a_date() -> None:
    seconds = retry_after_s(email.utils.formatdate(time.time() + 30, usegmt=True))
    assert seconds is not None
    assert 27 < seconds <= 30


def test_each_failure_in_a_row_doubles_the_wait_up_to_the_longest() -> None:
    assert [backoff_s(tries, 0.5, 3.0) for tries in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert all(1.0 <= backoff_s(3, 0.5, 3.0, jitter=True) <= 2.0 for _ in range(100))


# ---- one call of a thread ------------------------------------------------------------------------------------------------


def test_a_thread_can_send_one_request_of_any_method() -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)
        await writer.drain()

    async def ask(url: str) -> HttpResponse:
        return await asyncio.to_thread(fetch, "GET", f"{url}/models?all=1", key="key", headers={"x-name": "value"})

    answer = against(serve, ask)
    assert (answer.status, answer.body, answer.url.partition("/v1")[2]) == (200, b"ok", "/models?all=1")
    assert heads[0].startswith(b"GET /v1/models?all=1 HTTP/1.1\r\n")
    assert {b"authorization: Bearer key", b"x-name: value"} <= set(heads[0].splitlines())


def test_an_answer_to_head_has_no_body() -> None:
    async def ask(url: str) -> HttpResponse:
        return await asyncio.to_thread(fetch, "HEAD", url, timeout_s=20.0)

    answer = against(saying(b"HTTP/1.1 404 Not Found\r\ncontent-length: 70000\r\n\r\n"), ask)
    assert (answer.status, answer.body) == (404, b"")


def test_a_server_without_an_answer_in_time_differs_from_one_that_is_not_there() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def ask(url: str) -> None:
        with pytest.raises(TimedOut, match=r"no answer in 0\.2 s"):
            await asyncio.to_thread(fetch, "GET", url, timeout_s=0.2)

    against(serve, ask)
    with pytest.raises(Unreachable):
        fetch("GET", f"http://127.0.0.1:{free_port()}/health")
