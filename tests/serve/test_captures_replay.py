"""Recorded requests of real clients are understood, rendered and answered, streamed and not."""

from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from served import Server

from clawctl.engines.requests import GenerationRequest
from clawctl.serve.dialects import chat, messages, responses
from clawctl.serve.hints import read_hints
from clawctl.serve.prompt import load_tokenizer, render
from tests.named_models import TEXT_MODEL

RECORDINGS = Path(__file__).parents[1] / "recordings"
CLIENTS = sorted(path.name for path in RECORDINGS.iterdir() if path.is_dir())
MODULES: dict[str, Any] = {"/v1/chat/completions": chat, "/v1/responses": responses}
# The line in which OpenClaw names its session is cut out of the recorded prompts of its Responses.
NAMES_ITSELF = {"claude-code", "codex", "codex-tui", *(client for client in CLIENTS if client.startswith("openclaw-"))} - {
    "openclaw-responses"
}
LAST = {
    "/v1/chat/completions": b"data: [DONE]",
    "/v1/responses": b"event: response.completed",
    "/v1/messages": b"event: message_stop",
}


def recorded(client: str) -> list[dict[str, Any]]:
    recordings = [orjson.loads(path.read_bytes()) for path in sorted((RECORDINGS / client).glob("*.json"))]
    assert recordings
    return recordings


def ask_of(request: dict[str, Any]) -> GenerationRequest:
    ask: GenerationRequest = MODULES.get(request["path"].split("?")[0], messages).read(request["request"], "crafts")
    return ask


@pytest.mark.parametrize("client", CLIENTS)
def test_every_recorded_request_is_rendered_by_the_tiny_models_template(client: str) -> None:
    tokenizer = load_tokenizer(str(TEXT_MODEL))
    for request in recorded(client):
        ask = ask_of(request)
        ids = render(tokenizer, ask).ids
        assert ids
        roles = {message["role"] for message in ask.messages}
        assert roles <= {"system", "user", "assistant", "tool"}


def test_a_template_that_takes_a_system_message_at_the_beginning_only_renders_claude_code_and_codex() -> None:
    tokenizer = load_tokenizer(str(TEXT_MODEL))
    tokenizer.chat_template = (
        "{%- for m in messages %}{%- if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('System message must be at the beginning.') }}{%- endif %}[{{ m.role }}] {{ m.content }}\n{%- endfor %}"
    )
    for client, beginning in (("claude-code", "[user] # Environment"), ("codex", "[user] <permissions instructions>")):
        texts = [tokenizer.decode(render(tokenizer, ask_of(request)).ids) for request in recorded(client)]
        assert any(beginning in text for text in texts)


@pytest.mark.parametrize("client", CLIENTS)
def test_every_recorded_request_is_answered_streamed_and_not(rehearsed: Server, client: str) -> None:
    for request in recorded(client):
        path, query, question = request["path"].partition("?")[0], request["path"].partition("?")[2], request["request"]
        skipped = {"authorization", "x-api-key", "content-length", "content-type"}
        headers = {name: value for name, value in request["headers"] if name.lower() not in skipped}
        address = rehearsed.url.removesuffix("/v1") + path + ("?" + query if query else "")
        for stream in (True, False):
            body = orjson.dumps(question | ({"stream": stream} if "count_tokens" not in path else {}))
            answer = httpx.post(address, content=body, headers=headers | {"x-api-key": "key"}, timeout=60)
            if "previous_response_id" in question:  # of a server that is long gone
                assert answer.json()["error"]["code"] == "previous_response_not_found"
                continue
            assert answer.status_code == 200, (request["n"], answer.text)
            if "count_tokens" in path:
                assert answer.json()["input_tokens"] > 0
            elif stream:
                assert LAST[path] in answer.content, request["n"]
            else:
                assert answer.json()["usage"]
        if "count_tokens" in path or "previous_response_id" in question:
            continue
        lines = rehearsed.captured()[-2:]
        formatted = question.get("text", {}).get("format", {}).get("type") == "json_schema"  # the titles that Codex asks for
        reason = "greedy" if question.get("temperature") == 0 else "structured output" if formatted else None
        assert all(line["status"] == "ok" and line["untrainable_reason"] == reason for line in lines), request["n"]
        assert lines[0]["messages"] == ask_of(request).sent_messages
        assert lines[0]["prompt_ids"]
        assert (lines[0]["hints"]["session_id"] is not None) == (client in NAMES_ITSELF), request["n"]


def test_hints_of_recorded_clients_are_read_as_meant() -> None:
    requests = [request for client in CLIENTS for request in recorded(client)]
    hints = [read_hints({name.lower(): value for name, value in r["headers"]}, ask_of(r).claims) for r in requests]
    revisions = {hint.get("session_rev") for hint in hints if hint["session_id"] == "c86d8302-cab8-4abc-a424-ee94d429d7d8"}
    assert revisions == {None, "0", "1", "2"}  # the summary of a compaction names no revision
    codex = [hint for hint in hints if hint["session_id"] == "01a1fd2e-87a6-7c40-9641-22626fb3534e"]
    assert {hint["turn_type"] for hint in codex} == {None, "side"}
    assert {hint.get("session_rev") for hint in codex} == {"0", "1", "2"}  # two compactions
    agents = [hint for hint in hints if "agent_id" in hint]
    assert agents
    assert all(hint["session_id"].endswith("." + hint["agent_id"]) for hint in agents)


def test_an_upstream_receives_the_settings_of_the_recipe(rehearsed: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0, "top_p": 0.9}
    headers = {"x-api-key": "key", "User-Agent": "forced-1.0"}
    answer = httpx.post(rehearsed.url + "/chat/completions", json=body, headers=headers, timeout=60)
    assert answer.headers["x-clawctl-sampling"] == "temperature 0.7 instead of 0; top_p ignored"
    line = rehearsed.captured()[-1]
    assert (line["temperature"], line["top_p"], line["untrainable_reason"]) == (0.7, 1.0, None)
    assert line["asked"] == {"temperature": 0, "top_p": 0.9}
