"""Measures the size of a request before anything is rendered or kept. Every limit is named in its refusal."""

import codecs
from collections.abc import Callable
from typing import Any, Final

import orjson

from clawctl.engines.requests import GenerationRequest, Refusal
from clawctl.serve.images import check_images

BYTES_PER_TOKEN: Final = 32  # text has 4 or 5; a body with more bytes per token of the context cannot fit and is not read
EXTRA_BYTES: Final = 1 << 20  # bytes of a body in addition to its prompt
_MAX_SETTINGS = 256 << 10  # bytes of JSON in all sampling fields of a request (a schema, a grammar, banned words)
_MAX_ECHO = 64 << 10  # bytes of JSON in repeated fields of a response
_MAX_TOOL_VALUES = 20_000  # a template writes a request's tools, or the arguments of one call, in a single step
_LONG_ARGUMENTS = 32 << 10  # characters; shorter arguments hold few values
_SURE_BYTES = 4  # a prompt with fewer bytes per token of the context is rendered without a check
_VALUE_MARKS = (b",", b"{", b"[")  # one before each value but the first of a list or object, or in a string
_PLAIN_BYTES, _PLAIN_VALUES = 256 << 10, 4096  # a body with so few values is read as fast as a short one with many
_COUNTED = 1 << 16  # characters whose tokens are counted at a time
_MAX_CONTEXTS = 2  # a request may hold this many times its context, because templates omit reasoning and unknown fields
_NOT_REPEATED = frozenset(("instructions", "tools", "named"))  # these are measured as parts of the prompt
CountTokens = Callable[[str], int]


def parse(raw: bytes) -> dict[str, Any]:
    """A body as an object. Raises Refusal."""
    try:
        body = orjson.loads(raw.removeprefix(codecs.BOM_UTF8))
        orjson.dumps(body)  # values that cannot be serialised again could be neither captured nor passed on
    except orjson.JSONDecodeError as error:
        raise Refusal(400, f"the body is not JSON: {error}") from error
    except orjson.JSONEncodeError as error:
        raise Refusal(400, "the body is nested too deeply") from error
    if not isinstance(body, dict):
        raise Refusal(400, "the body must be a JSON object")
    return body


class ValueCount:
    """Counts the values of a JSON text in pieces: list items and object fields. Commas within strings do not count."""

    def __init__(self) -> None:
        self.values = 0
        self._quoted = False
        self._cut = b""  # a backslash at the end of the last piece

    def feed(self, piece: bytes) -> int:
        """The number of values so far: an upper bound, by at most one for each empty list or object."""
        plain = (self._cut + piece).replace(b"\\\\", b"")
        self._cut = b"\\" if plain.endswith(b"\\") else b""
        parts = plain.removesuffix(self._cut).replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[self._quoted :: 2])
        self._quoted ^= not len(parts) & 1
        self.values += outside.count(b",") + outside.count(b"{") + outside.count(b"[")
        return self.values


def is_plain(raw: bytes, max_context: int | None) -> bool:
    """Whether a body is read in a moment even if it is long, as those of most agents: few values, no images, and it surely fits."""
    fits = max_context is not None and len(raw) <= min(_PLAIN_BYTES, _SURE_BYTES * max_context)
    if not fits or b"image" in raw:
        return False
    return sum(map(raw.count, _VALUE_MARKS)) <= _PLAIN_VALUES or ValueCount().feed(raw) <= _PLAIN_VALUES  # the first counts faster


def too_large(max_bytes: int) -> Refusal:
    return Refusal(413, f"the body is larger than {max_bytes / (1 << 20):.3g} MB")


def too_many_values(max_values: int) -> Refusal:
    return Refusal(413, f"the body contains more than {max_values} values (list items and object fields)")


def largest_body(limit_mb: float, max_context: int | None, images: bool | None) -> int:
    """Maximum number of bytes of a body. Without images the context length also limits it."""
    limit = int(limit_mb * (1 << 20))
    return limit if images is not False or not max_context else min(limit, EXTRA_BYTES + BYTES_PER_TOKEN * max_context)


def check_request(request: GenerationRequest, max_context: int | None = None, count_tokens: CountTokens | None = None) -> None:
    """Raises Refusal for a request that is too large. Linear in its size, and fast for small ones."""
    if request.engine_fields and len(orjson.dumps(request.engine_fields)) > _MAX_SETTINGS:
        largest = max(request.engine_fields, key=lambda name: len(orjson.dumps(request.engine_fields[name])))
        raise Refusal(
            400, f"'{largest}' is too large: the limit for all sampling fields together is {_MAX_SETTINGS >> 10} KB", largest
        )
    for name, value in request.echo.items():
        if name not in _NOT_REPEATED and isinstance(value, str | list | dict) and len(orjson.dumps(value)) > _MAX_ECHO:
            raise Refusal(400, f"'{name}' may have at most {_MAX_ECHO >> 10} KB", name)
    check_images(request.messages)
    _check_values(request)
    if max_context is not None:
        _check_length(request, max_context, count_tokens)


def _check_values(request: GenerationRequest) -> None:
    if request.tools and _values(request.tools, _MAX_TOOL_VALUES) > _MAX_TOOL_VALUES:
        raise Refusal(400, f"'tools' may contain at most {_MAX_TOOL_VALUES} values", "tools")
    for message in request.messages:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            arguments = function.get("arguments") if isinstance(function, dict) else None
            count = _values(arguments, _MAX_TOOL_VALUES)
            if isinstance(arguments, str) and len(arguments) > _LONG_ARGUMENTS:
                count = ValueCount().feed(arguments.encode(errors="replace"))
            if count > _MAX_TOOL_VALUES:
                problem = f"the arguments of one call may contain at most {_MAX_TOOL_VALUES} values"
                raise Refusal(400, problem, "messages")


def _values(value: Any, limit: int) -> int:
    """Number of values within `value`. Counting stops above `limit`."""
    pending, count = [value], 0
    while pending and count <= limit:
        value = pending.pop()
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        count += len(inner)
        pending.extend(item for item in inner if isinstance(item, dict | list))
    return count


def _check_length(request: GenerationRequest, max_context: int, count_tokens: CountTokens | None) -> None:
    if request.prompts:
        for prompt in request.prompts:
            if isinstance(prompt, str):
                _check_text(prompt.encode(errors="replace"), max_context, count_tokens)
            elif len(prompt) >= max_context:
                raise too_long(max_context, len(prompt))
        return
    text = _without_images(orjson.dumps([request.sent_messages, request.tools], option=orjson.OPT_NON_STR_KEYS), request)
    _check_text(text, max_context, count_tokens)


def _check_text(text: bytes, max_context: int, count_tokens: CountTokens | None) -> None:
    if len(text) > EXTRA_BYTES + BYTES_PER_TOKEN * max_context:
        raise too_long(max_context, len(text) // BYTES_PER_TOKEN)
    if count_tokens is None or len(text) <= _SURE_BYTES * max_context:
        return
    characters, tokens = text.decode(errors="replace"), 0
    for start in range(0, len(characters), _COUNTED):
        tokens += count_tokens(characters[start : start + _COUNTED])
        if tokens > _MAX_CONTEXTS * max_context:
            raise too_long(max_context, tokens)


def _without_images(text: bytes, request: GenerationRequest) -> bytes:
    """The text without images: an engine that accepts images measures them itself."""
    if not any(isinstance(message.get("content"), list) for message in request.messages):
        return text
    texts = [{**m, "content": [p for p in m["content"] if p.get("type") != "image_url"]} if isinstance(m["content"], list) else m
            for m in request.messages]  # fmt: skip
    return orjson.dumps([texts, request.tools])


def too_long(max_context: int, at_least: int) -> Refusal:
    """The refusal of a prompt whose length was estimated, or counted only up to the limit."""
    return beyond_context(max_context, f"at least {at_least}", at_least, 1, "messages")


def beyond_context(max_context: int, requested: str, prompt: int, answer: int, field: str) -> Refusal:
    """The refusal of more tokens than the context has, in the words by which clients recognise it."""
    problem = f"This model's maximum context length is {max_context} tokens. However, you requested {requested} tokens "
    cure = f"({prompt} in the messages, {answer} in the completion). Please reduce the length of the messages or completion."
    return Refusal(400, problem + cure, field, "context_length_exceeded")
