"""Control calls to an external server: weights, adapters, pauses."""

import asyncio
from pathlib import Path

import pytest

from clawctl.config import Recipe
from clawctl.engines import Unanswered
from clawctl.engines.upstream.engine import Upstream, UpstreamServer
from clawctl.engines.upstream.probe import ProbeResult, missing, probe
from clawctl.engines.vllm.control import Control
from clawctl.run.directory import open_run
from tests.stub_http import StubHandler, StubServer, running


class Hasty(StubHandler):
    """Closes a connection when the second request comes on it, as uvicorn does with one that idled for 5 s."""

    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.answered = False

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.answered:
            self.close_connection = True
            return
        self.answered = True
        self.answer({})


def test_a_swap_does_not_meet_the_end_of_a_connection_that_idled() -> None:
    with running(StubServer(Hasty)) as server:
        control = Control(server.url, None)
        control.pause()
        control.reload("somewhere", 1)
        control.resume()


def test_a_stopped_server_is_reported_as_unanswering() -> None:
    with running(StubServer(Hasty)) as server:
        gone = Control(server.url, None)
    with pytest.raises(Unanswered, match="does not answer /resume"):
        gone.resume()


class Moody(StubHandler):
    """As vLLM's routes, but each has no time the first `server.busy` times that it is asked."""

    def do_GET(self) -> None:
        self.answer({"data": [{"id": "m", "max_model_len": 64}]})

    def do_POST(self) -> None:
        body = self.sent()
        times = self.server.asked  # type: ignore[attr-defined]
        times[self.path] = times.get(self.path, 0) + 1
        if times[self.path] <= self.server.busy:  # type: ignore[attr-defined]
            self.answer({"error": {"message": "busy"}}, 503)
        elif self.path == "/v1/load_lora_adapter":
            self.answer({}, 422)
        elif self.path != "/v1/chat/completions":
            self.answer({}, 404)
        else:
            top = {"logprob": -1.0 / body["temperature"]}
            choice = {"token_ids": [5], "logprobs": {"content": [{"top_logprobs": [top]}]}}
            self.answer({"prompt_token_ids": [1], "choices": [choice]})


def probed(busy: int) -> ProbeResult:
    server = StubServer(Moody)
    server.busy, server.asked = busy, {}  # type: ignore[attr-defined]
    with running(server):
        control = Control(server.url, None)
        return probe(control, "vllm", None, (0.0, 0.0))


def test_a_question_that_timed_out_is_asked_again() -> None:
    probe = probed(busy=2)
    can = probe.capabilities
    assert (can.ids, can.logprobs, can.processed, can.adapters, can.weights) == (True, True, True, True, False)
    assert probe.unprobed == []
    assert missing(can) == ["full weights cannot be swapped"]


def test_an_unanswered_question_is_not_reported_as_unsupported() -> None:
    probe = probed(busy=1000)
    can = probe.capabilities
    assert (can.ids, can.logprobs, can.processed, can.adapters, can.weights) == (None, None, None, None, None)
    assert missing(can) == []
    assert probe.unprobed == [
        f"the engine cannot answer {path} now: 503 busy"
        for path in ("/v1/chat/completions", "/v1/load_lora_adapter", "/collective_rpc")
    ]


def test_waiting_for_an_unreachable_server_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(StubServer(Moody)) as server:
        url = server.url
    upstream = Upstream(open_run(tmp_path / "run"), Recipe(), UpstreamServer(url, "openai", None, None))

    async def wait() -> None:
        async with asyncio.timeout(1.5):  # it asks at once and after a second
            await upstream.keep(lambda: None)

    with pytest.raises(TimeoutError):
        asyncio.run(wait())
    upstream.stop()
    assert [record.message.split(" (")[0] for record in caplog.records] == [f"cannot find out what {url} supports"]
