"""The HTTP side: routes, keys, limits, errors. `Gateway.__call__` handles every request."""

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
from clawctl.engines.backend import Reply
from clawctl.run.directory import RunDir
from clawctl.run.keys import KeyRing
from clawctl.run.rows import plain_prompt
from clawctl.run.tokenizer_files import tokenizer_file
from clawctl.serve.about import About
from clawctl.serve.answer import Answer, new_handle
from clawctl.serve.capture import Capture
from clawctl.serve.clients import agent_of, client_of
from clawctl.serve.cors import Cors
from clawctl.serve.dialects import Ask, Dialect, Refusal, chat, completions, messages, responses
from clawctl.serve.encodings import encoding_of, unpacked
from clawctl.serve.hints import read_hints
from clawctl.serve.hosts import Hosts
from clawctl.serve.limits import Concurrency
from clawctl.serve.measure import check_ask, most_body, parse
from clawctl.serve.metrics import Metrics
from clawctl.serve.rating import Rating
from clawctl.serve.recent import Recent
from clawctl.serve.replies import LARGE, Stream, Visit, json_response, read_body, refused, whole
from clawctl.serve.routes import absent, envelope_of, meant
from clawctl.serve.sampling import changes_nothing, enforce, rule_for
from clawctl.serve.stored import Stored
from clawctl.serve.turns import SHORT, Lines
from clawctl.serve.unknown import header
from clawctl.serve.versions import Versions, is_pinned
from clawctl.serve.vetting import LONG_BODY, Vetting

_log = logging.getLogger("clawctl.serve")
_LONGEST_RATING = 64 << 10  # bytes
_LARGE_PER_KEY = 16  # requests with more than a megabyte that are read or answered at a time
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
Speaker = Callable[[Ask, str], Dialect]
_DIALECTS: dict[str, tuple[Callable[[dict[str, Any], str], Ask], Speaker]] = {
    "chat": (chat.read, chat.Chat),
    "responses": (responses.read, responses.Responses),
    "messages": (messages.read, messages.Messages),
    "count_tokens": (messages.read_count, messages.Messages),
    "completions": (completions.read, completions.Completions),
}
_RESPONSES = "/v1/responses/"
_CAPTURED = ("", "on", "true", "yes", "1")  # values of X-Capture; any other, "off" or "false", keeps the request out
Handler = Callable[[Request, Visit], Awaitable[Response | Stream]]


class Gateway:
    """The ASGI application."""

    def __init__(self, run: RunDir, recipe: Recipe, key: str, versions: Versions, capture: Capture) -> None:
        self._recipe, self._versions, self._capture = recipe, versions, capture
        self._keys, self._limits = KeyRing(run, key), recipe.serve.limits
        self._hosts, self._cors = Hosts(recipe.serve), Cors(recipe.serve.cors_origins)
        self._concurrency = Concurrency(self._limits.concurrent_per_key)
        self._large_bodies = Concurrency(_LARGE_PER_KEY, "large requests")
        self._lines = Lines()
        self._vetting = Vetting(recipe.model_name, tokenizer_file(recipe.model_path) if recipe.serve.upstream is None else None)
        self._metrics = Metrics()
        self._rating = Rating(run if capture.on else None, recipe, self._metrics.ratings)
        self._stored = Stored()
        self._recent = Recent() if recipe.serve.splice else None
        self._samples_as_asked = changes_nothing(recipe.serve.sampling)
        self._running: set[Answer] = set()
        self._about = About(run, recipe, versions, capture, self._metrics)
        self._routes: dict[str, tuple[str, str, bool, Handler]] = {  # path: method, API, whether a key is needed, handler
            "/v1/chat/completions": ("POST", "chat", True, self._ask),
            "/v1/responses": ("POST", "responses", True, self._ask),
            "/v1/completions": ("POST", "completions", True, self._ask),
            "/v1/messages": ("POST", "messages", True, self._ask),
            "/v1/messages/count_tokens": ("POST", "count_tokens", True, self._count_tokens),
            "/v1/feedback": ("POST", "feedback", True, self._rate),
            "/v1/outcome": ("POST", "outcome", True, self._rate),
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
            raise RuntimeError(f"{scope['type']} is not supported")  # uvicorn takes it for an application without a lifespan
        request = Request(scope, receive)
        visit = _visit(request)
        try:
            response = await self._answer(request, visit)
            response.raw_headers.extend(_marks(visit))
            asks_leave = request.method == "OPTIONS" and response.status_code == 204
            response.raw_headers.extend(self._cors.marks(request.headers.get("origin"), bool(visit.key) or asks_leave))
            visit.status = response.status_code
            await response(scope, receive, send)
        finally:
            self._count(visit)

    async def _answer(self, request: Request, visit: Visit) -> Response | Stream:
        try:
            return await self._route(request, visit)
        except Refusal as refusal:
            return self._refuse(visit, refusal)
        except Exception:  # noqa: BLE001 - the edge of the process: the client gets an error, the log has the rest
            _log.exception("request %s failed", visit.request_id)
            return self._refuse(visit, Refusal(500, "internal error; the log of clawctl has the details"))

    async def _route(self, request: Request, visit: Visit) -> Response | Stream:
        path = meant(request.scope["path"])
        found = self._routes.get(path)
        if found is None and path.startswith("/v1/models/"):
            found = ("GET", "models", True, self._about.model)
        if found is None and path.startswith(_RESPONSES) and "/" not in path[len(_RESPONSES) :]:
            found = ("DELETE" if request.method == "DELETE" else "GET", "responses", True, self._stored_response)
        given = _given_key(request)
        visit.key = self._keys.owner(given) or "" if given else ""
        if not visit.key and not (request.method == "OPTIONS" and self._cors.asks(request.headers)):
            origins = [] if request.method == "OPTIONS" else request.headers.getlist("origin")  # `cors` answers for those
            self._hosts.check(request.headers.getlist("host"), origins)
        if found is None:
            raise absent(request.scope["path"])
        method, visit.api, locked, handle = found
        allowed = "GET, HEAD, DELETE" if handle == self._stored_response else "GET, HEAD" if method == "GET" else method
        if request.method == "OPTIONS":
            visit.api = "options"
            return self._options(request, f"{allowed}, OPTIONS")
        if request.method != method and not (method == "GET" and request.method == "HEAD"):
            raise Refusal(405, f"{request.method} is not supported on {path[:200]}", allow=allowed)
        if locked and not visit.key:
            raise Refusal(401, "the API key is missing or wrong; it is in RUN/api_key", code="invalid_api_key")
        return await handle(request, visit)

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

    # ---- ending ----------------------------------------------------------------------------------------------------------

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

    # ---- asks ------------------------------------------------------------------------------------------------------------

    async def _ask(self, request: Request, visit: Visit) -> Response | Stream:
        with ExitStack() as held:
            ask, speaks = await self._read(request, visit, held)
            if visit.api == "responses":
                ask = self._stored.continued(visit.key, ask)
                speaks = partial(responses.Responses, keep=partial(self._stored.keep, visit.key))
            return await self._begin(request, visit, ask, speaks)

    async def _begin(self, request: Request, visit: Visit, ask: Ask, speaks: Speaker) -> Response | Stream:
        recent = None if ask.prompts else self._recent
        if recent is not None:
            ask = recent.known(visit.key, ask)
        headers = dict(reversed(request.headers.items()))  # the first of each name, to be looked up many times
        hints = read_hints(headers, ask.claims) | self._rating.hint(headers)
        wanted = headers.get("x-capture", "on").strip().lower() in _CAPTURED
        if wanted and not is_pinned(ask):
            ask = self._as_the_recipe_samples(ask, headers, visit)
        asks = [ask]
        if ask.prompts:
            asks = await self._with_texts(completions.each_prompt(ask))
            speaks = partial(completions.Completions, prompts=[each.messages[0]["content"] for each in asks])
        handle = new_handle()
        async with AsyncExitStack() as stack:
            stack.enter_context(self._concurrency.one_more(visit.key))
            replies, pinned = list[Reply](), False
            try:
                for each in asks:
                    begun, pinned = await self._versions.begin(each, stack)
                    replies += begun
            except Refusal as refusal:
                if self._capture.on and wanted and not is_pinned(ask):
                    unanswered = Answer(asks[0], speaks(ask, handle), [], handle, visit.arrived, hints, visit.key, self._capture)
                    await unanswered.keep_refused(refusal)
                raise
            capture = self._capture if self._capture.on and wanted and not pinned else None
            of_replies = [each for each in asks for _ in range(ask.n)]
            answer = Answer(ask, speaks(ask, handle), replies, handle, visit.arrived, hints, visit.key, capture, recent, of_replies)
            for choice in answer.choices if capture is not None else ():
                self._rating.gave(visit.key, choice.exchange_id, hints.get("session_id"))
            self._running.add(answer)
            self._metrics.running += 1
            stack.callback(self._ended, answer, visit)
            kept = stack.pop_all()
        return Stream(answer, visit, kept) if ask.stream else await whole(answer, visit, kept, request.receive)

    async def _with_texts(self, asks: list[Ask]) -> list[Ask]:
        """The asks, with texts for prompts that are token ids, if a tokenizer is available. Raises Refusal."""
        found = []
        for ask in asks:
            prompt = ask.prompts[0]
            if not isinstance(prompt, str):
                text = await self._lines.run(ask.key, len(prompt), partial(self._capture.text_of, prompt))
                if not text and ask.echo["echo"]:
                    raise Refusal(400, "'echo' is not supported: this server has no tokenizer for token ids", "echo")
                if text:
                    said = [plain_prompt(text)]
                    ask = replace(ask, messages=said, sent_messages=said)
            found.append(ask)
        return found

    def _as_the_recipe_samples(self, ask: Ask, headers: dict[str, str], visit: Visit) -> Ask:
        """The ask after `serve.sampling`. Requests that are not for training (`X-Capture: off`, a pinned version) stay
        unchanged."""
        config = self._recipe.serve.sampling
        if self._samples_as_asked:
            return ask
        client = client_of(headers, ask.sent_messages)
        rule = rule_for(config, visit.key, client, agent_of(headers))
        used, changes = enforce(ask.sampling, rule, self._recipe.serve.temperature)
        if not changes:
            return ask
        visit.sampling = "; ".join(map(str, changes))
        if new := self._metrics.enforced.count(client, changes):
            told = "; ".join(map(str, new))
            _log.info("serve.sampling: requests of %s are sampled with %s (/health counts them)", client, told)
        return replace(
            ask, temperature=used.temperature, top_p=used.top_p, top_k=used.top_k, engine_fields=dict(used.fields),
            asked={change.name: change.asked if isinstance(change.asked, float | int | None) else True for change in changes},
        )  # fmt: skip

    async def _stored_response(self, request: Request, visit: Visit) -> Response:
        name = meant(request.scope["path"]).removeprefix(_RESPONSES)
        if request.method == "DELETE":
            return json_response(self._stored.forget(visit.key, name))
        return Response(self._stored.get(visit.key, name), media_type="application/json")

    async def _count_tokens(self, request: Request, visit: Visit) -> Response:
        with ExitStack() as held, self._concurrency.one_more(visit.key):
            ask, _ = await self._read(request, visit, held)
            return json_response({"input_tokens": await self._versions.live.count(ask)})

    async def _rate(self, request: Request, visit: Visit) -> Response:
        raw = await self._body(request, visit.key, _LONGEST_RATING)
        with self._concurrency.one_more(visit.key):
            keep = self._rating.keep if visit.api == "feedback" else self._rating.keep_outcome
            return json_response(await keep(parse(raw), visit.key))

    async def _read(self, request: Request, visit: Visit, held: ExitStack) -> tuple[Ask, Speaker]:
        """The ask, checked. `held` ends when it is answered or refused. Raises Refusal."""
        live, key = self._versions.live, visit.key
        read, speaks = _DIALECTS[visit.api]

        def large() -> None:
            held.enter_context(self._large_bodies.one_more(key))

        most = most_body(self._limits.body_mb, live.max_context, live.capabilities.images)
        raw = await self._body(request, key, most, self._limits.body_values, large)
        length = len(raw) if len(raw) > LONG_BODY else 0  # of bodies that are read in a thread
        if length:
            await self._vetting.check(key, visit.api, raw, live.max_context)
        body = await self._lines.run(key, length, partial(parse, raw))
        if visit.api == "responses":
            body = self._stored.with_items(key, body)
        ask = await self._lines.run(key, length, partial(read, body, self._recipe.model_name))
        visit.unknown = ask.unknown
        self._metrics.unknown.count(visit.api, ask.unknown)
        if not length:
            check_ask(ask)
        return replace(ask, key=key, size=len(raw)), speaks

    async def _body(
        self, request: Request, key: str, most: int, most_values: int = 1 << 16, large: Callable[[], None] | None = None
    ) -> bytes:
        """The body, decompressed if needed. Raises Refusal; see `read_body`."""
        encoding = encoding_of(request.headers.get("content-encoding", ""))
        if encoding is None:
            return await read_body(request, most, self._limits.body_s, most_values, large)
        packed = await read_body(request, most, self._limits.body_s, most, large)
        if not packed:
            return packed
        size = max(len(packed), SHORT + 1)  # never on the event loop, because the decompressed size is not known
        raw = await self._lines.run(key, size, partial(unpacked, encoding, packed, most, most_values))
        if large is not None and len(packed) <= LARGE < len(raw):
            large()
        return raw

    def _ended(self, answer: Answer, visit: Visit) -> None:
        self._running.discard(answer)
        self._metrics.running -= 1
        self._metrics.tokens_in[visit.api, visit.key] += sum(each.prompt_tokens for each in answer.choices[:: answer.ask.n])
        self._metrics.tokens_out[visit.api, visit.key] += sum(choice.completion_tokens for choice in answer.choices)


def _visit(request: Request) -> Visit:
    given = request.headers.get("x-request-id", "")
    return Visit(given if _SANE_ID.fullmatch(given) else f"req_{new_handle()}", "none", envelope_of(request), time.time())


def _marks(visit: Visit) -> list[tuple[bytes, bytes]]:
    request_id = visit.request_id.encode()
    marks = [(b"x-request-id", request_id), (b"request-id", request_id), *header(visit.unknown)]
    return [*marks, (b"x-clawctl-sampling", visit.sampling.encode())] if visit.sampling else marks


def _given_key(request: Request) -> str:
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    return bearer.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
