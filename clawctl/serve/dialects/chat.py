"""OpenAI chat completions: https://platform.openai.com/docs/api-reference/chat, and what real clients add to it."""

import time
from collections.abc import Iterable
from typing import Any

import orjson

from clawctl.serve.dialects import Ask, Choice, Refusal, Shown, ShownToken
from clawctl.serve.sampling import engine_fields
from clawctl.serve.text import CallBegun, CallSaid, Event, Said, Thought
from clawctl.types import Message

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool", "function": "tool"}
_MOST_CHOICES = 128


def read(body: dict[str, Any], live_name: str) -> Ask:
    """Raises Refusal for what cannot be understood; unknown fields, message keys and tool types are welcome."""
    sent = body.get("messages")
    if not isinstance(sent, list) or not sent:
        raise Refusal(400, "'messages' must be a list with at least one message", "messages")
    tools = body.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise Refusal(400, "'tools' must be a list of objects", "tools")
    options = body.get("stream_options")
    settings = body.get("chat_template_kwargs")
    longest = body.get("max_completion_tokens")
    return Ask(
        api="chat",
        model=_model(body, live_name),
        messages=[_message(message, i) for i, message in enumerate(sent)],
        sent_messages=sent,
        tools=tools or None,
        tool_choice=body.get("tool_choice"),
        stream=bool(body.get("stream")),
        include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        n=_whole_number(body, "n", 1, _MOST_CHOICES) or 1,
        stop=_stop(body.get("stop")),
        temperature=_number(body, "temperature", 0, 100),
        top_p=_number(body, "top_p", 0, 1),
        top_k=max(0, _whole_number(body, "top_k", -1, 1 << 31) or 0),
        max_tokens=_whole_number(body, "max_tokens" if longest is None else "max_completion_tokens", 1, 1 << 31),
        logprobs=bool(body.get("logprobs")),
        top_logprobs=_whole_number(body, "top_logprobs", 0, 20) or 0,
        template_settings=settings if isinstance(settings, dict) else {},
        engine_fields=engine_fields(body),
        claims={key: body[key] for key in ("session_id", "turn_type", "session_done", "prompt_cache_key") if key in body},
    )


def _model(body: dict[str, Any], live_name: str) -> str:
    model = body.get("model", live_name)
    if not isinstance(model, str):
        raise Refusal(400, "'model' must be a string", "model")
    return model


def _message(message: Any, i: int) -> Message:
    where = f"messages[{i}]"
    if not isinstance(message, dict):
        raise Refusal(400, f"'{where}' must be an object", where)
    role = _ROLES.get(message["role"]) if isinstance(message.get("role"), str) else None
    if role is None:
        raise Refusal(400, f"'{where}.role' must be one of {', '.join(_ROLES)}", f"{where}.role")
    calls = message.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
        raise Refusal(400, f"'{where}.tool_calls' must be a list of objects", f"{where}.tool_calls")
    return {**message, "role": role, "content": _content(message.get("content"), f"{where}.content")}


def _content(content: Any, where: str) -> str | list[Any]:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise Refusal(400, f"'{where}' must be a string, a list of parts or null", where)
    if any(isinstance(part, dict) and "image" in str(part.get("type")) for part in content):
        return content
    return "".join(_part(part, where) for part in content)


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        for key in ("text", "refusal"):
            if isinstance(part.get(key), str):
                return str(part[key])
        kind = str(part.get("type"))
        raise Refusal(400, f"this model takes text only, not {kind[:40]!r}", where)
    raise Refusal(400, f"a part of '{where}' must be an object", where)


def _stop(stop: Any) -> list[str]:
    stops = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else [] if stop is None else None
    if stops is None or not all(isinstance(each, str) for each in stops):
        raise Refusal(400, "'stop' must be a string or a list of strings", "stop")
    return [each for each in stops if each]


def _number(body: dict[str, Any], name: str, least: float, most: float) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise Refusal(400, f"'{name}' must be a number from {least} to {most}", name)
    return float(value)


def _whole_number(body: dict[str, Any], name: str, least: int, most: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Refusal(400, f"'{name}' must be a whole number, at least {least}", name)
    return value


class Chat:
    """See `clawctl.serve.dialects.Dialect`."""

    def __init__(self, ask: Ask, exchange_id: str) -> None:
        self._ask = ask
        self._created = int(time.time())
        self._id = f"chatcmpl{exchange_id}"
        self._calls: dict[int, int] = {}  # tool calls of each choice that were streamed so far

    def message(self, choice: Choice) -> Message:
        events = [event for shown in choice.shown for event in shown.events]
        said = "".join(event.text for event in events if isinstance(event, Said))
        thought = "".join(event.text for event in events if isinstance(event, Thought))
        calls: list[dict[str, Any]] = []
        for event in events:
            if isinstance(event, CallBegun):
                function = {"name": event.name, "arguments": ""}
                calls.append({"id": _call_id(choice, len(calls)), "type": "function", "function": function})
            elif isinstance(event, CallSaid):
                calls[-1]["function"]["arguments"] += event.text
        message: Message = {"role": "assistant", "content": said if said or not calls else None}
        if thought:
            message["reasoning_content"] = thought
        return {**message, "tool_calls": calls} if calls else message

    def whole(self, choices: list[Choice]) -> bytes:
        answers = []
        for choice in choices:
            answer = {"index": choice.index, "message": self.message(choice), "finish_reason": choice.finish_reason}
            tokens = (token for shown in choice.shown for token in shown.tokens)
            answers.append({**answer, "logprobs": {"content": _logprobs(tokens)} if self._ask.logprobs else None})
        return orjson.dumps({**self._head("chat.completion"), "choices": answers, "usage": _usage(choices)})

    def begin(self, choice: Choice) -> bytes:
        return self._chunk(choice, {"role": "assistant", "content": ""})

    def piece(self, choice: Choice, shown: Shown) -> bytes:
        frames = []
        for i, event in enumerate(shown.events):
            tokens = shown.tokens if i == len(shown.events) - 1 else []
            frames.append(self._chunk(choice, self._delta(choice, event), tokens=tokens))
        return b"".join(frames)

    def finish(self, choice: Choice) -> bytes:
        return self._chunk(choice, {}, choice.finish_reason)

    def end(self, choices: list[Choice]) -> bytes:
        done = b"data: [DONE]\n\n"
        if not self._ask.include_usage:
            return done
        return _frame({**self._head("chat.completion.chunk"), "choices": [], "usage": _usage(choices)}) + done

    def failed(self, refusal: Refusal) -> bytes:
        return _frame(envelope(refusal))

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._ask.model}

    def _delta(self, choice: Choice, event: Event) -> dict[str, Any]:
        if isinstance(event, Said):
            return {"content": event.text}
        if isinstance(event, Thought):
            return {"reasoning_content": event.text}
        if isinstance(event, CallSaid):
            return {"tool_calls": [{"index": self._calls[choice.index] - 1, "function": {"arguments": event.text}}]}
        i = self._calls.get(choice.index, 0)
        self._calls[choice.index] = i + 1
        function = {"name": event.name, "arguments": ""}
        return {"tool_calls": [{"index": i, "id": _call_id(choice, i), "type": "function", "function": function}]}

    def _chunk(self, choice: Choice, delta: dict[str, Any], finish: str | None = None, tokens: Iterable[ShownToken] = ()) -> bytes:
        said = {"index": choice.index, "delta": delta, "finish_reason": finish}
        if self._ask.logprobs and (content := _logprobs(tokens)):
            said["logprobs"] = {"content": content}
        return _frame({**self._head("chat.completion.chunk"), "choices": [said]})


def _call_id(choice: Choice, i: int) -> str:
    return f"call{choice.exchange_id}{i}"


def _logprobs(tokens: Iterable[ShownToken]) -> list[dict[str, Any]]:
    return [
        {"token": token.text, "logprob": token.logprob, "bytes": list(token.text.encode()), "top_logprobs": token.top}
        for token in tokens
    ]


def _usage(choices: list[Choice]) -> dict[str, Any]:
    asked, answered = choices[0].prompt_tokens, sum(choice.completion_tokens for choice in choices)
    usage = {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}
    cached = choices[0].cached_tokens
    return usage if cached is None else {**usage, "prompt_tokens_details": {"cached_tokens": cached}}


def _frame(data: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


def envelope(refusal: Refusal) -> dict[str, Any]:
    """OpenAI's error body."""
    kind = {401: "authentication_error", 404: "not_found_error", 413: "invalid_request_error"}.get(refusal.status)
    kind = kind or ("invalid_request_error" if refusal.status < 500 else "server_error")
    return {"error": {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}}
