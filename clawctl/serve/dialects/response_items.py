"""The tools and input items of OpenAI Responses, in chat form."""

from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from clawctl.run.handles import exchange_of
from clawctl.run.rows import Message
from clawctl.serve.dialects.fields import Object, Parts, an_object, as_content, image_part, left_out, objects, text_part, wrong
from clawctl.serve.dialects.tools import CUSTOM_INPUT, LOCAL, call_arguments, custom_function, local_tool, output_text
from clawctl.serve.dialects.writing import envelope as envelope

_ROLES = ("user", "assistant", "system", "developer")
_LOCAL_CALLS = {f"{kind}_call": kind for kind in LOCAL}
_OUTPUTS = ("function_call_output", "custom_tool_call_output", *(f"{kind}_call_output" for kind in LOCAL))
# Items that the model cannot read; the prompt contains a note instead.
_LEFT_OUT = ("mcp_call", "computer_call_output", "compaction")


@dataclass(frozen=True, slots=True)
class ClientTool:
    """The client's view of a tool that the model sees under one name."""

    name: str
    namespace: str | None = None
    kind: Literal["function", "custom", "local_shell", "shell", "apply_patch"] = "function"


@dataclass(slots=True)
class ClientTools:
    """The client's tools as chat tools; `named` maps each name that the model may call to the client's own name."""

    chat: list[Object] = field(default_factory=list)
    named: dict[str, ClientTool] = field(default_factory=dict)

    def flat(self, name: str, namespace: Any) -> str:
        """The name under which the model sees a tool."""
        spaced = f"{namespace}__{name}"
        return spaced if isinstance(namespace, str) and spaced in self.named else name

    def local(self, kind: str) -> str:
        """The name under which the model sees the client's tool of this kind."""
        return next((name for name, client_tool in self.named.items() if client_tool.kind == kind), kind)

    def add_all(self, tools: list[Object]) -> None:
        for i, tool in enumerate(tools):
            if tool.get("type") == "namespace" and isinstance(tool.get("tools"), list):
                for inner in objects(tool["tools"], f"tools[{i}].tools"):
                    self._add(inner, f"tools[{i}].tools", tool.get("name"))
            else:
                self._add(tool, f"tools[{i}]", None)

    def _add(self, tool: Object, where: str, namespace: Any) -> None:
        kind = tool.get("type")
        if kind in LOCAL:
            self._add_local(tool, kind)
            return
        if kind not in ("function", "custom"):
            self.chat.append(tool)
            return
        name = tool.get("name")
        if not isinstance(name, str) or not name:
            raise wrong(f"{where}.name", "a string")
        space = namespace if isinstance(namespace, str) else None
        flat = f"{space}__{name}" if name in self.named else name
        if flat in self.named:
            raise wrong(f"{where}.name", f"unique: there are two tools {name!r}")
        self.named[flat] = ClientTool(name, space, kind)
        if kind == "custom":
            self.chat.append(custom_function(flat, tool.get("description"), tool.get("format")))
            return
        function = {key: tool[key] for key in ("description", "parameters", "strict") if tool.get(key) is not None}
        self.chat.append({"type": "function", "function": {"name": flat, **function}})

    def _add_local(self, tool: Object, kind: Any) -> None:
        """Add a tool of a kind in `LOCAL`, under the name of its kind. If another tool has that name, the name is prefixed with
        "builtin_"."""
        if any(client_tool.kind == kind for client_tool in self.named.values()):
            return
        name = kind if kind not in self.named else f"builtin_{kind}"
        function = local_tool(tool, name)
        if function is not None:
            self.named[name] = ClientTool(kind, None, kind)
        self.chat.append(tool if function is None else function)


def read_tools(given: Any, items: Any = None) -> ClientTools:
    """The tools in chat form. Functions, custom tools, tools in namespaces and tools that the client runs become functions; all
    others stay as they were sent. `items`: the input, whose items may add tools."""
    tools = ClientTools()
    tools.add_all(objects([] if given is None else given, "tools"))
    for i, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict) and item.get("type") in ("additional_tools", "tool_search_output") and item.get("tools"):
            added = objects(item["tools"], f"input[{i}].tools")
            # A client may list a tool in both places.
            tools.add_all([tool for tool in added if tool.get("name") not in tools.named])
    return tools


def read_items(given: Any, tools: ClientTools) -> list[Message]:
    """`input` as chat messages. An assistant message from this server has `handle`, the exchange that produced it."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise wrong("input", "a string or a list of items")
    reading = _ItemReader(tools)
    for i, item in enumerate(given):
        reading.read(an_object(item, f"input[{i}]"), f"input[{i}]")
    reading.end()
    return reading.messages


class _ItemReader:
    def __init__(self, tools: ClientTools) -> None:
        self.messages: list[Message] = []
        self._tools = tools
        self._turn: Message | None = None  # the assistant message that is still growing
        self._content: list[Parts] = []  # its content and reasoning so far; joined once at the end, which keeps many pieces linear
        self._reasoning_texts: list[str] = []

    def read(self, item: Object, where: str) -> None:
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
        """End the assistant's turn."""
        if self._turn is not None and self._content:
            texts = [part for part in self._content if isinstance(part, str)]
            self._turn["content"] = "".join(texts) if texts else self._content[0]
        if self._turn is not None and self._reasoning_texts:
            self._turn["reasoning_content"] = "".join(self._reasoning_texts)
        self._turn, self._content, self._reasoning_texts = None, [], []

    def _assistant(self, item: Object, *handles: str) -> Message:
        exchange = next((issued for name in ("id", *handles) if (issued := exchange_of(item.get(name)))), None)
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
        if isinstance(content, str) and self._content and isinstance(self._content[-1], str):
            self._content.append(content)
        else:
            self._content = [content]

    def _reasoning(self, item: Object, where: str) -> None:
        self._assistant(item, "encrypted_content")
        parts = item.get("content") or item.get("summary") or []
        texts = [part["text"] for part in objects(parts, f"{where}.content") if isinstance(part.get("text"), str)]
        self._reasoning_texts += texts

    def _call(self, item: Object, kind: str, where: str) -> None:
        name, handle = item.get("name"), item.get("call_id")
        given = item.get("arguments" if kind == "function_call" else "input")
        for key, value in (("name", name), ("call_id", handle), ("arguments" if kind == "function_call" else "input", given)):
            if not isinstance(value, str):
                raise wrong(f"{where}.{key}", "a string")
        arguments = given if kind == "function_call" else orjson.dumps({CUSTOM_INPUT: given}).decode()
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
    """The content of a message or of a tool result."""
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
