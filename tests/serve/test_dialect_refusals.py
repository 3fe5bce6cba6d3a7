"""Invalid requests are refused by name, in every API."""

from typing import Any

import pytest
from one_conversation import AS_CHAT, AS_MESSAGES, AS_RESPONSES

from clawctl.engines.requests import Refusal
from clawctl.serve.dialects import chat, messages, responses

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
        (messages, {"messages": [{"role": "user", "content": [{"type": "text", "text": DEEP}]}]}, "messages.0.content.0.text"),
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
