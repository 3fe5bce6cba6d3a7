"""Sends an answer to the client: complete, or as server-sent events while it grows."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from clawctl.engines.requests import Refusal
from clawctl.run.capabilities import Capability
from clawctl.serve.answer import Answer

_log = logging.getLogger("clawctl.serve")
_MAX_IGNORED = 16  # names in one header
Envelope = Callable[[Refusal], dict[str, Any]]


@dataclass(slots=True)
class RequestContext:
    """The state of one HTTP request, from its arrival to its end."""

    request_id: str
    api: str  # "chat", "responses", "messages", "count_tokens", "models", "health", "metrics", "none"
    envelope: Envelope
    arrived: float  # unix seconds
    began: float = field(default_factory=time.perf_counter)
    key: str = ""  # name of the API key that the request counts as; empty until it has been checked
    sent_key: str = ""  # name of the API key that was sent
    status: int = 500
    unknown: tuple[str, ...] = ()  # names of unknown fields in its body
    sampling: str = ""  # changes that the recipe made to the request's sampling: "temperature 0.7 instead of 0"
    episode: Capability | None = None  # the episode, if the request was sent to an episode's address
    digest: bytes = b""  # digest of the body, in an episode
    first_at: float | None = None  # unix seconds of the first piece or, for a complete answer, of its first token


def json_response(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def extra_headers(context: RequestContext) -> list[tuple[bytes, bytes]]:
    """The headers of every answer: the request's id, fields that were ignored, and changes to the sampling."""
    headers = [(b"x-request-id", context.request_id.encode()), (b"request-id", context.request_id.encode())]
    if context.unknown:  # printable ASCII, see `clawctl.serve.dialects.api`
        headers.append((b"x-clawctl-ignored", ", ".join(context.unknown[:_MAX_IGNORED]).encode()))
    return [*headers, (b"x-clawctl-sampling", context.sampling.encode())] if context.sampling else headers


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
