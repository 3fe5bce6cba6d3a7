"""A chat completion as a stream: its events are shown immediately or at the end, and the sampled tokens are kept."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Protocol

import msgspec

from clawctl.engines import EngineFailure, Sampled
from clawctl.engines.refusals import refusal
from clawctl.engines.requests import CallDelta, CallStart, Event, ReasoningDelta, Shown, ShownToken, TextDelta
from clawctl.engines.upstream.tokens import Clock, Tokens
from clawctl.engines.upstream.wire import Chunk, ChunkMessage, Entry, Wire
from clawctl.serve.answer_decoder import is_of_a_call
from clawctl.serve.text import Parser

_CLIENT_ERRORS = range(400, 500)  # statuses of errors that the client caused


class ChunkConverter(Protocol):
    """Converts chunks to events. Adjacent events of the same kind are joined."""

    @property
    def to_chat_chunk(self) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
        """Converts chunks of another API to chat chunks; None if they already are chat chunks."""
        ...

    @property
    def pending(self) -> bool:
        """Whether anything has arrived since the last piece was shown."""
        ...

    def add_chunks(self, chunks: Iterable[Chunk]) -> None: ...

    def shown(self) -> Shown | None:
        """One piece with everything since the last one, or None if nothing has arrived."""
        ...

    def end(self, sampled: Sampled) -> Shown | None:
        """The text that was held back. `sampled` receives the facts about the end that only the text shows."""
        ...


class UpstreamReply:
    """See `clawctl.engines.Reply`; it also receives the response's body. If `live` is False, the client does not stream, and events
    are shown at the end: complete, cancelled or broken off."""

    def __init__(
        self,
        sampled: Sampled,
        clock: Clock,
        show_logprobs: bool,
        expect_ids: bool,
        live: bool = True,
        converter: ChunkConverter | None = None,
    ) -> None:
        self.sampled, self._live = sampled, live
        self._converter = converter or ChatConverter(show_logprobs)
        self._wire = Wire(self._converter.to_chat_chunk)
        self._tokens = Tokens(sampled, clock, expect_ids)
        self._over = False
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._leave: Callable[[], None] | None = None
        self.complete: Callable[[Sampled], Awaitable[None]] | None = None  # adds what is computed after the answer
        self.cancelled = False

    def begun(self, leave: Callable[[], None]) -> None:
        """The response has begun. `leave` is called if the rest is not needed."""
        self._leave = leave
        if self.cancelled or self._over:
            self._release()

    # ---- input -----------------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        if not self._over:
            self._add_chunks(self._wire.read(data))

    def ended(self, error: str | None) -> None:
        if self._over:
            return
        self._add_chunks(self._wire.end())
        complete = self._wire.done and error is None
        self._end(None if complete else EngineFailure(error or "the upstream's stream ended early"))

    def _add_chunks(self, chunks: list[Chunk]) -> None:
        self._tokens.add_chunks(chunks)
        self._converter.add_chunks(chunks)
        if self.sampled.first_at is None and (self._tokens.received or self._converter.pending):
            self.sampled.first_at = time.time()
        if (error := self._wire.error) is not None:
            refused = error.status in _CLIENT_ERRORS and self.sampled.first_at is None
            self._end(refusal(error.status or 0, error.body) if refused else EngineFailure(str(error)))
        elif self._live and self._converter.pending:
            self._changed.set()

    def _end(self, error: Exception | None) -> None:
        if not self._over:
            self._over, self._error = True, error
            self._release()
            self._changed.set()

    def _release(self) -> None:
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()

    # ---- output ----------------------------------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[Shown]:
        over = False
        try:
            while not over:
                await self._changed.wait()
                self._changed.clear()
                over = self._over
                if (shown := self._converter.shown()) is not None:
                    yield shown
            if self._error is None and not self.cancelled:  # otherwise the canary does not matter
                await self._tokens.canary_checked()
            if (shown := self._converter.end(self.sampled)) is not None:
                yield shown
        finally:
            self.cancel()
            self._finish()
        if self._error is not None:
            raise self._error
        if self.complete is not None:
            await self.complete(self.sampled)

    def _finish(self) -> None:
        self._tokens.finish()
        extras = self.sampled.extras = self._wire.extras
        # `matched_stop` is SGLang's name for it.
        stopped_by = None if extras is None else extras.choice.get("stop_reason", extras.choice.get("matched_stop"))
        if isinstance(stopped_by, str):
            self.sampled.stop_sequence = stopped_by

    def cancel(self) -> None:
        self.cancelled = True
        self._end(None)


class ChatConverter:
    """See `ChunkConverter`: for a chat completion."""

    to_chat_chunk: Callable[[dict[str, Any]], dict[str, Any]] | None = None

    def __init__(self, show_logprobs: bool, barred: bool = False) -> None:
        """`barred`: the client forbids calls, so the model's calls are not shown."""
        self._show_logprobs = show_logprobs
        self._barred = Parser(False, True) if barred else None
        self._runs: list[tuple[type[Event], list[str]]] = []  # events that are not shown yet
        self._tokens: list[ShownToken] = []  # tokens of text that is not shown yet
        self._call_index = -1  # index of the most recent call

    @property
    def pending(self) -> bool:
        return bool(self._runs)

    def add_chunks(self, chunks: Iterable[Chunk]) -> None:
        runs, barred, show_logprobs = self._runs, self._barred, self._show_logprobs
        for chunk in chunks:
            for choice in chunk.choices or ():
                message = choice.delta or choice.message
                if message is not None:
                    if thought := message.reasoning or message.reasoning_content:
                        _add(runs, ReasoningDelta, thought)
                    if message.content:
                        if barred is None:
                            _add(runs, TextDelta, message.content)
                        else:
                            self._add_allowed(barred.feed(message.content))
                    if message.tool_calls and barred is None:
                        self._add_calls(message)
                if show_logprobs and choice.logprobs is not None:
                    self._tokens += map(_shown, choice.logprobs.content or ())

    def _add_allowed(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, TextDelta | ReasoningDelta) and not is_of_a_call(event):
                _add(self._runs, type(event), event.text)

    def _add_calls(self, message: ChunkMessage) -> None:
        for i, call in enumerate(message.tool_calls or ()):
            function, index = call.get("function") or {}, call.get("index", i)
            if index > self._call_index and function.get("name"):
                self._call_index = index
                self._runs.append((CallStart, [function["name"]]))
            if function.get("arguments") and self._call_index >= 0:
                _add(self._runs, CallDelta, function["arguments"])

    def shown(self) -> Shown | None:
        if not self._runs:
            return None
        shown = Shown([kind("".join(texts)) for kind, texts in self._runs], self._tokens)
        self._runs, self._tokens = [], []
        return shown

    def end(self, sampled: Sampled) -> Shown | None:
        if self._barred is None:
            return None
        self._add_allowed(self._barred.end())
        if sampled.finish_reason == "tool_calls":
            sampled.finish_reason = "stop"
        return self.shown()


def _add(runs: list[tuple[type[Event], list[str]]], kind: type[Event], text: str) -> None:
    if runs and runs[-1][0] is kind:
        runs[-1][1].append(text)
    else:
        runs.append((kind, [text]))


def _shown(entry: Entry) -> ShownToken:
    token, top, token_bytes = (msgspec.json.decode(part) for part in (entry.token, entry.top_logprobs, entry.bytes))
    logprob: Any = entry.logprob
    return ShownToken(token, logprob, top or [], token_bytes)
