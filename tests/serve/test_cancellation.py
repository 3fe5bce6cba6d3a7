"""A client that disconnects before its answer ends: the tokens sampled so far are captured and marked, in every API."""

import http.client
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import httpx
import orjson
import pytest
from served import Server

from tests.stub_http import StubHandler, StubServer, running
from tests.waiting import until

PROMPT_IDS = [5, 6, 7]
TOKENS = 4000  # of an answer; the last one is never read
PAUSE_S = 0.01  # between two tokens
ENOUGH = 5  # tokens after which the client hangs up


class Slow(StubHandler):
    """An engine that samples a token now and then: " 0", " 1", … with ids 100, 101, … and logprobs -0.0, -0.5, -1.0, -0.0, …"""

    protocol_version = "HTTP/1.1"
    streamed: ClassVar[int] = 0  # tokens of the answer that is being given
    stopped: ClassVar[threading.Event] = threading.Event()
    bodies: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        exists = self.path == "/v1/models"
        self.answer({"object": "list", "data": [{"id": "slow", "max_model_len": 8192}]} if exists else {}, 200 if exists else 404)

    def do_POST(self) -> None:
        body = self.sent()
        self.bodies.append(body)
        if body.get("stream"):
            self._stream(body["max_tokens"])
        else:
            self.answer({"choices": [{"index": 0, "message": {"content": " 0"}, **told(0, body["temperature"])}], **HEAD})

    def _stream(self, tokens: int) -> None:
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            self._chunk({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], **HEAD})
            for i in range(tokens):
                time.sleep(PAUSE_S)
                type(self).streamed = i + 1
                reason = "length" if i == tokens - 1 else None
                self._chunk({"choices": [{"index": 0, "delta": {"content": f" {i}"}, "finish_reason": reason, **told(i, 1.0)}]})
            self.wfile.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        except OSError:
            self.stopped.set()

    def _chunk(self, chunk: dict[str, Any]) -> None:
        event = b"data: " + orjson.dumps(chunk) + b"\n\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))


HEAD = {"id": "x", "object": "chat.completion", "created": 1, "model": "slow", "prompt_token_ids": PROMPT_IDS}


def logprob(i: int) -> float:
    return -0.5 * (i % 3)


def told(i: int, temperature: float) -> dict[str, Any]:
    top = [{"token": "x", "logprob": logprob(i) - 1 / temperature}]
    return {"token_ids": [100 + i], "logprobs": {"content": [{"token": f" {i}", "logprob": logprob(i), "top_logprobs": top}]}}


@pytest.fixture(scope="module")
def slow(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(StubServer(Slow)) as engine:
        upstream = {"url": engine.url, "kind": "vllm"}
        with Server(tmp_path_factory.mktemp("slow") / "run", model_path, upstream=upstream) as server:
            yield server
            assert server.stop() == 0, server.log.read_text()


ASKS = {
    "chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": TOKENS},
    "responses": {"input": "hi", "max_output_tokens": TOKENS},
    "messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": TOKENS},
}


def hang_up(server: Server, path: str, body: dict[str, Any]) -> None:
    """Ask, and close the connection when the engine has sampled a few tokens."""
    Slow.stopped.clear()
    Slow.streamed = 0
    where = urlsplit(server.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port)
    connection.request("POST", f"/v1/{path}", orjson.dumps({"model": "tiny", **body}), {"authorization": "Bearer key"})
    until(lambda: Slow.streamed >= ENOUGH)
    connection.close()
    assert Slow.stopped.wait(90), "the engine samples on, for nobody"
    until(lambda: server.health()["requests"]["running"] == 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ASKS)
def test_a_client_that_disconnects_leaves_the_tokens_sampled_so_far(slow: Server, path: str, stream: bool) -> None:
    hang_up(slow, path, {**ASKS[path], "stream": stream})
    line = slow.captured()[-1]
    sampled = len(line["completion_ids"])
    assert (line["status"], line["finish_reason"], line["untrainable_reason"]) == ("cancelled", None, None)
    assert ENOUGH - 1 <= sampled < TOKENS
    assert line["prompt_ids"] == PROMPT_IDS
    assert line["completion_ids"] == [100 + i for i in range(sampled)]
    assert line["logprobs"] == [logprob(i) for i in range(sampled)]
    assert (line["policy_version"], line["policy_version_end"]) == (0, 0)
    assert line["response"]["content"] == "".join(f" {i}" for i in range(sampled))
    assert PAUSE_S <= line["ttft_s"] < line["finished_at"] - line["created_at"]


def test_each_of_several_whole_answers_is_kept(slow: Server) -> None:
    before = len(slow.captured())
    hang_up(slow, "chat/completions", {**ASKS["chat/completions"], "n": 2})
    lines = slow.captured()[before:]
    assert [line["status"] for line in lines] == ["cancelled"] * 2
    assert all(line["completion_ids"] and line["ttft_s"] > 0 for line in lines)


def test_the_first_token_of_a_whole_answer_has_a_time(slow: Server) -> None:
    before = first_tokens(slow)
    slow.say("hi", max_tokens=20)
    line = slow.captured()[-1]
    assert line["status"] == "ok"
    assert PAUSE_S <= line["ttft_s"] <= line["finished_at"] - line["created_at"] - 19 * PAUSE_S + 0.002  # of two clocks
    count, seconds = (now - was for now, was in zip(first_tokens(slow), before, strict=True))
    assert count == 1
    assert seconds == pytest.approx(line["ttft_s"], abs=1e-3)


def first_tokens(server: Server) -> tuple[float, float]:
    """Number and seconds together, of /metrics."""
    text = httpx.get(server.url.removesuffix("/v1") + "/metrics", headers={"x-api-key": "key"}).text
    lines = [line for line in text.splitlines() if line.startswith("clawctl_time_to_first_token_seconds_") and 'api="chat"' in line]
    values = {line.split("{")[0].rpartition("_")[2]: float(line.rpartition(" ")[2]) for line in lines}
    return values.get("count", 0.0), values.get("sum", 0.0)


def test_requests_without_a_stream_set_a_longer_stream_interval(slow: Server) -> None:
    """For an engine whose weights stay: each token's version is known, so tokens need not be sent at once."""
    slow.say("hi", max_tokens=2)
    assert Slow.bodies[-1]["stream_interval"] > 1
    for _ in slow.say("hi", max_tokens=2, stream=True):
        pass
    assert "stream_interval" not in Slow.bodies[-1]
