"""The HTTP side: routes, keys, limits, errors. Every request comes in and goes out through `Gateway.__call__`."""

import logging
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from clawctl.config import Recipe
from clawctl.keys import KeyRing
from clawctl.run_dir import RunDir
from clawctl.serve.about import About
from clawctl.serve.answer import Answer, new_handle
from clawctl.serve.capture import Capture
from clawctl.serve.dialects import Ask, Dialect, Refusal, chat, messages, responses
from clawctl.serve.hints import read_hints
from clawctl.serve.hosts import Hosts
from clawctl.serve.limits import Concurrency
from clawctl.serve.measure import check_ask, most_body, parse
from clawctl.serve.metrics import Metrics
from clawctl.serve.rating import Rating
from clawctl.serve.recent import Recent
from clawctl.serve.replies import Envelope, Stream, Visit, json_response, read_body, refused, whole
from clawctl.serve.stored import Stored
from clawctl.serve.turns import Lines
from clawctl.serve.versions import Versions
from clawctl.serve.vetting import LONG_BODY, Vetting
from clawctl.tokenizer_files import tokenizer_file

_log = logging.getLogger("clawctl.serve")
_LONGEST_RATING = 64 << 10  # bytes
_LARGE_PER_KEY = 16  # requests with more than a megabyte that are read or answered at a time
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
Speaker = Callable[[Ask, str], Dialect]
_DIALECTS: dict[str, tuple[Any, Speaker]] = {
    "chat": (chat, chat.Chat),
    "responses": (responses, responses.Responses),
    "messages": (messages, messages.Messages),
    "count_tokens": (messages, messages.Messages),
}
_RESPONSES = "/v1/responses/"
_CAPTURED = ("", "on", "true", "yes", "1")  # values of X-Capture; any other, "off" or "false", keeps the request out
Handler = Callable[[Request, Visit], Awaitable[Response | Stream]]


class Gateway:
    """The ASGI application."""

    def __init__(self, run: RunDir, recipe: Recipe, key: str, versions: Versions, capture: Capture) -> None:
        self._recipe, self._versions, self._capture = recipe, versions, capture
        self._keys, self._limits = KeyRing(run, key), recipe.serve.limits
        self._hosts = Hosts(recipe.serve)
        self._concurrency = Concurrency(self._limits.concurrent_per_key)
        self._large_bodies = Concurrency(_LARGE_PER_KEY, "large requests")
        self._lines = Lines()
        self._vetting = Vetting(recipe.model_name, tokenizer_file(recipe.model_path) if recipe.serve.upstream is None else None)
        self._metrics = Metrics()
        self._rating = Rating(run if capture.on else None, recipe, self._metrics.ratings)
        self._stored = Stored()
        self._recent = Recent() if recipe.serve.splice else None
        self._running: set[Answer] = set()
        self._about = About(run, recipe, versions, capture, self._metrics)
        self._routes: dict[str, tuple[str, str, bool, Handler]] = {  # path: method, API, whether a key is needed, handler
            "/v1/chat/completions": ("POST", "chat", True, self._ask),
            "/v1/responses": ("POST", "responses", True, self._ask),
            "/v1/messages": ("POST", "messages", True, self._ask),
            "/v1/messages/count_tokens": ("POST", "count_tokens", True, self._count_tokens),
            "/v1/feedback": ("POST", "feedback", True, self._rate),
            "/v1/models": ("GET", "models", True, self._about.models),
            "/health": ("GET", "health", False, self._about.health),
            "/health/live": ("GET", "health", False, self._about.alive),
            "/health/ready": ("GET", "health", False, self._about.ready),
            "/metrics": ("GET", "metrics", False, self._about.metrics),
            "/openapi.json": ("GET", "openapi", False, self._about.openapi),
        }

    # ---- in and out ------------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} here")  # uvicorn takes it for an application without a lifespan
        request = Request(scope, receive)
        visit = _visit(request)
        try:
            response = await self._answer(request, visit)
            response.raw_headers.extend(_marks(visit))
            visit.status = response.status_code
            await response(scope, receive, send)
        finally:
            self._count(visit)

    async def _answer(self, request: Request, visit: Visit) -> Response | Stream:
        try:
            return await self._route(request, visit)
        except Refusal as refusal:
            return self._refuse(visit, refusal)
        except Exception:  # noqa: BLE001 - the edge of the process: the client is told that it was us, the log has the rest
            _log.exception("request %s failed", visit.request_id)
            return self._refuse(visit, Refusal(500, "clawctl made a mistake; its log has the details"))

    async def _route(self, request: Request, visit: Visit) -> Response | Stream:
        path = request.scope["path"]
        found = self._routes.get(path)
        if found is None and path.startswith("/v1/models/"):
            found = ("GET", "models", True, self._about.model)
        if found is None and path.startswith(_RESPONSES) and "/" not in path[len(_RESPONSES) :]:
            found = ("DELETE" if request.method == "DELETE" else "GET", "responses", True, self._stored_response)
        if found is None:
            raise Refusal(404, f"there is no {path[:200]} here")
        method, visit.api, locked, handle = found
        if request.method != method and not (method == "GET" and request.method == "HEAD"):
            allowed = "GET, HEAD, DELETE" if handle == self._stored_response else "GET, HEAD" if method == "GET" else method
            raise Refusal(405, f"{request.method} is not possible on {path[:200]}", allow=allowed)
        given = _given_key(request)
        visit.key = self._keys.owner(given) or "" if given else ""
        if not visit.key:
            self._hosts.check(request.headers.getlist("host"), request.headers.getlist("origin"))
        if locked and not visit.key:
            raise Refusal(401, "the API key is missing or wrong; it is in RUN/api_key", code="invalid_api_key")
        return await handle(request, visit)

    def _refuse(self, visit: Visit, refusal: Refusal) -> Response:
        self._metrics.refused[refusal.code or f"http_{refusal.status}",] += 1
        _log.debug("request %s (%s) is refused: %d %s", visit.request_id, visit.api, refusal.status, refusal.code or "")
        response = json_response(refused(visit, refusal), refusal.status)
        response.headers.update(refusal.headers)
        if refusal.status in (408, 413):
            response.headers["connection"] = "close"  # the rest of the body is not read
        return response

    def _count(self, visit: Visit) -> None:
        metrics = self._metrics
        metrics.requests[visit.api, str(visit.status), visit.key] += 1
        metrics.latency.observe((visit.api,), time.perf_counter() - visit.began)
        if visit.first_at is not None:
            metrics.first_token.observe((visit.api,), visit.first_at - visit.arrived)

    # ---- ending ----------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """From here on we are not ready, though we still answer."""
        self._about.draining = True

    def cut(self) -> None:
        """The time to finish is over: end what runs; what was sampled is captured as cancelled."""
        for answer in self._running:
            answer.cancel()

    def stop(self) -> None:
        """When the event loop has ended."""
        self._vetting.stop()

    # ---- asks ------------------------------------------------------------------------------------------------------------

    async def _ask(self, request: Request, visit: Visit) -> Response | Stream:
        with ExitStack() as held:
            ask, speaks = await self._read(request, visit, held)
            if visit.api == "responses":
                ask = self._stored.continued(visit.key, ask)
                speaks = partial(responses.Responses, keep=partial(self._stored.keep, visit.key))
            return await self._begin(request, visit, ask, speaks)

    async def _begin(self, request: Request, visit: Visit, ask: Ask, speaks: Speaker) -> Response | Stream:
        if self._recent is not None:
            ask = self._recent.known(visit.key, ask)
        headers = dict(reversed(request.headers.items()))  # the first of each name, to be looked up many times
        hints = read_hints(headers, ask.claims) | self._rating.hint(headers)
        wanted = headers.get("x-capture", "on").strip().lower() in _CAPTURED
        handle = new_handle()
        async with AsyncExitStack() as stack:
            stack.enter_context(self._concurrency.one_more(visit.key))
            try:
                replies, pinned = await self._versions.begin(ask, stack)
            except Refusal as refusal:
                if self._capture.on and wanted and not self._versions.is_pinned(ask):
                    unanswered = Answer(ask, speaks(ask, handle), [], handle, visit.arrived, hints, visit.key, self._capture)
                    await unanswered.keep_refused(refusal)
                raise
            capture = self._capture if self._capture.on and wanted and not pinned else None
            answer = Answer(ask, speaks(ask, handle), replies, handle, visit.arrived, hints, visit.key, capture, self._recent)
            for choice in answer.choices if capture is not None else ():
                self._rating.gave(visit.key, choice.exchange_id)
            self._running.add(answer)
            self._metrics.running += 1
            stack.callback(self._ended, answer, visit)
            kept = stack.pop_all()
        return Stream(answer, visit, kept) if ask.stream else await whole(answer, visit, kept, request.receive)

    async def _stored_response(self, request: Request, visit: Visit) -> Response:
        name = request.scope["path"].removeprefix(_RESPONSES)
        if request.method == "DELETE":
            return json_response(self._stored.forget(visit.key, name))
        return Response(self._stored.get(visit.key, name), media_type="application/json")

    async def _count_tokens(self, request: Request, visit: Visit) -> Response:
        with ExitStack() as held, self._concurrency.one_more(visit.key):
            ask, _ = await self._read(request, visit, held)
            return json_response({"input_tokens": await self._versions.live.count(ask)})

    async def _rate(self, request: Request, visit: Visit) -> Response:
        raw = await read_body(request, _LONGEST_RATING, self._limits.body_s)
        with self._concurrency.one_more(visit.key):
            return json_response(await self._rating.keep(parse(raw), visit.key))

    async def _read(self, request: Request, visit: Visit, held: ExitStack) -> tuple[Ask, Speaker]:
        """The ask, checked. `held` ends when it is answered or refused. Raises Refusal."""
        live, key = self._versions.live, visit.key
        dialect, speaks = _DIALECTS[visit.api]

        def large() -> None:
            held.enter_context(self._large_bodies.one_more(key))

        most = most_body(self._limits.body_mb, live.max_context, live.capabilities.images)
        raw = await read_body(request, most, self._limits.body_s, self._limits.body_values, large)
        length = len(raw) if len(raw) > LONG_BODY else 0  # of what is not read at once
        if length:
            await self._vetting.check(key, visit.api, raw, live.max_context)
        body = await self._lines.run(key, length, partial(parse, raw))
        if visit.api == "responses":
            body = self._stored.with_items(key, body)
        ask = await self._lines.run(key, length, partial(dialect.read, body, self._recipe.model_name))
        if not length:
            check_ask(ask)
        return replace(ask, key=key, size=len(raw)), speaks

    def _ended(self, answer: Answer, visit: Visit) -> None:
        self._running.discard(answer)
        self._metrics.running -= 1
        self._metrics.tokens_in[visit.api, visit.key] += answer.choices[0].prompt_tokens
        self._metrics.tokens_out[visit.api, visit.key] += sum(choice.completion_tokens for choice in answer.choices)


def _visit(request: Request) -> Visit:
    given = request.headers.get("x-request-id", "")
    return Visit(
        given if _SANE_ID.fullmatch(given) else f"req_{new_handle()}", "none", _envelope_of(request.scope["path"]), time.time()
    )


def _envelope_of(path: str) -> Envelope:
    return messages.envelope if path.startswith("/v1/messages") else chat.envelope


def _marks(visit: Visit) -> list[tuple[bytes, bytes]]:
    request_id = visit.request_id.encode()
    return [(b"x-request-id", request_id), (b"request-id", request_id)]


def _given_key(request: Request) -> str:
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    return bearer.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
