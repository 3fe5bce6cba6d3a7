"""Handles: every opaque value that a client echoes identifies the turn that issued it, so the next request identifies its
parent."""

import re

_HANDLE = re.compile(r"(?:call|resp|turn|msg|rs|fc|ctc|lsh|shc|apc|chatcmpl|cmpl)([A-Za-z0-9]{24})[0-9]{0,3}")


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
