"""One ask, answered: what its replies show goes out, and what crossed the wire is captured before the end is told."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any, Literal

from clawctl.serve.backends import Reply, Sampled
from clawctl.serve.capture import Capture
from clawctl.serve.dialects import Ask, Choice, Dialect, Refusal, Shown
from clawctl.serve.engines import EngineFailure
from clawctl.serve.recent import Recent
from clawctl.types import Exchange

_log = logging.getLogger("clawctl.serve")

KEPT_REFUSALS = (400, 413, 422)  # statuses of an engine's refusal of a request's contents


def new_handle() -> str:
    """24 alphanumeric characters: clients that rewrite ids leave these alone."""
    return secrets.token_hex(12)


class Answer:
    """The answer to one ask. Iterating gives each choice's pieces; None instead of a piece ends that choice."""

    def __init__(
        self,
        ask: Ask,
        dialect: Dialect,
        replies: list[Reply],
        exchange_id: str,
        created_at: float,
        hints: dict[str, Any],
        key: str,  # name of the API key that asked
        capture: Capture | None,
        recent: Recent | None = None,  # where the answer is remembered, if it may be put back into a later prompt
    ) -> None:
        self.ask, self.dialect = ask, dialect
        self._exchange_id = exchange_id
        self.choices = [Choice(i, exchange_id if i == 0 else new_handle()) for i in range(len(replies))]
        self._replies, self._created_at, self._hints, self._key, self._capture = replies, created_at, hints, key, capture
        self._recent = recent
        self.cancelled = False
        self.failed: Refusal | None = None
        self.first_at: float | None = None  # unix seconds when its first token was there
        for choice, reply in zip(self.choices, replies, strict=True):
            choice.prompt_tokens = reply.sampled.prompt_tokens

    def cancel(self) -> None:
        """The client is gone: stop sampling. What was sampled so far is captured as cancelled."""
        self.cancelled = True
        for reply in self._replies:
            reply.cancel()

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
        reply = self._replies[choice.index]
        status: Literal["ok", "cancelled", "error"] = "ok"
        sampled, first_at = reply.sampled, reply.sampled.first_at
        try:
            async for shown in reply:
                first_at = first_at or sampled.first_at or time.time()
                choice.shown.append(shown)
                yield shown
        except Refusal as refusal:  # the engine refused only now, and nothing was sampled
            self.failed = refusal
            await self.keep_refused(refusal)
            return
        except EngineFailure as failure:
            _log.error("the engine failed: %s", failure)
            status, self.failed = "error", Refusal(500, "the engine failed while it answered")
        first_at = first_at or sampled.first_at
        self.first_at = first_at if self.first_at is None else min(self.first_at, first_at or self.first_at)
        if status == "ok" and self.cancelled and sampled.finish_reason is None:
            status = "cancelled"
        _tell(choice, sampled)
        if status != "ok":
            choice.finish_reason = None
        if self._recent is not None and status == "ok" and sampled.prompt_ids and sampled.completion_ids:
            message = self.dialect.message(choice)
            self._recent.keep(self._key, choice.exchange_id, message, sampled.prompt_ids, sampled.completion_ids)
        await self._keep(choice, sampled, status, first_at)
        if status == "ok":
            yield None

    async def keep_refused(self, refusal: Refusal) -> None:
        """Capture a request that the engine refused for what it says, too long for example: it is still the user's word. What is
        refused because of load or rights comes again, or never was a part of the conversation."""
        if refusal.status in KEPT_REFUSALS:
            ask = self.ask
            temperature, top_p = (1.0 if value is None else value for value in (ask.temperature, ask.top_p))
            await self._keep(Choice(0, self._exchange_id), Sampled(temperature, top_p, ask.top_k), "error", None)

    async def _keep(
        self, choice: Choice, sampled: Sampled, status: Literal["ok", "cancelled", "error"], first_at: float | None
    ) -> None:
        if self._capture is None:
            return
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
                prompt_ids=sampled.prompt_ids,
                completion_ids=sampled.completion_ids,
                logprobs=sampled.logprobs,
                policy_version=sampled.version,
                policy_version_end=sampled.version_end,
                temperature=sampled.temperature,
                top_p=sampled.top_p,
                top_k=sampled.top_k,
                hints=self._hints,
                untrainable_reason=sampled.untrainable,
                ttft_s=None if first_at is None else first_at - self._created_at,
                spliced=sampled.spliced,
                unspliced=sampled.unspliced,
                adapted=sampled.adapted,
            ),
            self.ask.template_settings,
        )


def _tell(choice: Choice, sampled: Sampled) -> None:
    """What the client is told of the end."""
    choice.prompt_tokens, choice.completion_tokens = sampled.prompt_tokens, sampled.completion_tokens
    choice.cached_tokens, choice.reasoning_tokens = sampled.cached_tokens, sampled.reasoning_tokens
    choice.finish_reason, choice.stop_sequence = sampled.finish_reason, sampled.stop_sequence
    choice.usage, choice.extras = sampled.usage, sampled.extras
