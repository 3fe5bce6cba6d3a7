"""Three APIs, one ask and one answer: what a request means does not depend on the API it came through."""

from typing import Any

import orjson
import pytest

from clawctl.serve.dialects import Ask, Choice, Dialect, Extras, Refusal, Shown, chat, messages, responses
from clawctl.serve.dialects.handles import exchange_of
from clawctl.serve.text import CallBegun, CallSaid, Event, Said, Thought

EXCHANGE = "x4Jdx4Jdx4Jdx4Jdx4Jdx4J7"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CHAT_TOOL = {"type": "function", "function": {"name": "look", "description": "looks", "parameters": SCHEMA}}
CALL = {"id": "call1", "type": "function", "function": {"name": "look", "arguments": '{"city":"Paris"}'}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "be nice"},
    {"role": "user", "content": "How is Paris?"},
    {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call1", "content": "sunny"},
    {"role": "assistant", "content": "Sunny."},
    {"role": "user", "content": "Thanks"},
]
AS_CHAT = {"messages": CONVERSATION, "tools": [CHAT_TOOL], "tool_choice": "required", "max_completion_tokens": 9}
AS_RESPONSES = {
    "instructions": "be nice",
    "input": [
        {"role": "user", "content": "How is Paris?"},
        {"type": "reasoning", "id": "rs1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        {"type": "function_call", "call_id": "call1", "name": "look", "arguments": '{"city":"Paris"}'},
        {"type": "function_call_output", "call_id": "call1", "output": [{"type": "input_text", "text": "sunny"}]},
        {"role": "assistant", "content": "Sunny."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Thanks"}]},
    ],
    "tools": [{"type": "function", "name": "look", "description": "looks", "parameters": SCHEMA}],
    "tool_choice": "required",
    "max_output_tokens": 9,
}
AS_MESSAGES = {
    "system": [{"type": "text", "text": "be nice", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "How is Paris?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "theirs"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "call1", "name": "look", "input": {"city": "Paris"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "call1", "content": [{"type": "text", "text": "sunny"}]}],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "Sunny."}]},
        {"role": "user", "content": [{"type": "text", "text": "Thanks"}]},
    ],
    "tools": [{"name": "look", "description": "looks", "input_schema": SCHEMA}],
    "tool_choice": {"type": "any"},
    "max_tokens": 9,
}


def test_the_same_conversation_is_the_same_ask_through_every_api() -> None:
    asks = [chat.read(AS_CHAT, "m"), responses.read(AS_RESPONSES, "m"), messages.read(AS_MESSAGES, "m")]
    for ask in asks:
        assert ask.messages == CONVERSATION
        assert ask.sent_messages == CONVERSATION
        assert (ask.tools, ask.tool_choice, ask.max_tokens, ask.model) == ([CHAT_TOOL], "required", 9, "m")
    assert [ask.api for ask in asks] == ["chat", "responses", "messages"]
    assert [ask.max_tokens_may_shrink for ask in asks] == [False, True, True]


# ---- answers -------------------------------------------------------------------------------------------------------------------

PIECES: list[list[Event]] = [
    [Thought("I ")],
    [Thought("think."), Said("Let")],
    [Said(" me."), CallBegun("look"), CallSaid('{"city"')],
    [CallSaid(':"Rome"}'), CallBegun("look")],
    [CallSaid("{}")],
]
MESSAGE = {
    "role": "assistant",
    "content": "Let me.",
    "reasoning_content": "I think.",
    "tool_calls": [
        {"id": f"call{EXCHANGE}0", "type": "function", "function": {"name": "look", "arguments": '{"city":"Rome"}'}},
        {"id": f"call{EXCHANGE}1", "type": "function", "function": {"name": "look", "arguments": "{}"}},
    ],
}


def speak(dialect: Dialect, pieces: list[list[Event]], finish: str = "tool_calls") -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The frames of the streamed answer, and the answer that is not streamed."""
    choice = Choice(0, EXCHANGE, prompt_tokens=7, completion_tokens=5, reasoning_tokens=2, cached_tokens=3)
    sent = dialect.begin(choice)
    for events in pieces:
        choice.shown.append(Shown(events, []))
        sent += dialect.piece(choice, choice.shown[-1])
    choice.finish_reason = finish
    sent += dialect.finish(choice) + dialect.end([choice])
    lines = [line for line in sent.decode().split("\n") if line.startswith("data: ") and line != "data: [DONE]"]
    return [orjson.loads(line[6:]) for line in lines], orjson.loads(dialect.whole([choice]))


def test_what_an_upstream_says_beside_what_we_know_is_told_and_our_own_names_stay() -> None:
    dialect = chat.Chat(chat.read({**AS_CHAT, "stream_options": {"include_usage": True}}, "m"), EXCHANGE)
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9, "odd": {"a": 1}}
    extras = Extras({"system_fingerprint": "fp", "id": "theirs"}, {"stop_reason": None}, {"refusal": "no"})
    choice = Choice(0, EXCHANGE, [Shown([Said("a")], [])], "stop", usage=usage, extras=extras)
    whole = orjson.loads(dialect.whole([choice]))
    assert (whole["system_fingerprint"], whole["id"], whole["usage"]) == ("fp", f"chatcmpl{EXCHANGE}", usage)
    assert whole["choices"][0]["stop_reason"] is None
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "a", "refusal": "no"}
    last, told = (orjson.loads(line[6:]) for line in (dialect.finish(choice) + dialect.end([choice])).split(b"\n\n")[:2])
    assert (last["choices"][0]["delta"]["refusal"], last["choices"][0]["stop_reason"]) == ("no", None)
    assert (told["usage"], told["system_fingerprint"]) == (usage, "fp")


def test_usage_of_several_answers_is_that_of_one_prompt_and_all_their_tokens() -> None:
    details = ({"reasoning_tokens": 0, "note": None}, {"reasoning_tokens": 3})
    choices = [
        Choice(
            i,
            EXCHANGE,
            usage={"prompt_tokens": 7, "completion_tokens": n, "total_tokens": 7 + n, "completion_tokens_details": each},
        )
        for i, (n, each) in enumerate(zip((2, 5), details, strict=True))
    ]
    usage = orjson.loads(chat.Chat(chat.read(AS_CHAT, "m"), EXCHANGE).whole(choices))["usage"]
    counted = {"prompt_tokens": 7, "completion_tokens": 7, "total_tokens": 14}
    assert usage == {**counted, "completion_tokens_details": {"reasoning_tokens": 3, "note": None}}
    assert choices[0].usage == {**counted, "completion_tokens": 2, "total_tokens": 9, "completion_tokens_details": details[0]}


def test_every_api_captures_the_same_message() -> None:
    choice = Choice(0, EXCHANGE, [Shown(events, []) for events in PIECES])
    for module, dialect, body in (
        (chat, chat.Chat, AS_CHAT),
        (responses, responses.Responses, AS_RESPONSES),
        (messages, messages.Messages, AS_MESSAGES),
    ):
        assert dialect(module.read(body, "m"), EXCHANGE).message(choice) == MESSAGE


def test_a_chat_stream_joined_is_the_whole_answer() -> None:
    chunks, whole = speak(chat.Chat(chat.read(AS_CHAT | {"stream_options": {"include_usage": True}}, "m"), EXCHANGE), PIECES)
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("content", "") for delta in deltas) == "Let me."
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "I think."
    calls: list[dict[str, Any]] = []
    for call in (call for delta in deltas for call in delta.get("tool_calls", [])):
        if "id" in call:
            calls.append({key: call[key] for key in ("id", "type", "function")})
        else:
            calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    assert whole["choices"][0]["message"] == MESSAGE
    assert calls == MESSAGE["tool_calls"]
    assert chunks[-1]["usage"] == whole["usage"]
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert chunks[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "tool_calls"


def test_a_responses_stream_joined_is_the_whole_answer() -> None:
    frames, whole = speak(responses.Responses(responses.read(AS_RESPONSES, "m"), EXCHANGE), PIECES)
    assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
    final = frames[-1]["response"]
    assert final == whole | {"completed_at": final["completed_at"]}
    done = [frame["item"] for frame in frames if frame["type"] == "response.output_item.done"]
    assert done == whole["output"]
    assert [item["type"] for item in done] == ["reasoning", "message", "function_call", "function_call"]
    for i, kind in enumerate(("reasoning_text", "output_text", "function_call_arguments", "function_call_arguments")):
        grown = "".join(f["delta"] for f in frames if f["type"] == f"response.{kind}.delta" and f["output_index"] == i)
        closed = next(f for f in frames if f["type"] == f"response.{kind}.done" and f["output_index"] == i)
        assert grown == closed.get("text", closed.get("arguments"))
        assert closed["item_id"] == done[i]["id"]
    assert [call["call_id"] for call in done[2:]] == [f"call{EXCHANGE}0", f"call{EXCHANGE}1"]
    assert done[2]["arguments"] == '{"city":"Rome"}'
    assert whole["usage"] == {
        "input_tokens": 7, "output_tokens": 5, "total_tokens": 12,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 2},
    }  # fmt: skip
    kinds = [frame["type"].removeprefix("response.") for frame in frames]
    assert kinds[:3] == ["created", "in_progress", "output_item.added"]
    assert kinds[-1] == "completed"


def test_a_messages_stream_joined_is_the_whole_answer() -> None:
    frames, whole = speak(messages.Messages(messages.read(AS_MESSAGES, "m"), EXCHANGE), PIECES)
    assert [frame["type"] for frame in frames[:2]] == ["message_start", "ping"]
    blocks: list[dict[str, Any]] = []
    for frame in frames:
        if frame["type"] == "content_block_start":
            assert frame["index"] == len(blocks)
            blocks.append(frame["content_block"] | {"json": ""})
        if frame["type"] == "content_block_delta":
            kind, block = frame["delta"].pop("type"), blocks[frame["index"]]
            [(name, text)] = frame["delta"].items()
            name = "json" if kind == "input_json_delta" else name
            block[name] += text
    for block in blocks:
        said = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = orjson.loads(said)
    assert blocks == whole["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use", "tool_use"]
    assert sum(frame["type"] == "content_block_stop" for frame in frames) == 4
    assert frames[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert whole["usage"] == frames[-2]["usage"]
    assert whole["usage"] == {
        "input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3, "output_tokens": 5
    }  # fmt: skip
    assert frames[-1] == {"type": "message_stop"}


def test_what_an_api_gave_comes_back_as_the_message_that_it_was_with_the_name_of_its_turn() -> None:
    choice = Choice(0, EXCHANGE, [Shown(events, []) for events in PIECES], "tool_calls")
    given = orjson.loads(responses.Responses(responses.read(AS_RESPONSES, "m"), EXCHANGE).whole([choice]))
    again = responses.read({"input": [{"role": "user", "content": "hi"}, *given["output"]]}, "m")
    assert again.sent_messages[1:] == [MESSAGE | {"handle": EXCHANGE}]
    assert again.messages[1:] == [MESSAGE]
    given = orjson.loads(messages.Messages(messages.read(AS_MESSAGES, "m"), EXCHANGE).whole([choice]))
    again = messages.read(
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": given["content"]}]}, "m"
    )
    assert again.sent_messages[1:] == [MESSAGE | {"handle": EXCHANGE}]
    assert again.messages[1:] == [MESSAGE]


def test_all_handles_name_the_exchange_and_those_of_others_name_nothing() -> None:
    choice = Choice(0, EXCHANGE, [Shown(events, []) for events in PIECES], "tool_calls")
    response = orjson.loads(responses.Responses(responses.read(AS_RESPONSES, "m"), EXCHANGE).whole([choice]))
    reasoning, text, call, _ = response["output"]
    handles = [response["id"], reasoning["id"], reasoning["encrypted_content"], text["id"], call["id"], call["call_id"]]
    message = orjson.loads(messages.Messages(messages.read(AS_MESSAGES, "m"), EXCHANGE).whole([choice]))
    handles += [message["id"], message["content"][0]["signature"], message["content"][2]["id"]]
    handles += [f"call_{EXCHANGE}12", f"chatcmpl-{EXCHANGE}"]  # punctuation is not ours, nor theirs
    assert {exchange_of(handle) for handle in handles} == {EXCHANGE}
    for other in ("call_57b7", "toolu_0e65a27b4b9f46cab92927", "Y2xhd2N0bC1zaWctMi01YWJkMTBhYg==", None, 7, "call" * 100):
        assert exchange_of(other) is None
    told = (response["id"], reasoning["encrypted_content"], call["call_id"], message["content"][0]["signature"])
    assert all(handle.isalnum() for handle in told)


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_an_answer_that_says_nothing_has_one_empty_text(finish: str) -> None:
    frames, whole = speak(responses.Responses(responses.read(AS_RESPONSES, "m"), EXCHANGE), [], finish)
    assert whole["output"][0]["content"] == [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
    assert [frame["item"] for frame in frames if frame["type"] == "response.output_item.done"] == whole["output"]
    frames, whole = speak(messages.Messages(messages.read(AS_MESSAGES, "m"), EXCHANGE), [], finish)
    assert whole["content"] == [{"type": "text", "text": ""}]
    assert [frame["content_block"] for frame in frames if frame["type"] == "content_block_start"] == whole["content"]


def test_an_answer_that_was_cut_off_says_so() -> None:
    cut: list[list[Event]] = [[CallBegun("look"), CallSaid('{"ci')]]
    frames, whole = speak(responses.Responses(responses.read(AS_RESPONSES, "m"), EXCHANGE), cut, "length")
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (frames[-1]["type"], frames[-1]["response"]["status"]) == ("response.incomplete", "incomplete")
    assert whole["output"][0]["status"] == "incomplete"
    frames, whole = speak(messages.Messages(messages.read(AS_MESSAGES, "m"), EXCHANGE), cut, "length")
    assert whole["stop_reason"] == frames[-2]["delta"]["stop_reason"] == "max_tokens"
    assert whole["content"][0]["input"] == {}


def test_a_stop_sequence_is_named_in_messages() -> None:
    choice = Choice(0, EXCHANGE, [Shown([Said("a")], [])], "stop", stop_sequence="END")
    whole = orjson.loads(messages.Messages(messages.read(AS_MESSAGES, "m"), EXCHANGE).whole([choice]))
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", "END")


def test_a_stream_that_fails_says_so_in_its_own_words() -> None:
    refusal = Refusal(500, "the engine failed while it answered")
    ask = responses.read(AS_RESPONSES, "m")
    failed = responses.Responses(ask, EXCHANGE).failed(refusal)
    assert failed.startswith(b"event: response.failed\n")
    assert orjson.loads(failed.split(b"data: ")[1])["response"]["error"]["message"] == refusal.message
    failed = messages.Messages(messages.read(AS_MESSAGES, "m"), EXCHANGE).failed(refusal)
    assert orjson.loads(failed.split(b"data: ")[1]) == {"type": "error", "error": {"type": "api_error", "message": refusal.message}}


# ---- Responses: its own ways ---------------------------------------------------------------------------------------------------


def test_tools_in_a_namespace_and_custom_tools_are_called_as_the_client_knows_them() -> None:
    tools = [
        {
            "type": "namespace",
            "name": "agents",
            "tools": [{"type": "function", "name": "spawn"}, {"type": "function", "name": "look"}],
        },
        {"type": "function", "name": "look2"},
        {
            "type": "custom",
            "name": "patch",
            "description": "edits",
            "format": {"type": "grammar", "syntax": "lark", "definition": "s:"},
        },
        {"type": "web_search", "external_web_access": False},
    ]
    history = [{"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "*** a\n"},
               {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"}]  # fmt: skip
    ask = responses.read({"input": history, "tools": tools}, "m")
    assert ask.tools is not None
    assert [tool.get("function", {}).get("name") for tool in ask.tools] == ["spawn", "look", "look2", "patch", None]
    assert ask.messages[0]["tool_calls"][0]["function"] == {"name": "patch", "arguments": '{"input":"*** a\\n"}'}
    pieces: list[list[Event]] = [
        [CallBegun("spawn"), CallSaid("{}")],
        [CallBegun("patch"), CallSaid('{"input": "*** b'), CallSaid('\\n"}')],
    ]
    frames, whole = speak(responses.Responses(ask, EXCHANGE), pieces)
    spawn, patch = whole["output"]
    assert (spawn["type"], spawn["name"], spawn["namespace"]) == ("function_call", "spawn", "agents")
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "patch", "*** b\n")
    assert [frame["delta"] for frame in frames if frame["type"] == "response.custom_tool_call_input.delta"] == ["*** b\n"]
    again = responses.read({"input": whole["output"], "tools": tools}, "m")
    assert [call["function"] for call in again.messages[0]["tool_calls"]] == [
        {"name": "spawn", "arguments": "{}"},
        {"name": "patch", "arguments": '{"input":"*** b\\n"}'},
    ]


def test_two_tools_of_one_name_are_told_apart_by_their_namespace() -> None:
    tools = [
        {"type": "function", "name": "look"},
        {"type": "namespace", "name": "far", "tools": [{"type": "function", "name": "look"}]},
    ]
    call = {"type": "function_call", "call_id": "c", "name": "look", "namespace": "far", "arguments": "{}"}
    ask = responses.read({"input": [call], "tools": tools}, "m")
    assert ask.messages[0]["tool_calls"][0]["function"]["name"] == "far__look"
    _, whole = speak(responses.Responses(ask, EXCHANGE), [[CallBegun("far__look"), CallSaid("{}")]])
    assert (whole["output"][0]["name"], whole["output"][0]["namespace"]) == ("look", "far")


def test_two_answers_in_a_row_stay_two_messages_if_their_handles_differ() -> None:
    other = EXCHANGE[::-1]
    items = [{"type": "message", "role": "assistant", "id": f"msg_{each}0", "content": "a"} for each in (EXCHANGE, EXCHANGE, other)]
    assert [(m["content"], m["handle"]) for m in responses.read({"input": items}, "m").sent_messages] == [
        ("aa", EXCHANGE),
        ("a", other),
    ]


def test_structured_output_and_effort_reach_the_engine() -> None:
    form = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
    ask = responses.read({"input": "hi", "text": {"format": form}, "reasoning": {"effort": "high"}}, "m")
    assert ask.engine_fields == {
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}},
        "reasoning_effort": "high",
    }
    ask = messages.read(AS_MESSAGES | {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, "m")
    assert ask.engine_fields["response_format"]["json_schema"]["schema"] == SCHEMA
    for off in (
        responses.read({"input": "hi", "reasoning": {"effort": "none"}}, "m"),
        messages.read(AS_MESSAGES | {"thinking": {"type": "disabled"}}, "m"),
        chat.read(AS_CHAT | {"reasoning_effort": "none"}, "m"),
    ):
        assert off.template_settings == {"enable_thinking": False}
        assert off.engine_fields["chat_template_kwargs"] == {"enable_thinking": False}
    assert messages.read(AS_MESSAGES | {"thinking": {"type": "adaptive"}}, "m").template_settings == {"enable_thinking": True}


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ({"type": "function", "name": "look"}, {"type": "function", "function": {"name": "look"}}),
        ({"type": "web_search"}, "auto"),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]}, "required"),
    ],
)
def test_tool_choices_of_responses(sent: Any, meant: Any) -> None:
    ask = responses.read(AS_RESPONSES | {"tool_choice": sent}, "m")
    assert ask.tool_choice == meant
    assert ask.tools == [CHAT_TOOL]


def test_tool_choices_of_messages() -> None:
    def read(**choice: Any) -> Ask:
        return messages.read(AS_MESSAGES | {"tool_choice": choice}, "m")

    assert read(type="auto").tool_choice == "auto"
    assert read(type="none").tool_choice == "none"
    assert read(type="tool", name="look").tool_choice == {"type": "function", "function": {"name": "look"}}
    assert read(type="auto", disable_parallel_tool_use=True).engine_fields == {"parallel_tool_calls": False}


def test_several_leading_system_messages_are_one_prompt_and_captured_as_they_came() -> None:
    items = [{"role": "developer", "content": "a"}, {"role": "developer", "content": "b"}, {"role": "user", "content": "c"}]
    ask = responses.read({"input": items}, "m")
    assert ask.messages == [{"role": "system", "content": "a\n\nb"}, {"role": "user", "content": "c"}]
    assert ask.sent_messages == items


# ---- Messages: its own ways ----------------------------------------------------------------------------------------------------


def test_results_come_before_what_the_user_says_with_them_and_a_file_leaves_a_note() -> None:
    blocks = [
        {"type": "tool_result", "tool_use_id": "b", "content": "2", "is_error": True},
        {"type": "tool_result", "tool_use_id": "a"},
        {"type": "text", "text": "and "},
        {"type": "document", "title": "x.pdf", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVB"}},
        {"type": "document", "source": {"type": "text", "data": "plain"}},
        {"type": "mystery"},
    ]
    assert messages.read({"messages": [{"role": "user", "content": blocks}]}, "m").messages == [
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {"role": "tool", "tool_call_id": "a", "content": ""},
        {
            "role": "user",
            "content": "and [a document 'x.pdf' was left out: only text and images can be read here]plain"
            "[a block of type mystery was left out: only text and images can be read here]",
        },
    ]


def test_images_are_passed_on_as_chat_parts() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}}
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}}
    text = {"type": "text", "text": "see"}
    ask = messages.read({"messages": [{"role": "user", "content": [text, image]}]}, "m")
    assert ask.messages == [{"role": "user", "content": [text, part]}]
    items = [{"role": "user", "content": [{"type": "input_text", "text": "see"},
                                          {"type": "input_image", "image_url": "data:image/png;base64,iVBO"}]}]  # fmt: skip
    assert responses.read({"input": items}, "m").messages == ask.messages
    assert chat.read({"messages": ask.messages}, "m").messages == ask.messages


def test_a_deferred_tool_is_offered_once_a_result_names_it() -> None:
    tools = [{"name": "search"}, {"name": "far", "defer_loading": True}, {"type": "web_search_20250305", "name": "web_search"}]
    reference = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "tool_reference", "tool_name": "far"}]}
    for content, names in (("hi", ["search", None]), ([reference], ["search", "far", None])):
        ask = messages.read({"messages": [{"role": "user", "content": content}], "tools": tools}, "m")
        assert [tool.get("function", {}).get("name") for tool in ask.tools or []] == names


def test_errors_have_the_shape_and_type_of_their_api() -> None:
    too_long = Refusal(
        400,
        "This model's maximum context length is 4096 tokens. However, you requested 5001 tokens (5000 in the messages, 1 in the "
        "completion). Please reduce the length of the messages or completion.",
    )
    error = {"type": "invalid_request_error", "message": "prompt is too long: 5000 tokens > 4096 maximum"}
    assert messages.envelope(too_long) == {"type": "error", "error": error}
    kinds = {
        401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error",
        418: "invalid_request_error", 500: "api_error", 502: "api_error", 503: "overloaded_error",
    }  # fmt: skip
    assert {status: messages.envelope(Refusal(status, "x"))["error"]["type"] for status in kinds} == kinds
    assert responses.envelope(Refusal(400, "x", "input", "c")) == {
        "error": {"message": "x", "type": "invalid_request_error", "param": "input", "code": "c"}
    }


# ---- chat: older ways ----------------------------------------------------------------------------------------------------------


def test_functions_as_they_were_before_tools() -> None:
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "function", "name": "look", "content": "sunny"},
    ]
    body = {"messages": history, "functions": [CHAT_TOOL["function"]], "function_call": {"name": "look"}}
    ask = chat.read(body, "m")
    assert ask.tools == [CHAT_TOOL]
    assert ask.tool_choice == {"type": "function", "function": {"name": "look"}}
    assert ask.messages[1]["tool_calls"] == [{"type": "function", "function": {"name": "look", "arguments": "{}"}}]
    chunks, whole = speak(chat.Chat(ask, EXCHANGE), [[CallBegun("look"), CallSaid("{"), CallSaid("}")]])
    assert whole["choices"][0]["message"] == {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "look", "arguments": "{}"},
    }
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "function_call"
    said = [
        choice["delta"]["function_call"] for chunk in chunks for choice in chunk["choices"] if "function_call" in choice["delta"]
    ]
    assert "".join(each["arguments"] for each in said) == "{}"


# ---- what cannot be understood -------------------------------------------------------------------------------------------------


DEEP: Any = {}
for _ in range(500):
    DEEP = {"type": "document", "source": {"content": [DEEP]}}
USE = {"type": "tool_use", "id": "a", "name": "f"}


def test_documents_within_documents_are_read_one_deep() -> None:
    [message] = messages.read({"messages": [{"role": "user", "content": [DEEP]}], "tools": [{"name": "f"}]}, "m").messages
    assert message["content"] == "[a block of type document was left out: only text and images can be read here]"


@pytest.mark.parametrize(
    ("module", "change", "param"),
    [
        (responses, {"input": None}, "input"),
        (responses, {"input": 3}, "input"),
        (responses, {"input": ["x"]}, "input[0]"),
        (responses, {"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
        (responses, {"input": [{"type": 3}]}, "input[0].type"),
        (responses, {"input": [{"role": "user", "content": 3}]}, "input[0].content"),
        (responses, {"input": [{"role": "user", "content": [{"type": "input_text", "text": 3}]}]}, "input[0].content[0].text"),
        (responses, {"input": [{"type": "function_call", "name": "f", "call_id": "c", "arguments": {}}]}, "input[0].arguments"),
        (responses, {"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        (responses, {"tools": {}}, "tools"),
        (responses, {"tools": [{"type": "function"}]}, "tools[0].name"),
        (responses, {"tool_choice": "maybe"}, "tool_choice"),
        (responses, {"tool_choice": {"type": "function", "name": "nothing"}}, "tool_choice"),
        (responses, {"instructions": 3}, "instructions"),
        (responses, {"max_output_tokens": 0}, "max_output_tokens"),
        (responses, {"temperature": "hot"}, "temperature"),
        (responses, {"stream": "yes"}, "stream"),
        (responses, {"reasoning": "high"}, "reasoning"),
        (responses, {"text": {"format": "json"}}, "format"),
        (responses, {"previous_response_id": 3}, "previous_response_id"),
        (responses, {"conversation": "c"}, "conversation"),
        (messages, {"messages": []}, "messages"),
        (messages, {"messages": ["x"]}, "messages[0]"),
        (messages, {"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        (messages, {"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
        (messages, {"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]}, "messages.0.content.0.text"),
        (messages, {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages.0.content.0.tool_use_id"),
        (
            messages,
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": "x"}]}]},
            "messages.0.content.0.input",
        ),
        (messages, {"messages": [{"role": "assistant", "content": [USE | {"input": DEEP}]}]}, "messages.0.content.0.input"),
        (
            messages,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": DEEP}]}]},
            "messages.0.content.0.text",
        ),
        (messages, {"system": 3}, "system"),
        (messages, {"tools": [{"input_schema": {}}]}, "tools.0.name"),
        (messages, {"tool_choice": {"type": "maybe"}}, "tool_choice.type"),
        (messages, {"tool_choice": {"type": "tool", "name": "nothing"}}, "tool_choice"),
        (messages, {"max_tokens": "many"}, "max_tokens"),
        (messages, {"stop_sequences": [1]}, "stop_sequences"),
        (messages, {"thinking": "much"}, "thinking"),
        (chat, {"tool_choice": "maybe"}, "tool_choice"),
        (chat, {"tool_choice": {"type": "function", "function": {"name": "nothing"}}}, "tool_choice"),
        (chat, {"stream": 1}, "stream"),
        (chat, {"stream_options": 1}, "stream_options"),
        (chat, {"chat_template_kwargs": 1}, "chat_template_kwargs"),
        (chat, {"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}, "messages[0].tool_calls"),
        (
            chat,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": 3}]}]},
            "messages[0].content.image_url.url",
        ),
        (chat, {"functions": 3, "tools": None}, "functions"),
    ],
)
def test_a_wrong_type_is_a_400_that_names_the_parameter(module: Any, change: dict[str, Any], param: str) -> None:
    body = {chat: AS_CHAT, responses: AS_RESPONSES, messages: AS_MESSAGES}[module]
    with pytest.raises(Refusal) as refused:
        module.read(body | change, "m")
    assert (refused.value.status, refused.value.param) == (400, param)
