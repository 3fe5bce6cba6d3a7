"""Handles: everything opaque that a client echoes names the turn that gave it, so that the next request names its parent."""

import re

_HANDLE = re.compile(r"(?:call|resp|turn|msg|rs|fc|ctc|lsh|shc|apc|chatcmpl|cmpl)([A-Za-z0-9]{24})[0-9]{0,3}")


def call_id(exchange_id: str, i: int) -> str:
    """A tool call's id: alphanumeric, for clients that delete everything else."""
    return f"call{exchange_id}{i}"


def turn_handle(exchange_id: str) -> str:
    """The handle in reasoning's `encrypted_content` and `signature`."""
    return f"turn{exchange_id}"


def exchange_of(handle: object) -> str | None:
    """The exchange of an echoed handle, or None if it is not from this server. A client may have changed its punctuation."""
    if not isinstance(handle, str) or len(handle) > 80:
        return None
    match = _HANDLE.fullmatch("".join(letter for letter in handle if letter.isalnum()))
    return match[1] if match else None
