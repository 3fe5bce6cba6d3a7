"""An SGLang upstream that answers as SGLang's source does. SGLang itself does not run here."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from sglang_stub import PROMPT_IDS, Sglang

from clawctl.engines.upstream.probe import probe
from clawctl.engines.upstream.sglang import SglangControl
from clawctl.engines.vllm.control import Control
from clawctl.run.policies import move_live, publish_policy
from clawctl.run.rows import Policy
from scripts.asgi import serving
from tests.serve.served import Server
from tests.waiting import until

CANARY_IDS = [3, 4, 5]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[tuple[Server, Sglang]]:
    sglang = Sglang()
    with serving(sglang.app()) as url:
        upstream = {"url": url, "kind": "sglang"}
        with Server(tmp_path_factory.mktemp("sglang") / "run", model_path, upstream=upstream) as server:
            yield server, sglang
            assert server.stop() == 0, server.log.read_text()


def publish(server: Server, version: int, kind: str, logprob: float) -> None:
    canary = {"prompt_ids": [CANARY_IDS], "logprobs": [[0.0, logprob, logprob]]}
    publish_policy(server.run, Policy(version, 0, 1, None, kind, "x", [], canary, {}, 0.0), lambda folder: None)


def test_whole_and_streamed_answers_are_captured_alike_and_for_training(started: tuple[Server, Sglang]) -> None:
    server, sglang = started
    assert server.say("hello").choices[0].message.content == "Hello there"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in server.say("hello", stream=True)) == "Hello there"
    for line in server.captured()[-2:]:
        assert (line["prompt_ids"], line["completion_ids"]) == (PROMPT_IDS, [101, 102, 2])
        assert line["logprobs"] == [-0.5, -0.25, -1.5]
        assert (line["untrainable_reason"], line["policy_version"], line["policy_version_end"]) == (None, 0, 0)
    body = sglang.calls[-1][1]
    assert body["return_input_ids_in_sglext"] is body["return_output_ids_in_sglext"] is True
    assert "return_token_ids" not in body  # with it SGLang refuses a stream


def test_an_answer_that_sglang_aborts_is_not_trained(started: tuple[Server, Sglang]) -> None:
    server, _ = started
    server.say("ABORT")
    assert server.captured()[-1]["untrainable_reason"] == "the engine ended it early"


def test_a_conversation_too_long_for_sglang_is_refused_in_the_standard_words(started: tuple[Server, Sglang]) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        started[0].say("LONG")
    assert refused.value.code == "context_length_exceeded"


def test_tokens_are_counted_by_sglang(started: tuple[Server, Sglang]) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    answer = httpx.post(started[0].url + "/messages/count_tokens", json=body, headers={"x-api-key": "key"}, timeout=60)
    assert answer.json() == {"input_tokens": len(PROMPT_IDS)}


def test_adapters_and_weights_go_live_once_their_canary_sang(started: tuple[Server, Sglang]) -> None:
    server, sglang = started
    publish(server, 1, "adapter", -2.0)
    move_live(server.run, 1)
    until(lambda: server.health()["live"] == 1)
    assert sglang.adapters == {"tiny@1": str(server.run.version_folder(1).resolve())}
    server.say("hello")
    body = sglang.calls[-1][1]
    assert (body["model"], body["lora_path"]) == ("base", "tiny@1")
    assert server.captured()[-1]["policy_version"] == 1
    publish(server, 2, "adapter", -9.0)
    move_live(server.run, 2)
    until(lambda: "canary differs" in (server.health()["last_swap_error"] or ""))
    assert "tiny@2" not in sglang.adapters
    publish(server, 3, "full", -1.0)
    move_live(server.run, 3)
    until(lambda: server.health()["live"] == 3)
    changes = [
        call for call in sglang.calls if call[0] in ("/pause_generation", "/update_weights_from_disk", "/continue_generation")
    ]
    weights = {"model_path": str(server.run.version_folder(3).resolve()), "weight_version": "3", "flush_cache": True}
    assert changes[-3:] == [
        ("/pause_generation", {"mode": "retract"}),
        ("/update_weights_from_disk", weights),
        ("/continue_generation", {}),
    ]
    assert not sglang.paused


def found(kind: str, **started_with: Any) -> Any:
    with serving(Sglang(**started_with).app()) as url:
        control = SglangControl(url, None) if kind == "sglang" else Control(url, None)
        return probe(control, kind, None)


def test_missing_features_of_a_server_are_detected() -> None:
    can = found("sglang").capabilities
    assert (can.ids, can.logprobs, can.processed, can.adapters, can.weights) == (True, True, True, True, True)
    assert found("sglang", lora=False).capabilities.adapters is False
    assert found("sglang", parses=False).capabilities.weights is False
    as_openai = found("openai").capabilities
    assert (as_openai.ids, as_openai.logprobs, as_openai.adapters, as_openai.weights) == (False, True, False, False)


def test_a_model_whose_files_say_top_k_0_hides_no_feature() -> None:
    """SGLang treats that as a request without top_k, and refuses it. The tiny models' files have this value."""
    can = found("sglang", default_top_k=0).capabilities
    assert (can.ids, can.logprobs, can.processed) == (True, True, True)


def test_without_a_parser_a_logprob_is_lost_and_a_warning_is_logged_at_start(tmp_path: Path, model_path: Path) -> None:
    with serving(Sglang(parses=False).app()) as url:
        upstream = {"url": url, "kind": "sglang"}
        with Server(tmp_path / "run", model_path, upstream=upstream) as server:
            server.say("hello")
            list(server.say("hello", stream=True))
            for line in server.captured():
                assert line["untrainable_reason"] == "ids and logprobs differ in number"
                assert line["logprobs"] is None
            assert "--tool-call-parser" in server.log.read_text()
