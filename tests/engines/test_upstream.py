"""An external server: its missing features are detected and reported, and turns without ids are kept untrainable."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from clawctl.run.policies import move_live, publish_policy
from clawctl.run.rows import Policy
from tests.serve.served import Server
from tests.waiting import until

# ---- a server that gives no ids -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def through(server: Server, model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """clawctl before clawctl: OpenAI's words and nothing more."""
    upstream = {"url": server.url, "kind": "openai", "api_key": "key"}
    with Server(tmp_path_factory.mktemp("through") / "run", model_path, upstream=upstream) as running:
        yield running
        assert running.stop() == 0, running.log.read_text()


def test_missing_features_of_an_upstream_are_reported(through: Server) -> None:
    said = through.log.read_text()
    assert "no token ids: turns are kept, but none can be trained" in said
    assert "neither adapters nor weights can be swapped" in said
    engine = through.health()["engine"]
    assert (engine["ids"], engine["adapters"], engine["weights"]) == (False, False, False)


def test_turns_without_ids_are_kept_untrained(through: Server) -> None:
    answer = through.say("hello", max_tokens=8)
    line = through.captured()[-1]
    assert line["response"]["content"] == answer.choices[0].message.content
    assert (line["prompt_ids"], line["completion_ids"], line["logprobs"]) == (None, None, None)
    assert line["untrainable_reason"] == "no token ids"
    assert answer.usage.completion_tokens > 0
    text = "".join(chunk.choices[0].delta.content or "" for chunk in through.say("hello", max_tokens=8, stream=True))
    assert text == through.captured()[-1]["response"]["content"]
    assert len(through.say("hello", n=2).choices) == 2


def test_the_upstreams_refusal_is_the_clients(through: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hi " * 5000}], "max_tokens": 100_000}
    answer = httpx.post(through.url + "/chat/completions", json=body, headers={"authorization": "Bearer key"}, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_features_that_this_server_lacks_are_refused_by_name(through: Server) -> None:
    hello = {"role": "user", "content": "hi"}
    begun = [hello, {"role": "assistant", "content": "well"}]
    for path, body, named in (
        ("/chat/completions", {"messages": begun, "continue_final_message": True}, "continue_final_message"),
        ("/chat/completions", {"messages": [hello], "return_token_ids": True}, "return_token_ids"),
        ("/messages", {"messages": begun}, "continue a message"),
    ):
        request = {"model": "m", "max_tokens": 4, **body}
        answer = httpx.post(through.url + path, json=request, headers={"x-api-key": "key"}, timeout=60)
        assert answer.status_code == 400
        assert named in answer.json()["error"]["message"]


def test_a_version_that_an_upstream_cannot_take_up_is_an_alarm(through: Server) -> None:
    publish_policy(through.run, Policy(1, 0, 1, None, "adapter", "x", [], None, {}, 0.0), lambda folder: None)
    move_live(through.run, 1)
    until(lambda: through.health()["last_swap_error"])
    assert "does not load adapters" in through.health()["last_swap_error"]
    assert through.health()["live"] == 0
    assert through.say("hello").choices


# ---- a server that gives ids but counts no tokens ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def before_null(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    command = [sys.executable, "-m", "scripts.benchmarks.null.upstream", "--tokens", "20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as null:
        assert null.stdout is not None
        upstream = {"url": f"http://127.0.0.1:{int(null.stdout.readline())}", "kind": "vllm"}
        with Server(tmp_path_factory.mktemp("null") / "run", model_path, upstream=upstream) as running:
            yield running
            assert running.stop() == 0, running.log.read_text()
        null.kill()


def test_streamed_or_whole_the_same_is_captured(before_null: Server) -> None:
    assert before_null.say("hi", n=2).choices[1].message.content
    for _ in before_null.say("hi", stream=True):
        pass
    first, second, streamed = before_null.captured()
    for line in (first, second, streamed):
        assert line["response"] == streamed["response"]
        assert (line["prompt_ids"], line["completion_ids"]) == (list(range(100, 130)), list(range(1000, 1020)))
        assert line["logprobs"] == streamed["logprobs"]
        assert len(line["logprobs"]) == 20
        assert (line["policy_version"], line["policy_version_end"], line["untrainable_reason"]) == (0, 0, None)
        assert 0 < line["ttft_s"] <= line["finished_at"] - line["created_at"]


def test_an_upstream_without_token_counts_is_reported_in_the_clients_dialect(before_null: Server) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    answer = httpx.post(before_null.url + "/messages/count_tokens", json=body, headers={"x-api-key": "key"}, timeout=60)
    assert (answer.status_code, answer.json()["type"]) == (501, "error")
    assert answer.json()["error"]["message"] == "this engine does not count tokens"


def test_settings_that_an_upstream_cannot_enforce_are_refused(through: Server) -> None:
    answer = httpx.post(through.url + "/score", json={"model": "tiny", "ids": [1, 2]}, headers={"x-api-key": "key"}, timeout=60)
    assert answer.status_code == 501
    assert "does not score token ids" in answer.json()["error"]["message"]
    for what in ("pause", "resume", "sleep", "wake"):
        answer = httpx.post(f"{through.url.removesuffix('/v1')}/engine/{what}", headers={"x-api-key": "key"}, timeout=60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (501, "cannot_pause")
