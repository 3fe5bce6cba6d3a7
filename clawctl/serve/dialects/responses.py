"""OpenAI Responses, https://platform.openai.com/docs/api-reference/responses, with extensions that real clients use."""

import time
from collections.abc import Callable
from typing import Any

import orjson

from clawctl.engines.requests import GenerationRequest, Refusal, ShownToken
from clawctl.run.handles import call_id, exchange_of, turn_handle
from clawctl.run.rows import Message
from clawctl.serve.dialects import Choice, fields
from clawctl.serve.dialects.api import MAX_NAMED, known_fields, printable
from clawctl.serve.dialects.fields import Object, wrong
from clawctl.serve.dialects.response_items import ClientTool, ClientTools, read_items, read_tools
from clawctl.serve.dialects.settings import template_settings
from clawctl.serve.dialects.tools import ITEM_PREFIXES, LOCAL, call_item, check_callable, forced_choice, free_text
from clawctl.serve.dialects.writing import BlockDialect, ContentBlock, ContentBlocks, chat_logprobs, chat_message, event_frame
from clawctl.serve.dialects.writing import envelope as envelope
from clawctl.serve.hints import read_claims
from clawctl.serve.sampling import engine_fields

_REPEATED = ("instructions", "metadata", "parallel_tool_calls", "reasoning", "text", "tool_choice", "truncation", "user", "store",
             "max_output_tokens", "previous_response_id", "prompt_cache_key", "service_tier")  # fmt: skip
_LOGPROBS = "message.output_text.logprobs"
_INCLUDABLE = {
    _LOGPROBS, "reasoning.encrypted_content", "message.input_image.image_url", "file_search_call.results",
    "web_search_call.results", "web_search_call.action.sources", "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
}  # fmt: skip


def read(body: dict[str, Any], live_name: str) -> GenerationRequest:
    """The request in the body of a Responses call. With `previous_response_id`, the messages contain only the new ones. Raises
    Refusal."""
    return read_known(*known_fields("responses", body), live_name)


def read_known(body: dict[str, Any], unknown: tuple[str, ...], live_name: str) -> GenerationRequest:
    """Like `read`, but for a body that contains only fields in the table."""
    previous = fields.text(body, "previous_response_id")
    instructions = fields.text(body, "instructions")
    tools = read_tools(body.get("tools"), body.get("input"))
    given = [] if body.get("input") is None and previous is not None else body.get("input")
    sent: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    sent += read_items(given, tools)
    if not sent and previous is None:
        raise wrong("input", "a string or a list with at least one item")
    choice, offered = _tool_choice(body.get("tool_choice"), tools)
    include = fields.strings(body.get("include"), "include")
    top_logprobs = fields.whole_number(body, "top_logprobs", 0, 20) or 0
    settings, passed = _engine_settings(body, bool(offered))
    return GenerationRequest(
        api="responses",
        **fields.common(body, live_name, "max_output_tokens"),
        messages=fields.for_engine(sent),
        sent_messages=sent,
        tools=offered or None,
        tool_choice=choice,
        include_usage=True,
        n=1,
        stop=fields.stops(body.get("stop"), "stop"),
        logprobs=_LOGPROBS in include or top_logprobs > 0,
        top_logprobs=top_logprobs,
        template_settings=settings,
        engine_fields=passed,
        parent=previous and (exchange_of(previous) or previous),
        claims=read_claims(body, sent) | {"parent": exchange_of(previous)},
        echo={name: body.get(name) for name in _REPEATED} | {"tools": body.get("tools") or [], "named": tools.named},
        unknown=(*unknown, *(printable(f"include[{included}]") for included in include[:MAX_NAMED] if included not in _INCLUDABLE)),
    )


def _tool_choice(choice: Any, tools: ClientTools) -> tuple[Any, list[Object]]:
    """The choice in chat form, and the tools that may be called."""
    if not tools.chat and not isinstance(choice, dict) and choice != "required":
        return None, []
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        listed = fields.objects(choice.get("tools"), "tool_choice.tools")
        named = (tools.local(str(tool["type"])) if tool.get("type") in LOCAL else tool.get("name") for tool in listed)
        allowed = {name for name in named if isinstance(name, str)}
        offered = [tool for tool in tools.chat if tool.get("function", {}).get("name") in allowed]
        return check_callable(choice.get("mode", "auto"), offered), offered
    if isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        name = fields.text(choice, "name", "tool_choice.name")
        return forced_choice(tools.flat(name or "", choice.get("namespace")), tools.chat), tools.chat
    if isinstance(choice, dict) and choice.get("type") in LOCAL:
        return forced_choice(tools.local(choice["type"]), tools.chat), tools.chat
    if isinstance(choice, dict):
        raise wrong("tool_choice.type", f"function, custom, allowed_tools, {', '.join(LOCAL)}")
    if choice not in (None, "auto", "none", "required"):
        raise wrong("tool_choice", "auto, none, required or an object")
    return check_callable(choice, tools.chat), tools.chat


def _engine_settings(body: Object, with_tools: bool) -> tuple[Object, Object]:
    """The settings for the template, and the fields for an upstream."""
    effort = fields.text(fields.object_or_none(body, "reasoning"), "effort", "reasoning.effort")
    settings = template_settings(body, False if effort == "none" else None)
    form = fields.object_or_none(fields.object_or_none(body, "text"), "format")
    response_format = None
    if form.get("type") == "json_schema":
        response_format = {"type": "json_schema", "json_schema": {key: form[key] for key in form if key != "type"}}
    elif form.get("type") == "json_object":
        response_format = {"type": "json_object"}
    converted = {"response_format": response_format, "reasoning_effort": effort, "chat_template_kwargs": settings or None}
    if not with_tools:
        converted["parallel_tool_calls"] = None
    return settings, engine_fields({**body, **converted})


# ---- tools and items: an assistant's reasoning, text and calls are separate items in this API, and one message for the engine ---


# ---- the answer ----------------------------------------------------------------------------------------------------------------

Keep = Callable[[GenerationRequest, Object, Message], None]


class Responses(BlockDialect):
    """The Responses API: blocks are its output items. `store` receives the complete response."""

    def __init__(self, request: GenerationRequest, exchange_id: str, store: Keep | None = None) -> None:
        super().__init__(request, exchange_id)
        self._store = store
        self._number = -1
        self._named: dict[str, ClientTool] = request.echo.get("named", {})

    def whole(self, choices: list[Choice]) -> bytes:
        return orjson.dumps(self._complete(choices[0]))

    def _complete(self, choice: Choice) -> Object:
        reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(choice.finish_reason or "")
        output = [self._item(block, "completed") for block in ContentBlocks(choice.shown).or_empty()]
        if reason:
            output[-1]["status"] = "incomplete"
        cut = {"reason": reason} if reason else None
        response = self._head("incomplete" if reason else "completed", output, _usage(choice), cut)
        if self._store is not None:
            self._store(self._request, response, chat_message(choice))
        return response

    def begin(self, choice: Choice) -> bytes:
        head = self._head("in_progress", [], None)
        return self._frame("response.created", response=head) + self._frame("response.in_progress", response=head)

    def end(self, choices: list[Choice]) -> bytes:
        response = self._complete(choices[0])
        return self._frame(f"response.{response['status']}", response=response)

    def failed(self, refusal: Refusal) -> bytes:
        error = {"code": refusal.code or "server_error", "message": refusal.message}
        return self._frame("response.failed", response=self._head("failed", [], None) | {"error": error})

    # ---- objects ---------------------------------------------------------------------------------------------------------

    def _head(self, status: str, output: list[Object], usage: Object | None, cut: Object | None = None) -> Object:
        request, echo = self._request, self._request.echo
        return {
            "id": f"resp{self._exchange_id}", "object": "response", "created_at": self._created, "status": status,
            "model": request.model, "output": output, "error": None, "incomplete_details": cut, "usage": usage,
            "completed_at": int(time.time()) if status == "completed" else None, "background": False,
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "top_p": 1.0 if request.top_p is None else request.top_p, "top_logprobs": request.top_logprobs,
            "instructions": echo.get("instructions"), "metadata": echo.get("metadata") or {},
            "parallel_tool_calls": echo.get("parallel_tool_calls") is not False, "tools": echo.get("tools", []),
            "tool_choice": echo.get("tool_choice") or "auto", "max_output_tokens": request.max_tokens,
            "previous_response_id": echo.get("previous_response_id"), "prompt_cache_key": echo.get("prompt_cache_key"),
            "reasoning": {"effort": None, "summary": None, **(echo.get("reasoning") or {})},
            "text": {"format": {"type": "text"}, **(echo.get("text") or {})}, "user": echo.get("user"),
            "truncation": echo.get("truncation") or "disabled", "store": echo.get("store") is not False,
            "service_tier": "default",
        }  # fmt: skip

    def _item(self, block: ContentBlock, status: str) -> Object:
        """A block as an output item. With status "in_progress" it is still empty."""
        begun, number = status == "in_progress", f"{self._exchange_id}{block.number}"
        if block.kind == "reasoning":
            content = [] if begun else [{"type": "reasoning_text", "text": block.text}]
            handle = turn_handle(self._exchange_id)
            return {"id": f"rs_{number}", "type": "reasoning", "summary": [], "content": content,
                    "encrypted_content": handle, "status": status}  # fmt: skip
        if block.kind == "text":
            content = [] if begun else [self._text(block)]
            return {"id": f"msg_{number}", "type": "message", "status": status, "role": "assistant", "content": content}
        client_tool = self._client_tool(block)
        named = {"name": client_tool.name, "call_id": call_id(self._exchange_id, block.call)}
        if client_tool.namespace is not None:
            named["namespace"] = client_tool.namespace
        name = f"{ITEM_PREFIXES[client_tool.kind]}_{number}"
        if client_tool.kind in LOCAL:
            del named["name"]
            action = call_item(client_tool.kind, "{}" if begun else block.text)
            return {"id": name, "type": f"{client_tool.kind}_call", "status": status, **named, **action}
        if client_tool.kind == "custom":
            text = "" if begun else free_text(block.text)
            return {"id": name, "type": "custom_tool_call", "status": status, **named, "input": text}
        text = "" if begun else block.text
        return {"id": name, "type": "function_call", "status": status, **named, "arguments": text}

    def _text(self, block: ContentBlock) -> Object:
        tokens = chat_logprobs(block.tokens) if self._request.logprobs else []
        return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": tokens}

    def _client_tool(self, block: ContentBlock) -> ClientTool:
        return self._named.get(block.name) or ClientTool(block.name)

    # ---- frames ----------------------------------------------------------------------------------------------------------

    def _frame(self, kind: str, **data: Any) -> bytes:
        self._number += 1
        return event_frame({"type": kind, "sequence_number": self._number, **data})

    def _open(self, block: ContentBlock) -> bytes:
        item = self._item(block, "in_progress")
        added = self._frame("response.output_item.added", output_index=block.number, item=item)
        if block.kind == "call":
            return added
        part: Object = {"type": "reasoning_text", "text": ""}
        if block.kind == "text":
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return added + self._frame("response.content_part.added", **self._location(block), content_index=0, part=part)

    def _location(self, block: ContentBlock) -> Object:
        kind = {"reasoning": "rs", "text": "msg", "call": ITEM_PREFIXES[self._client_tool(block).kind]}[block.kind]
        return {"item_id": f"{kind}_{self._exchange_id}{block.number}", "output_index": block.number}

    def _grow(self, block: ContentBlock, text: str, tokens: list[ShownToken]) -> bytes:
        location = self._location(block)
        if block.kind == "reasoning":
            return self._frame("response.reasoning_text.delta", **location, content_index=0, delta=text)
        if block.kind == "text":
            logprobs = chat_logprobs(tokens) if self._request.logprobs else []
            return self._frame("response.output_text.delta", **location, content_index=0, delta=text, logprobs=logprobs)
        if self._client_tool(block).kind != "function":
            return b""  # its text is inside JSON that is still growing
        return self._frame("response.function_call_arguments.delta", **location, delta=text)

    def _close(self, block: ContentBlock, status: str) -> bytes:
        item, location = self._item(block, status), self._location(block)
        done = self._frame_of_text(block, item, location)
        return done + self._frame("response.output_item.done", output_index=block.number, item=item)

    def _frame_of_text(self, block: ContentBlock, item: Object, location: Object) -> bytes:
        if block.kind != "call":
            part = item["content"][0]
            whole = {"text": part["text"]} | ({"logprobs": part["logprobs"]} if block.kind == "text" else {})
            done = self._frame(f"response.{part['type']}.done", **location, content_index=0, **whole)
            return done + self._frame("response.content_part.done", **location, content_index=0, part=part)
        if self._client_tool(block).kind in LOCAL:
            return b""
        if self._client_tool(block).kind == "custom":
            kind = "response.custom_tool_call_input"
            delta = self._frame(f"{kind}.delta", **location, delta=item["input"])
            return delta + self._frame(f"{kind}.done", **location, input=item["input"])
        return self._frame("response.function_call_arguments.done", **location, name=item["name"], arguments=block.text)


def _usage(choice: Choice) -> Object:
    prompt_tokens, completion_tokens = choice.prompt_tokens, choice.completion_tokens
    return {
        "input_tokens": prompt_tokens, "output_tokens": completion_tokens, "total_tokens": prompt_tokens + completion_tokens,
        "input_tokens_details": {"cached_tokens": choice.cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": choice.reasoning_tokens},
    }  # fmt: skip
