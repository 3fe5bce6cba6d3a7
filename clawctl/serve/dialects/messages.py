"""Anthropic Messages: https://docs.anthropic.com/en/api/messages, with additions of real clients."""

import re
from typing import Any

import orjson

from clawctl.serve.dialects import Ask, Choice, Refusal, ShownToken, fields
from clawctl.serve.dialects.api import known
from clawctl.serve.dialects.blocks import BlockDialect, ContentBlock, ContentBlocks, event_frame
from clawctl.serve.dialects.chat import check_callable, forced_choice
from clawctl.serve.dialects.content import read_messages, read_system, read_tools
from clawctl.serve.dialects.fields import Object, wrong
from clawctl.serve.dialects.handles import call_id, turn_handle
from clawctl.serve.dialects.items import for_engine
from clawctl.serve.dialects.settings import template_settings
from clawctl.serve.hints import read_claims
from clawctl.serve.sampling import engine_fields
from clawctl.serve.text import CallBegun

_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
           404: "not_found_error", 405: "invalid_request_error", 413: "request_too_large", 429: "rate_limit_error",
           503: "overloaded_error", 504: "timeout_error", 529: "overloaded_error"}  # fmt: skip
_STOP_REASONS = {"tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}
_TOO_LONG = re.compile(r"maximum context length is (\d+) tokens.*?\((\d+) in the messages", re.DOTALL)


def read_count(body: dict[str, Any], live_name: str) -> Ask:
    """As `read`, of a request that counts."""
    return read_known(*known("count_tokens", body), live_name)


def read(body: dict[str, Any], live_name: str) -> Ask:
    """Raises Refusal for invalid requests. Unknown betas, fields, blocks and tool types are accepted."""
    return read_known(*known("messages", body), live_name)


def read_known(body: dict[str, Any], unknown: tuple[str, ...], live_name: str) -> Ask:
    """Like `read`, for the fields in the table."""
    sent = read_system(body.get("system")) + read_messages(body.get("messages"))
    tools = read_tools(body.get("tools"), body.get("messages"))
    choice = _tool_choice(body, tools)
    settings, passed = _engine_settings(body, tools)
    messages = fields.join_leading_system(for_engine(sent))
    last, text = messages[-1], messages[-1]["content"]
    return Ask(
        api="messages",
        **fields.common(body, live_name),
        messages=messages,
        sent_messages=sent,
        tools=tools or None,
        tool_choice=choice,
        include_usage=True,
        n=1,
        stop=fields.stops(body.get("stop_sequences"), "stop_sequences"),
        logprobs=False,
        template_settings=settings,
        engine_fields=passed,
        claims=read_claims(body, sent),
        unknown=unknown,
        continues=last["role"] == "assistant" and isinstance(text, str) and bool(text) and "tool_calls" not in last,
    )


def _tool_choice(body: Object, tools: list[Object]) -> Any:
    choice = fields.object_or_none(body, "tool_choice")
    kind = choice.get("type")
    if not choice or (not tools and kind not in ("any", "tool")):
        return None
    if kind == "tool":
        return forced_choice(fields.text(choice, "name", "tool_choice.name") or "", tools)
    if kind not in ("auto", "any", "none"):
        raise wrong("tool_choice.type", "auto, any, tool or none")
    return check_callable("required", tools) if kind == "any" else kind


def _engine_settings(body: Object, tools: list[Object]) -> tuple[Object, Object]:
    """The settings for the template, and the fields for an upstream."""
    thinking = fields.text(fields.object_or_none(body, "thinking"), "type", "thinking.type")
    settings = template_settings(body, None if thinking is None else thinking != "disabled")
    output = fields.object_or_none(body, "output_config")
    form = output.get("format") or body.get("output_format")
    wanted = None
    if isinstance(form, dict) and form.get("type") == "json_schema":
        wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.get("schema"), "strict": True}}
    one = fields.flag(fields.object_or_none(body, "tool_choice"), "disable_parallel_tool_use")
    own = {
        "response_format": wanted,
        "chat_template_kwargs": settings or None,
        "parallel_tool_calls": False if one and tools else None,
    }
    return settings, engine_fields({**body, **own})


class Messages(BlockDialect):
    """Messages: the blocks are the content blocks."""

    def whole(self, choices: list[Choice]) -> bytes:
        choice = choices[0]
        content = [self._block(block) for block in ContentBlocks(choice.shown).or_empty()]
        return orjson.dumps({**self._head(content, _usage(choice)), **_stop(choice)})

    def begin(self, choice: Choice) -> bytes:
        message = self._head([], {**_usage(choice), "output_tokens": 0}) | {"stop_reason": None, "stop_sequence": None}
        return event_frame("message_start", {"message": message}) + event_frame("ping", {})

    def finish(self, choice: Choice) -> bytes:
        return super().finish(choice) + event_frame("message_delta", {"delta": _stop(choice), "usage": _usage(choice)})

    def end(self, choices: list[Choice]) -> bytes:
        return event_frame("message_stop", {})

    def failed(self, refusal: Refusal) -> bytes:
        return event_frame("error", {"error": envelope(refusal)["error"]})

    def _head(self, content: list[Object], usage: Object) -> Object:
        return {
            "id": f"msg{self._exchange_id}", "type": "message", "role": "assistant", "model": self._ask.model,
            "content": content, "usage": usage,
        }  # fmt: skip

    def _block(self, block: ContentBlock, begun: bool = False) -> Object:
        """A block as a content block; begun, it has nothing in it yet."""
        text = "" if begun else block.text
        if block.kind == "text":
            return {"type": "text", "text": text}
        if block.kind == "reasoning":
            return {"type": "thinking", "thinking": text, "signature": "" if begun else turn_handle(self._exchange_id)}
        handle = call_id(self._exchange_id, block.call)
        return {"type": "tool_use", "id": handle, "name": block.name, "input": {} if begun else _input(text)}

    def _open(self, block: ContentBlock) -> bytes:
        return event_frame("content_block_start", {"index": block.number, "content_block": self._block(block, begun=True)})

    def _grow(self, block: ContentBlock, text: str, tokens: list[ShownToken]) -> bytes:
        kind, name = _DELTAS[block.kind]
        return event_frame("content_block_delta", {"index": block.number, "delta": {"type": kind, name: text}})

    def _close(self, block: ContentBlock, status: str) -> bytes:
        stop, delta = event_frame("content_block_stop", {"index": block.number}), b""
        if block.kind == "reasoning":
            signature = {"type": "signature_delta", "signature": turn_handle(self._exchange_id)}
            delta = event_frame("content_block_delta", {"index": block.number, "delta": signature})
        return delta + stop


_DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


def _input(arguments: str) -> Object:
    """A call's arguments as an object. For arguments that were cut off it is empty, because this API cannot carry them."""
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _stop(choice: Choice) -> Object:
    reason = _STOP_REASONS.get(choice.finish_reason or "", "end_turn")
    if reason == "end_turn" and choice.stop_sequence is not None:
        reason = "stop_sequence"
    elif choice.finish_reason == "stop" and any(isinstance(event, CallBegun) for shown in choice.shown for event in shown.events):
        reason = "tool_use"  # for a call forced by name vLLM returns "stop", like OpenAI
    return {"stop_reason": reason, "stop_sequence": choice.stop_sequence if reason == "stop_sequence" else None}


def _usage(choice: Choice) -> Object:
    cached = choice.cached_tokens or 0  # this API counts them separately from the input
    return {
        "input_tokens": choice.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": choice.completion_tokens,
    }


def envelope(refusal: Refusal) -> dict[str, Any]:
    """Anthropic's error body. A prompt that is too long gets the words that make Claude Code compact."""
    message = refusal.message
    if found := _TOO_LONG.search(message):
        message = f"prompt is too long: {found[2]} tokens > {found[1]} maximum"
    elif refusal.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"
    kind = _ERRORS.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}
