"""A running server as seen by clients and in the run directory: the real engine over real HTTP."""

import socket
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import pytest
import torch
from served import Server, logprobs_of
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.waiting import until


def raw(server: Server, body: bytes, key: str = "key", path: str = "/chat/completions", **headers: str) -> httpx.Response:
    return httpx.post(server.url + path, content=body, headers={"Authorization": f"Bearer {key}", **headers}, timeout=60)


def body(**settings: Any) -> bytes:
    return orjson.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, **settings})


def captured_for(server: Server, completion: Any) -> dict[str, Any]:
    return next(line for line in server.captured() if completion.id == "chatcmpl" + line["exchange_id"])


def test_captured_logprobs_equal_those_of_the_model(server: Server, model_path: Path) -> None:
    answer = server.say("hello", temperature=0.8, max_tokens=20, extra_headers={"X-Session-Id": "s1", "X-Turn-Type": "Main"})
    line = captured_for(server, answer)
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert line["prompt_ids"] == tokenizer(text, add_special_tokens=False)["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    expected = logprobs_of(model, line["prompt_ids"], line["completion_ids"], 0.8)
    assert line["logprobs"] == pytest.approx(expected, abs=1e-4)
    assert line["response"] == {"role": "assistant", "content": answer.choices[0].message.content}
    shown = tokenizer.decode(line["completion_ids"], skip_special_tokens=True)
    assert line["response"]["content"] == shown
    assert (line["policy_version"], line["policy_version_end"], line["status"], line["untrainable_reason"]) == (0, 0, "ok", None)
    assert line["messages"] == [{"role": "user", "content": "hello"}]
    hints = {"session_id": "s1", "turn_type": "main", "session_done": False, "task_id": None, "group_id": None}
    assert line["hints"] == hints
    assert 0 < line["ttft_s"] < line["finished_at"] - line["created_at"]
    assert answer.usage.prompt_tokens == len(line["prompt_ids"])
    assert answer.usage.completion_tokens == len(line["completion_ids"])
    assert (server.run.captures / "x").parent.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in server.run.captures.iterdir())


def test_the_stream_joined_is_the_answer_and_the_capture_is_there_before_its_end(server: Server) -> None:
    text, finish, usage, answer_id = "", None, None, ""
    with server.say("hello", stream=True, max_tokens=30, stream_options={"include_usage": True}) as stream:
        for chunk in stream:
            answer_id, usage = chunk.id, chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                if choice.finish_reason:
                    finish = choice.finish_reason
                    lines = server.captured()  # the client has not received the end before this
                    assert "chatcmpl" + lines[-1]["exchange_id"] == answer_id
    line = next(line for line in server.captured() if answer_id == "chatcmpl" + line["exchange_id"])
    assert (text, finish) == (line["response"]["content"], line["finish_reason"])
    assert usage is not None
    assert usage.completion_tokens == len(line["completion_ids"])


def test_greedy_answers_are_the_same_streamed_or_not_and_are_not_for_training(server: Server) -> None:
    whole = server.say("hello", temperature=0, max_tokens=30)
    streamed = "".join(c.choices[0].delta.content or "" for c in server.say("hello", temperature=0, max_tokens=30, stream=True))
    assert streamed == whole.choices[0].message.content
    assert captured_for(server, whole)["untrainable_reason"] == "greedy"
    assert captured_for(server, server.say("hi", top_p=0.9))["untrainable_reason"] == "top_p"
    assert captured_for(server, server.say("hi", extra_body={"top_k": 5}))["untrainable_reason"] == "top_k"


def test_a_stop_string_ends_the_answer_but_its_ids_are_kept(server: Server) -> None:
    plain = server.say("hello", temperature=0, max_tokens=30).choices[0].message.content
    stop = plain[4:6]
    answer = server.say("hello", temperature=0, max_tokens=30, stop=[stop])
    assert answer.choices[0].message.content == plain[: plain.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert len(captured_for(server, answer)["completion_ids"]) == answer.usage.completion_tokens > 0


def test_n_answers_are_n_exchanges_and_logprobs_are_returned_on_request(server: Server) -> None:
    before = len(server.captured())
    answer = server.say("hello", n=3, logprobs=True)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    lines = server.captured()[before:]
    assert len({line["exchange_id"] for line in lines}) == 3
    visible = [token.logprob for choice in answer.choices for token in choice.logprobs.content]
    sampled = [logprob for line in lines for logprob in line["logprobs"]]
    assert set(visible) <= set(sampled)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{bad", "not JSON"),
        (b"[1]", "JSON object"),
        (b'"\xff"', "not JSON"),
        (b"{}", "'messages'"),
        (body(messages=[]), "'messages'"),
        (body(messages=["x"]), "messages[0]"),
        (body(messages=[{"role": "king", "content": "x"}]), "role"),
        (body(messages=[{"role": "user", "content": 3}]), "content"),
        (body(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]), "no images"),
        (body(temperature="hot"), "'temperature'"),
        (body(temperature=-1), "'temperature'"),
        (body(max_tokens=0), "'max_tokens'"),
        (body(n=10**9), "'n'"),
        (body(stop=[1]), "'stop'"),
        (body(model=3), "'model'"),
        (body(tools="x"), "'tools'"),
        (b'{"messages":' + b"[" * 400 + b"]" * 400 + b"}", "nested too deeply"),
        (
            body(messages=[{"role": "user", "content": "hello " * 5000}], max_tokens=5000),
            "This model's maximum context length is 4096 tokens. However, you requested 1",
        ),
    ],
)
def test_a_bad_request_is_400_with_the_reason_in_openais_envelope(server: Server, content: bytes, says: str) -> None:
    answer = raw(server, content)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert says in error["message"]
    assert error.keys() == {"message", "type", "param", "code"}


def test_unknown_fields_are_accepted(server: Server) -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}], "cache_control": {}},
        {"role": "developer", "content": "short", "x": 1},
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]
    tools = [{"type": "web_search"}, {"type": "function", "function": {"name": "f"}}]
    extra = {"messages": messages, "tools": tools, "store": False, "reasoning_effort": "high", "max_completion_tokens": 3}
    answer = raw(server, body(model="gpt-99", **extra))
    assert answer.status_code == 200, answer.text
    line = next(line for line in server.captured() if answer.json()["id"] == "chatcmpl" + line["exchange_id"])
    assert (line["messages"], line["tools"], line["model"]) == (messages, tools, "gpt-99")
    assert len(line["completion_ids"]) <= 3


def test_wrong_keys_and_unknown_routes_are_refused_in_json(server: Server) -> None:
    assert raw(server, body(), key="wrong").status_code == 401
    assert httpx.get(server.url + "/models").json()["error"]["code"] == "invalid_api_key"
    assert httpx.get(server.url + "/models", headers={"x-api-key": "key"}).status_code == 200
    assert httpx.get(server.url + "/nowhere").json()["error"]["message"].startswith("/v1/nowhere is not supported")
    assert raw(server, b"{}", path="/embeddings").status_code == 404
    assert httpx.get(server.url + "/chat/completions").status_code == 405
    with openai.OpenAI(base_url=server.url, api_key="wrong", max_retries=0) as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_models_lists_the_live_name_and_each_version(server: Server) -> None:
    models = server.client.models.list().data
    assert [model.id for model in models] == ["tiny", "tiny@0"]
    assert models[0].model_dump()["max_model_len"] == 4096


def test_a_pinned_version_answers_and_is_never_captured(server: Server) -> None:
    before = len(server.captured())
    assert server.say("hello", model="tiny@0").model == "tiny@0"
    server.say("hello", extra_headers={"X-Capture": "off"})
    with pytest.raises(openai.NotFoundError, match="version 7 of this model is not published"):
        server.say("hello", model="tiny@7")
    assert len(server.captured()) == before


@pytest.mark.parametrize(("said", "captured"), [("off", 0), ("OFF", 0), ("false", 0), ("no", 0), ("0", 0), ("on", 1), ("True", 1)])
def test_every_spelling_of_a_capture_opt_out_is_respected(server: Server, said: str, captured: int) -> None:
    before = len(server.captured())
    server.say("hello", extra_headers={"X-Capture": said})
    assert len(server.captured()) == before + captured


def test_a_client_that_goes_away_is_captured_as_cancelled(server: Server) -> None:
    for _ in range(8):  # the random model may end early: then it is not cancelled, and we ask again
        with server.say("hello", stream=True, max_tokens=3000, temperature=2) as stream:
            next(iter(stream))
        until(lambda: server.health()["requests"]["running"] == 0)
        line = server.captured()[-1]
        if line["status"] == "cancelled":
            break
    assert line["status"] == "cancelled"
    assert line["finish_reason"] is None
    assert len(line["completion_ids"]) == len(line["logprobs"]) < 3000


def test_hints_come_from_headers_first_then_from_the_body(server: Server) -> None:
    answer = server.say("hi", extra_body={"session_id": "b", "turn_type": "Side", "session_done": True, "prompt_cache_key": "p"})
    hints = captured_for(server, answer)["hints"]
    assert (hints["session_id"], hints["turn_type"], hints["session_done"]) == ("b", "side", True)
    headers = {"x-session-affinity": "a:0", "X-Session-Done": "yes", "X-Task-Id": "t", "X-Group-Id": "g"}
    hints = captured_for(server, server.say("hi", extra_body={"prompt_cache_key": "p"}, extra_headers=headers))["hints"]
    assert hints == {"session_id": "a:0", "turn_type": None, "session_done": True, "task_id": "t", "group_id": "g"}


def test_health_needs_no_key_and_reports_the_state(server: Server) -> None:
    health = server.health()
    assert (health["status"], health["live"], health["ready"], health["last_swap_error"]) == ("ok", 0, True, None)
    assert health["capture"]["on"]
    assert health["capture"]["lost"] == 0
    assert health["requests"]["running"] == 0


def test_a_request_that_breaks_off_does_not_stop_the_server(server: Server) -> None:
    host, port = server.url.split("//")[1].split("/")[0].split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer key\r\nContent-Length: 999\r\n\r\n{"
        connection.sendall(head)
    assert server.say("hello").choices
