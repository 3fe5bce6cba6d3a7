"""The gateway: one request through `clawctl serve`, from the socket to the last byte.

`__call__` takes a request in and sends the answer out. `_route` checks host, key and method, and finds the handler. A request for
an answer goes through `_ask`, step by step:

1. `_read`: the body, within its limits (`bodies.py`, `vetting.py`); its dialect makes an `Ask` of it (`dialects/`).
2. `_begin`: earlier answers (`recent.py`), hints (`hints.py`), the recipe's sampling; then `Versions.begin` gives it to the engine.
   The engine renders the prompt (`prompt.py`), and replies.
3. `Answer` reads the replies, and captures each one before its end is sent (`answer.py`, `capture.py`).
4. `whole` or `Stream` sends what the dialect writes of it (`replies.py`).
"""

import logging
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from clawctl.config import Recipe
from clawctl.run.capabilities import episode_secret
from clawctl.run.directory import RunDir
from clawctl.run.images import has_images
from clawctl.run.keys import KeyRing
from clawctl.run.model_files import model_file
from clawctl.serve.about import About
from clawctl.serve.answer import Answer, new_handle
from clawctl.serve.bodies import BodyReader
from clawctl.serve.capture import Capture
from clawctl.serve.control import CONTROLS, control, score, score_ids
from clawctl.serve.dialects import Ask, Choice, Dialect, Refusal, ShownToken, chat, completions, messages, responses
from clawctl.serve.dialects.fields import NO_IMAGES
from clawctl.serve.episodes import Replay, Retries, capability_in, hints_of, is_capability, never, opened, sampling_rule
from clawctl.serve.hints import agent_of, client_of, read_hints
from clawctl.serve.hosts import Cors, Hosts
from clawctl.serve.limits import Concurrency
from clawctl.serve.measure import check_ask, most_body, parse
from clawctl.serve.metrics import Metrics, unknown_header
from clawctl.serve.rating import Rating
from clawctl.serve.recent import Recent
from clawctl.serve.replies import Stream, Visit, json_response, refused, whole
from clawctl.serve.routes import absent, envelope_of, meant
from clawctl.serve.sampling import changes_nothing, enforce, rule_for
from clawctl.serve.stored import StoredResponses
from clawctl.serve.turns import WorkQueues
from clawctl.serve.versions import Versions, is_pinned
from clawctl.serve.vetting import LONG_BODY, READERS, Vetting

_log = logging.getLogger("clawctl.serve")
_LONGEST_RATING = 64 << 10  # bytes
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
Writer = Callable[[Ask, str], Dialect]
_WRITERS: dict[str, Writer] = {
    "chat": chat.Chat, "responses": responses.Responses, "messages": messages.Messages, "completions": completions.Completions,
}  # fmt: skip
_RESPONSES = "/v1/responses/"
_CAPTURED = ("", "on", "true", "yes", "1")  # values of X-Capture; any other, "off" or "false", keeps the request out
Handler = Callable[[Request, Visit], Awaitable[Response | Stream | Replay]]


class Route(NamedTuple):
    """What a path is for. `method` GET includes HEAD. A dict finds a path in 3 µs with its normalisation; starlette's router
    takes 9 to 32 µs."""

    method: str
    api: str
    needs_key: bool
    handle: Handler


class Gateway:
    """The ASGI application."""

    def __init__(self, run: RunDir, recipe: Recipe, key: str, versions: Versions, capture: Capture) -> None:
        self._recipe, self._versions, self._capture = recipe, versions, capture
        self._keys, self._limits = KeyRing(run, key), recipe.serve.limits
        self._hosts, self._cors = Hosts(recipe.serve), Cors(recipe.serve.cors_origins)
        self._concurrency = Concurrency(self._limits.concurrent_per_key)
        self._lines = WorkQueues()
        self._bodies = BodyReader(self._limits, self._lines)
        self._vetting = Vetting(recipe.model_name, model_file(recipe.model_path) if recipe.serve.upstream is None else None)
        self._metrics = Metrics()
        self._rating = Rating(run if capture.on else None, recipe, self._metrics.ratings)
        self._stored = StoredResponses()
        self._episode_secret, self._retries = episode_secret(run), Retries()
        self._recent = Recent() if recipe.serve.splice else None
        self._samples_as_asked = changes_nothing(recipe.serve.sampling)
        self._running: set[Answer] = set()
        self._about = About(run, recipe, versions, capture, self._metrics)
        self._routes = {
            "/v1/chat/completions": Route("POST", "chat", True, self._ask),
            "/v1/responses": Route("POST", "responses", True, self._ask),
            "/v1/completions": Route("POST", "completions", True, self._ask),
            "/v1/messages": Route("POST", "messages", True, self._ask),
            "/v1/messages/count_tokens": Route("POST", "count_tokens", True, self._count_tokens),
            "/v1/feedback": Route("POST", "feedback", True, self._rate),
            "/v1/outcome": Route("POST", "outcome", True, self._rate),
            "/v1/score": Route("POST", "score", True, self._score),
            **{f"/engine/{what}": Route("POST", "engine", True, self._control) for what in CONTROLS},
            "/v1/models": Route("GET", "models", True, self._about.models),
            "/health": Route("GET", "health", False, self._about.health),
            "/health/live": Route("GET", "health", False, self._about.alive),
            "/health/ready": Route("GET", "health", False, self._about.ready),
            "/metrics": Route("GET", "metrics", False, self._about.metrics),
            "/openapi.json": Route("GET", "openapi", False, self._about.openapi),
        }

    # ---- in and out ------------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not supported")  # uvicorn takes it for an application without a lifespan
        capability, scope = capability_in(scope)
        request = Request(scope, receive)
        visit = _visit(request)
        try:
            response = await self._answer(request, visit, capability)
            response.raw_headers.extend(_marks(visit))
            asks_leave = request.method == "OPTIONS" and response.status_code == 204
            response.raw_headers.extend(self._cors.marks(request.headers.get("origin"), bool(visit.key) or asks_leave))
            visit.status = response.status_code
            await response(scope, receive, send)
        finally:
            self._count(visit)

    async def _answer(self, request: Request, visit: Visit, capability: str | None) -> Response | Stream | Replay:
        try:
            return await self._route(request, visit, capability)
        except Refusal as refusal:
            return self._refuse(visit, refusal)
        except Exception:  # noqa: BLE001 - the edge of the process: the client gets an error, the log has the rest
            _log.exception("request %s failed", visit.request_id)
            return self._refuse(visit, Refusal(500, "internal error; the log of clawctl has the details"))

    async def _route(self, request: Request, visit: Visit, capability: str | None) -> Response | Stream | Replay:
        """Check what needs no body, and handle the request. Raises Refusal."""
        path, options = meant(request.scope["path"]), request.method == "OPTIONS"
        given = _given_key(request)
        if capability is None and is_capability(given):
            capability = given
        if capability is not None and not options:
            visit.episode = opened(self._episode_secret, capability, self._api_of(path, request.method))
            visit.key = visit.episode.key
        else:
            visit.key = self._keys.owner(given) or "" if given else ""
        if not visit.key and not (options and self._cors.asks(request.headers)):
            origins = [] if options else request.headers.getlist("origin")  # `cors` answers for those
            self._hosts.check(request.headers.getlist("host"), origins)
        route, allowed = self._find(path, request.method)
        if route is None:
            raise absent(request.scope["path"])
        visit.api = "options" if options else route.api
        if options:
            return self._options(request, f"{allowed}, OPTIONS")
        if request.method != route.method and not (route.method == "GET" and request.method == "HEAD"):
            raise Refusal(405, f"{request.method} is not supported on {path[:200]}", allow=allowed)
        if route.needs_key and not visit.key:
            raise Refusal(401, "the API key is missing or wrong; it is in RUN/api_key", code="invalid_api_key")
        return await route.handle(request, visit)

    def _find(self, path: str, method: str) -> tuple[Route | None, str]:
        """The route of a path, None if there is none, and its methods."""
        if path.startswith(_RESPONSES) and "/" not in path[len(_RESPONSES) :]:
            return Route("DELETE" if method == "DELETE" else "GET", "responses", True, self._stored_response), "GET, HEAD, DELETE"
        route = self._routes.get(path)
        if route is None and path.startswith("/v1/models/"):
            route = Route("GET", "models", True, self._about.model)
        return route, "GET, HEAD" if route is None or route.method == "GET" else route.method

    def _api_of(self, path: str, method: str) -> str:
        """The name of a route; "none" if there is none."""
        route, _ = self._find(path, method)
        return "stored" if route is not None and path.startswith(_RESPONSES) else "none" if route is None else route.api

    def _options(self, request: Request, allowed: str) -> Response:
        """The allowed methods of a route, also for a page's browser. Raises Refusal."""
        response = Response(status_code=204, headers={"allow": allowed})
        response.raw_headers.extend(self._cors.preflight(request.headers, allowed))
        return response

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

    # ---- one request ------------------------------------------------------------------------------------------------------

    async def _ask(self, request: Request, visit: Visit) -> Response | Stream | Replay:
        with ExitStack() as held:
            ask, writer = await self._read(request, visit, held), _WRITERS[visit.api]
            if visit.api == "responses":
                ask = self._stored.continued(visit.key, ask)
                writer = partial(responses.Responses, keep=partial(self._stored.keep, visit.key))
            if visit.episode is None:
                return await self._begin(request, visit, ask, writer)
            place = visit.episode.session_id, visit.api, visit.digest
            alone = Request(request.scope, never)  # it is answered even if its client hangs up
            return await self._retries.answer(place, visit, lambda own: self._begin(alone, own, ask, writer), request.scope)

    async def _read(self, request: Request, visit: Visit, held: ExitStack) -> Ask:
        """The ask, checked. `held` ends when it is answered or refused. Raises Refusal."""
        live, key = self._versions.live, visit.key
        most = most_body(self._limits.body_mb, live.max_context, live.capabilities.images)
        raw = await self._bodies.read(request, key, most, self._limits.body_values, held)
        length = len(raw) if len(raw) > LONG_BODY else 0  # of bodies that are read in a thread
        if visit.episode is not None:
            visit.digest = blake2b(raw, digest_size=16).digest()
        if length:
            await self._vetting.check(key, visit.api, raw, live.max_context, live.capabilities.images)
        body = await self._lines.run(key, length, partial(parse, raw))
        if visit.api == "responses":
            body = self._stored.with_items(key, body)
        ask = await self._lines.run(key, length, partial(READERS[visit.api], body, self._recipe.model_name))
        visit.unknown = ask.unknown
        self._metrics.unknown.count(visit.api, ask.unknown)
        if live.capabilities.images is False and has_images(ask.messages):
            raise Refusal(400, NO_IMAGES, "messages")
        if not length:
            check_ask(ask)
        return replace(ask, key=key, size=len(raw))

    async def _begin(self, request: Request, visit: Visit, ask: Ask, writer: Writer) -> Response | Stream:
        recent = None if ask.prompts else self._recent
        if recent is not None:
            ask = recent.known(visit.key, ask)
        headers = dict(reversed(request.headers.items()))  # the first of each name, to be looked up many times
        hints = read_hints(headers, ask.claims) | self._rating.hint(headers)
        if visit.episode is not None:
            hints = hints_of(visit.episode, hints)
            ask = replace(ask, model=self._recipe.model_name) if is_pinned(ask) else ask
        asks_not_to = headers.get("x-capture", "on").strip().lower() not in _CAPTURED
        for_training = visit.episode is not None or not (asks_not_to or is_pinned(ask))
        if for_training:
            ask = self._as_the_recipe_samples(ask, headers, visit)
        capture = self._capture if self._capture.on and for_training else None
        asks, plain = [ask], partial(completions.Completions)
        if ask.prompts:
            asks = await completions.each_prompt(ask, self._text_of)
            writer = plain = partial(completions.Completions, prompts=[each.messages[0]["content"] for each in asks])
        handle = new_handle()
        async with AsyncExitStack() as stack:
            stack.enter_context(self._concurrency.one_more(visit.key))
            if ask.score_from is not None:
                scored = [await self._scored(each) for each in asks]
                writer = partial(plain, scored=scored)
                if ask.max_tokens == 0:
                    choices = [
                        Choice(i, handle, finish_reason="length", prompt_tokens=len(tokens), completion_ids=[])
                        for i, tokens in enumerate(scored)
                    ]
                    return Response(writer(replace(ask, n=1), handle).whole(choices), media_type="application/json")
            try:
                session = hints.get("session_id")
                replies = [reply for each in asks for reply in await self._versions.begin(each, stack, session, for_training)]
            except Refusal as refusal:
                unanswered = Answer(asks[0], writer(ask, handle), [], handle, visit.arrived, hints, visit.key, capture)
                await unanswered.keep_refused(refusal)
                raise
            of_replies = [each for each in asks for _ in range(ask.n)]
            answer = Answer(ask, writer(ask, handle), replies, handle, visit.arrived, hints, visit.key, capture, recent, of_replies)
            for choice in answer.choices if capture is not None else ():
                self._rating.gave(visit.key, choice.exchange_id, hints.get("session_id"))
            self._running.add(answer)
            self._metrics.running += 1
            stack.callback(self._ended, answer, visit)
            open_stack = stack.pop_all()
        return Stream(answer, visit, open_stack) if ask.stream else await whole(answer, visit, open_stack, request.receive)

    async def _scored(self, ask: Ask) -> list[ShownToken]:
        """The tokens of a prompt with their logprobs. Raises Refusal."""
        prompt, first = ask.prompts[0], ask.score_from or 1
        if isinstance(prompt, str):
            raise Refusal(400, "'logprobs' with 'echo' needs a prompt of token ids", "prompt")
        logprobs = await score_ids(self._versions, ask.model, prompt, first, ask.key) if first < len(prompt) else []

        def shown() -> list[ShownToken]:
            known = [*[None] * min(first, len(prompt)), *logprobs]
            return [ShownToken(self._capture.text_of([token]), value, []) for token, value in zip(prompt, known, strict=True)]

        return await self._lines.run(ask.key, len(prompt), shown)

    async def _text_of(self, key: str, ids: tuple[int, ...]) -> str:
        """The text of token ids; "" if no tokenizer is known."""
        return await self._lines.run(key, len(ids), partial(self._capture.text_of, ids))

    def _as_the_recipe_samples(self, ask: Ask, headers: dict[str, str], visit: Visit) -> Ask:
        """The ask after `serve.sampling`. Requests that are not for training (`X-Capture: off`, a pinned version) stay
        unchanged."""
        if self._samples_as_asked and visit.episode is None:
            return ask
        client = client_of(headers, ask.sent_messages)
        if visit.episode is not None:
            rule = sampling_rule(self._recipe.serve)
        else:
            rule = rule_for(self._recipe.serve.sampling, visit.key, client, agent_of(headers))
        used, changes = enforce(ask.sampling, rule, self._recipe.serve.temperature)
        if not changes:
            return ask
        visit.sampling = "; ".join(map(str, changes))
        if new := self._metrics.enforced.count(client, changes):
            named = "; ".join(map(str, new))
            _log.info("serve.sampling: requests of %s are sampled with %s (/health counts them)", client, named)
        return replace(
            ask, temperature=used.temperature, top_p=used.top_p, top_k=used.top_k, engine_fields=dict(used.fields),
            asked={change.name: change.asked if isinstance(change.asked, float | int | None) else True for change in changes},
        )  # fmt: skip

    def _ended(self, answer: Answer, visit: Visit) -> None:
        self._running.discard(answer)
        self._metrics.running -= 1
        self._metrics.tokens_in[visit.api, visit.key] += sum(each.prompt_tokens for each in answer.choices[:: answer.ask.n])
        self._metrics.tokens_out[visit.api, visit.key] += sum(choice.completion_tokens for choice in answer.choices)

    # ---- the other handlers ------------------------------------------------------------------------------------------------

    async def _stored_response(self, request: Request, visit: Visit) -> Response:
        name = meant(request.scope["path"]).removeprefix(_RESPONSES)
        if request.method == "DELETE":
            return json_response(self._stored.forget(visit.key, name))
        return Response(self._stored.get(visit.key, name), media_type="application/json")

    async def _count_tokens(self, request: Request, visit: Visit) -> Response:
        with ExitStack() as held, self._concurrency.one_more(visit.key):
            ask = await self._read(request, visit, held)
            return json_response({"input_tokens": await self._versions.live.count(ask)})

    async def _rate(self, request: Request, visit: Visit) -> Response:
        raw = await self._bodies.read(request, visit.key, _LONGEST_RATING)
        with self._concurrency.one_more(visit.key):
            keep = self._rating.keep if visit.api == "feedback" else self._rating.keep_outcome
            return json_response(await keep(parse(raw), visit.key))

    async def _score(self, request: Request, visit: Visit) -> Response:
        live = self._versions.live
        most = most_body(self._limits.body_mb, live.max_context, images=False)
        raw = await self._bodies.read(request, visit.key, most, self._limits.body_values)
        with self._concurrency.one_more(visit.key):
            return json_response(await score(self._versions, raw, visit.key))

    async def _control(self, request: Request, visit: Visit) -> Response:
        raw = await self._bodies.read(request, visit.key, _LONGEST_RATING)
        what = meant(request.scope["path"]).removeprefix("/engine/")
        return json_response(await control(self._versions, what, raw, visit.key))

    def drain(self) -> None:
        """From now on the server reports that it is not ready, but still answers."""
        self._about.draining = True

    def cut(self) -> None:
        """End running requests, because their time is over. The sampled tokens are captured as cancelled."""
        for answer in self._running:
            answer.cancel()

    def stop(self) -> None:
        """When the event loop has ended."""
        self._vetting.stop()


def _visit(request: Request) -> Visit:
    given = request.headers.get("x-request-id", "")
    return Visit(given if _SANE_ID.fullmatch(given) else f"req_{new_handle()}", "none", envelope_of(request), time.time())


def _marks(visit: Visit) -> list[tuple[bytes, bytes]]:
    request_id = visit.request_id.encode()
    marks = [(b"x-request-id", request_id), (b"request-id", request_id), *unknown_header(visit.unknown)]
    return [*marks, (b"x-clawctl-sampling", visit.sampling.encode())] if visit.sampling else marks


def _given_key(request: Request) -> str:
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    return bearer.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
