"""Recordings of real clients (`tests/recordings/CLIENT/*.json`) as exchanges.

`read_request` is the seam to serve: what its dialects make of a request's body stands in the captures.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from made_exchanges import asked

from clawctl.types import Exchange, Message

RECORDINGS = Path(__file__).parent.parent / "recordings"
_ROUTES = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "messages"}
_SESSION_HEADERS = ("x-session-id", "session_id", "session-id", "x-session-affinity", "x-claude-code-session-id")


def recorded(client: str, with_hints: bool, with_handles: bool) -> dict[str, Exchange]:
    """The exchanges of one client by the number of their request ("003").

    `with_hints`: the session that the client's headers name. `with_handles`: as if serve had issued the ids of the tool calls.
    """
    exchanges: dict[str, Exchange] = {}
    handles: dict[str, str] = {}  # tool-call id as recorded, punctuation removed: as serve would have issued it
    stored: dict[str, list[Message]] = {}  # conversation by response id, for previous_response_id
    for path in sorted((RECORDINGS / client).glob("*.json")):
        call = json.loads(path.read_text())
        api = _ROUTES.get(call["path"].partition("?")[0])
        if api is None:
            continue
        number = path.name[:3]
        exchange_id = f"r{client}{number}".replace("-", "").ljust(24, "x")
        messages = stored.get(call["request"].get("previous_response_id"), []) + read_request(api, call["request"])
        told = call["response"]
        told = json.loads(told) if told.startswith("{") else _events(told)
        response = read_answer(api, call["status"], told)
        if response is not None:
            stored[_response_id(told)] = [*messages, response]
        if with_handles:
            for index, tool_call in enumerate((response or {}).get("tool_calls") or []):
                handles[_bare(tool_call["id"])] = f"call{exchange_id}{index}"
            messages = [_with_handles(message, handles) for message in messages]
            response = response and _with_handles(response, handles)
        exchanges[number] = asked(
            messages, response, exchange_id=exchange_id, at=float(call["t"]), api=api,
            status="ok" if response is not None else "error", hints=_hints(call) if with_hints else {},
        )  # fmt: skip
    return exchanges


def clients() -> list[str]:
    return sorted(path.name for path in RECORDINGS.iterdir() if path.is_dir())


def _hints(call: dict) -> dict[str, Any]:
    headers = {name.lower(): value for name, value in call["headers"]}
    session = next((headers[name] for name in _SESSION_HEADERS if name in headers), None)
    return {"session_id": session or call["request"].get("prompt_cache_key"), "turn_type": headers.get("x-turn-type")}


def _bare(tool_call_id: str) -> str:
    return "".join(letter for letter in tool_call_id if letter.isalnum())


def _with_handles(message: Message, handles: dict[str, str]) -> Message:
    message = dict(message)
    if message.get("tool_calls"):
        message["tool_calls"] = [
            {**call, "id": handles.get(_bare(call.get("id", "")), call.get("id"))} for call in message["tool_calls"]
        ]
    if "tool_call_id" in message:
        message["tool_call_id"] = handles.get(_bare(message["tool_call_id"]), message["tool_call_id"])
    return message


# ---- requests ------------------------------------------------------------------------------------------------------------


def read_request(api: str, body: dict) -> list[Message]:
    """The messages of a request in chat form."""
    if api == "chat":
        return list(body["messages"])
    return list(_from_messages(body) if api == "messages" else _from_responses(body))


def _from_responses(body: dict) -> Iterator[Message]:
    if body.get("instructions"):
        yield {"role": "system", "content": body["instructions"]}
    items = body["input"]
    pending: Message | None = None  # reasoning, text and calls that follow one another are one answer
    for item in [{"role": "user", "content": items}] if isinstance(items, str) else items:
        kind = item.get("type", "message")
        if kind == "reasoning" or kind == "function_call" or item.get("role") == "assistant":
            pending = pending or {"role": "assistant", "content": None}
            _add_output(pending, item)
            continue
        if pending:
            yield pending
            pending = None
        if kind == "function_call_output":
            yield {"role": "tool", "tool_call_id": item["call_id"], "content": _text(item["output"])}
        else:
            yield {"role": item["role"], "content": _text(item["content"])}
    if pending:
        yield pending


def _add_output(answer: Message, item: dict) -> None:
    """One item of a response's output, or of an input that repeats it, put into the assistant message that it is part of."""
    if item.get("type") == "reasoning":
        answer["reasoning_content"] = _text(item.get("content") or [])
    elif item.get("type") == "function_call":
        function = {"name": item["name"], "arguments": item["arguments"]}
        answer.setdefault("tool_calls", []).append({"id": item["call_id"], "type": "function", "function": function})
    else:
        answer["content"] = (answer["content"] or "") + _text(item["content"])


def _from_messages(body: dict) -> Iterator[Message]:
    if body.get("system"):
        yield {"role": "system", "content": _text(body["system"])}
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if message["role"] == "assistant":
            yield _from_blocks(blocks)
            continue
        for block in (block for block in blocks if block["type"] == "tool_result"):
            yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": _text(block.get("content") or "")}
        texts = [block for block in blocks if block["type"] == "text"]
        if texts:
            yield {"role": message["role"], "content": _text(texts)}


def _from_blocks(blocks: list[dict]) -> Message:
    answer: Message = {"role": "assistant", "content": _text([block for block in blocks if block["type"] == "text"]) or None}
    calls = [block for block in blocks if block["type"] == "tool_use"]
    if calls:
        answer["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": json.dumps(call["input"])}}
            for call in calls
        ]
    return answer


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


# ---- answers -------------------------------------------------------------------------------------------------------------


def read_answer(api: str, status: int, told: Any) -> Message | None:
    """The assistant message that was given, whole (an object) or streamed (a list of events); None after an error."""
    if status != 200:
        return None
    if api == "chat":
        return dict(told["choices"][0]["message"]) if isinstance(told, dict) else _streamed_chat(told)
    if api == "messages":
        return _from_blocks(told["content"] if isinstance(told, dict) else _streamed_blocks(told))
    answer: Message = {"role": "assistant", "content": None}
    for item in (told if isinstance(told, dict) else told[-1]["response"])["output"]:
        _add_output(answer, item)
    return answer


def _response_id(told: Any) -> str:
    first = told if isinstance(told, dict) else told[0]
    return str(first.get("response", first).get("id"))


def _events(stream: str) -> list[dict]:
    lines = (line[6:] for line in stream.splitlines() if line.startswith("data: "))
    return [json.loads(line) for line in lines if line != "[DONE]"]


def _streamed_chat(events: list[dict]) -> Message:
    answer: Message = {"role": "assistant", "content": None}
    for delta in (event["choices"][0]["delta"] for event in events if event["choices"]):
        if delta.get("content"):
            answer["content"] = (answer["content"] or "") + delta["content"]
        for part in delta.get("tool_calls") or []:
            calls = answer.setdefault("tool_calls", [])
            if part["index"] == len(calls):
                calls.append({"id": part["id"], "type": "function", "function": {"name": "", "arguments": ""}})
            for key, text in part["function"].items():
                calls[part["index"]]["function"][key] += text or ""
    return answer


def _streamed_blocks(events: list[dict]) -> list[dict]:
    blocks: list[dict] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            blocks[event["index"]]["json"] += delta.get("partial_json", "")
            if "text" in delta:
                blocks[event["index"]]["text"] += delta["text"]
    return [{**block, "input": json.loads(block["json"] or "{}")} if block["type"] == "tool_use" else block for block in blocks]
