"""One conversation in the form of each API, and the dialect's form of an answer."""

from typing import Any

import orjson

from clawctl.engines.requests import Event, Shown
from clawctl.serve.dialects import Choice, Dialect

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
