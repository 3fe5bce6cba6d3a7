"""What a client claims about its conversation. Claims group and label; they are never trusted to link turns."""

from collections.abc import Mapping
from typing import Any

_SESSION_HEADERS = ("x-session-id", "session_id", "session-id", "x-session-affinity", "x-claude-code-session-id")
_TRUE = ("1", "true", "yes", "on")


def read_hints(headers: Mapping[str, str], claims: Mapping[str, Any]) -> dict[str, Any]:
    """The hints of an exchange, from the request's headers and the body's fields; headers come first."""
    session = next((headers[name] for name in _SESSION_HEADERS if headers.get(name)), None)
    turn_type = headers.get("x-turn-type") or _text(claims.get("turn_type"))
    done = headers.get("x-session-done", claims.get("session_done", False))
    return {
        "session_id": session or _text(claims.get("session_id")) or _text(claims.get("prompt_cache_key")),
        "turn_type": turn_type.strip().lower() if turn_type else None,
        "session_done": str(done).strip().lower() in _TRUE,
        "task_id": headers.get("x-task-id") or None,
        "group_id": headers.get("x-group-id") or None,
    }


def _text(value: Any) -> str | None:
    """A claim as text; anything but text and numbers is no claim."""
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        return None
    return str(value)
