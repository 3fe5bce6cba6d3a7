"""One ask, answered: engine tokens become events, and what crossed the wire is captured before the end is told."""

import asyncio
import logging
import secrets
import string
import time
from collections.abc import AsyncIterator
from typing import Any, Literal

from clawctl.serve.capture import Capture
from clawctl.serve.dialects import Ask, Choice, Dialect, Refusal, Shown, ShownToken
from clawctl.serve.engines import Engine, EngineFailure, Generation, Sampling, Token
from clawctl.serve.sampling import altered
from clawctl.serve.text import CallBegun, Detokenizer, Event, Parser, StopCutter, joined
from clawctl.types import Exchange

_log = logging.getLogger("clawctl.serve")
_ALPHABET = string.ascii_letters + string.digits


def new_handle() -> str:
    """24 alphanumeric characters: clients that rewrite ids leave these alone."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(24))


class Answer:
    """The answer to one ask on one engine. Iterating gives each choice's pieces; None instead of a piece ends that choice."""

    def __init__(
        self,
        ask: Ask,
        dialect: Dialect,
        engine: Engine,
        tokenizer: Any,
        prompt_ids: list[int],
        sampling: Sampling,
        thinking: bool,
        exchange_id: str,
        created_at: float,
        hints: dict[str, Any],
        capture: Capture | None,
        key: str = "default",  # name of the API key that asked
    ) -> None:
        self.ask, self.dialect = ask, dialect
        self.choices = [Choice(i, exchange_id if i == 0 else new_handle(), [], None, len(prompt_ids)) for i in range(ask.n)]
        self._engine, self._tokenizer, self._prompt_ids, self._sampling = engine, tokenizer, prompt_ids, sampling
        self._thinking, self._created_at, self._hints, self._capture = thinking, created_at, hints, capture
        self._key = key
        self._running: list[Generation] = []
        self.cancelled = False
        self.failed: Refusal | None = None

    def cancel(self) -> None:
        """The client is gone: stop sampling. What was sampled so far is captured as cancelled."""
        self.cancelled = True
        for generation in self._running:
            generation.cancel()

    async def pieces(self) -> AsyncIterator[tuple[Choice, Shown | None]]:
        """Pieces as they come. After an engine's failure it ends with `failed` set."""
        if len(self.choices) == 1:
            async for shown in self._answer(self.choices[0]):
                yield self.choices[0], shown
            return
        queue: asyncio.Queue[tuple[Choice, Shown | None] | None] = asyncio.Queue()

        async def fill(choice: Choice) -> None:
            try:
                async for shown in self._answer(choice):
                    queue.put_nowait((choice, shown))
            finally:
                queue.put_nowait(None)  # this one gives no more

        tasks = [asyncio.create_task(fill(choice)) for choice in self.choices]
        growing = len(tasks)
        while growing:
            piece = await queue.get()
            if piece is None:
                growing -= 1
            else:
                yield piece
        await asyncio.gather(*tasks)

    async def _answer(self, choice: Choice) -> AsyncIterator[Shown | None]:
        reading = _Reading(Detokenizer(self._tokenizer), StopCutter(self.ask.stop), Parser(self._thinking, self.ask.use_tools))
        status: Literal["ok", "cancelled", "error"] = "ok"
        first_at: float | None = None
        try:
            generation = self._engine.generate(self._prompt_ids, self._sampling)
            self._running.append(generation)
            if self.cancelled:
                generation.cancel()
            async for tokens in generation:
                first_at = first_at or time.time()
                shown = reading.feed(tokens, self._engine.eos_ids)
                choice.completion_tokens = len(reading.tokens)
                if shown is not None:
                    choice.shown.append(shown)
                    yield shown
                if reading.stopped:
                    generation.cancel()
                    break
            shown = reading.end()
            if shown is not None:
                choice.shown.append(shown)
                yield shown
        except EngineFailure as failure:
            _log.error("the engine failed: %s", failure)
            status, self.failed = "error", Refusal(500, "the engine failed while it answered")
        if status == "ok" and self.cancelled and not reading.stopped:
            status = "cancelled"
        if status == "ok":
            called = any(isinstance(event, CallBegun) for shown in choice.shown for event in shown.events)
            choice.finish_reason = "length" if not reading.stopped else "tool_calls" if called else "stop"
        await self._keep(choice, reading.tokens, status, first_at)
        if status == "ok":
            yield None

    async def _keep(
        self, choice: Choice, tokens: list[Token], status: Literal["ok", "cancelled", "error"], first_at: float | None
    ) -> None:
        if self._capture is None:
            return
        sampling = self._sampling
        await self._capture.keep(
            Exchange(
                exchange_id=choice.exchange_id,
                created_at=self._created_at,
                finished_at=time.time(),
                api=self.ask.api,
                key=self._key,
                status=status,
                model=self.ask.model,
                messages=self.ask.sent_messages,
                tools=self.ask.tools,
                response=None if status == "error" else self.dialect.message(choice),
                finish_reason=choice.finish_reason,
                prompt_ids=self._prompt_ids,
                completion_ids=[token.id for token in tokens],
                logprobs=[token.logprob for token in tokens],
                policy_version=tokens[0].version if tokens else None,
                policy_version_end=tokens[-1].version if tokens else None,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                hints=self._hints,
                untrainable_reason=altered(sampling.temperature, sampling.top_p, sampling.top_k, None, {}),
                ttft_s=None if first_at is None else first_at - self._created_at,
            )
        )


class _Reading:
    """Tokens to what is shown."""

    def __init__(self, detokenizer: Detokenizer, cutter: StopCutter, parser: Parser) -> None:
        self._detokenizer, self._cutter, self._parser = detokenizer, cutter, parser
        self._unseen: list[tuple[Token, str]] = []  # visible tokens of text that is held back
        self.tokens: list[Token] = []
        self.stopped = False  # by an end token or a stop string

    def feed(self, tokens: list[Token], eos_ids: frozenset[int]) -> Shown | None:
        events: list[Event] = []
        for token in tokens:
            self.tokens.append(token)
            self.stopped = token.id in eos_ids
            text = self._detokenizer.feed(token.id)
            if not self.stopped and not self._detokenizer.is_hidden(token.id):
                self._unseen.append((token, text))
            events += self._parser.feed(self._cutter.feed(text))
            if self._cutter.hit:
                self.stopped = True
                break
        return self._show(events)

    def end(self) -> Shown | None:
        events = self._parser.feed(self._cutter.feed(self._detokenizer.end()) + self._cutter.end())
        return self._show(events + self._parser.end())

    def _show(self, events: list[Event]) -> Shown | None:
        if not events:
            return None
        tokens, self._unseen = self._unseen, []
        return Shown(joined(events), [ShownToken(text, token.logprob, []) for token, text in tokens])
