"""Parses the bytes of a stream into chunks of a chat completion. Known fields are parsed, unknown ones are kept separately.

The common chunk is decoded in one pass and without a dict. A chunk with a field that is not in the structs below is decoded again
with all fields.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import orjson

from clawctl.engines.requests import Extras

_EVENT = b"data: "
_SEPARATOR = b"\n\n" + _EVENT
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


class ChunkMessage(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    content: str | None = None
    role: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChunkChoice(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    index: int = 0
    delta: ChunkMessage | None = None
    message: ChunkMessage | None = None  # for an upstream that returns a complete answer although a stream was requested
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
    """An error from the upstream instead of a chunk. `body`: in OpenAI's form. `status`: the equivalent HTTP status."""

    def __init__(self, problem: str, body: bytes = b"", status: int | None = None) -> None:
        super().__init__(problem)
        self.body, self.status = body, status


class Wire:
    """Parses the bytes of one stream, with any boundaries between reads. `to_chat_chunk` converts chunks of another API to chat
    chunks."""

    def __init__(self, to_chat_chunk: Callable[[dict[str, Any]], dict[str, Any]] | None = None) -> None:
        self._to_chat_chunk = to_chat_chunk
        self._partial_line = b""
        self.done = False  # the upstream has sent its end mark
        self.extras: Extras | None = None
        self.error: UpstreamError | None = None  # nothing is read after an error

    def read(self, data: bytes) -> list[Chunk]:
        """The chunks that are now complete."""
        data = self._partial_line + data if self._partial_line else data
        end = data.rfind(b"\n") + 1
        self._partial_line = data[end:]
        text = data[:end].lstrip()
        chunks: list[Chunk] = []
        if not text.startswith(_EVENT):
            self._read_lines(text, chunks)
            return chunks
        for event in text[len(_EVENT) :].split(_SEPARATOR):
            try:
                chunks.append(_decode(event))
            except msgspec.DecodeError:
                self._read_lines(event, chunks)
                if self.error is not None:
                    break
        return chunks

    def end(self) -> list[Chunk]:
        """The chunks of a last line without a line end."""
        return self.read(b"\n") if self._partial_line else []

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
            chunk = orjson.loads(payload)
        except orjson.JSONDecodeError as error:
            raise UpstreamError("the upstream sent data that is not JSON") from error
        if not isinstance(chunk, dict):
            raise UpstreamError("the upstream sent an invalid chunk")
        if chunk.get("error"):
            raise _error(chunk["error"])
        self.extras = extras = self.extras or Extras()
        try:
            chunk = chunk if self._to_chat_chunk is None else self._to_chat_chunk(chunk)
            _move_unknown(chunk, Chunk, extras.answer)
            for choice in chunk.get("choices") or ():
                _move_unknown(choice, ChunkChoice, extras.choice)
                self.done = self.done or "message" in choice  # a complete message: nothing follows
                for message in (choice.get("delta"), choice.get("message")):
                    _move_unknown(message or {}, ChunkMessage, extras.message)
                _move_unknown(choice.get("logprobs") or {}, Logprobs, {})
                for entry in (choice.get("logprobs") or {}).get("content") or ():
                    _move_unknown(entry, Entry, {})
            return _decode(orjson.dumps(chunk))
        except (AttributeError, TypeError, msgspec.DecodeError) as error:
            raise UpstreamError(f"the upstream sent an invalid chunk: {error}") from error


_decode = msgspec.json.Decoder(Chunk).decode


def _error(error: Any) -> UpstreamError:
    code = error.get("code") if isinstance(error, dict) else None
    status = int(code) if isinstance(code, int) or (isinstance(code, str) and code.isdigit()) else None
    return UpstreamError(f"the upstream reports: {str(error)[:300]}", orjson.dumps({"error": error}), status)


def _move_unknown(fields: dict[str, Any], kind: type[msgspec.Struct], extras: dict[str, Any]) -> None:
    for name in [name for name in fields if name not in kind.__struct_fields__]:
        value = fields.pop(name)
        if name not in _STREAMS_OWN:
            extras[name] = (
                _merged(extras.get(name), value) if kind is ChunkMessage else extras.get(name) if value is None else value
            )


def _merged(old: Any, new: Any) -> Any:
    """Merge pieces of a message as OpenAI's clients do: texts and lists are concatenated, and the newest of other values counts."""
    if isinstance(old, str) and isinstance(new, str):
        return old + new
    if isinstance(old, list) and isinstance(new, list):
        return old + new
    return old if new is None else new
