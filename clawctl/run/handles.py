"""Ids of turns as clients see them. Every id and handle that the server issues contains the turn's id behind a prefix, so that a
client that sends one back names the turn: in its next request, in a rating, or in the steps of an outcome."""

import re

_ID = re.compile(r"[A-Za-z0-9]{24}")
_HANDLE = re.compile(rf"(?:call|resp|turn|msg|rs|fc|ctc|lsh|shc|apc|chatcmpl|cmpl)({_ID.pattern})[0-9]{{0,3}}")


def call_id(exchange_id: str, i: int) -> str:
    """A tool call's id. It is alphanumeric, because some clients delete all other characters."""
    return f"call{exchange_id}{i}"


def turn_handle(exchange_id: str) -> str:
    """The handle for `encrypted_content` and `signature` of reasoning."""
    return f"turn{exchange_id}"


def exchange_of(handle: object) -> str | None:
    """The exchange of an echoed handle, or None if this server did not issue it. A client may have changed its punctuation."""
    if not isinstance(handle, str) or len(handle) > 80:
        return None
    match = _HANDLE.fullmatch("".join(letter for letter in handle if letter.isalnum()))
    return match[1] if match else None


def turn_of(response_id: str) -> str | None:
    """The turn that a response's id, a handle or a turn's id names: "chatcmplX", "msg_X" and "X" for X. None for other texts."""
    return exchange_of(response_id) or (response_id if _ID.fullmatch(response_id) else None)
