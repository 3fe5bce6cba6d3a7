"""Recordings of real clients (`tests/recordings/CLIENT/*.json`) as exchanges.

They go serve's own way: its dialects read each request's body, and its hints the headers, as for a capture.
"""

import json
from pathlib import Path
from typing import Any

from made_exchanges import asked

from clawctl.run.rows import Exchange, Message
from clawctl.serve.dialects import chat, messages, responses
from clawctl.serve.hints import read_hints

RECORDINGS = Path(__file__).parent.parent / "recordings"
_ROUTES = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "messages"}
_DIALECTS = {"chat": chat, "responses": responses, "messages": messages}


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
        ask = _DIALECTS[api].read(call["request"], "crafts")
        said = stored.get(call["request"].get("previous_response_id"), []) + ask.sent_messages
        body = call["response"]
        body = json.loads(body) if body.startswith("{") else _events(body)
        response = read_answer(api, call["status"], body)
        if response is not None:
            stored[_response_id(body)] = [*said, response]
        if with_handles:
            for index, tool_call in enumerate((response or {}).get("tool_calls") or []):
                handles[_bare(tool_call["id"])] = f"call{exchange_id}{index}"
            said = [_with_handles(message, handles) for message in said]
            response = response and _with_handles(response, handles)
        exchanges[number] = asked(
            said, response, exchange_id=exchange_id, at=float(call["t"]), api=api, tools=ask.tools,
            status="ok" if response is not None else "error", hints=_hints(call, ask.claims) if with_hints else {},
        )  # fmt: skip
    return exchanges


def clients() -> list[str]:
    return sorted(path.name for path in RECORDINGS.iterdir() if path.is_dir())


def _hints(call: dict, claims: dict[str, Any]) -> dict[str, Any]:
    return read_hints({name.lower(): value for name, value in call["headers"]}, claims)


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


# ---- answers -------------------------------------------------------------------------------------------------------------


def read_answer(api: str, status: int, body: Any) -> Message | None:
    """The assistant message that was given, whole (an object) or streamed (a list of events); None after an error. As serve reads
    it where a client sends it back."""
    if status != 200:
        return None
    if api == "chat":
        return dict(body["choices"][0]["message"]) if isinstance(body, dict) else _streamed_chat(body)
    if api == "messages":
        blocks = body["content"] if isinstance(body, dict) else _streamed_blocks(body)
        said = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": blocks}]}
    else:
        said = {"input": body["output"] if isinstance(body, dict) else _streamed_items(body)}
    (answer,) = [m for m in _DIALECTS[api].read({"model": "crafts", **said}, "crafts").sent_messages if m["role"] == "assistant"]
    return answer


def _response_id(body: Any) -> str:
    first = body if isinstance(body, dict) else body[0]
    return str(first.get("response", first).get("id"))


def _events(stream: str) -> list[dict]:
    lines = (line[6:] for line in stream.splitlines() if line.startswith("data: "))
    return [json.loads(line) for line in lines if line != "[DONE]"]


def _streamed_items(events: list[dict]) -> list[dict]:
    """The items of a streamed response; some recordings lack its last event."""
    last = events[-1].get("response", {}).get("output")
    return last or [event["item"] for event in events if event["type"] == "response.output_item.done"]


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
