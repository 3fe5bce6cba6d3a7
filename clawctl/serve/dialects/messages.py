"""Anthropic Messages, https://docs.anthropic.com/en/api/messages, with extensions that real clients use."""

import re
from typing import Any

import orjson

from clawctl.engines.requests import CallStart, GenerationRequest, Refusal, ShownToken
from clawctl.run.handles import call_id, exchange_of, turn_handle
from clawctl.run.rows import Message
from clawctl.serve.dialects import Choice, fields
from clawctl.serve.dialects.api import known_fields
from clawctl.serve.dialects.fields import Object, as_content, image_part, json_object, left_out, objects, strings, text_part, wrong
from clawctl.serve.dialects.settings import template_settings
from clawctl.serve.dialects.tools import check_callable, client_tool, forced_choice
from clawctl.serve.dialects.writing import BlockDialect, ContentBlock, ContentBlocks, event_frame
from clawctl.serve.hints import read_claims
from clawctl.serve.sampling import engine_fields

_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
           404: "not_found_error", 405: "invalid_request_error", 413: "request_too_large", 429: "rate_limit_error",
           503: "overloaded_error", 504: "timeout_error", 529: "overloaded_error"}  # fmt: skip
_ROLES = ("user", "assistant", "system")
_STOP_REASONS = {"tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}
_TOO_LONG = re.compile(r"maximum context length is (\d+) tokens.*?\((\d+) in the messages", re.DOTALL)


def read_count(body: dict[str, Any], live_name: str) -> GenerationRequest:
    """Like `read`, for a token-counting request."""
    return read_known(*known_fields("count_tokens", body), live_name)


def read(body: dict[str, Any], live_name: str) -> GenerationRequest:
    """The request in the body of a Messages call. Unknown betas, fields, blocks and tool types are accepted. Raises Refusal."""
    return read_known(*known_fields("messages", body), live_name)


def read_known(body: dict[str, Any], unknown: tuple[str, ...], live_name: str) -> GenerationRequest:
    """Like `read`, but for a body that contains only fields in the table."""
    sent = read_system(body.get("system")) + read_messages(body.get("messages"))
    tools = read_tools(body.get("tools"), body.get("messages"))
    choice = _tool_choice(body, tools)
    settings, passed = _engine_settings(body, tools)
    messages = fields.for_engine(sent)
    last, text = messages[-1], messages[-1]["content"]
    return GenerationRequest(
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
    response_format = None
    if isinstance(form, dict) and form.get("type") == "json_schema":
        response_format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.get("schema"), "strict": True}}
    one_call = fields.flag(fields.object_or_none(body, "tool_choice"), "disable_parallel_tool_use")
    converted = {
        "response_format": response_format,
        "chat_template_kwargs": settings or None,
        "parallel_tool_calls": False if one_call and tools else None,
    }
    return settings, engine_fields({**body, **converted})


# ---- blocks ---------------------------------------------------------------------------------------------------------------------


def read_system(system: Any) -> list[Message]:
    """The system prompt as messages: a string, or text blocks."""
    if system is None or system == "":
        return []
    if isinstance(system, str):
        return [{"role": "system", "content": system}]
    if not isinstance(system, list):
        raise wrong("system", "a string or a list of text blocks")
    texts = strings([block.get("text") for block in objects(system, "system")], "system.text")
    return [{"role": "system", "content": "\n\n".join(texts)}] if texts else []


def read_messages(given: Any) -> list[Message]:
    """`messages` as chat messages. An assistant message from this server has `handle`, the exchange that produced it."""
    if not isinstance(given, list) or not given:
        raise wrong("messages", "a list with at least one message")
    read: list[Message] = []
    for i, message in enumerate(objects(given, "messages")):
        where, role, content = f"messages.{i}", message.get("role"), message.get("content")
        if role not in _ROLES:
            raise wrong(f"{where}.role", f"one of {', '.join(_ROLES)}")
        if isinstance(content, str):
            read.append({"role": role, "content": content})
        elif not isinstance(content, list):
            raise wrong(f"{where}.content", "a string or a list of blocks")
        elif role == "assistant":
            read.append(_assistant(objects(content, f"{where}.content"), f"{where}.content"))
        else:
            read += _others(role, objects(content, f"{where}.content"), f"{where}.content")
    return read


def _assistant(blocks: list[Object], where: str) -> Message:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[Object] = []
    exchange: str | None = None
    for i, block in enumerate(blocks):
        kind = block.get("type")
        if kind == "text":
            texts.append(_text(block, "text", f"{where}.{i}"))
        elif kind == "thinking":
            reasoning.append(_text(block, "thinking", f"{where}.{i}"))
            exchange = exchange or exchange_of(block.get("signature"))
        elif kind == "redacted_thinking":
            exchange = exchange or exchange_of(block.get("data"))
        elif kind == "tool_use":
            calls.append(_call(block, f"{where}.{i}"))
            exchange = exchange or exchange_of(block["id"])
    message: Message = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
    if any(reasoning):
        message["reasoning_content"] = "".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return {**message, "handle": exchange} if exchange else message


def _call(block: Object, where: str) -> Object:
    arguments = block.get("input", {})
    if not isinstance(arguments, dict):
        raise wrong(f"{where}.input", "an object")
    try:
        function = {"name": _text(block, "name", where), "arguments": orjson.dumps(arguments).decode()}
    except orjson.JSONEncodeError as error:
        raise wrong(f"{where}.input", "an object that is not nested so deeply") from error
    return {"id": _text(block, "id", where), "type": "function", "function": function}


def _others(role: str, blocks: list[Object], where: str) -> list[Message]:
    """The blocks of a user or system message. Tool results become separate messages, in their original order."""
    read: list[Message] = []
    parts: list[Object] = []
    for i, block in enumerate(blocks):
        if block.get("type") != "tool_result":
            parts += _parts(block, f"{where}.{i}")
            continue
        if parts:
            read.append({"role": role, "content": as_content(parts)})
            parts = []
        read.append(_result(block, f"{where}.{i}"))
    if parts or not read:
        read.append({"role": role, "content": as_content(parts)})
    return read


def _result(block: Object, where: str) -> Message:
    content = block.get("content")
    if isinstance(content, list):
        parts = [part for i, element in enumerate(objects(content, where)) for part in _parts(element, f"{where}.content.{i}")]
        content = as_content(parts)
    elif content is not None and not isinstance(content, str):
        raise wrong(f"{where}.content", "a string or a list of blocks")
    flag = {"is_error": block["is_error"]} if isinstance(block.get("is_error"), bool) else {}  # the judge's rules read this field
    return {"role": "tool", "tool_call_id": _text(block, "tool_use_id", where), "content": content or "", **flag}


def _parts(block: Object, where: str, within: bool = False) -> list[Object]:
    """One block as parts of a chat message. `within`: the block is inside a document; nested documents are not allowed."""
    kind = block.get("type")
    if kind == "text":
        return [text_part(_text(block, "text", where))]
    if kind == "tool_reference":
        return [text_part(f"[the tool {block.get('tool_name')} can be called now]")]
    if kind not in ("image", "document", "search_result") or (within and kind != "image"):
        return [left_out(f"a block of type {str(kind)[:40]}", None)]
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    if kind == "image":
        return [_image(source)]
    if source.get("type") == "text" and isinstance(source.get("data"), str):
        return [text_part(source["data"])]
    inner = block.get("content") if kind == "search_result" else source.get("content")
    if isinstance(inner, str):
        return [text_part(inner)]
    if isinstance(inner, list):
        return [part for i, element in enumerate(objects(inner, where)) for part in _parts(element, f"{where}.{i}", within=True)]
    return [left_out(f"a {kind}", block.get("title"))]


def _image(source: Object) -> Object:
    if source.get("type") == "base64" and isinstance(source.get("data"), str):
        return image_part(f"data:{source.get('media_type', 'image/png')};base64,{source['data']}")
    if source.get("type") == "url" and isinstance(source.get("url"), str):
        return image_part(source["url"])
    return left_out("an image", source.get("file_id"))


def _text(block: Object, name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise wrong(f"{where}.{name}", "a string")
    return value


def read_tools(given: Any, messages: Any) -> list[Object]:
    """The tools in chat form. Tools that the client runs become functions; tools that Anthropic's servers run stay as they were
    sent. A deferred tool is offered once a tool result has named it, as in Anthropic's API."""
    if given is None:
        return []
    named = set(_references(messages))
    tools = []
    for i, tool in enumerate(objects(given, "tools")):
        if tool.get("defer_loading") is True and tool.get("name") not in named:
            continue
        if tool.get("type") not in (None, "custom"):
            tools.append(client_tool(tool) or tool)
        else:
            schema = {"parameters": tool["input_schema"]} if tool.get("input_schema") is not None else {}
            about = {"description": tool["description"]} if tool.get("description") is not None else {}
            about |= {"strict": True} if tool.get("strict") is True else {}
            tools.append({"type": "function", "function": {"name": _text(tool, "name", f"tools.{i}"), **about, **schema}})
    return tools


def _references(messages: Any) -> list[str]:
    """Names of tools that a tool result refers to."""
    blocks = [block for message in messages for block in _blocks_of(message)] if isinstance(messages, list) else []
    nested = [inner for block in blocks for inner in (block, *_blocks_of(block))]
    return [str(block.get("tool_name")) for block in nested if block.get("type") == "tool_reference"]


def _blocks_of(outer: Any) -> list[Object]:
    content = outer.get("content") if isinstance(outer, dict) else None
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


# ---- the answer ----------------------------------------------------------------------------------------------------------------


class Messages(BlockDialect):
    """The Messages API: blocks are its content blocks."""

    def whole(self, choices: list[Choice]) -> bytes:
        choice = choices[0]
        content = [self._block(block) for block in ContentBlocks(choice.shown).or_empty()]
        return orjson.dumps({**self._head(content, _usage(choice)), **_stop(choice)})

    def begin(self, choice: Choice) -> bytes:
        message = self._head([], {**_usage(choice), "output_tokens": 0}) | {"stop_reason": None, "stop_sequence": None}
        return event_frame({"type": "message_start", "message": message}) + event_frame({"type": "ping"})

    def finish(self, choice: Choice) -> bytes:
        return super().finish(choice) + event_frame({"type": "message_delta", "delta": _stop(choice), "usage": _usage(choice)})

    def end(self, choices: list[Choice]) -> bytes:
        return event_frame({"type": "message_stop"})

    def failed(self, refusal: Refusal) -> bytes:
        return event_frame({"type": "error", "error": envelope(refusal)["error"]})

    def _head(self, content: list[Object], usage: Object) -> Object:
        return {
            "id": f"msg{self._exchange_id}", "type": "message", "role": "assistant", "model": self._request.model,
            "content": content, "usage": usage,
        }  # fmt: skip

    def _block(self, block: ContentBlock, begun: bool = False) -> Object:
        """A block as a content block. With `begun` it is still empty."""
        text = "" if begun else block.text
        if block.kind == "text":
            return {"type": "text", "text": text}
        if block.kind == "reasoning":
            return {"type": "thinking", "thinking": text, "signature": "" if begun else turn_handle(self._exchange_id)}
        handle = call_id(self._exchange_id, block.call)
        return {"type": "tool_use", "id": handle, "name": block.name, "input": json_object(text)}

    def _open(self, block: ContentBlock) -> bytes:
        return event_frame({"type": "content_block_start", "index": block.number, "content_block": self._block(block, begun=True)})

    def _grow(self, block: ContentBlock, text: str, tokens: list[ShownToken]) -> bytes:
        kind, name = _DELTAS[block.kind]
        return event_frame({"type": "content_block_delta", "index": block.number, "delta": {"type": kind, name: text}})

    def _close(self, block: ContentBlock, status: str) -> bytes:
        stop, delta = event_frame({"type": "content_block_stop", "index": block.number}), b""
        if block.kind == "reasoning":
            signature = {"type": "signature_delta", "signature": turn_handle(self._exchange_id)}
            delta = event_frame({"type": "content_block_delta", "index": block.number, "delta": signature})
        return delta + stop


_DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


def _stop(choice: Choice) -> Object:
    reason = _STOP_REASONS.get(choice.finish_reason or "", "end_turn")
    if reason == "end_turn" and choice.stop_sequence is not None:
        reason = "stop_sequence"
    elif choice.finish_reason == "stop" and any(isinstance(event, CallStart) for shown in choice.shown for event in shown.events):
        reason = "tool_use"  # for a call forced by name, vLLM returns "stop", as OpenAI does
    return {"stop_reason": reason, "stop_sequence": choice.stop_sequence if reason == "stop_sequence" else None}


def _usage(choice: Choice) -> Object:
    cached = choice.cached_tokens or 0  # Anthropic's API does not include cached tokens in the input tokens
    return {
        "input_tokens": choice.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": choice.completion_tokens,
    }


def envelope(refusal: Refusal) -> dict[str, Any]:
    """Anthropic's error body. For a prompt that is too long, the message contains the phrase that makes Claude Code compact."""
    message = refusal.message
    if match := _TOO_LONG.search(message):
        message = f"prompt is too long: {match[2]} tokens > {match[1]} maximum"
    elif refusal.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"
    kind = _ERRORS.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "api_error")
    error: dict[str, Any] = {"type": kind, "message": message}
    if (refusal.param or "").startswith("thread."):  # the SDK then sends the whole history without a thread
        error["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": error}
