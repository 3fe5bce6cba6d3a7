"""Exchanges in the form that serve makes."""

from typing import Any

from clawctl.run.rows import Exchange, Message


def exchange(messages: list[Message], **changes: Any) -> Exchange:
    """One answered exchange; every field can be changed by name."""
    fields: dict[str, Any] = {
        "exchange_id": "e1", "created_at": 1000.0, "finished_at": 1001.0, "api": "chat", "key": "default", "status": "ok",
        "model": "crafts", "messages": messages, "tools": None, "response": {"role": "assistant", "content": "fine"},
        "finish_reason": "stop", "prompt_ids": [1, 2, 3], "completion_ids": [4, 5], "logprobs": [-0.5, -0.25], "policy_version": 0,
        "policy_version_end": 0, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "hints": {}, "untrainable_reason": None,
    }  # fmt: skip
    return Exchange(**{**fields, **changes})
