"""Features of single APIs: namespaces, effort, images, results, errors, older forms."""

from typing import Any

import pytest
from one_conversation import AS_CHAT, AS_MESSAGES, AS_RESPONSES, CHAT_TOOL, EXCHANGE, SCHEMA, speak

from clawctl.engines.requests import CallDelta, CallStart, Event, GenerationRequest, Refusal
from clawctl.serve.dialects import chat, messages, responses

# ---- Responses: its own ways ---------------------------------------------------------------------------------------------------


def test_calls_of_namespaced_and_custom_tools_have_the_clients_names() -> None:
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
        [CallStart("spawn"), CallDelta("{}")],
        [CallStart("patch"), CallDelta('{"input": "*** b'), CallDelta('\\n"}')],
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


def test_two_tools_of_one_name_are_distinguished_by_their_namespace() -> None:
    tools = [
        {"type": "function", "name": "look"},
        {"type": "namespace", "name": "far", "tools": [{"type": "function", "name": "look"}]},
    ]
    call = {"type": "function_call", "call_id": "c", "name": "look", "namespace": "far", "arguments": "{}"}
    ask = responses.read({"input": [call], "tools": tools}, "m")
    assert ask.messages[0]["tool_calls"][0]["function"]["name"] == "far__look"
    _, whole = speak(responses.Responses(ask, EXCHANGE), [[CallStart("far__look"), CallDelta("{}")]])
    assert (whole["output"][0]["name"], whole["output"][0]["namespace"]) == ("look", "far")


def test_two_answers_in_a_row_stay_two_messages_if_their_handles_differ() -> None:
    other = EXCHANGE[::-1]
    items = [
        {"type": "message", "role": "assistant", "id": f"msg_{handle}0", "content": "a"} for handle in (EXCHANGE, EXCHANGE, other)
    ]
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
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]}, "required"),
    ],
)
def test_tool_choices_of_responses(sent: Any, meant: Any) -> None:
    ask = responses.read(AS_RESPONSES | {"tool_choice": sent}, "m")
    assert ask.tool_choice == meant
    assert ask.tools == [CHAT_TOOL]


def test_tool_choices_of_messages() -> None:
    def read(**choice: Any) -> GenerationRequest:
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


def test_results_precede_the_users_text_and_a_file_leaves_a_note() -> None:
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
    by_characters = "This model's maximum context length is 2048 tokens. However, your prompt contains 72050 characters (…)."
    error = {"type": "invalid_request_error", "message": f"prompt is too long: {by_characters}"}
    assert messages.envelope(Refusal(400, by_characters, None, "context_length_exceeded")) == {"type": "error", "error": error}
    kinds = {
        401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error",
        418: "invalid_request_error", 500: "api_error", 502: "api_error", 503: "overloaded_error",
    }  # fmt: skip
    assert {status: messages.envelope(Refusal(status, "x"))["error"]["type"] for status in kinds} == kinds
    kinds = {400: "invalid_request_error", 413: "invalid_request_error", 429: "rate_limit_error", 503: "server_error"}
    assert {status: chat.envelope(Refusal(status, "x"))["error"]["type"] for status in kinds} == kinds
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
    chunks, whole = speak(chat.Chat(ask, EXCHANGE), [[CallStart("look"), CallDelta("{"), CallDelta("}")]])
    assert whole["choices"][0]["message"] == {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "look", "arguments": "{}"},
    }
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "function_call"
    said = [
        choice["delta"]["function_call"] for chunk in chunks for choice in chunk["choices"] if "function_call" in choice["delta"]
    ]
    assert "".join(part["arguments"] for part in said) == "{}"


# ---- tools that a vendor defined ---------------------------------------------------------------------------------------------


def named(ask: GenerationRequest) -> list[str | None]:
    return [tool.get("function", {}).get("name") for tool in ask.tools or []]


def test_tools_that_come_within_the_input_are_offered_once() -> None:
    function = {"type": "function", "name": "far", "parameters": {}}
    items = [
        {"role": "user", "content": "hi"},
        {"type": "additional_tools", "role": "developer", "tools": [function, {"type": "shell"}]},
        {"type": "tool_search_call", "arguments": {}, "call_id": "s"},
        {"type": "tool_search_output", "call_id": "s", "tools": [function]},
    ]
    ask = responses.read({"input": items, "tools": [{"type": "function", "name": "near"}, {"type": "tool_search"}]}, "m")
    assert named(ask) == ["near", None, "far", "shell"]
    assert [message["role"] for message in ask.messages] == ["user"]


def test_a_shell_beside_a_function_of_that_name_has_another_name() -> None:
    tools = [{"type": "function", "name": "shell"}, {"type": "shell"}, {"type": "shell", "environment": {"type": "local"}}]
    call = {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"], "timeout_ms": None}}
    ask = responses.read(
        {"input": [{"role": "user", "content": "hi"}, call], "tools": tools, "tool_choice": {"type": "shell"}}, "m"
    )
    assert named(ask) == ["shell", "builtin_shell"]
    assert ask.tool_choice == {"type": "function", "function": {"name": "builtin_shell"}}
    assert ask.messages[1]["tool_calls"][0]["function"] == {"name": "builtin_shell", "arguments": '{"commands":["ls"]}'}
    _, whole = speak(responses.Responses(ask, EXCHANGE), [[CallStart("builtin_shell"), CallDelta('{"commands": ["ls"]}')]])
    assert [item["type"] for item in whole["output"]] == ["shell_call"]
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "shell"}]}
    assert named(responses.read({"input": "hi", "tools": tools, "tool_choice": allowed}, "m")) == ["builtin_shell"]


@pytest.mark.parametrize("environment", ["container_auto", "container_reference"])
def test_a_shell_in_openais_containers_is_never_called(environment: str) -> None:
    tools = [{"type": "shell", "environment": {"type": environment}}]
    ask = responses.read({"input": "hi", "tools": tools}, "m")
    assert (ask.tools, ask.functions) == (tools, [])
    with pytest.raises(Refusal) as refused:
        responses.read({"input": "hi", "tools": tools, "tool_choice": {"type": "shell"}}, "m")
    assert refused.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("kind", "arguments", "said"),
    [
        ("local_shell", '{"command": "ls -l"}', {"type": "exec", "command": ["bash", "-lc", "ls -l"], "env": {}}),
        ("local_shell", "no JSON", {"type": "exec", "command": [], "env": {}}),
        ("shell", '{"command": "ls"}', {"commands": ["ls"], "timeout_ms": None, "max_output_length": None}),
        ("shell", "[1]", {"commands": [], "timeout_ms": None, "max_output_length": None}),
        ("apply_patch", '{"type": "delete_file", "path": "a"}', {"type": "delete_file", "path": "a"}),
        ("apply_patch", "*** a", {"type": "update_file", "path": "", "diff": "*** a"}),
    ],
)
def test_a_call_that_does_not_fit_is_still_an_item_of_its_kind(kind: str, arguments: str, said: Any) -> None:
    ask = responses.read({"input": "hi", "tools": [{"type": kind}]}, "m")
    frames, whole = speak(responses.Responses(ask, EXCHANGE), [[CallStart(kind), CallDelta(arguments)]])
    [item] = whole["output"]
    assert item["type"] == f"{kind}_call"
    assert item["operation" if kind == "apply_patch" else "action"] == said
    assert [frame["item"] for frame in frames if frame["type"] == "response.output_item.done"] == [item]


def test_unreadable_parts_leave_a_note_and_a_refusal_becomes_text() -> None:
    items = [{"role": "user", "content": "hi"}, {"type": "compaction", "encrypted_content": "x"}]
    assert "an item of type compaction was left out" in responses.read({"input": items}, "m").messages[1]["content"]
    said = {"role": "assistant", "content": None, "refusal": "No."}
    assert chat.read({"messages": [said, {"role": "user", "content": "why?"}]}, "m").messages[0]["content"] == "No."
