"""Answers one request: sends its replies, and captures each exchange before the end of the answer is sent."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

from clawctl.cut_calls import CUT_CALL, has_cut_call
from clawctl.engines import CannotFollow, EngineFailure, Reply, Sampled
from clawctl.engines.requests import CallDelta, CallStart, GenerationRequest, Refusal, Shown
from clawctl.run.rows import Exchange, Message
from clawctl.serve.capture import Capture
from clawctl.serve.dialects import Choice, Dialect
from clawctl.serve.recent_answers import RecentAnswers

_log = logging.getLogger("clawctl.serve")

KEPT_REFUSALS = (400, 413, 422)  # statuses with which an engine refuses the contents of a request


def new_handle() -> str:
    """24 alphanumeric characters, which clients that rewrite ids leave unchanged."""
    return secrets.token_hex(12)


class Answer:
    """The answer to one request. `begin` gives it the engine's replies, and `pieces` the pieces of each choice; None instead of a
    piece ends that choice."""

    def __init__(
        self,
        requests: Sequence[GenerationRequest],  # one for each prompt
        dialect: Dialect,
        exchange_id: str,
        created_at: float,
        hints: dict[str, Any],
        capture: Capture | None,
        recent: RecentAnswers | None = None,  # stores the answer, if it may be put back into a later prompt
    ) -> None:
        self.requests, self.request, self.dialect, self.hints = requests, requests[0], dialect, hints
        self._exchange_id, self._created_at, self._capture = exchange_id, created_at, capture
        self._recent = recent
        self._replies: list[Reply] = []
        self.choices: list[Choice] = []
        self.cancelled: Refusal | None = None  # what its client receives, if it is still there
        self.failed: Refusal | None = None
        self.first_at: float | None = None  # unix seconds at which the first token arrived

    @property
    def is_captured(self) -> bool:
        return self._capture is not None

    def begin(self, replies: list[Reply]) -> None:
        """Take the engine's replies: `request.n` for each prompt."""
        self._replies = replies
        self.choices = [Choice(i, self._exchange_id if i == 0 else new_handle()) for i in range(len(replies))]
        for choice, reply in zip(self.choices, replies, strict=True):
            choice.prompt_tokens = reply.sampled.prompt_tokens
            choice.prompt_ids, choice.completion_ids = reply.sampled.prompt_ids, reply.sampled.completion_ids

    def cancel(self, reason: Refusal | None = None) -> None:
        """Stop sampling, for example because the client is gone. The sampled tokens are captured as cancelled. A client that is
        still there receives `reason`, by default that the server stops."""
        self.cancelled = self.cancelled or reason or Refusal(503, "the server is stopping; retry")
        for reply in self._replies:
            reply.cancel()

    async def pieces(self) -> AsyncIterator[tuple[Choice, Shown | None]]:
        """The pieces as they arrive. After an engine failure the iteration ends with `failed` set."""
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
                queue.put_nowait(None)  # this choice has ended

        tasks = [asyncio.create_task(fill(choice)) for choice in self.choices]
        open_choices = len(tasks)
        while open_choices:
            piece = await queue.get()
            if piece is None:
                open_choices -= 1
            else:
                yield piece
        await asyncio.gather(*tasks)

    async def _answer(self, choice: Choice) -> AsyncIterator[Shown | None]:
        reply = self._replies[choice.index]
        status: Literal["ok", "cancelled", "error"] = "ok"
        first_at = reply.sampled.first_at
        try:
            async for shown in reply:
                first_at = first_at or reply.sampled.first_at or time.time()
                choice.shown.append(shown)
                yield shown
        except Refusal as refusal:  # the engine refused late, and nothing was sampled
            self.failed = refusal
            await self.capture_refused(refusal)
            return
        except CannotFollow as problem:
            status, self.failed = "error", Refusal(400, f"the requested answer format cannot be enforced: {problem}")
        except EngineFailure as failure:
            _log.error("the engine failed: %s", failure)
            status, self.failed = "error", Refusal(500, "the engine failed during the answer")
        sampled = reply.sampled  # of the server that completed it
        first_at = first_at or sampled.first_at
        self.first_at = first_at if self.first_at is None else min(self.first_at, first_at or self.first_at)
        if status == "ok" and self.cancelled and sampled.finish_reason is None:
            status = "cancelled"
        _copy_results(choice, sampled)
        if status != "ok":
            choice.finish_reason = None
        if self._recent is not None and status == "ok" and sampled.prompt_ids and sampled.completion_ids:
            message = self.dialect.message(choice)
            self._recent.store(self.request.key, choice.exchange_id, message, sampled.prompt_ids, sampled.completion_ids)
        if self._capture is not None:
            await self._capture.write(*self._exchange(choice, sampled, status, first_at))
        if status == "ok":
            yield None

    async def capture_refused(self, refusal: Refusal) -> None:
        """Capture a request that the engine refused for its content, such as one that is too long, because it contains the user's
        words. Requests refused for load or missing rights are not captured: clients retry them, or they never belonged to the
        conversation."""
        if self._capture is not None and refusal.status in KEPT_REFUSALS:
            request = self.request
            temperature, top_p = (1.0 if value is None else value for value in (request.temperature, request.top_p))
            sampled = Sampled(temperature, top_p, request.top_k)
            await self._capture.write(*self._exchange(Choice(0, self._exchange_id), sampled, "error", None))

    def _exchange(
        self, choice: Choice, sampled: Sampled, status: Literal["ok", "cancelled", "error"], first_at: float | None
    ) -> tuple[Exchange, list[Any]]:
        """A choice as it is captured, and the request's settings that a capture lacks but that may contain secrets."""
        message = None if status == "error" else self.dialect.message(choice)
        request = self.requests[choice.index // self.request.n]
        cut = status == "ok" and _has_cut_call(request, choice, sampled, message)
        return (
            Exchange(
                exchange_id=choice.exchange_id,
                created_at=self._created_at,
                finished_at=time.time(),
                api=request.api,
                key=self.request.key,
                status=status,
                model=request.model,
                messages=request.sent_messages,
                tools=request.tools,
                response=message,
                finish_reason=choice.finish_reason,
                prompt_ids=sampled.prompt_ids,
                completion_ids=sampled.completion_ids,
                logprobs=sampled.logprobs,
                policy_version=sampled.version,
                policy_version_end=sampled.version_end,
                temperature=sampled.temperature,
                top_p=sampled.top_p,
                top_k=sampled.top_k,
                hints=self.hints,
                untrainable_reason=CUT_CALL if cut else sampled.untrainable,
                ttft_s=None if first_at is None else first_at - self._created_at,
                spliced=sampled.spliced,
                unspliced=sampled.unspliced,
                adapted=sampled.adapted,
                allowed=sampled.allowed,
                asked=self.request.overridden or None,
                sampling_from=self.request.sampling_from or None,
                images=sampled.images,
                policy_name=sampled.policy,
                notes=request.notes,
            ),
            [self.request.template_settings, self.request.engine_fields.get("response_format")],
        )


def _has_cut_call(request: GenerationRequest, choice: Choice, sampled: Sampled, message: Message | None) -> bool:
    """Whether a limit or a stop string ended the answer within a tool call, or may have."""
    if sampled.cut_call is None:  # the engine parsed the call; it may contain the stop string that ended the answer
        last = choice.shown[-1].events[-1] if choice.shown and choice.shown[-1].events else None
        cut = sampled.stop_sequence is not None and isinstance(last, CallStart | CallDelta)
    else:
        cut = sampled.cut_call
    return cut or has_cut_call(request.tools, message, sampled.finish_reason or "broken off")


def _copy_results(choice: Choice, sampled: Sampled) -> None:
    """Copy the token counts, finish reason, ids, usage and extras of the sampled answer to its choice."""
    choice.prompt_tokens, choice.completion_tokens = sampled.prompt_tokens, sampled.completion_tokens
    choice.cached_tokens, choice.reasoning_tokens = sampled.cached_tokens, sampled.reasoning_tokens
    choice.finish_reason, choice.stop_sequence = sampled.finish_reason, sampled.stop_sequence
    choice.prompt_ids, choice.completion_ids = sampled.prompt_ids, sampled.completion_ids
    choice.usage, choice.extras = sampled.usage, sampled.extras
