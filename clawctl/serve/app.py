"""The gateway: the path of one request through `clawctl serve`, from the socket to the last byte.

`__call__` receives an HTTP request and sends the response. `_route` checks host, key and method, and finds the handler. A request
for an answer goes through `_generate`, step by step:

1. `Intake.request` reads the body within its limits, and its dialect converts it to a `GenerationRequest` (`intake.py`).
2. `_prepare` adds earlier answers (`recent_answers.py`), hints (`hints.py`) and the recipe's sampling. `_start` passes the request
   through `Versions.begin` to the engine, which renders the prompt (`prompt.py`) and replies.
3. `Answer` reads the replies, and captures each one before its end is sent (`answer.py`, `capture.py`).
4. `complete_response` or `EventStream` sends the output of the dialect (`answer.py`).
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from clawctl.config import Recipe
from clawctl.engines.requests import GenerationRequest, Refusal
from clawctl.run.activity import Activity
from clawctl.run.capabilities import episode_secret
from clawctl.run.directory import RunDir
from clawctl.run.endpoint import where_the_key_is
from clawctl.run.keys import CHECK_EVERY_S, KeyRing
from clawctl.run.model_files import model_file
from clawctl.serve import episodes
from clawctl.serve.answer import Answer, EventStream, complete_response, new_handle
from clawctl.serve.capture import Capture
from clawctl.serve.control import CONTROLS, control, score, score_prompt
from clawctl.serve.defaults import Defaults
from clawctl.serve.dialects import Dialect, chat, completions, messages, responses
from clawctl.serve.hints import read_hints
from clawctl.serve.hosts import Hosts
from clawctl.serve.intake import Concurrency, Intake
from clawctl.serve.metrics import Metrics
from clawctl.serve.notes import Notes, is_too_long_with_notes
from clawctl.serve.people import People
from clawctl.serve.rating import Rating
from clawctl.serve.recent_answers import RecentAnswers
from clawctl.serve.request_context import RequestContext, extra_headers, json_response
from clawctl.serve.request_sizes import largest_body, parse
from clawctl.serve.routes import context_of, no_compaction, normalised_path, not_found, presented_key
from clawctl.serve.service_info import ServiceInfo
from clawctl.serve.sleeping import Sleeping
from clawctl.serve.stored_responses import StoredResponses
from clawctl.serve.versions import Versions, is_pinned
from clawctl.serve.work_queues import WorkQueues

_log = logging.getLogger("clawctl.serve")
_LONGEST_RATING = 64 << 10  # bytes
Writer = Callable[..., Dialect]  # of a GenerationRequest and the handle of its answer
_WRITERS: dict[str, Writer] = {
    "chat": chat.Chat, "responses": responses.Responses, "messages": messages.Messages, "completions": completions.Completions,
}  # fmt: skip
_CAPTURED = ("", "on", "true", "yes", "1")  # values of X-Capture; any other, "off" or "false", keeps the request out
_OPEN = ("health", "metrics", "openapi")  # routes that need no key


class Gateway:
    """The ASGI application."""

    def __init__(self, run: RunDir, recipe: Recipe, key: str, versions: Versions, capture: Capture) -> None:
        self._recipe, self._versions, self._capture = recipe, versions, capture
        self._keys, self._limits = KeyRing(run, key), recipe.serve.limits
        self._key_place = where_the_key_is(run, key)
        if recipe.policies.per_person:
            versions.people = People(run, self._keys.policy_of, versions.live)
        self._hosts = Hosts(recipe.serve)
        self._concurrency = Concurrency(self._limits.concurrent_per_key)
        self._queues = WorkQueues()
        tokenizer = model_file(recipe.model_path) if recipe.serve.upstream is None else None
        self._intake = Intake(self._limits, self._queues, recipe.model_name, tokenizer)
        self._metrics, self._activity = Metrics(), Activity(run.activity)
        self._rating = Rating(run if capture.enabled else None, recipe, self._metrics.ratings)
        self._notes = Notes(run, recipe, versions)
        self._stored = StoredResponses()
        self._episode_secret, self._retries = episode_secret(run), episodes.Retries()
        self._recent = RecentAnswers() if recipe.serve.splice else None
        self._running: dict[Answer, set[str]] = {}  # with the names of the keys that it ends with
        self.sleeping = Sleeping(recipe.serve.sleep, recipe.serve.sleep_idle_s, versions, lambda: len(self._running))
        self.defaults = Defaults(recipe, versions)
        self._service_info = ServiceInfo(run, recipe, versions, capture, self._metrics, self.defaults, self._activity)
        post, get, info = partial(Route, methods=["POST"]), partial(Route, methods=["GET"]), self._service_info
        self._routes = [
            post("/v1/chat/completions", self._generate, name="chat"),
            post("/v1/messages", self._generate, name="messages"),
            post("/v1/responses", self._generate, name="responses"),
            post("/v1/completions", self._generate, name="completions"),
            post("/v1/messages/count_tokens", self._count_tokens, name="count_tokens"),
            post("/v1/responses/input_tokens", self._count_tokens, name="input_tokens"),
            post("/v1/responses/compact", no_compaction, name="responses"),
            Route("/v1/responses/{id}", self._stored.handle, methods=["GET", "DELETE"], name="stored"),
            post("/v1/feedback", self._rate, name="feedback"),
            post("/v1/outcome", self._rate, name="outcome"),
            post("/v1/score", self._score, name="score"),
            *[post(f"/engine/{what}", partial(self._control, what), name="engine") for what in CONTROLS],
            Route("/v1/notes", self._note, methods=["GET", "POST"], name="notes"),
            Route("/v1/notes/{id}", self._note, methods=["DELETE"], name="notes"),
            get("/v1/models", info.models, name="models"),
            get("/v1/models/{id:path}", info.model, name="models"),
            get("/health", info.health, name="health"),
            get("/health/live", info.alive, name="health"),
            get("/health/ready", info.ready, name="health"),
            get("/metrics", info.metrics, name="metrics"),
            get("/openapi.json", info.openapi, name="openapi"),
        ]

    # ---- in and out ------------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not supported")  # uvicorn then treats it as an application without a lifespan
        capability, scope = episodes.capability_in(scope)
        http_request = Request(scope, receive)
        context = context_of(http_request)
        try:
            try:
                response = await self._route(http_request, context, capability)
            except Refusal as refusal:
                response = self._refuse(context, refusal)
            except Exception:  # noqa: BLE001 - the edge of the process: the client gets an error, the log has the rest
                _log.exception("request %s failed", context.request_id)
                response = self._refuse(context, Refusal(500, "internal error; the log of clawctl has the details"))
            response.raw_headers.extend(extra_headers(context))
            context.status = response.status_code
            await response(scope, receive, send)
        finally:
            self._count(context)

    async def _route(
        self, http_request: Request, context: RequestContext, capability: str | None
    ) -> Response | EventStream | episodes.Replay:
        """Make all checks that do not need the body, and handle the request. Raises Refusal."""
        path, options = normalised_path(http_request.scope["path"]), http_request.method == "OPTIONS"
        if http_request.headers.get("upgrade", "").lower() == "websocket":
            raise Refusal(400, f'this server does not support WebSockets: send POST {path[:200]}, with "stream": true')
        (route, parts), given = self._find(path), presented_key(http_request)
        if capability is None and episodes.is_capability(given):
            capability = given
        if capability is not None and not options:
            context.episode = episodes.open_capability(self._episode_secret, capability, route.name if route else "none")
            context.key = context.episode.key
            if not self._keys.has(context.key):
                raise Refusal(401, "the key whose turns this episode plays was removed", code="invalid_api_key")
        else:
            context.key = context.sent_key = self._keys.owner(given) or "" if given else ""
            self._end_revoked()  # before a new key of the same name is answered
            self._count_as(context, http_request.headers.get("x-user"))
        if not context.key:
            origins = [] if options else http_request.headers.getlist("origin")
            self._hosts.check(http_request.headers.getlist("host"), origins)
        if route is None:
            raise not_found(http_request.scope["path"])
        context.api, allowed = "options" if options else route.name, sorted(route.methods or ())
        if options:
            return Response(status_code=204, headers={"allow": ", ".join([*allowed, "OPTIONS"])})
        if http_request.method not in allowed:
            raise Refusal(405, f"{http_request.method} is not supported on {path[:200]}", allow=", ".join(allowed))
        if route.name not in _OPEN and not context.key:
            raise Refusal(401, f"the API key is missing or wrong; {self._key_place}", code="invalid_api_key")
        http_request.scope.update(parts)
        response: Response | EventStream | episodes.Replay = await route.endpoint(http_request, context)
        return response

    def _count_as(self, context: RequestContext, named: Any) -> None:
        """Let a request count as the key that it names, if its own key may name users (`policies.per: user`)."""
        if self._recipe.policies.names_users and isinstance(named, str) and context.key == context.sent_key:
            context.key = self._keys.user(context.key, named)

    def _find(self, path: str) -> tuple[Route | None, Scope]:
        """The route of a path (None if there is none), and the parts of the path, for the scope."""
        for route in self._routes:
            match, parts = route.matches({"type": "http", "path": path, "method": "GET"})
            if match is not Match.NONE:
                return route, parts
        return None, {}

    def _refuse(self, context: RequestContext, refusal: Refusal) -> Response:
        self._metrics.refused[refusal.code or f"http_{refusal.status}",] += 1
        _log.debug("request %s (%s) is refused: %d %s", context.request_id, context.api, refusal.status, refusal.code or "")
        response = json_response({**context.envelope(refusal), "request_id": context.request_id}, refusal.status)
        response.headers.update(refusal.headers)
        if refusal.status in (408, 413):
            response.headers["connection"] = "close"  # the rest of the body is not read
        return response

    def _count(self, context: RequestContext) -> None:
        metrics = self._metrics
        metrics.requests[context.api, str(context.status), context.key] += 1
        metrics.latency.labels(context.api).observe(time.perf_counter() - context.began)
        if context.first_at is not None:
            metrics.first_token.labels(context.api).observe(context.first_at - context.arrived)

    # ---- one request ------------------------------------------------------------------------------------------------------

    async def _generate(self, http_request: Request, context: RequestContext) -> Response | EventStream | episodes.Replay:
        with self.sleeping.asking(), ExitStack() as resources:
            await self.sleeping.wake()
            request, writer = await self._read(http_request, context, resources), _WRITERS[context.api]
            if context.api == "responses":
                request = self._stored.continued(context.key, request)
                writer = partial(responses.Responses, store=partial(self._stored.store, context.key))
            if context.episode is None:
                return await self._respond(http_request, context, request, writer)
            retry_key = context.episode.session_id, context.api, context.digest
            alone = Request(http_request.scope, episodes.never_disconnects)  # completed even if its client disconnects
            return await self._retries.answer(
                retry_key, context, lambda shared: self._respond(alone, shared, request, writer), http_request.scope
            )

    async def _read(self, http_request: Request, context: RequestContext, resources: ExitStack) -> GenerationRequest:
        """The checked request. Resources in `resources` are released when it is answered or refused. Raises Refusal."""

        def complete(body: dict[str, Any]) -> dict[str, Any]:
            self._count_as(context, body.get("user"))
            return self._stored.with_items(context.key, body) if context.api in ("responses", "input_tokens") else body

        request = await self._intake.request(http_request, context, self._versions.live, resources, complete)
        context.unknown = request.unknown
        self._metrics.unknown.count(context.api, request.unknown)
        return request

    async def _respond(
        self, http_request: Request, context: RequestContext, request: GenerationRequest, writer: Writer
    ) -> Response | EventStream:
        """The answer to a checked request: complete, or a stream. Raises Refusal."""
        request, hints, for_training = self._prepare(http_request, context, request)
        if context.episode is not None:
            return await self._begun(http_request, context, request, writer, hints, for_training)
        noted = await self._notes.applied(request, http_request.headers, hints)
        try:
            return await self._begun(http_request, context, noted, writer, hints, for_training)
        except Refusal as refusal:
            if not is_too_long_with_notes(noted, refusal):
                raise
            return await self._begun(http_request, context, request, writer, hints, for_training)

    async def _begun(
        self, http_request: Request, context: RequestContext, request: GenerationRequest, writer: Writer, hints: dict[str, Any],
        for_training: bool,
    ) -> Response | EventStream:  # fmt: skip
        requests, handle = [request], new_handle()
        if request.prompts:
            requests = await completions.each_prompt(request, self._text_of)
            writer = partial(completions.Completions, prompts=[prompt.messages[0]["content"] for prompt in requests])
        async with AsyncExitStack() as stack:
            stack.enter_context(self._concurrency.count_request(context.key))
            if context.episode is None:  # training does not give way to practice and play
                stack.enter_context(self._activity.answering(for_training))
            if request.score_from is not None:
                scored = [await score_prompt(self._versions, prompt, self._queues, self._capture.text_of) for prompt in requests]
                writer = partial(writer, scored=scored)
                if request.max_tokens == 0:
                    choices = completions.scored_only(handle, scored)
                    whole = writer(replace(request, n=1), handle).whole(choices)
                    return Response(whole, media_type="application/json")
            capture = self._capture if self._capture.enabled and for_training else None
            recent = None if request.prompts else self._recent
            answer = Answer(requests, writer(request, handle), handle, context.arrived, hints, capture, recent)
            await self._start(answer, context, for_training, stack)
            stack.callback(self._ended, answer, context)
            open_stack = stack.pop_all()
        if request.stream:
            return EventStream(answer, context, open_stack)
        return await complete_response(answer, context, open_stack, http_request.receive)

    def _prepare(
        self, http_request: Request, context: RequestContext, request: GenerationRequest
    ) -> tuple[GenerationRequest, dict[str, Any], bool]:
        """The request with earlier answers and the recipe's sampling, its hints, and whether its turns may be trained."""
        if not request.prompts and self._recent is not None:
            request = self._recent.with_answers(context.key, request)
        headers = dict(reversed(http_request.headers.items()))  # the first value of each name; it is looked up many times
        hints = read_hints(headers, request.claims) | self._rating.hint(headers)
        if request.parent is not None:
            hints["continues"] = request.parent  # `previous_response_id` decides the parent, whatever the request lacks
        capture_off = headers.get("x-capture", "on").strip().lower() not in _CAPTURED
        for_training = not (capture_off or is_pinned(request))
        if context.episode is not None:
            hints = episodes.hints_of(context.episode, hints)
            request = episodes.of_version(request, self._recipe.model_name, context.episode.measurement)
            for_training = context.episode.measurement is None
        if for_training or context.episode is not None:
            request = self.defaults.enforced(request, headers, context, self._metrics.enforced)
        return self.defaults.filled(request, hints.get("session_id")), hints, for_training

    async def _start(self, answer: Answer, context: RequestContext, for_training: bool, stack: AsyncExitStack) -> None:
        """Pass the requests of the answer to the engine. Raises Refusal."""
        begin = self._versions.begin
        try:
            replies = [reply for request in answer.requests for reply in await begin(request, stack, for_training)]
            answer.begin(replies)
        except Refusal as refusal:
            if not is_too_long_with_notes(answer.request, refusal):
                await answer.capture_refused(refusal)
            raise
        context.unknown += replies[0].sampled.ignored
        if answer.is_captured:
            for choice in answer.choices:
                self._rating.note_answer(answer.request.key, choice.exchange_id, answer.request.session)
        self._running[answer] = {context.key, context.sent_key}
        self._metrics.running += 1

    async def _text_of(self, key: str, ids: tuple[int, ...]) -> str:
        """The text of token ids; "" if no tokenizer is known."""
        return await self._queues.run(key, len(ids), partial(self._capture.text_of, ids))

    def _ended(self, answer: Answer, context: RequestContext) -> None:
        self._running.pop(answer, None)
        self._metrics.running -= 1
        self._metrics.tokens_in[context.api, context.key] += sum(
            choice.prompt_tokens for choice in answer.choices[:: answer.request.n]
        )
        self._metrics.tokens_out[context.api, context.key] += sum(choice.completion_tokens for choice in answer.choices)

    # ---- the other handlers ------------------------------------------------------------------------------------------------

    async def _count_tokens(self, http_request: Request, context: RequestContext) -> Response:
        with ExitStack() as resources, self._concurrency.count_request(context.key):
            request = await self._read(http_request, context, resources)
            kind = {}
            if context.api == "input_tokens":
                request, kind = self._stored.continued(context.key, request), {"object": "response.input_tokens"}
            return json_response({**kind, "input_tokens": await self._versions.live.count(request)})

    async def _rate(self, http_request: Request, context: RequestContext) -> Response:
        raw = await self._intake.raw(http_request, context.key, _LONGEST_RATING)
        with self._concurrency.count_request(context.key):
            store = self._rating.store if context.api == "feedback" else self._rating.store_outcome
            return json_response(await store(parse(raw), context.key))

    async def _note(self, http_request: Request, context: RequestContext) -> Response:
        if http_request.method == "POST":
            raw = await self._intake.raw(http_request, context.key, _LONGEST_RATING)
            return json_response(await self._notes.post(parse(raw), context.key))
        if http_request.method == "DELETE":
            return json_response(await self._notes.retract(context.key, http_request.path_params["id"]))
        return json_response(await self._notes.listed(context.key))

    async def _score(self, http_request: Request, context: RequestContext) -> Response:
        live = self._versions.live
        max_bytes = largest_body(self._limits.body_mb, live.max_context, images=False)
        raw = await self._intake.raw(http_request, context.key, max_bytes, self._limits.body_values)
        with self._concurrency.count_request(context.key), self.sleeping.asking():
            await self.sleeping.wake()
            return json_response(await score(self._versions, raw, context.key))

    async def _control(self, what: str, http_request: Request, context: RequestContext) -> Response:
        raw = await self._intake.raw(http_request, context.key, _LONGEST_RATING)
        return json_response(await control(self._versions, what, raw, context.key))

    def drain(self) -> None:
        """From now on the server reports that it is not ready, but still answers requests."""
        self._service_info.draining = True

    async def end_revoked(self) -> None:
        """Look for keys that are removed or replaced, and show that this server lives. Runs until it is cancelled."""
        while True:
            self._activity.write()
            await asyncio.sleep(CHECK_EVERY_S)
            self._end_revoked()

    def _end_revoked(self) -> None:
        """Cancel the running requests of keys that are removed or replaced, and drop what is in memory of their conversations."""
        for name in self._keys.pop_revoked():
            for answer, keys in self._running.items():
                if name in keys:
                    problem = "this API key was removed or replaced while the request ran"
                    answer.cancel(Refusal(401, problem, code="invalid_api_key"))
            self._stored.drop(name)
            if self._recent is not None:
                self._recent.drop(name)

    def cancel_running(self) -> None:
        """Cancel running requests at the end of the shutdown timeout. The sampled tokens are captured as cancelled."""
        for answer in self._running:
            answer.cancel()

    def stop(self) -> None:
        """Release resources after the event loop has ended."""
        self._intake.stop()
        self._activity.end()
