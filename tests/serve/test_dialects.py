"""A request has the same meaning in all three APIs."""

from typing import Any

import orjson
import pytest
from one_conversation import AS_CHAT, AS_MESSAGES, AS_RESPONSES, CHAT_TOOL, CONVERSATION, EXCHANGE, speak

from clawctl.engines.requests import CallDelta, CallStart, Event, Extras, ReasoningDelta, Refusal, Shown, TextDelta
from clawctl.run.handles import exchange_of
from clawctl.serve.dialects import Choice, chat, messages, responses


def test_the_same_conversation_is_the_same_ask_through_every_api() -> None:
    asks = [chat.read(AS_CHAT, "m"), responses.read(AS_RESPONSES, "m"), messages.read(AS_MESSAGES, "m")]
    for ask in asks:
        assert ask.messages == CONVERSATION
        assert ask.sent_messages == CONVERSATION
        assert (ask.tools, ask.tool_choice, ask.max_tokens, ask.model) == ([CHAT_TOOL], "required", 9, "m")
    assert [ask.api for ask in asks] == ["chat", "responses", "messages"]
    assert [ask.max_tokens_may_shrink for ask in asks] == [True, True, True]


# ---- answers -------------------------------------------------------------------------------------------------------------------

PIECES: list[list[Event]] = [
    [ReasoningDelta("I ")],
    [ReasoningDelta("think."), TextDelta("Let")],
    [TextDelta(" me."), CallStart("look"), CallDelta('{"city"')],
    [CallDelta(':"Rome"}'), CallStart("look")],
    [CallDelta("{}")],
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


def test_unknown_fields_of_an_upstream_are_passed_on_and_clawctls_own_names_stay() -> None:
    dialect = chat.Chat(chat.read({**AS_CHAT, "stream_options": {"include_usage": True}}, "m"), EXCHANGE)
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9, "odd": {"a": 1}}
    extras = Extras({"system_fingerprint": "fp", "id": "theirs"}, {"stop_reason": None}, {"refusal": "no"})
    choice = Choice(0, EXCHANGE, [Shown([TextDelta("a")], [])], "stop", usage=usage, extras=extras)
    whole = orjson.loads(dialect.whole([choice]))
    assert (whole["system_fingerprint"], whole["id"], whole["usage"]) == ("fp", f"chatcmpl{EXCHANGE}", usage)
    assert whole["choices"][0]["stop_reason"] is None
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "a", "refusal": "no"}
    last, final = (orjson.loads(line[6:]) for line in (dialect.finish(choice) + dialect.end([choice])).split(b"\n\n")[:2])
    assert (last["choices"][0]["delta"]["refusal"], last["choices"][0]["stop_reason"]) == ("no", None)
    assert (final["usage"], final["system_fingerprint"]) == (usage, "fp")


def test_usage_of_several_answers_is_that_of_one_prompt_and_all_their_tokens() -> None:
    details = ({"reasoning_tokens": 0, "note": None}, {"reasoning_tokens": 3})
    choices = [
        Choice(
            i,
            EXCHANGE,
            usage={"prompt_tokens": 7, "completion_tokens": n, "total_tokens": 7 + n, "completion_tokens_details": detail},
        )
        for i, (n, detail) in enumerate(zip((2, 5), details, strict=True))
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


def test_an_answer_returns_from_each_api_as_the_same_message_with_its_turns_handle() -> None:
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
    handles += [f"call_{EXCHANGE}12", f"chatcmpl-{EXCHANGE}"]  # punctuation of neither side
    assert {exchange_of(handle) for handle in handles} == {EXCHANGE}
    for other in ("call_57b7", "toolu_0e65a27b4b9f46cab92927", "Y2xhd2N0bC1zaWctMi01YWJkMTBhYg==", None, 7, "call" * 100):
        assert exchange_of(other) is None
    ids = (response["id"], reasoning["encrypted_content"], call["call_id"], message["content"][0]["signature"])
    assert all(handle.isalnum() for handle in ids)


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_an_empty_answer_has_one_empty_text(finish: str) -> None:
    frames, whole = speak(responses.Responses(responses.read(AS_RESPONSES, "m"), EXCHANGE), [], finish)
    assert whole["output"][0]["content"] == [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
    assert [frame["item"] for frame in frames if frame["type"] == "response.output_item.done"] == whole["output"]
    frames, whole = speak(messages.Messages(messages.read(AS_MESSAGES, "m"), EXCHANGE), [], finish)
    assert whole["content"] == [{"type": "text", "text": ""}]
    assert [frame["content_block"] for frame in frames if frame["type"] == "content_block_start"] == whole["content"]


def test_a_truncated_answer_is_marked_as_such() -> None:
    cut: list[list[Event]] = [[CallStart("look"), CallDelta('{"ci')]]
    frames, whole = speak(responses.Responses(responses.read(AS_RESPONSES, "m"), EXCHANGE), cut, "length")
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (frames[-1]["type"], frames[-1]["response"]["status"]) == ("response.incomplete", "incomplete")
    assert whole["output"][0]["status"] == "incomplete"
    frames, whole = speak(messages.Messages(messages.read(AS_MESSAGES, "m"), EXCHANGE), cut, "length")
    assert whole["stop_reason"] == frames[-2]["delta"]["stop_reason"] == "max_tokens"
    assert whole["content"][0]["input"] == {}


def test_in_messages_an_answer_with_a_call_has_the_stop_reason_tool_use() -> None:
    # vLLM sends "stop" for a call that was forced by name; agents continue only after "tool_use"
    call: list[list[Event]] = [[CallStart("look"), CallDelta("{}")]]
    frames, whole = speak(messages.Messages(messages.read(AS_MESSAGES, "m"), EXCHANGE), call, "stop")
    assert whole["stop_reason"] == frames[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_stop_sequence_is_named_in_messages() -> None:
    choice = Choice(0, EXCHANGE, [Shown([TextDelta("a")], [])], "stop", stop_sequence="END")
    whole = orjson.loads(messages.Messages(messages.read(AS_MESSAGES, "m"), EXCHANGE).whole([choice]))
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", "END")


def test_a_failed_stream_reports_the_error_in_its_dialect() -> None:
    refusal = Refusal(500, "the engine failed during the answer")
    ask = responses.read(AS_RESPONSES, "m")
    failed = responses.Responses(ask, EXCHANGE).failed(refusal)
    assert failed.startswith(b"event: response.failed\n")
    assert orjson.loads(failed.split(b"data: ")[1])["response"]["error"]["message"] == refusal.message
    failed = messages.Messages(messages.read(AS_MESSAGES, "m"), EXCHANGE).failed(refusal)
    assert orjson.loads(failed.split(b"data: ")[1]) == {"type": "error", "error": {"type": "api_error", "message": refusal.message}}
