"""Shared code for writing answers: content blocks, the captured message, and the two forms of a stream."""

import time
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import orjson

from clawctl.engines.requests import CallStart, Event, GenerationRequest, ReasoningDelta, Refusal, Shown, ShownToken, TextDelta
from clawctl.run.handles import call_id
from clawctl.run.rows import Message
from clawctl.serve.dialects import Choice, Dialect
from clawctl.serve.dialects.fields import Object

Kind = Literal["reasoning", "text", "call"]


@dataclass(slots=True)
class ContentBlock:
    """A section of reasoning, a section of text, or one tool call. `number` counts all blocks from 0, `call` counts calls only."""

    kind: Kind
    number: int = 0
    name: str = ""
    call: int = 0
    pieces: list[str] = field(default_factory=list)
    tokens: list[ShownToken] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class ContentBlocks:
    """The blocks of one answer while it grows."""

    def __init__(self, pieces: Iterable[Shown] = ()) -> None:
        self.all: list[ContentBlock] = []
        self._calls = 0
        for piece in pieces:
            block = None
            for event in piece.events:
                block, _ = self.add(event)
            if block is not None:
                block.tokens += piece.tokens

    def add(self, event: Event) -> tuple[ContentBlock, bool]:
        """Add an event; returns its block, and whether the event begins it."""
        if isinstance(event, CallStart):
            return self._begin("call", event.name), True
        kind: Kind = "text" if isinstance(event, TextDelta) else "reasoning" if isinstance(event, ReasoningDelta) else "call"
        begins = not self.all or self.all[-1].kind != kind
        block = self._begin(kind) if begins else self.all[-1]
        block.pieces.append(event.text)
        return block, begins

    def or_empty(self) -> list[ContentBlock]:
        """All blocks. For an empty answer, a single empty block, because clients expect one."""
        return self.all or [self._begin("text")]

    def _begin(self, kind: Kind, name: str = "") -> ContentBlock:
        self.all.append(ContentBlock(kind, len(self.all), name, self._calls))
        self._calls += kind == "call"
        return self.all[-1]


def chat_message(choice: Choice) -> Message:
    """The answer as an OpenAI chat message, which is captured for all APIs."""
    blocks = ContentBlocks(choice.shown).all
    text, reasoning = ("".join(block.text for block in blocks if block.kind == kind) for kind in ("text", "reasoning"))
    calls: list[Object] = [
        {"id": call_id(choice.exchange_id, b.call), "type": "function", "function": {"name": b.name, "arguments": b.text}}
        for b in blocks
        if b.kind == "call"
    ]
    message: Message = {"role": "assistant", "content": text if text or not calls else None}
    if reasoning:
        message["reasoning_content"] = reasoning
    return {**message, "tool_calls": calls} if calls else message


def chunk_frame(data: Object) -> bytes:
    """One event of a stream without event names."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


def event_frame(data: Object) -> bytes:
    """One event of a stream with event names: the event's type."""
    kind: str = data["type"]
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"


class _OneRequest(Dialect):
    def __init__(self, request: GenerationRequest, exchange_id: str) -> None:
        self._request, self._exchange_id, self._created = request, exchange_id, int(time.time())

    def message(self, choice: Choice) -> Message:
        return chat_message(choice)


class ChunkDialect(_OneRequest):
    """Chat and plain completions: a stream of chunks in the format of the complete answer, then its usage, then `[DONE]`."""

    prefix: str  # prefix of the answer's id

    def __init__(self, request: GenerationRequest, exchange_id: str) -> None:
        super().__init__(request, exchange_id)
        self._id = f"{self.prefix}{exchange_id}"

    def end(self, choices: list[Choice]) -> bytes:
        done = b"data: [DONE]\n\n"
        return chunk_frame(self._usage_chunk(choices)) + done if self._request.include_usage else done

    def _usage_so_far(self, choice: Choice) -> Object:
        """The usage of one answer in each chunk, for clients that ask for it (vLLM's `continuous_usage_stats`)."""
        if not (self._request.include_usage and self._request.continuous_usage):
            return {}
        prompt, tokens = choice.prompt_tokens, choice.completion_tokens or len(choice.completion_ids or ())
        return {"usage": {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}}

    def failed(self, refusal: Refusal) -> bytes:
        return chunk_frame(envelope(refusal))

    def _head(self, kind: str) -> Object:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._request.model}

    @abstractmethod
    def _usage_chunk(self, choices: list[Choice]) -> Object: ...


class BlockDialect(_OneRequest):
    """Responses and Messages: one answer, as a list of blocks. A stream opens, grows and closes one block after another."""

    def __init__(self, request: GenerationRequest, exchange_id: str) -> None:
        super().__init__(request, exchange_id)
        self._blocks = ContentBlocks()  # blocks of the stream so far

    def piece(self, choice: Choice, shown: Shown) -> bytes:
        frames = []
        for i, event in enumerate(shown.events):
            last = self._blocks.all[-1] if self._blocks.all else None
            block, begins = self._blocks.add(event)
            if begins:
                frames += [self._close(last, "completed") if last else b"", self._open(block)]
            tokens = shown.tokens if i == len(shown.events) - 1 else []
            block.tokens += tokens
            if block.pieces:
                frames.append(self._grow(block, block.pieces[-1], tokens))
        return b"".join(frames)

    def finish(self, choice: Choice) -> bytes:
        opened = b"" if self._blocks.all else self._open(self._blocks.or_empty()[0])
        status = "incomplete" if choice.finish_reason in ("length", "content_filter") else "completed"
        return opened + self._close(self._blocks.all[-1], status)

    @abstractmethod
    def _open(self, block: ContentBlock) -> bytes:
        """The frames that begin a block."""

    @abstractmethod
    def _grow(self, block: ContentBlock, text: str, tokens: list[ShownToken]) -> bytes:
        """The frames for a further piece of a block."""

    @abstractmethod
    def _close(self, block: ContentBlock, status: str) -> bytes:
        """The frames that end a block. `status`: "completed", or "incomplete" for the last block of a truncated answer."""


def envelope(refusal: Refusal) -> Object:
    """OpenAI's error body."""
    kind = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}.get(refusal.status)
    kind = kind or ("invalid_request_error" if refusal.status < 500 else "server_error")
    return {"error": {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}}


def chat_logprobs(tokens: Iterable[ShownToken]) -> list[Object]:
    """Logprobs in the format of chat completions and Responses."""
    return [
        {
            "token": token.text,
            "logprob": token.logprob,
            "bytes": list(token.text.encode()) if token.bytes is None else token.bytes,
            "top_logprobs": token.top,
        }
        for token in tokens
    ]
