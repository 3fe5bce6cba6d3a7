"""A chat completion that streams in: chunks become what is shown, and what was sampled is kept exactly as it is told."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson

from clawctl.serve.backends import Sampled
from clawctl.serve.backends.http import Client, Connection
from clawctl.serve.dialects import Shown, ShownToken
from clawctl.serve.engines import EngineFailure
from clawctl.serve.text import CallBegun, CallSaid, Event, Said, Thought

_UNKNOWN_LOGPROB = -9999.0  # vLLM writes it where JSON has no number
_FINISHES = ("stop", "length", "tool_calls")


class Clock:
    """The version whose weights compute just now, where they change under running requests."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.refused: set[int] = set()  # versions that were taken back: what they sampled is not trained


class UpstreamReply:
    """See `clawctl.serve.backends.Reply`; the taker of the response's body as well."""

    def __init__(self, sampled: Sampled, clock: Clock, show_logprobs: bool, expect_ids: bool) -> None:
        self.sampled = sampled
        self._clock, self._show_logprobs, self._expect_ids = clock, show_logprobs, expect_ids
        self._rest = b""
        self._choices: list[dict[str, Any]] = []  # not shown yet
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._versions: set[int] = set()
        self._unseen: list[ShownToken] = []  # tokens of what is not shown yet
        self._call_index = -1  # of the call that began last
        self._trouble: str | None = None  # why ids and logprobs cannot be what was sampled
        self._told_completion: int | None = None
        self._done = False  # [DONE] has come
        self._over = False
        self._error: str | None = None
        self._news = asyncio.Event()
        self._client: Client | None = None
        self._connection: Connection | None = None
        self.cancelled = False

    def runs_on(self, client: Client, connection: Connection) -> None:
        self._client, self._connection = client, connection
        if self.cancelled or self._over:
            self._let_go()

    # ---- what comes in ---------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        if self._over:
            return
        *lines, self._rest = (self._rest + data).split(b"\n") if self._rest else data.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line[5:].strip())
        if self._choices or self._over:
            self._news.set()

    def ended(self, error: str | None) -> None:
        if not self._over:
            self._end(error or (None if self._done else "the upstream's stream ended early"))

    def _end(self, error: str | None) -> None:
        self._over, self._error = True, error
        self._let_go()
        self._news.set()

    def _let_go(self) -> None:
        if self._client is not None and self._connection is not None:
            self._client.give_back(self._connection)
            self._connection = None

    def _take(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._done = True
            return
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            self._end("the upstream sent what is not JSON")
            return
        if "error" in chunk:
            self._end(f"the upstream says: {str(chunk['error'])[:300]}")
            return
        if chunk.get("prompt_token_ids") is not None:
            self.sampled.prompt_ids = chunk["prompt_token_ids"]
            self.sampled.prompt_tokens = len(chunk["prompt_token_ids"])
        if chunk.get("usage"):
            self._take_usage(chunk["usage"])
        for choice in chunk.get("choices") or ():
            self._take_sampled(choice)
            self._choices.append(choice)

    def _take_sampled(self, choice: dict[str, Any]) -> None:
        ids = choice.get("token_ids")
        entries = (choice.get("logprobs") or {}).get("content") or ()
        if ids or not self._expect_ids:
            sampled = self.sampled
            sampled.version_end = self._clock.version
            if sampled.version is None:
                sampled.version = self._clock.version
            self._versions.add(self._clock.version)
            self._ids += ids or ()
            sampled.completion_tokens = len(self._ids)
        for entry in entries:
            logprob = entry.get("logprob")
            if not isinstance(logprob, int | float) or logprob <= _UNKNOWN_LOGPROB:
                self._trouble = "a logprob is missing"
            else:
                self._logprobs.append(logprob)
        if len(ids or ()) != len(entries) and self._expect_ids:
            self._trouble = self._trouble or "ids and logprobs differ in number"
        if choice.get("finish_reason"):
            reason = choice["finish_reason"]
            self.sampled.finish_reason = reason if reason in _FINISHES else "stop"
            if isinstance(choice.get("stop_reason"), str):
                self.sampled.stop_sequence = choice["stop_reason"]

    def _take_usage(self, usage: dict[str, Any]) -> None:
        sampled = self.sampled
        sampled.prompt_tokens = usage.get("prompt_tokens") or sampled.prompt_tokens
        self._told_completion = usage.get("completion_tokens")
        sampled.completion_tokens = self._told_completion or sampled.completion_tokens
        sampled.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        sampled.reasoning_tokens = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0

    # ---- what goes out ---------------------------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[Shown]:
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                choices, self._choices = self._choices, []
                shown = self._show(choices)
                if shown is not None:
                    yield shown
                if self._over and not self._choices:
                    break
                if self._over:
                    self._news.set()
        finally:
            self.cancel()
            self._settle()
        if self._error is not None:
            raise EngineFailure(self._error)

    def cancel(self) -> None:
        self.cancelled = True
        if not self._over:
            self._end(None)

    def _show(self, choices: list[dict[str, Any]]) -> Shown | None:
        events: list[Event] = []
        for choice in choices:
            self._read(choice.get("delta") or {}, events)
            if self._show_logprobs:
                entries = (choice.get("logprobs") or {}).get("content") or ()
                self._unseen += [ShownToken(each["token"], each["logprob"], each.get("top_logprobs") or []) for each in entries]
        if not events:
            return None
        tokens, self._unseen = self._unseen, []
        return Shown(events, tokens)

    def _read(self, delta: dict[str, Any], events: list[Event]) -> None:
        thought = delta.get("reasoning") or delta.get("reasoning_content")
        if thought:
            _add(events, Thought(thought))
        if delta.get("content"):
            _add(events, Said(delta["content"]))
        for call in delta.get("tool_calls") or ():
            function, index = call.get("function") or {}, call.get("index", 0)
            if index > self._call_index and function.get("name"):
                self._call_index = index
                events.append(CallBegun(function["name"]))
            if function.get("arguments") and self._call_index >= 0:
                _add(events, CallSaid(function["arguments"]))

    def _settle(self) -> None:
        """What was sampled is complete, or it is said why it is not for training."""
        sampled = self.sampled
        whole = sampled.finish_reason is not None
        if sampled.prompt_ids is None or (not self._ids and sampled.completion_tokens):
            trouble: str | None = "no token ids"
        elif not self._logprobs and self._ids:
            trouble = "no logprobs"
        elif len(self._ids) != len(self._logprobs):
            trouble = self._trouble or "ids and logprobs differ in number"
        elif whole and self._told_completion not in (None, len(self._ids)):
            trouble = "the engine counts other tokens than it told"
        else:
            trouble = self._trouble
        if self._versions & self._clock.refused:
            trouble = trouble or "sampled by a version that was refused"
        sampled.completion_ids = self._ids if self._ids else None
        sampled.logprobs = self._logprobs if len(self._logprobs) == len(self._ids) and self._ids else None
        sampled.untrainable = trouble or sampled.untrainable


def _add(events: list[Event], event: Said | Thought | CallSaid) -> None:
    """Neighbours that say the same kind of thing are one."""
    last = events[-1] if events else None
    if type(last) is type(event):
        events[-1] = type(event)(last.text + event.text)
    else:
        events.append(event)
