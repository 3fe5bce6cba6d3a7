"""Items of OpenAI's Responses API to chat messages and tools.

An assistant's reasoning, text and calls between two messages of others are one item each there, and one message here. Items and
tools that only OpenAI's servers can run are skipped, never refused.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from clawctl.run.rows import Message
from clawctl.serve.dialects.fields import (
    Object,
    Parts,
    an_object,
    as_content,
    image_part,
    left_out,
    objects,
    text_part,
    wrong,
)
from clawctl.serve.dialects.handles import exchange_of
from clawctl.serve.dialects.vendor_tools import LOCAL, call_arguments, local_tool, output_text

CUSTOM_INPUT = "input"  # a custom tool takes free text; as a function it takes an object with this one string
_ROLES = ("user", "assistant", "system", "developer")
_LOCAL_CALLS = {f"{kind}_call": kind for kind in LOCAL}
_OUTPUTS = ("function_call_output", "custom_tool_call_output", *(f"{kind}_call_output" for kind in LOCAL))
_LEFT_OUT = ("mcp_call", "computer_call_output", "compaction")  # parts that the model cannot see


@dataclass(frozen=True, slots=True)
class Named:
    """The client's view of a tool that the model sees under one name."""

    name: str
    namespace: str | None = None
    kind: Literal["function", "custom", "local_shell", "shell", "apply_patch"] = "function"


@dataclass(slots=True)
class Tools:
    """The client's tools as chat tools; `named` maps each name that the model may call to the client's own name."""

    chat: list[Object] = field(default_factory=list)
    named: dict[str, Named] = field(default_factory=dict)

    def flat(self, name: str, namespace: Any) -> str:
        """The name under which the model sees a tool."""
        spaced = f"{namespace}__{name}"
        return spaced if isinstance(namespace, str) and spaced in self.named else name

    def local(self, kind: str) -> str:
        """The name under which the model sees a shell or a similar tool."""
        return next((name for name, each in self.named.items() if each.kind == kind), kind)


def read_tools(tools: Any, given: Any = None) -> Tools:
    """Functions, custom tools, those in namespaces and those that a client runs become functions; what is none of these stays as
    it was sent. `given`: the input, whose items may bring tools as well."""
    found = Tools()
    _read_tools(found, objects([] if tools is None else tools, "tools"))
    for more in _brought(given):
        fresh = [tool for tool in more if tool.get("name") not in found.named]  # a client may name one in both places
        _read_tools(found, fresh)
    return found


def _brought(given: Any) -> Iterator[list[Object]]:
    for i, item in enumerate(given if isinstance(given, list) else ()):
        if isinstance(item, dict) and item.get("type") in ("additional_tools", "tool_search_output") and item.get("tools"):
            yield objects(item["tools"], f"input[{i}].tools")


def _read_tools(found: Tools, tools: list[Object]) -> None:
    for i, tool in enumerate(tools):
        if tool.get("type") == "namespace" and isinstance(tool.get("tools"), list):
            for each in objects(tool["tools"], f"tools[{i}].tools"):
                _add(found, each, f"tools[{i}].tools", tool.get("name"))
        else:
            _add(found, tool, f"tools[{i}]", None)


def _add(found: Tools, tool: Object, where: str, namespace: Any) -> None:
    kind = tool.get("type")
    if kind in LOCAL:
        _add_local(found, tool, kind)
        return
    if kind not in ("function", "custom"):
        found.chat.append(tool)
        return
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise wrong(f"{where}.name", "a string")
    space = namespace if isinstance(namespace, str) else None
    flat = f"{space}__{name}" if name in found.named else name
    if flat in found.named:
        raise wrong(f"{where}.name", f"unique: there are two tools {name!r}")
    found.named[flat] = Named(name, space, kind)
    if kind == "custom":
        found.chat.append(custom_function(flat, tool.get("description"), tool.get("format")))
        return
    function = {key: tool[key] for key in ("description", "parameters", "strict") if tool.get(key) is not None}
    found.chat.append({"type": "function", "function": {"name": flat, **function}})


def _add_local(found: Tools, tool: Object, kind: Any) -> None:
    """Add a shell or a similar tool, under the name of its kind, or under another if the client's own function has that name."""
    if any(each.kind == kind for each in found.named.values()):
        return
    name = kind if kind not in found.named else f"builtin_{kind}"
    function = local_tool(tool, name)
    if function is not None:
        found.named[name] = Named(kind, None, kind)
    found.chat.append(tool if function is None else function)


def custom_function(name: str, description: Any, form: Any) -> Object:
    """The function for a tool that takes free text. `form`: {"type": "grammar", "syntax", "definition"}, or none."""
    return {
        "type": "function",
        "function": {"name": name, "description": str(description or ""), "parameters": _free_text(form)},
    }


def free_text(arguments: str) -> str:
    """The input of a custom tool; arguments in another form are passed on unchanged."""
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = value.get(CUSTOM_INPUT) if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


def _free_text(form: Any) -> Object:
    text: Object = {"type": "string"}
    if isinstance(form, dict) and isinstance(form.get("definition"), str):
        text["description"] = f"follows this {form.get('syntax', '')} grammar:\n{form['definition']}"
    return {"type": "object", "properties": {CUSTOM_INPUT: text}, "required": [CUSTOM_INPUT]}


def read_items(given: Any, tools: Tools) -> list[Message]:
    """`input` as chat messages. An assistant message from this server has `handle`, the exchange that produced it."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise wrong("input", "a string or a list of items")
    reading = _Reading(tools)
    for i, item in enumerate(given):
        reading.take(an_object(item, f"input[{i}]"), f"input[{i}]")
    reading.end()
    return reading.messages


class _Reading:
    def __init__(self, tools: Tools) -> None:
        self.messages: list[Message] = []
        self._tools = tools
        self._turn: Message | None = None  # the assistant's, still growing
        self._said: list[Parts] = []  # its content and reasoning so far, joined at its end: many pieces cost no more than one
        self._thought: list[str] = []

    def take(self, item: Object, where: str) -> None:
        kind = item.get("type", "message" if "role" in item else None)
        if not isinstance(kind, str):
            raise wrong(f"{where}.type", "a string")
        if kind == "message":
            self._message(item, where)
        elif kind == "reasoning":
            self._reasoning(item, where)
        elif kind in ("function_call", "custom_tool_call"):
            self._call(item, kind, where)
        elif kind in _LOCAL_CALLS:
            self._local_call(item, _LOCAL_CALLS[kind], where)
        elif kind in _OUTPUTS:
            self._output(item, where)
        elif kind in _LEFT_OUT:
            self.end()
            self.messages.append({"role": "user", "content": left_out(f"an item of type {kind}", None)["text"]})

    def end(self) -> None:
        """Of the assistant's turn."""
        if self._turn is not None and self._said:
            texts = [each for each in self._said if isinstance(each, str)]
            self._turn["content"] = "".join(texts) if texts else self._said[0]
        if self._turn is not None and self._thought:
            self._turn["reasoning_content"] = "".join(self._thought)
        self._turn, self._said, self._thought = None, [], []

    def _assistant(self, item: Object, *handles: str) -> Message:
        exchange = next((found for name in ("id", *handles) if (found := exchange_of(item.get(name)))), None)
        if self._turn is None or (exchange and self._turn.get("handle", exchange) != exchange):
            self.end()
            self._turn = {"role": "assistant", "content": None}
            self.messages.append(self._turn)
        if exchange:
            self._turn["handle"] = exchange
        return self._turn

    def _message(self, item: Object, where: str) -> None:
        role = item.get("role")
        if role not in _ROLES:
            raise wrong(f"{where}.role", f"one of {', '.join(_ROLES)}")
        content = read_content(item.get("content"), f"{where}.content")
        if role != "assistant":
            self.end()
            self.messages.append({"role": role, "content": content})
            return
        self._assistant(item)
        if isinstance(content, str) and self._said and isinstance(self._said[-1], str):
            self._said.append(content)
        else:
            self._said = [content]

    def _reasoning(self, item: Object, where: str) -> None:
        self._assistant(item, "encrypted_content")
        parts = item.get("content") or item.get("summary") or []
        texts = [part["text"] for part in objects(parts, f"{where}.content") if isinstance(part.get("text"), str)]
        self._thought += texts

    def _call(self, item: Object, kind: str, where: str) -> None:
        name, handle = item.get("name"), item.get("call_id")
        said = item.get("arguments" if kind == "function_call" else "input")
        for key, value in (("name", name), ("call_id", handle), ("arguments" if kind == "function_call" else "input", said)):
            if not isinstance(value, str):
                raise wrong(f"{where}.{key}", "a string")
        arguments = said if kind == "function_call" else orjson.dumps({CUSTOM_INPUT: said}).decode()
        function = {"name": self._tools.flat(str(name), item.get("namespace")), "arguments": arguments}
        calls = self._assistant(item, "call_id").setdefault("tool_calls", [])
        calls.append({"id": handle, "type": "function", "function": function})

    def _local_call(self, item: Object, kind: str, where: str) -> None:
        handle = item.get("call_id")
        if not isinstance(handle, str):
            raise wrong(f"{where}.call_id", "a string")
        function = {"name": self._tools.local(kind), "arguments": orjson.dumps(call_arguments(item)).decode()}
        calls = self._assistant(item, "call_id").setdefault("tool_calls", [])
        calls.append({"id": handle, "type": "function", "function": function})

    def _output(self, item: Object, where: str) -> None:
        handle = item.get("call_id", item.get("id") if item["type"] == "local_shell_call_output" else None)
        if not isinstance(handle, str):
            raise wrong(f"{where}.call_id", "a string")
        self.end()
        content = read_content(output_text(item), f"{where}.output")
        self.messages.append({"role": "tool", "tool_call_id": handle, "content": content})


def read_content(content: Any, where: str) -> Parts:
    """A message's or a result's content."""
    if content is None or isinstance(content, str):
        return content or ""
    return as_content([_part(part, f"{where}[{i}]") for i, part in enumerate(objects(content, where))])


def _part(part: Object, where: str) -> Object:
    kind = str(part.get("type"))
    for key in ("text", "refusal"):
        if isinstance(part.get(key), str):
            return text_part(part[key])
    if kind in ("input_text", "output_text", "text", "refusal"):
        raise wrong(f"{where}.text", "a string")
    if kind in ("input_image", "image_url"):
        url = part.get("image_url")
        url = url.get("url") if isinstance(url, dict) else url
        if isinstance(url, str):
            return image_part(url, part.get("detail"))
        return left_out("an image", part.get("file_id"))
    return left_out(f"a part of type {kind[:40]}", part.get("filename"))


def for_engine(messages: list[Message]) -> list[Message]:
    """Only known roles, text or parts as content, and no internal keys."""
    return [_plain(message) for message in messages]


def _plain(message: Message) -> Message:
    role = "system" if message["role"] == "developer" else message["role"]
    kept = {key: value for key, value in message.items() if key not in ("handle", "is_error")}
    return {**kept, "role": role, "content": "" if message["content"] is None else message["content"]}
