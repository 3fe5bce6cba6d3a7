"""Every refusal of the door, over real HTTP: too large, too slow, too many, unknown; and what never leaks."""

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson
import pytest
from served import Server

from clawctl.config import LimitsConfig
from clawctl.keys import add_key, remove_key
from clawctl.serve.limits import limited
from scripts.asgi import serving
from tests.waiting import until

LIMITS = {"body_mb": 0.01, "header_kb": 4, "header_s": 2, "body_s": 1, "stalled_s": 1, "connections": 16, "concurrent_per_key": 2}
HOSTILE = "hostile-name"
AUDIT = """
import sys
def hook(event, args, mark={mark!r}, out={out!r}, opened=open):
    if event != "open" and not event.startswith(("os.", "shutil.", "glob.", "import")):
        return
    if mark in repr(args):
        with opened(out, "a") as file:
            file.write(event + repr(args)[:200] + chr(10))
sys.addaudithook(hook)
"""


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


def post(server: Server, content: bytes, key: str = "key", path: str = "/chat/completions", **headers: str) -> httpx.Response:
    return httpx.post(server.url + path, content=content, headers={"Authorization": f"Bearer {key}", **headers}, timeout=60)


def body(**settings: Any) -> bytes:
    return orjson.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, **settings})


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
        assert (status, answer["error"]["message"]) == (408, "the body did not come within 1 seconds")
        status, answer = told(slow)
        assert (status, answer["error"]["message"]) == (408, "the headers did not come within 2 seconds")
        assert silent.recv(100) == b""
        assert blank.recv(1) in (b"", b"H")


def test_a_client_that_takes_nothing_is_cut_off_and_its_answer_is_told_so() -> None:
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
        assert ended[0] < 1000  # 64 MB: what is not taken is not made either
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


def test_one_connection_too_many_is_503(small: Server) -> None:
    connections = [dial(small) for _ in range(16)]
    try:
        with dial(small) as one_more:
            status, answer = told(one_more)
        assert (status, answer["error"]["type"]) == (503, "server_error")
    finally:
        for connection in connections:
            connection.close()
    until(lambda: healthy(small))


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


# ---- unknown ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/", "/v1/embeddings", "/v1/chat/completions/", "/docs", "/%2e%2e/etc/passwd", "/v1/models/x/y"]
)
def test_an_unknown_route_is_404_in_json(server: Server, path: str) -> None:
    answer = httpx.get(server.url.removesuffix("/v1") + path, headers={"x-api-key": "key"})
    assert answer.status_code == 404
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "path",
    [
        "/collective_rpc",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/pause",
        "/resume",
        "/sleep",
        "/tokenize",
        "/update_weights",
    ],
)
def test_an_engines_own_routes_are_not_reachable_from_outside(server: Server, path: str) -> None:
    answer = httpx.post(server.url.removesuffix("/v1") + path, json={}, headers={"x-api-key": "key"})
    assert answer.status_code == 404


def test_other_origins_get_no_leave_and_other_methods_no_answer(server: Server) -> None:
    origin = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for path in ("/v1/chat/completions", "/v1/models", "/health", "/nowhere"):
        answer = httpx.options(server.url.removesuffix("/v1") + path, headers=origin)
        assert answer.status_code == (404 if path == "/nowhere" else 405)
        assert answer.json()["error"]["message"]
        assert not [name for name in answer.headers if name.startswith("access-control")]
    asked = httpx.get(server.url + "/models", headers={**origin, "x-api-key": "key"})
    assert not [name for name in asked.headers if name.startswith("access-control")]
    for method in ("PUT", "DELETE", "PATCH", "TRACE", "PROPFIND"):
        assert httpx.request(method, server.url + "/chat/completions").status_code == 405


def test_head_has_the_status_and_no_body(server: Server) -> None:
    root = server.url.removesuffix("/v1")
    assert (httpx.head(f"{root}/health").status_code, httpx.head(f"{root}/health").content) == (200, b"")
    assert (httpx.head(f"{root}/api/hello").status_code, httpx.head(f"{root}/api/hello").content) == (404, b"")
    assert httpx.head(f"{root}/v1/chat/completions").status_code == 405


def test_every_answer_names_its_request(server: Server) -> None:
    for given, kept in (("my-id:1", True), ("", False), ("a b", False), ("x" * 129, False), ('"><script>', False)):
        for answer in (post(server, body(), **{"x-request-id": given}), post(server, b"{", **{"x-request-id": given})):
            assert (answer.headers["x-request-id"] == given) == kept
            assert answer.headers["request-id"] == answer.headers["x-request-id"]
            if answer.status_code == 400:
                assert answer.json()["request_id"] == answer.headers["x-request-id"]
    with server.client.chat.completions.with_streaming_response.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=2, stream=True
    ) as streamed:
        assert streamed.headers["x-request-id"].startswith("req_")


# ---- the state -------------------------------------------------------------------------------------------------------------


def test_outsiders_learn_whether_it_is_well_and_no_more(server: Server) -> None:
    root = server.url.removesuffix("/v1")
    outside = {"X-Forwarded-For": "203.0.113.7"}
    assert httpx.get(f"{root}/health", headers=outside).json() == {"status": "ok", "live": 0, "ready": True}
    for forged in (outside, {"X-Forwarded-For": "127.0.0.1"}, {"Forwarded": "for=127.0.0.1"}):
        assert httpx.get(f"{root}/metrics", headers=forged).status_code == 401
    assert httpx.get(f"{root}/metrics", headers={**outside, "x-api-key": "key"}).status_code == 200
    assert "capture" in httpx.get(f"{root}/health", headers={**outside, "x-api-key": "key"}).json()
    assert httpx.get(f"{root}/health/live").json() == {"alive": True}
    assert httpx.get(f"{root}/health/ready").json() == {"ready": True, "reason": None}


def sample(server: Server, name: str) -> float:
    text = httpx.get(server.url.removesuffix("/v1") + "/metrics").text
    return next((float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + " ")), 0.0)


def test_metrics_count_what_happened(server: Server) -> None:
    asked = 'clawctl_requests_total{api="chat",status="200",key="default"}'
    before = {name: sample(server, name) for name in (asked, 'clawctl_refused_total{reason="http_400"}')}
    told_before = sample(server, 'clawctl_completion_tokens_total{api="chat",key="default"}')
    answer = server.say("hello")
    post(server, b"{")
    assert sample(server, asked) == before[asked] + 1
    assert sample(server, 'clawctl_refused_total{reason="http_400"}') == before['clawctl_refused_total{reason="http_400"}'] + 1
    assert (
        sample(server, 'clawctl_completion_tokens_total{api="chat",key="default"}') == told_before + answer.usage.completion_tokens
    )
    assert (
        sample(server, 'clawctl_request_seconds_bucket{api="chat",le="+Inf"}')
        == sample(server, 'clawctl_request_seconds_count{api="chat"}')
        > 0
    )
    assert sample(server, 'clawctl_time_to_first_token_seconds_count{api="chat"}') > 0
    assert (sample(server, "clawctl_engine_up"), sample(server, "clawctl_ready"), sample(server, "clawctl_live_version")) == (
        1,
        1,
        0,
    )
    assert sample(server, "clawctl_capture_written_total") == len(server.captured())
    assert sample(server, "clawctl_capture_lost_total") == 0


# ---- names from a request --------------------------------------------------------------------------------------------------


def test_a_models_name_never_becomes_a_path(tmp_path: Path, model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(AUDIT.format(mark=HOSTILE, out=str(tmp_path / "touched")))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
    subprocess.run([sys.executable, "-c", f"open({str(tmp_path / HOSTILE)!r}, 'w')"], check=True)
    assert "hostile-name" in (tmp_path / "touched").read_text()  # what it would look like
    (tmp_path / "touched").unlink()
    with Server(tmp_path / "run", model_path) as server:
        for name in (
            f"/tmp/{HOSTILE}",
            f"../{HOSTILE}",
            f"{HOSTILE}@../0",
            f"{HOSTILE}\x00",
            f"{HOSTILE}@0/../1",
            f"{HOSTILE}@٣",
            f"{HOSTILE}@0\n",
        ):
            answer = post(server, body(model=name))
            assert answer.status_code == 200, name  # no version is named: the live policy answers
            assert answer.json()["model"] == name
        for name in (f"{HOSTILE}@7", f"{HOSTILE}@" + "9" * 5000, f"{HOSTILE}@999999999999999999"):
            assert post(server, body(model=name)).status_code == 404, name[:40]
        for name in (f"../{HOSTILE}", f"%2e%2e%2f{HOSTILE}", f"{HOSTILE}@0"):
            assert httpx.get(f"{server.url}/models/{name}", headers={"x-api-key": "key"}).status_code == 404
        assert httpx.get(f"{server.url}/models/tiny@0", headers={"x-api-key": "key"}).json()["id"] == "tiny@0"
    assert not (tmp_path / "touched").exists(), (tmp_path / "touched").read_text()


# ---- ending ----------------------------------------------------------------------------------------------------------------


def test_sigterm_is_told_first_then_the_door_is_closed(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path, drain_notice_s=3) as server:
        root = server.url.removesuffix("/v1")
        server.process.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{root}/health/ready").status_code == 503)
        assert httpx.get(f"{root}/health/ready").json() == {"ready": False, "reason": "draining"}
        assert httpx.get(f"{root}/health/live").status_code == 200
        assert server.say("hello").choices  # a balancer that has not noticed yet is served
        assert server.process.wait(60) == 0, server.log.read_text()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{root}/health")


def test_what_does_not_finish_within_the_drain_is_ended_and_captured(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path, drain_s=0.3) as server:
        frames: list[str] = []

        def listen() -> None:
            settings = body(n=16, max_tokens=3000, temperature=2, stream=True)
            with httpx.stream("POST", server.url + "/chat/completions", content=settings, headers={"x-api-key": "key"}) as answer:
                frames.extend(answer.iter_lines())

        listener = threading.Thread(target=listen)
        listener.start()
        until(lambda: server.health()["requests"]["running"] == 1)
        server.process.send_signal(signal.SIGTERM)
        listener.join(60)
        assert server.process.wait(60) == 0, server.log.read_text()
        lines = server.captured()
        assert len(lines) == 16
        assert "cancelled" in {line["status"] for line in lines}
        last = next(frame for frame in reversed(frames) if frame.startswith("data: "))
        assert "the server is stopping" in last


def test_a_pinned_server_does_not_follow_live(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path, arguments=["--pin", "0"]) as server:
        (server.run.policies / "LIVE").write_text("1\n")
        time.sleep(1.5)
        assert server.health()["live"] == 0
        assert server.health()["last_swap_error"] is None
