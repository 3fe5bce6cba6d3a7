"""Parses the bytes of a stream into chunks of a chat completion. Known fields are parsed, unknown ones are kept separately.

The common chunk is decoded in one pass and without a dict. A chunk with a field that is not in the structs below is decoded again
with all fields.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import orjson

from clawctl.serve.dialects import Extras

_EVENT = b"data: "
_BETWEEN = b"\n\n" + _EVENT
_STREAMS_OWN = {"obfuscation"}  # padding against traffic analysis, not part of an answer
_NULL = msgspec.Raw(b"null")


class Entry(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A sampled token's logprob. Data that only clients with `logprobs` receive stays unparsed."""

    logprob: float | None = None
    token: msgspec.Raw = _NULL
    top_logprobs: msgspec.Raw = _NULL
    bytes: msgspec.Raw = _NULL


class Logprobs(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    content: list[Entry] | None = None


class Words(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    content: str | None = None
    role: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChunkChoice(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    index: int = 0
    delta: Words | None = None
    message: Words | None = None  # for an upstream that returns a complete answer although a stream was requested
    logprobs: Logprobs | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    choices: list[ChunkChoice] | None = None
    prompt_token_ids: list[int] | None = None
    usage: dict[str, Any] | None = None
    sglext: dict[str, Any] | None = None  # fields that SGLang sends once, at the end
    id: msgspec.Raw = _NULL
    object: msgspec.Raw = _NULL
    created: msgspec.Raw = _NULL
    model: msgspec.Raw = _NULL


class UpstreamError(Exception):
    """An error from the upstream instead of a chunk. `told` is its body, `status` the equivalent HTTP status."""

    def __init__(self, problem: str, told: bytes = b"", status: int | None = None) -> None:
        super().__init__(problem)
        self.in_openai_form, self.status = told, status


class Wire:
    """Parses the bytes of one stream, with any boundaries between reads. `in_chat_form` converts chunks of another API to chat
    chunks."""

    def __init__(self, in_chat_form: Callable[[dict[str, Any]], dict[str, Any]] | None = None) -> None:
        self._in_chat_form = in_chat_form
        self._rest = b""
        self.done = False  # the upstream has sent its end mark
        self.extras: Extras | None = None
        self.error: UpstreamError | None = None  # nothing is read after an error

    def read(self, data: bytes) -> list[Chunk]:
        """The chunks that are now complete."""
        data = self._rest + data if self._rest else data
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        text = data[:end].lstrip()
        chunks: list[Chunk] = []
        if not text.startswith(_EVENT):
            self._read_lines(text, chunks)
            return chunks
        for event in text[len(_EVENT) :].split(_BETWEEN):
            try:
                chunks.append(_decode(event))
            except msgspec.DecodeError:
                self._read_lines(event, chunks)
                if self.error is not None:
                    break
        return chunks

    def end(self) -> list[Chunk]:
        """The chunks of a last line without a line end."""
        return self.read(b"\n") if self._rest else []

    def _read_lines(self, text: bytes, chunks: list[Chunk]) -> None:
        """Parse everything except the common chunk: comments, other line ends, the end of the stream, errors, unknown fields."""
        for line in text.split(b"\n"):
            payload = (line[5:] if line.startswith(b"data:") else line).strip()
            if payload == b"[DONE]":
                self.done = True
            elif payload.startswith(b"{") or (payload and line.startswith(b"data:")):
                try:
                    chunks.append(self._read_all(payload))
                except UpstreamError as error:
                    self.error = error
                    return

    def _read_all(self, payload: bytes) -> Chunk:
        """A chunk with unknown fields. Raises UpstreamError."""
        try:
            told = orjson.loads(payload)
        except orjson.JSONDecodeError as error:
            raise UpstreamError("the upstream sent data that is not JSON") from error
        if not isinstance(told, dict):
            raise UpstreamError("the upstream sent an invalid chunk")
        if told.get("error"):
            raise _error(told["error"])
        self.extras = extras = self.extras or Extras()
        try:
            told = told if self._in_chat_form is None else self._in_chat_form(told)
            _set_aside(told, Chunk, extras.answer)
            for choice in told.get("choices") or ():
                _set_aside(choice, ChunkChoice, extras.choice)
                self.done = self.done or "message" in choice  # a complete message: nothing follows
                for words in (choice.get("delta"), choice.get("message")):
                    _set_aside(words or {}, Words, extras.message)
                _set_aside(choice.get("logprobs") or {}, Logprobs, {})
                for entry in (choice.get("logprobs") or {}).get("content") or ():
                    _set_aside(entry, Entry, {})
            return _decode(orjson.dumps(told))
        except (AttributeError, TypeError, msgspec.DecodeError) as error:
            raise UpstreamError(f"the upstream sent an invalid chunk: {error}") from error


_decode = msgspec.json.Decoder(Chunk).decode


def _error(told: Any) -> UpstreamError:
    code = told.get("code") if isinstance(told, dict) else None
    status = int(code) if isinstance(code, int) or (isinstance(code, str) and code.isdigit()) else None
    return UpstreamError(f"the upstream reports: {str(told)[:300]}", orjson.dumps({"error": told}), status)


def _set_aside(told: dict[str, Any], known: type[msgspec.Struct], extras: dict[str, Any]) -> None:
    for name in [name for name in told if name not in known.__struct_fields__]:
        value = told.pop(name)
        if name not in _STREAMS_OWN:
            extras[name] = _grown(extras.get(name), value) if known is Words else extras.get(name) if value is None else value


def _grown(before: Any, more: Any) -> Any:
    """Merge pieces of a message as OpenAI's clients do: texts and lists are concatenated, and the newest of other values counts."""
    if isinstance(before, str) and isinstance(more, str):
        return before + more
    if isinstance(before, list) and isinstance(more, list):
        return before + more
    return before if more is None else more
