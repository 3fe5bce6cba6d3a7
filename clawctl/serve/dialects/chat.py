"""OpenAI chat completions, https://platform.openai.com/docs/api-reference/chat, with extensions that real clients use."""

from collections.abc import Iterable
from typing import Any

import orjson

from clawctl.engines.requests import (
    CallDelta,
    CallStart,
    Event,
    Extras,
    GenerationRequest,
    ReasoningDelta,
    Refusal,
    Shown,
    ShownToken,
    TextDelta,
)
from clawctl.run.handles import call_id
from clawctl.run.rows import Message
from clawctl.serve.dialects import Choice, fields
from clawctl.serve.dialects.api import known_fields
from clawctl.serve.dialects.fields import Object, wrong
from clawctl.serve.dialects.settings import template_settings
from clawctl.serve.dialects.tools import CUSTOM_INPUT, check_callable, custom_function, forced_choice, free_text, tool_name
from clawctl.serve.dialects.writing import ChunkDialect, chat_logprobs, chat_message, chunk_frame
from clawctl.serve.dialects.writing import envelope as envelope
from clawctl.serve.hints import read_claims
from clawctl.serve.sampling import engine_fields

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool", "function": "tool"}
_MAX_CHOICES = 128
_NOTHING = Extras()


def read(body: dict[str, Any], live_name: str) -> GenerationRequest:
    """The request in a chat completion's body. Unknown fields, message keys and tool types are accepted. Raises Refusal."""
    return read_known(*known_fields("chat", body), live_name)


def read_known(body: dict[str, Any], unknown: tuple[str, ...], live_name: str) -> GenerationRequest:
    """Like `read`, but for a body that contains only fields in the table."""
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise Refusal(400, "'messages' must be a list with at least one message", "messages")
    sent = [_with_functions(message) for message in given]
    messages = [_message(message, i) for i, message in enumerate(sent)]
    tools, custom = _tools(body)
    choice, offered = _tool_choice(body, tools)
    reasoning, thinking = fields.object_or_none(body, "reasoning"), fields.object_or_none(body, "thinking").get("type")
    enabled = reasoning.get("enabled")
    settings = template_settings(
        body,
        thinking != "disabled" if isinstance(thinking, str) else None,
        enabled if isinstance(enabled, bool) else None,
        False if "none" in (body.get("reasoning_effort"), reasoning.get("effort")) else None,
    )
    longest = body.get("max_completion_tokens")
    top = fields.whole_number(body, "top_logprobs", 0, 20) or 0
    if top and not fields.flag(body, "logprobs"):
        raise Refusal(400, "'top_logprobs' needs 'logprobs': true", "top_logprobs")
    continues, prompted = _ending(body, messages)
    common = fields.common(body, live_name, "max_tokens" if longest is None else "max_completion_tokens")
    if body.get("add_generation_prompt") is False:
        common["fields"] += ("add_generation_prompt",)
    passed = {**body, "chat_template_kwargs": settings or None}
    if passed.get("reasoning_effort") is None:
        passed["reasoning_effort"] = fields.text(reasoning, "effort", "reasoning.effort")
    return GenerationRequest(
        api="chat",
        **common,
        messages=messages,
        sent_messages=sent,
        tools=offered or None,
        tool_choice=choice,
        include_usage=bool(fields.flag(fields.object_or_none(body, "stream_options"), "include_usage")),
        continuous_usage=bool(fields.flag(fields.object_or_none(body, "stream_options"), "continuous_usage_stats")),
        n=fields.whole_number(body, "n", 1, _MAX_CHOICES) or 1,
        stop=fields.stops(body.get("stop"), "stop"),
        logprobs=bool(fields.flag(body, "logprobs")),
        top_logprobs=top,
        template_settings=settings,
        engine_fields=engine_fields(passed),
        claims=read_claims(body, messages),
        echo={
            "function_call": body.get("tools") is None and bool(body.get("functions")),
            "custom": custom,
            "no_reasoning": fields.flag(body, "include_reasoning") is False or reasoning.get("exclude") is True,
        },
        unknown=unknown,
        continues=continues,
        prompted=prompted,
        return_ids=bool(fields.flag(body, "return_token_ids")),
    )


def _tools(body: Object) -> tuple[list[Object], list[str]]:
    """The tools, and the names of the client's custom tools."""
    if body.get("tools") is None and body.get("functions") is not None:  # the API before tools existed
        return [{"type": "function", "function": function} for function in fields.objects(body["functions"], "functions")], []
    tools, custom = [], []
    for i, tool in enumerate(fields.objects([] if body.get("tools") is None else body["tools"], "tools")):
        if tool.get("type") != "custom" or not isinstance(tool.get("custom"), dict):
            tools.append(tool)
            continue
        about = tool["custom"]
        name = fields.text(about, "name", f"tools[{i}].custom.name")
        if not name:
            raise wrong(f"tools[{i}].custom.name", "a string")
        form = about.get("format")
        tools.append(custom_function(name, about.get("description"), form.get("grammar") if isinstance(form, dict) else None))
        custom.append(name)
    return tools, custom


def _with_functions(message: Any) -> Any:
    """The message, with calls of custom tools converted to calls of the functions that the model sees."""
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list) or not any(isinstance(call, dict) and call.get("type") == "custom" for call in calls):
        return message
    return {**message, "tool_calls": [_as_function(call) for call in calls]}


def _as_function(call: Any) -> Any:
    custom = call.get("custom") if isinstance(call, dict) else None
    if not isinstance(custom, dict):
        return call
    other_fields = {name: value for name, value in call.items() if name != "custom"}
    arguments = orjson.dumps({CUSTOM_INPUT: str(custom.get("input") or "")}).decode()
    return {**other_fields, "type": "function", "function": {"name": str(custom.get("name")), "arguments": arguments}}


def _ending(body: Object, messages: list[Message]) -> tuple[bool, bool]:
    """Whether the answer continues the last message, and whether the prompt ends with the header of an answer."""
    last = messages[-1]
    continued = fields.flag(body, "continue_final_message") or (last["role"] == "assistant" and last.get("prefix") is True)
    prompted = fields.flag(body, "add_generation_prompt")
    if not continued:
        return False, prompted is not False
    if prompted and body.get("continue_final_message"):
        problem = "'continue_final_message' and 'add_generation_prompt' cannot be used together"
        raise Refusal(400, problem, "continue_final_message")
    if last["role"] != "assistant" or not isinstance(last["content"], str) or not last["content"] or last.get("tool_calls"):
        problem = "an answer can only continue a last message that is assistant text without tool calls"
        raise Refusal(400, problem, "continue_final_message")
    return True, False


def _tool_choice(body: Object, tools: list[Object]) -> tuple[Any, list[Object]]:
    """The choice in a single form, and the tools that may be called."""
    old = body.get("tools") is None and body.get("functions") is not None
    choice = body.get("function_call" if old else "tool_choice")
    if choice is None or (not tools and choice in ("auto", "none")):
        return None, tools
    where = "function_call" if old else "tool_choice"
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise wrong(where, "auto, none, required or an object")
        return check_callable(choice, tools), tools
    kind = fields.an_object(choice, where).get("type", "function")
    if kind == "allowed_tools":
        allowed = fields.object_or_none(choice, "allowed_tools")
        named = (tool_name(tool) for tool in fields.objects(allowed.get("tools"), "tool_choice.allowed_tools.tools"))
        names = {name for name in named if isinstance(name, str)}
        offered = [tool for tool in tools if tool_name(tool) in names]
        return check_callable(allowed.get("mode", "auto"), offered), offered
    return forced_choice(str(choice["name"] if old and "name" in choice else tool_name(choice)), tools), tools


def _message(message: Any, i: int) -> Message:
    where = f"messages[{i}]"
    fields.an_object(message, where)
    role = _ROLES.get(message["role"]) if isinstance(message.get("role"), str) else None
    if role is None:
        raise wrong(f"{where}.role", f"one of {', '.join(_ROLES)}")
    calls = message.get("tool_calls")
    if calls is not None:
        for call in fields.objects(calls, f"{where}.tool_calls"):
            if call.get("type", "function") == "function" and not isinstance(call.get("function"), dict):
                raise wrong(f"{where}.tool_calls", "a list of calls, each with its function")
    read = {**message, "role": role, "content": _content(message.get("content"), f"{where}.content")}
    if isinstance(message.get("function_call"), dict) and not calls:
        read["tool_calls"] = [{"type": "function", "function": message["function_call"]}]
    if not read["content"] and isinstance(message.get("refusal"), str):
        read["content"] = message["refusal"]
    if isinstance(message.get("reasoning"), str) and "reasoning_content" not in message:
        read["reasoning_content"] = message["reasoning"]
    return read


def _content(content: Any, where: str) -> str | list[Any]:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise Refusal(400, f"'{where}' must be a string, a list of parts or null", where)
    if any(isinstance(part, dict) and part.get("type") == "image_url" for part in content):
        return [part if _is_image(part, where) else fields.text_part(_part(part, where)) for part in content]
    return "".join(_part(part, where) for part in content)


def _is_image(part: Any, where: str) -> bool:
    if not isinstance(part, dict) or part.get("type") != "image_url":
        return False
    image = part.get("image_url")
    if not isinstance(image, dict) or not isinstance(image.get("url"), str):
        raise wrong(f"{where}.image_url.url", "a string")
    return True


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        for key in ("text", "refusal"):
            if isinstance(part.get(key), str):
                return str(part[key])
        kind = str(part.get("type"))
        if kind in ("text", "refusal"):
            raise wrong(f"{where}.{kind}", "a string")
        return str(fields.left_out(f"a part of type {kind[:40]}", part.get("filename"))["text"])
    raise Refusal(400, f"a part of '{where}' must be an object", where)


class Chat(ChunkDialect):
    """Chat completions: each choice is a message, or its deltas in a stream."""

    prefix = "chatcmpl"

    def __init__(self, request: GenerationRequest, exchange_id: str) -> None:
        super().__init__(request, exchange_id)
        self._before_tools = bool(request.echo.get("function_call"))  # the client uses functions, not tools
        self._calls: dict[int, int] = {}  # number of tool calls streamed so far, per choice
        self._custom = set(request.echo.get("custom") or ())  # names of the client's custom tools
        self._free: dict[int, list[str]] = {}  # arguments of the current custom call so far, per choice
        # Number of ids streamed so far, per choice; missing: the prompt's ids were not sent either.
        self._ids_sent: dict[int, int] = {}
        self._thinks = not request.echo.get("no_reasoning")

    def whole(self, choices: list[Choice]) -> bytes:
        answers = []
        for choice in choices:
            message = {**_extras(choice).message, **self._message_sent(choice)}
            tokens = (token for shown in choice.shown for token in shown.tokens)
            logprobs = {"content": chat_logprobs(tokens)} if self._request.logprobs else None
            answer = {"index": choice.index, "message": message, "finish_reason": self._finish_reason(choice), "logprobs": logprobs}
            if self._request.return_ids:
                answer["token_ids"] = choice.completion_ids
            answers.append({**_extras(choice).choice, **answer})
        answer = {**_extras(choices[0]).answer, **self._head("chat.completion"), "choices": answers, "usage": _usage(choices)}
        return orjson.dumps(answer | ({"prompt_token_ids": choices[0].prompt_ids} if self._request.return_ids else {}))

    def begin(self, choice: Choice) -> bytes:
        return self._chunk(choice, {"role": "assistant", "content": ""})

    def piece(self, choice: Choice, shown: Shown) -> bytes:
        frames = []
        for i, event in enumerate(shown.events):
            tokens = shown.tokens if i == len(shown.events) - 1 else []
            if not isinstance(event, CallDelta):
                frames.append(self._free_input(choice))
            delta = self._delta(choice, event)
            if delta or tokens or self._request.return_ids:  # otherwise nothing in it is visible to the client
                frames.append(self._chunk(choice, delta, tokens=tokens))
        return b"".join(frames)

    def finish(self, choice: Choice) -> bytes:
        extras = _extras(choice)
        last = self._chunk(choice, extras.message, self._finish_reason(choice), extras=extras)
        return self._free_input(choice) + last

    def _free_input(self, choice: Choice) -> bytes:
        """The input of the last call to a custom tool. It is encoded as JSON, so it is certain only at the end of the call."""
        pieces = self._free.pop(choice.index, None)
        if pieces is None:
            return b""
        call = {"index": self._calls[choice.index] - 1, "custom": {"input": free_text("".join(pieces))}}
        return self._chunk(choice, {"tool_calls": [call]})

    def _usage_chunk(self, choices: list[Choice]) -> Object:
        head = {**_extras(choices[0]).answer, **self._head("chat.completion.chunk")}
        return {**head, "choices": [], "usage": _usage(choices)}

    def _message_sent(self, choice: Choice) -> Message:
        message = chat_message(choice)
        if not self._thinks:
            message.pop("reasoning_content", None)
        for call in message.get("tool_calls", ()):
            if call["function"]["name"] in self._custom:
                function = call.pop("function")
                call |= {"type": "custom", "custom": {"name": function["name"], "input": free_text(function["arguments"])}}
        if self._before_tools and (calls := message.pop("tool_calls", [])):
            message["function_call"] = calls[0]["function"]
        return message

    def _finish_reason(self, choice: Choice) -> str | None:
        return "function_call" if self._before_tools and choice.finish_reason == "tool_calls" else choice.finish_reason

    def _delta(self, choice: Choice, event: Event) -> dict[str, Any]:
        if isinstance(event, TextDelta):
            return {"content": event.text}
        if isinstance(event, ReasoningDelta):
            return {"reasoning_content": event.text} if self._thinks else {}
        if isinstance(event, CallStart):
            self._calls[choice.index] = self._calls.get(choice.index, 0) + 1
        i = self._calls[choice.index] - 1
        function = {"name": event.name, "arguments": ""} if isinstance(event, CallStart) else {"arguments": event.text}
        if self._before_tools:
            return {"function_call": function} if i == 0 else {}
        if isinstance(event, CallStart) and event.name in self._custom:
            self._free[choice.index] = []
            custom = {"name": event.name, "input": ""}
            return {"tool_calls": [{"index": i, "id": call_id(choice.exchange_id, i), "type": "custom", "custom": custom}]}
        if isinstance(event, CallDelta) and choice.index in self._free:
            self._free[choice.index].append(event.text)
            return {}
        if isinstance(event, CallDelta):
            return {"tool_calls": [{"index": i, "function": function}]}
        return {"tool_calls": [{"index": i, "id": call_id(choice.exchange_id, i), "type": "function", "function": function}]}

    def _chunk(
        self,
        choice: Choice,
        delta: dict[str, Any],
        finish: str | None = None,
        tokens: Iterable[ShownToken] = (),
        extras: Extras = _NOTHING,
    ) -> bytes:
        chunk = {**extras.choice, "index": choice.index, "delta": delta, "finish_reason": finish}
        if self._request.logprobs and (content := chat_logprobs(tokens)):
            chunk["logprobs"] = {"content": content}
        prompt = self._new_ids(choice, chunk) if self._request.return_ids else {}
        usage = self._usage_so_far(choice)
        return chunk_frame({**extras.answer, **self._head("chat.completion.chunk"), **prompt, "choices": [chunk], **usage})

    def _new_ids(self, choice: Choice, chunk: dict[str, Any]) -> dict[str, Any]:
        """Add new ids to a chunk's choice; returns the prompt's ids if they were not sent yet. The field names are vLLM's."""
        ids, begun = choice.completion_ids or [], choice.index in self._ids_sent
        sent = self._ids_sent.get(choice.index, 0)
        chunk["token_ids"] = ids[sent:]
        if choice.prompt_ids is None:
            return {}
        self._ids_sent[choice.index] = len(ids)
        return {} if begun else {"prompt_token_ids": choice.prompt_ids}


def _extras(choice: Choice) -> Extras:
    return choice.extras or _NOTHING


def _usage(choices: list[Choice]) -> dict[str, Any]:
    usages = [choice.usage for choice in choices if choice.usage is not None]
    if len(usages) == len(choices):
        return _usage_together(usages)
    prompt_tokens, completion_tokens = choices[0].prompt_tokens, sum(choice.completion_tokens for choice in choices)
    usage: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    if (cached := choices[0].cached_tokens) is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    if reasoning := sum(choice.reasoning_tokens for choice in choices):
        usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return usage


def _usage_together(usages: list[dict[str, Any]]) -> dict[str, Any]:
    """The usage of separately sampled answers to one prompt, as if they had been sampled together."""
    usage = dict(usages[0])
    for other in usages[1:]:
        usage["completion_tokens"] += other["completion_tokens"]
        usage["total_tokens"] += other["completion_tokens"]
    details = [usage_part.get("completion_tokens_details") or {} for usage_part in usages]
    if any(details):
        numbers = {name for detail in details for name, value in detail.items() if isinstance(value, int)}
        usage["completion_tokens_details"] = details[0] | {
            name: sum(detail.get(name) or 0 for detail in details) for name in numbers
        }
    return usage
