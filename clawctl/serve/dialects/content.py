"""Content blocks of Anthropic's Messages API to chat messages and tools. Blocks of Anthropic's own servers are skipped."""

from typing import Any

import orjson

from clawctl.run.rows import Message
from clawctl.serve.dialects.fields import Object, as_content, image_part, left_out, objects, strings, text_part, wrong
from clawctl.serve.dialects.handles import exchange_of
from clawctl.serve.dialects.vendor_tools import client_tool

_ROLES = ("user", "assistant", "system")


def read_system(system: Any) -> list[Message]:
    """The system prompt: a string, or text blocks."""
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
    said: list[str] = []
    thought: list[str] = []
    calls: list[Object] = []
    exchange: str | None = None
    for i, block in enumerate(blocks):
        kind = block.get("type")
        if kind == "text":
            said.append(_text(block, "text", f"{where}.{i}"))
        elif kind == "thinking":
            thought.append(_text(block, "thinking", f"{where}.{i}"))
            exchange = exchange or exchange_of(block.get("signature"))
        elif kind == "redacted_thinking":
            exchange = exchange or exchange_of(block.get("data"))
        elif kind == "tool_use":
            calls.append(_call(block, f"{where}.{i}"))
            exchange = exchange or exchange_of(block["id"])
    message: Message = {"role": "assistant", "content": "".join(said) if said or not calls else None}
    if any(thought):
        message["reasoning_content"] = "".join(thought)
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
    """A user's blocks. Tool results become separate messages, in their order."""
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
        parts = [part for i, each in enumerate(objects(content, where)) for part in _parts(each, f"{where}.content.{i}")]
        content = as_content(parts)
    elif content is not None and not isinstance(content, str):
        raise wrong(f"{where}.content", "a string or a list of blocks")
    flag = {"is_error": block["is_error"]} if isinstance(block.get("is_error"), bool) else {}  # the judge's rules read it
    return {"role": "tool", "tool_call_id": _text(block, "tool_use_id", where), "content": content or "", **flag}


def _parts(block: Object, where: str, within: bool = False) -> list[Object]:
    """One block as parts of a chat message; documents within a document are not allowed (`within`)."""
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
        return [part for i, each in enumerate(objects(inner, where)) for part in _parts(each, f"{where}.{i}", within=True)]
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
    """Tools that a client runs become functions; those of Anthropic's servers stay as they were sent. A deferred one is offered
    once a result has named it, as its API does."""
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
    """Tools that a result has named."""
    blocks = [block for message in messages for block in _blocks_of(message)] if isinstance(messages, list) else []
    found = [each for block in blocks for each in (block, *_blocks_of(block))]
    return [str(each.get("tool_name")) for each in found if each.get("type") == "tool_reference"]


def _blocks_of(outer: Any) -> list[Object]:
    content = outer.get("content") if isinstance(outer, dict) else None
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
