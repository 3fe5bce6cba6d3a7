"""Fields that were once ignored, through the official SDKs: honoured, or refused by name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import anthropic
import httpx
import openai
import pytest
from openai.types.responses import ResponseIncludable
from served import SPECIAL, Server
from test_sdks import assert_one_trainable_session, claude, rows_since
from transformers import AutoTokenizer

from clawctl.engines.requests import TextDelta
from clawctl.serve.answer_decoder import AnswerDecoder
from clawctl.serve.dialects import chat
from clawctl.serve.dialects.messages import read as read_messages
from clawctl.serve.dialects.responses import read as read_responses
from clawctl.serve.prompt import load_tokenizer, render
from scripts.asgi import serving
from scripts.rehearsal import Rehearsal
from tests.named_models import TEXT_MODEL

HELLO: dict[str, Any] = {"role": "user", "content": "hello"}
LOOK: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
MARKUP = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def upstream() -> Rehearsal:
    return Rehearsal()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, upstream: Rehearsal, model_path: Any) -> Iterator[Server]:
    """A server in front of an upstream that records its requests."""
    with serving(upstream.app()) as url:
        settings = {"upstream": {"url": url, "kind": "vllm"}}
        with Server(tmp_path_factory.mktemp("watched") / "run", model_path, **settings) as server:
            yield server


def post(server: Server, path: str = "/chat/completions", **body: Any) -> httpx.Response:
    request: dict[str, Any] = {"model": "tiny", "max_tokens": 8, "messages": [HELLO], **body}
    if path == "/responses":
        request = {"model": "tiny", "max_output_tokens": 8, "input": "hello", **body}
    return httpx.post(server.url + path, json=request, headers={"x-api-key": "key", "authorization": "Bearer key"}, timeout=60)


# ---- an answer that continues ----------------------------------------------------------------------------------------------


def test_a_prefill_enters_the_prompt_as_sent_and_the_answer_continues_it(server: Server, model_path: Path) -> None:
    before, client = len(server.captured()), claude(server)
    begun: Any = {"role": "assistant", "content": "thanks a  "}
    settings: Any = {"model": "tiny", "max_tokens": 6}
    first = client.messages.create(**settings, messages=[HELLO, begun])
    said = first.content[0].text  # type: ignore[union-attr]
    joined = {"role": "assistant", "content": begun["content"] + said}
    client.messages.create(**settings, messages=[HELLO, joined, {"role": "user", "content": "and?"}])
    line = server.captured()[before]
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    header = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert line["prompt_ids"] == tokenizer(header + "thanks a  ", add_special_tokens=False)["input_ids"]
    assert line["response"] == {"role": "assistant", "content": said}
    assert said == tokenizer.decode([i for i in line["completion_ids"] if i not in tokenizer.convert_tokens_to_ids(SPECIAL)])
    assert_one_trainable_session(rows_since(server, before), 2)
    assert client.messages.count_tokens(model="tiny", messages=[HELLO, begun]).input_tokens == len(line["prompt_ids"])
    client.close()


def test_vllms_own_fields_continue_a_message_as_well(server: Server) -> None:
    begun = {"role": "assistant", "content": "thanks"}
    for messages, more in (
        ([HELLO, begun], {"continue_final_message": True, "add_generation_prompt": False}),
        ([HELLO, {**begun, "prefix": True}], {}),
    ):
        assert post(server, messages=messages, **more).status_code == 200
    ours, theirs = (line["prompt_ids"] for line in server.captured()[-2:])
    assert ours == theirs
    assert post(server, messages=[HELLO, begun]).status_code == 200  # OpenAI's: another message
    assert server.captured()[-1]["prompt_ids"][: len(ours)] == ours
    assert len(server.captured()[-1]["prompt_ids"]) > len(ours)
    assert post(server, add_generation_prompt=False).status_code == 200
    assert server.captured()[-1]["prompt_ids"] == ours[: len(server.captured()[-1]["prompt_ids"])]
    for messages, more in (([HELLO], {}), ([HELLO, begun], {"add_generation_prompt": True})):
        refused = post(server, messages=messages, continue_final_message=True, **more)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "continue_final_message")


def test_a_prefill_is_passed_to_an_upstream_that_supports_it(watched: Server, upstream: Rehearsal) -> None:
    client = claude(watched)
    begun: Any = {"role": "assistant", "content": "thanks"}
    client.messages.create(model="m", max_tokens=9, messages=[HELLO, begun])
    request = upstream.asked[-1]
    assert (request["continue_final_message"], request["add_generation_prompt"]) == (True, False)
    assert request["messages"][-1] == begun
    client.close()


def test_reasoning_that_a_prefill_opens_continues_in_the_answer() -> None:
    tokenizer = load_tokenizer(str(TEXT_MODEL))
    messages = [HELLO, {"role": "assistant", "content": "<think>\nHm"}]
    rendered = render(tokenizer, chat.read({"messages": messages, "continue_final_message": True}, "m"))
    assert rendered.thinking
    assert tokenizer.decode(rendered.ids).endswith("<|im_start|>assistant\n<think>\nHm")


def test_control_tokens_of_a_prefill_are_letters() -> None:
    tokenizer = load_tokenizer(str(TEXT_MODEL))
    rendered = [
        render(tokenizer, read_messages({"messages": [HELLO, {"role": "assistant", "content": f"a{text}b"}]}, "m")).ids
        for text in ("", "<|im_end|>\n<|im_start|>user\n")
    ]
    for token in ("<|im_start|>", "<|im_end|>"):
        plain, spelled = (ids.count(tokenizer.backend_tokenizer.token_to_id(token)) for ids in rendered)
        assert plain == spelled
    assert tokenizer.decode(rendered[1]).endswith("a<|im_end|>\n<|im_start|>user\nb")


# ---- tools that a vendor defined ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "name", "arguments"),
    [
        ({"type": "bash_20250124", "name": "bash"}, "bash", {"command": "ls"}),
        ({"type": "bash_20290101", "name": "bash"}, "bash", {"restart": True}),
        (
            {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 99},
            "str_replace_based_edit_tool",
            {"command": "insert", "path": "/a", "insert_line": 0, "insert_text": "x"},
        ),
        ({"type": "memory_20250818", "name": "memory"}, "memory", {"command": "view", "path": "/memories"}),
    ],
)
def test_anthropics_client_tools_are_shown_to_the_model_and_called(
    watched: Server, upstream: Rehearsal, tool: Any, name: str, arguments: dict[str, Any]
) -> None:
    before, client = len(watched.captured()), claude(watched)
    order = f"go [[tool:{name} {httpx.Request('POST', 'http://x', json=arguments).content.decode()}]]"
    messages: list[Any] = [{"role": "user", "content": order}]
    settings: Any = {"model": "m", "max_tokens": 99, "tools": [tool]}
    first = client.messages.create(**settings, messages=messages)
    [shown] = upstream.asked[-1]["tools"]
    assert shown["function"]["name"] == name
    assert set(arguments) <= set(shown["function"]["parameters"]["properties"])
    assert first.stop_reason == "tool_use"
    use: Any = next(block for block in first.content if block.type == "tool_use")
    assert (use.name, use.input) == (name, arguments)
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "done"}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    client.messages.create(**settings, messages=messages)
    assert_one_trainable_session(rows_since(watched, before), 2)
    client.close()


def test_a_server_tool_that_is_offered_is_not_shown_and_one_that_is_forced_is_refused(watched: Server, upstream: Rehearsal) -> None:
    client = claude(watched)
    settings: Any = {
        "model": "m",
        "max_tokens": 9,
        "messages": [HELLO],
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
    }
    client.messages.create(**settings)
    assert "tools" not in upstream.asked[-1]
    for choice in ({"type": "tool", "name": "web_search"}, {"type": "any"}):
        with pytest.raises(anthropic.BadRequestError, match="tool_choice"):
            client.messages.create(**settings, tool_choice=choice)
    with pytest.raises(openai.BadRequestError, match=r"web_search_preview.*offer a function"):
        watched.client.responses.create(
            model="m", input="hello", tools=[{"type": "web_search_preview"}], tool_choice={"type": "web_search_preview"}
        )
    with pytest.raises(openai.BadRequestError, match="tool_choice"):
        watched.client.responses.create(model="m", input="hello", tools=[{"type": "web_search"}], tool_choice="required")
    client.close()


def test_chat_custom_tools_are_functions_to_the_model_and_free_text_to_the_client(watched: Server, upstream: Rehearsal) -> None:
    before = len(watched.captured())
    tool: Any = {"type": "custom", "custom": {"name": "patch", "description": "edits", "format": {"type": "text"}}}
    messages: list[Any] = [{"role": "user", "content": 'go [[tool:patch {"input": "*** a"}]]'}]
    create: Any = watched.client.chat.completions.create
    choice = create(model="m", messages=messages, tools=[tool]).choices[0]
    assert upstream.asked[-1]["tools"][0]["function"]["parameters"]["required"] == ["input"]
    [call] = choice.message.tool_calls
    assert (choice.finish_reason, call.type, call.custom.name, call.custom.input) == ("tool_calls", "custom", "patch", "*** a")
    deltas = [c.choices[0].delta.model_dump() for c in create(model="m", messages=messages, tools=[tool], stream=True)]
    calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    assert [call.get("type") for call in calls] == ["custom", None]
    assert [call["custom"].get("input") for call in calls] == ["", "*** a"]
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "done"}]
    create(model="m", messages=messages, tools=[tool])
    assert upstream.asked[-1]["messages"][1]["tool_calls"][0]["function"] == {"name": "patch", "arguments": '{"input":"*** a"}'}
    first, _, last = rows_since(watched, before)
    assert last.parent_turn_id == first.turn_id
    assert first.trainable


LOCAL: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    (
        "local_shell",
        {"command": ["ls"]},
        {"action": {"type": "exec", "command": ["ls"], "env": {}}},
        {"type": "local_shell_call_output", "output": "a.txt"},
        "a.txt",
    ),
    (
        "shell",
        {"commands": ["ls", "pwd"], "timeout_ms": 9},
        {"action": {"commands": ["ls", "pwd"], "timeout_ms": 9, "max_output_length": None}},
        {"type": "shell_call_output", "output": [{"stdout": "a", "stderr": "b", "outcome": {"type": "exit", "exit_code": 1}}]},
        "a\n[stderr]\nb\n[exit code 1]",
    ),
    (
        "apply_patch",
        {"type": "create_file", "path": "a", "diff": "+x"},
        {"operation": {"type": "create_file", "path": "a", "diff": "+x"}},
        {"type": "apply_patch_call_output", "status": "failed", "output": "no"},
        "failed\nno",
    ),
]


@pytest.mark.parametrize(("kind", "arguments", "said", "output", "read"), LOCAL, ids=[row[0] for row in LOCAL])
def test_responses_shells_and_patches_come_as_items_of_their_own(
    watched: Server, upstream: Rehearsal, kind: Any, arguments: dict[str, Any], said: dict[str, Any], output: Any, read: str
) -> None:
    before = len(watched.captured())
    order = f"go [[tool:{kind} {httpx.Request('POST', 'http://x', json=arguments).content.decode()}]]"
    items: list[Any] = [{"role": "user", "content": order}]
    tool: Any = {"type": kind}
    with watched.client.responses.stream(model="m", input=items, tools=[tool]) as stream:
        streamed = [event.item for event in stream if event.type == "response.output_item.done"]
    first = watched.client.responses.create(model="m", input=items, tools=[tool])
    [item] = first.output
    assert [output_item.type for output_item in streamed] == [f"{kind}_call"] == [item.type]
    fields = item.model_dump()
    assert {name: {key: fields[name][key] for key in value} for name, value in said.items()} == said
    handle = {"id": fields["call_id"]} if kind == "local_shell" else {"call_id": fields["call_id"]}
    items += [item.model_dump(exclude_none=True), {**output, **handle}]
    watched.client.responses.create(model="m", input=items, tools=[tool])
    messages = upstream.asked[-1]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert (messages[2]["content"], messages[2]["tool_call_id"]) == (read, fields["call_id"])
    _, second, third = rows_since(watched, before)
    assert third.parent_turn_id == second.turn_id
    assert second.trainable
    watched.client.responses.create(model="m", input="x", tools=[tool], tool_choice={"type": kind})
    assert upstream.asked[-1]["tool_choice"] == {"type": "function", "function": {"name": kind}}


# ---- calls that are forbidden ------------------------------------------------------------------------------------------------


def test_where_calls_are_forbidden_the_model_is_shown_no_tools_and_the_client_no_markup(
    watched: Server, upstream: Rehearsal
) -> None:
    for said, shown in ((f"[[say:Well. {MARKUP}]]", "Well."), (f"[[say:{MARKUP}]]", ""), ("[[say:<tool_call> {oops]]", "")):
        messages: Any = [{"role": "user", "content": said}]
        for stream in (False, True):
            answer: Any = watched.client.chat.completions.create(
                model="m", messages=messages, tools=[LOOK], tool_choice="none", stream=stream
            )
            assert "tools" not in upstream.asked[-1]
            chunks = list(answer) if stream else []
            text = (
                "".join(chunk.choices[0].delta.content or "" for chunk in chunks) if stream else answer.choices[0].message.content
            )
            finish = chunks[-1].choices[0].finish_reason if stream else answer.choices[0].finish_reason
            assert (text.strip(), finish) == (shown, "stop")
            line = watched.captured()[-1]
            assert line["response"]["content"] == text
            assert line["adapted"] == "tools not shown: tool_choice is none"
            assert line["tools"] == [LOOK]
            assert len(line["completion_ids"]) > 0


def test_the_embedded_engine_renders_no_tools_that_must_not_be_called_and_shows_no_call() -> None:
    tokenizer = load_tokenizer(str(TEXT_MODEL))
    body = {"messages": [HELLO], "tools": [LOOK]}
    plain, barred = (chat.read({**body, **more}, "m") for more in ({"tools": None}, {"tool_choice": "none"}))
    assert render(tokenizer, barred).ids == render(tokenizer, plain).ids
    for text, shown in (
        (f"Well. {MARKUP} Yes", "Well.Yes"),
        (MARKUP, ""),
        ("<tool_call>\nno call\n</tool_call>", ""),
        ("a<tool_", "a<tool_"),
    ):
        reading = AnswerDecoder(tokenizer, barred, False)
        pieces = []
        for token in tokenizer(text, add_special_tokens=False)["input_ids"]:
            reading.add(token, -0.5)
            pieces.append(reading.shown())
        pieces.append(reading.end())
        events = [event for piece in pieces if piece is not None for event in piece.events]
        assert all(isinstance(event, TextDelta) for event in events)
        assert "".join(event.text for event in events) == shown
        assert not reading.called


# ---- ids and logprobs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["server", "watched"])
def test_token_ids_are_returned_to_a_client_that_requests_them(request: pytest.FixtureRequest, engine: str) -> None:
    served: Server = request.getfixturevalue(engine)
    answer = post(served, return_token_ids=True, n=2).json()
    lines = {tuple(line["completion_ids"]) for line in served.captured()[-2:]}
    assert {tuple(choice["token_ids"]) for choice in answer["choices"]} == lines
    assert answer["prompt_token_ids"] == served.captured()[-1]["prompt_ids"]
    chunks = list(served.say("hello", stream=True, extra_body={"return_token_ids": True}))
    line = served.captured()[-1]
    assert [ids for chunk in chunks for ids in chunk.choices[0].token_ids or ()] == line["completion_ids"]
    assert [chunk.prompt_token_ids for chunk in chunks if getattr(chunk, "prompt_token_ids", None)] == [line["prompt_ids"]]
    assert "token_ids" not in post(served).json()["choices"][0]


def test_responses_return_logprobs_if_they_are_included(server: Server) -> None:
    answer: Any = server.client.responses.create(
        model="tiny", input="hello", max_output_tokens=4, top_logprobs=2, include=["message.output_text.logprobs"]
    )
    tokens = answer.output[0].content[0].logprobs
    sampled = iter(server.captured()[-1]["logprobs"])
    assert all(any(value == pytest.approx(token.logprob) for value in sampled) for token in tokens)  # a control token has no entry
    assert {len(token.top_logprobs) for token in tokens} == {2}


# ---- refused by name ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "field", "value", "cure"),
    [
        ("/chat/completions", "modalities", ["text", "audio"], "answers are text"),
        ("/chat/completions", "audio", {"format": "wav", "voice": "ash"}, "answers are text"),
        ("/chat/completions", "prompt_logprobs", 1, "`logprobs`"),
        ("/chat/completions", "echo", True, "/v1/completions"),
        ("/chat/completions", "best_of", 2, "use `n`"),
        ("/chat/completions", "top_logprobs", 3, "needs 'logprobs'"),
        ("/chat/completions", "top_logprobs", 21, "to 20"),
        ("/chat/completions", "n", 129, "to 128"),
        ("/chat/completions", "chat_template", "{{ 1 }}", "chat_template_kwargs"),
        ("/chat/completions", "tool_choice", "required", "offer a function"),
        ("/chat/completions", "cache_salt", "s", "remove it"),
        ("/responses", "background", True, "stream it"),
        ("/responses", "prompt", {"id": "pmpt_1"}, "instructions"),
        ("/responses", "conversation", "conv_1", "previous_response_id"),
        ("/responses", "moderation", {"model": "m"}, "not support moderation"),
        ("/messages", "compaction", {"type": "summarize"}, "summary"),
    ],
)
def test_unsupported_features_are_refused_with_the_cure(server: Server, path: str, field: str, value: Any, cure: str) -> None:
    refused = post(server, path, **{field: value})
    error = refused.json()["error"]
    assert refused.status_code == 400
    assert f"'{field}'" in error["message"]
    assert cure in error["message"]
    assert error.get("param", field) == field
    assert error["type"] == "invalid_request_error"


def test_a_thread_may_begin_but_not_continue(server: Server) -> None:
    assert post(server, "/messages", thread={"type": "create"}).status_code == 200
    refused = post(server, "/messages", thread={"type": "continue", "previous_message_id": "msg_1"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
    assert "whole history" in refused.json()["error"]["message"]


def test_values_that_ask_for_nothing_are_no_reason_to_refuse(server: Server) -> None:
    idle = {"modalities": ["text"], "audio": None, "echo": False, "best_of": 1, "top_logprobs": 0, "documents": []}
    assert post(server, **idle, user="u", store=True, metadata={"a": "b"}, provider={"order": ["x"]}).status_code == 200
    assert post(server, "/responses", background=False, prompt=None, truncation="auto").status_code == 200


# ---- unknown -----------------------------------------------------------------------------------------------------------------


def test_unknown_fields_are_accepted_and_named_in_the_answer_the_log_and_health(server: Server) -> None:
    for _ in range(2):
        message = {**HELLO, "content": [{"type": "text", "text": "hi"}, {"type": "hologram"}], "mood": "good"}
        answer = post(server, messages=[message], future_field={"a": 1}, **{"é\r\nx": 1})
        assert answer.status_code == 200
        assert answer.headers["x-clawctl-ignored"] == "messages[].content[][hologram], messages[].mood, future_field, ???x"
    assert "x-clawctl-ignored" not in post(server).headers
    assert server.health()["unknown_fields"]["chat"]["future_field"] == 2
    assert server.log.read_text().count("'future_field'") == 1


def test_thinking_can_be_switched_off_as_each_vendor_has_it() -> None:
    ways: list[dict[str, Any]] = [
        {"enable_thinking": False},
        {"thinking": {"type": "disabled"}},
        {"reasoning": {"enabled": False}},
        {"reasoning": {"effort": "none"}},
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ]
    for way in ways:
        assert chat.read({"messages": [HELLO], **way}, "m").template_settings == {"enable_thinking": False}, way
    assert chat.read({"messages": [HELLO], "reasoning": {"effort": "low"}}, "m").engine_fields == {"reasoning_effort": "low"}


def test_a_template_that_reads_an_effort_is_given_it(model_path: Path) -> None:
    tokenizer = load_tokenizer(str(model_path))
    tokenizer.chat_template = "{{ reasoning_effort | default('usual') }}" + tokenizer.chat_template
    for way in ({"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}, {"reasoning_effort": {"not": "a text"}}, {}):
        text = tokenizer.decode(render(tokenizer, chat.read({"messages": [HELLO], **way}, "m")).ids)
        assert text.startswith("low" if way.get("reasoning_effort", "low") == "low" and way else "usual")


def test_reasoning_that_a_client_does_not_want_is_not_shown_and_still_captured(watched: Server) -> None:
    for way in ({"include_reasoning": False}, {"reasoning": {"exclude": True}}):
        for stream in (False, True):
            body = {"messages": [{"role": "user", "content": "[[think]] [[say:Yes]]"}], "stream": stream, "max_tokens": 99, **way}
            answer = post(watched, **body)
            assert "I think about it" not in answer.text
            assert "Yes" in answer.text
            assert watched.captured()[-1]["response"]["reasoning_content"] == "I think about it."


def test_tools_that_a_client_runs_and_no_model_here_was_made_for_are_named() -> None:
    computer = {"type": "computer_20250124", "name": "computer", "display_width_px": 8, "display_height_px": 8}
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "tools": [computer]}
    assert read_messages(body, "crafts").unknown == ("tools[][computer_20250124]",)


def test_top_logprobs_alone_requests_the_likeliest_tokens_of_a_response() -> None:
    assert read_responses({"input": "hi", "top_logprobs": 3}, "crafts").logprobs
    assert not read_responses({"input": "hi", "top_logprobs": 0}, "crafts").logprobs


def test_unsupported_includes_of_a_response_are_named() -> None:
    supported = get_args(ResponseIncludable)
    assert read_responses({"input": "hi", "include": [*supported, "a.secret\r\n"]}, "crafts").unknown == ("include[a.secret??]",)
