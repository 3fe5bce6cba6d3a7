"""Handmade exchanges: short names for the parts of a conversation, and a clock that advances one second per request."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from clawctl.run.rows import Exchange

_numbers: Iterator[int] = itertools.count(1)


def system(text: str) -> dict:
    return {"role": "system", "content": text}


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def answer(text: str | None, *calls: tuple[str, str, str]) -> dict:
    """An assistant message; a call is (id, name, arguments)."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in calls
        ]
    return message


def tool(call_id: str, text: str) -> dict:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def new_id() -> str:
    return f"x{next(_numbers):023d}"


def asked(messages: list[dict], response: dict | None, at: float | None = None, key: str = "default", **changes: Any) -> Exchange:
    """One exchange. Keyword arguments with the name of a field of Exchange replace it, all others become hints."""
    exchange_id = changes.pop("exchange_id", None) or new_id()
    at = float(next(_numbers)) if at is None else at
    values: dict[str, Any] = {
        "exchange_id": exchange_id, "created_at": at, "finished_at": at + 0.5, "api": "chat", "key": key, "status": "ok",
        "model": "crafts", "messages": messages, "tools": None, "response": response, "finish_reason": "stop",
        "prompt_ids": [1, 2, 3], "completion_ids": [4, 5], "logprobs": [-0.5, -0.25], "policy_version": 0, "policy_version_end": 0,
        "temperature": 1.0, "top_p": 1.0, "top_k": 0, "hints": {}, "untrainable_reason": None, "allowed": None,
    }  # fmt: skip
    fields = {name: changes.pop(name) for name in list(changes) if name in values}
    return Exchange(**{**values, **fields, "hints": {**changes, **fields.get("hints", {})}})


def line(exchange: Exchange) -> bytes:
    return orjson.dumps(exchange) + b"\n"


def append(path: Path, *exchanges: Exchange) -> None:
    with path.open("ab") as file:
        for exchange in exchanges:
            file.write(line(exchange))
