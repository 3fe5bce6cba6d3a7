"""Answers one request: reads the engine's replies, captures each exchange before the end of its answer is sent, and sends the
answer: complete, or as server-sent events while it grows."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any, Literal

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from clawctl.cut_calls import CUT_CALL, has_cut_call
from clawctl.engines import CannotFollow, EngineFailure, Reply, Sampled
from clawctl.engines.requests import CallDelta, CallStart, GenerationRequest, Refusal, Shown
from clawctl.run.rows import Exchange, Message
from clawctl.serve.capture import Capture
from clawctl.serve.dialects import Choice, Dialect
from clawctl.serve.recent_answers import RecentAnswers
from clawctl.serve.request_context import RequestContext

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


# ---- to the client ---------------------------------------------------------------------------------------------------------


async def _cancel_when_gone(receive: Receive, answer: Answer) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    answer.cancel()


async def complete_response(answer: Answer, context: RequestContext, stack: AsyncExitStack, receive: Receive) -> Response:
    """Wait for the end of the answer, then return it complete."""
    watch = asyncio.create_task(_cancel_when_gone(receive, answer))
    try:
        async with stack:
            async for _ in answer.pieces():
                pass
        context.first_at = answer.first_at
        if answer.failed is not None:
            raise answer.failed
        if answer.cancelled:  # the client disconnected, or this server cancelled the request
            raise answer.cancelled
        return Response(answer.dialect.whole(answer.choices), media_type="application/json")
    finally:
        watch.cancel()


class EventStream:
    """A response that sends server-sent events while the answer grows."""

    status_code = 200

    def __init__(self, answer: Answer, context: RequestContext, stack: AsyncExitStack) -> None:
        self._answer, self._context, self._stack = answer, context, stack
        self._end = b""  # the last frames, sent in one piece once the request counts as ended
        self.raw_headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.create_task(_cancel_when_gone(receive, self._answer))
        try:
            async with self._stack:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                async for frame in self._frames():
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
            await send({"type": "http.response.body", "body": self._end, "more_body": False})
        finally:
            watch.cancel()

    async def _frames(self) -> AsyncIterator[bytes]:
        answer, dialect, context = self._answer, self._answer.dialect, self._context
        if begun := b"".join(dialect.begin(choice) for choice in answer.choices):
            yield begun
        try:
            async for choice, shown in answer.pieces():
                context.first_at = context.first_at or time.time()
                if shown is not None:
                    yield dialect.piece(choice, shown)
                elif len(answer.choices) > 1:
                    yield dialect.finish(choice)
                else:
                    self._end = dialect.finish(choice)
        except Exception:  # noqa: BLE001 - the stream has begun: its end must contain the error, the log has the rest
            _log.exception("request %s failed", context.request_id)
            answer.failed = Refusal(500, "internal error; the log of clawctl has the details")
        if answer.failed is not None:
            context.status = answer.failed.status
            self._end += dialect.failed(answer.failed)
        elif answer.cancelled:
            context.status = 499  # the client disconnected, or this server cancelled the request; then it can read the message
            self._end += dialect.failed(answer.cancelled)
        else:
            self._end += dialect.end(answer.choices)
