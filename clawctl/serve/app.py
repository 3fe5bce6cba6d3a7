"""The HTTP side: routes, keys, limits, errors, streams."""

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from clawctl.config import Recipe
from clawctl.policies import list_versions
from clawctl.run_dir import RunDir
from clawctl.serve.answer import Answer, new_handle
from clawctl.serve.capture import Capture
from clawctl.serve.dialects import Ask, Refusal, chat
from clawctl.serve.engines import Sampling
from clawctl.serve.hints import read_hints
from clawctl.serve.prompt import render
from clawctl.serve.versions import Versions

_BODY_BYTES = 32 << 20
_BIG_BODY = 16 << 10  # a longer one is templated and tokenised in a thread, so that streams go on meanwhile


class Gateway:
    """What the routes share."""

    def __init__(self, run: RunDir, recipe: Recipe, key: str, versions: Versions, tokenizer: Any, capture: Capture) -> None:
        self._run, self._recipe, self._key = run, recipe, key.encode()
        self._versions, self._tokenizer, self._capture = versions, tokenizer, capture
        self._started_at = time.time()
        self._running = self._total = self._refused = self._failed = 0

    def app(self) -> Starlette:
        routes = [
            Route("/v1/chat/completions", self._guarded(self._chat), methods=["POST"]),
            Route("/v1/models", self._guarded(self._models), methods=["GET"]),
            Route("/health", self._health, methods=["GET"]),
        ]
        handlers: dict[Any, Any] = {Refusal: self._refuse, HTTPException: self._no_route, Exception: self._crash}
        return Starlette(routes=routes, exception_handlers=handlers)

    # ---- errors ----------------------------------------------------------------------------------------------------------

    def _guarded(self, handle: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Any]]:
        async def guarded(request: Request) -> Any:
            scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
            given = bearer.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
            if not hmac.compare_digest(given.encode(), self._key):
                raise Refusal(401, "the API key is missing or wrong; it is in RUN/api_key", code="invalid_api_key")
            return await handle(request)

        return guarded

    async def _refuse(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Refusal)
        if error.status < 500:
            self._refused += 1
        else:
            self._failed += 1
        return _json(chat.envelope(error), error.status)

    async def _no_route(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            return _json(chat.envelope(Refusal(405, f"{request.method} is not possible on {request.url.path}")), 405)
        return _json(chat.envelope(Refusal(error.status_code, f"there is no {request.url.path} here")), error.status_code)

    async def _crash(self, request: Request, error: Exception) -> Response:
        self._failed += 1
        return _json(chat.envelope(Refusal(500, "clawctl made a mistake; its log has the details")), 500)

    # ---- routes ----------------------------------------------------------------------------------------------------------

    async def _health(self, request: Request) -> Response:
        dead = self._versions.live.failure()
        capture = self._capture
        troubled = dead or self._versions.last_swap_error or capture.last_error
        return _json({
            "status": "degraded" if troubled else "ok",
            "live": self._versions.live.version,
            "ready": dead is None,
            "capture": {"on": capture.on, "written": capture.written, "lost": capture.lost, "last_error": capture.last_error},
            "swaps": [asdict(swap) for swap in self._versions.swaps],
            "last_swap_error": self._versions.last_swap_error,
            "requests": {"running": self._running, "total": self._total, "refused": self._refused, "failed": self._failed},
            "uptime_s": time.time() - self._started_at,
        })  # fmt: skip

    async def _models(self, request: Request) -> Response:
        name = self._recipe.model_name
        names = [name] + [f"{name}@{version}" for version in await asyncio.to_thread(list_versions, self._run)]
        common = {"object": "model", "created": int(self._started_at), "owned_by": "clawctl"}
        longest = self._versions.live.max_context
        return _json({"object": "list", "data": [{"id": each, **common, "max_model_len": longest} for each in names]})

    async def _chat(self, request: Request) -> Any:
        arrived = time.time()
        raw = await _read_body(request)
        self._total += 1
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise Refusal(400, f"the body is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise Refusal(400, "the body must be a JSON object")
        ask = chat.read(body, self._recipe.model_name)
        hints = read_hints(request.headers, ask.claims)
        wanted = request.headers.get("x-capture", "").lower() != "off"
        stack = AsyncExitStack()
        try:
            answer = await self._begin(ask, arrived, hints, wanted, len(raw), stack)
        except BaseException:
            await stack.aclose()
            raise
        self._running += 1
        stack.callback(self._ended, answer)
        return _Stream(answer, stack) if ask.stream else await _whole(answer, stack, request.receive)

    async def _begin(
        self, ask: Ask, arrived: float, hints: dict[str, Any], wanted: bool, size: int, stack: AsyncExitStack
    ) -> Answer:
        engine, pinned = await stack.enter_async_context(self._versions.lease(ask.model))
        if size > _BIG_BODY:
            prompt_ids, thinking = await asyncio.to_thread(render, self._tokenizer, ask)
        else:
            prompt_ids, thinking = render(self._tokenizer, ask)
        sampling = self._sampling(ask, len(prompt_ids), engine.max_context)
        if engine.failure() is not None:
            raise Refusal(500, "the engine has stopped")
        handle = new_handle()
        capture = self._capture if self._capture.on and wanted and not pinned else None
        dialect = chat.Chat(ask, handle)
        return Answer(
            ask, dialect, engine, self._tokenizer, prompt_ids, sampling, thinking, handle, arrived, hints, capture
        )  # fmt: skip

    def _sampling(self, ask: Ask, prompt: int, longest: int) -> Sampling:
        serve = self._recipe.serve
        if not prompt:
            raise Refusal(400, "the prompt is empty", "messages")
        asked = 1 if ask.max_tokens is None else ask.max_tokens
        if prompt + asked > longest:
            raise Refusal(
                400,
                f"This model's maximum context length is {longest} tokens. However, you requested {prompt + asked} tokens "
                f"({prompt} in the messages, {asked} in the completion). Please reduce the length of the messages or completion.",
                "messages",
                "context_length_exceeded",
            )
        return Sampling(
            temperature=serve.temperature if ask.temperature is None else ask.temperature,
            top_p=serve.top_p if ask.top_p is None else ask.top_p,
            top_k=ask.top_k,
            max_tokens=min(serve.max_tokens, longest - prompt) if ask.max_tokens is None else ask.max_tokens,
        )

    def _ended(self, answer: Answer) -> None:
        self._running -= 1
        self._failed += answer.failed is not None


def _json(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


async def _read_body(request: Request) -> bytes:
    pieces, size = [], 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > _BODY_BYTES:
                raise Refusal(413, f"the body is larger than {_BODY_BYTES >> 20} MB")
            pieces.append(piece)
    except ClientDisconnect as gone:
        raise Refusal(400, "the body ended early") from gone
    return b"".join(pieces)


async def _cancel_when_gone(receive: Receive, answer: Answer) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    answer.cancel()


async def _whole(answer: Answer, stack: AsyncExitStack, receive: Receive) -> Response:
    watch = asyncio.create_task(_cancel_when_gone(receive, answer))
    try:
        async with stack:
            async for _ in answer.pieces():
                pass
        if answer.failed is not None:
            return _json(chat.envelope(answer.failed), answer.failed.status)
        return Response(answer.dialect.whole(answer.choices), media_type="application/json")
    finally:
        watch.cancel()


class _Stream:
    """A response that sends server-sent events while the answer grows."""

    def __init__(self, answer: Answer, stack: AsyncExitStack) -> None:
        self._answer, self._stack = answer, stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        watch = asyncio.create_task(_cancel_when_gone(receive, self._answer))
        try:
            async with self._stack:
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                async for frame in self._frames():
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            watch.cancel()

    async def _frames(self) -> AsyncIterator[bytes]:
        answer, dialect = self._answer, self._answer.dialect
        yield b"".join(dialect.begin(choice) for choice in answer.choices)
        async for choice, shown in answer.pieces():
            yield dialect.finish(choice) if shown is None else dialect.piece(choice, shown)
        if answer.failed is not None:
            yield dialect.failed(answer.failed)
        elif not answer.cancelled:
            yield dialect.end(answer.choices)
