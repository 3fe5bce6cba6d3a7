"""Calls to the judge's endpoints: OpenAI chat completions, retried and distributed over the endpoints."""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from clawctl.backoff import backoff_s, retry_after_s
from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.http_client import Client, HttpResponse, RequestFailed, Unreachable, proxy_for
from clawctl.judge.fences import new_fence
from clawctl.judge.prompts import judge_messages
from clawctl.judge.shares import LIKELIEST
from clawctl.run.directory import RunDir
from clawctl.run.endpoint import QUIET, Endpoint, own_endpoint

log = logging.getLogger(__name__)

TRIES = 4  # for a call that times out or breaks off
LONGEST_WAIT_S = 5.0
FIRST_REST_S, LONGEST_REST_S = 0.1, 5.0
_AWAY_S, _LOADING_S = 1.0, 30.0  # an endpoint that was away for so long is reported
BREAKS = 3  # after this many consecutive broken calls, the endpoint rests
_LONGEST_ANSWER = 8 << 20  # bytes; far more than any vote with its reasoning
_TOO_LONG = re.compile(rb"(?i)context|token|length|too (?:long|large)|maximum")  # words in servers' errors about long prompts
_NOT_NOW = (429, 503)  # busy, or still loading its model
_KEY_OR_MODEL = (401, 403, 404)
_LOGPROBS = {"logprobs": True, "top_logprobs": LIKELIEST}
# If the judge is this run's own server, its answers must not be captured as conversations.
_HEADERS = {"X-Turn-Type": "judge", **QUIET}


class CallRefused(Exception):
    """The server answers other calls, but refused this one, or did not answer it with a chat completion."""

    def __init__(self, too_long: bool) -> None:
        super().__init__("refused")
        self.too_long = too_long  # the server says that the prompt is too long


@dataclass(slots=True)
class JudgeUsage:
    """The number of a worker's calls and their tokens."""

    calls: int = 0
    failed: int = 0  # no answer after TRIES, or a refusal of a single turn
    prompt_tokens: int = 0  # as counted by the endpoint
    completion_tokens: int = 0


class JudgeClient:
    """Calls the judge's endpoints over persistent connections, at most `concurrency` calls at a time.

    An endpoint that is unreachable, busy (429) or loading (503) is skipped; a Retry-After header sets for how long. The other
    endpoints are called. If none is available, calls wait, without limit or for `patience_s`, and then raise ClawError.

    A call that times out, breaks off or gets another 5xx is tried TRIES times, each time on another endpoint if possible. After
    that it has no answer. If the key or model is refused (401, 403, 404), or all calls are refused (other 4xx), ClawError is
    raised.
    """

    def __init__(self, run: RunDir, recipe: Recipe, patience_s: float | None = None) -> None:
        self.spent = JudgeUsage()
        self._run, self._recipe, self._patience_s = run, recipe, patience_s
        settings = recipe.judge
        urls = [settings.endpoint, *settings.endpoints] if settings.endpoint else settings.endpoints
        given = list(dict.fromkeys(url.rstrip("/") for url in urls))
        finders: list[Callable[[], Endpoint | None]] = [partial(self._given_endpoint, url) for url in given]
        self._pool = EndpointPool(finders or [self._own_endpoint], settings.requests_per_s)
        if not ((settings.api_key or "").isascii() and (settings.api_key or "").isprintable()):
            problem = "judge.api_key contains characters that an HTTP header must not contain"
            raise ClawError(problem, "copy it again: letters, digits and signs in one line", 2)
        self._clients: dict[tuple[str, str], Client] = {}  # by URL and key
        self._uses_proxies = bool(given)  # never for this run's own server
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._away_since: float | None = None
        self._logged_away = self._has_answered = False
        self._asks_logprobs = True  # False: the endpoint refuses calls that ask for them
        self._constrains: bool | None = None  # whether the endpoint constrains answers; None: not tried
        self._constraint_trial = asyncio.Lock()  # concurrent calls wait for the result of the first one
        self._logged_failures: set[str] = set()

    @property
    def model(self) -> str:
        """The name of the requested model, as in verdicts."""
        return self._recipe.judge.model or f"{self._recipe.model_name}@0"

    @property
    def is_away(self) -> bool:
        """Whether no endpoint has been available since the last answer."""
        return self._away_since is not None

    @property
    def has_limited_patience(self) -> bool:
        return self._patience_s is not None

    async def complete(self, messages: list[dict], model: str | None = None, is_trial: bool = False) -> str | None:
        """The judge's answer in its final channel, or None if no call succeeded.

        Raises CallRefused if the server refuses only this call, and ClawError if no call can succeed. With `is_trial`, a refusal is
        raised without checking its cause.
        """
        answer = await self._choice(messages, model, is_trial)
        return None if answer is None else _content(answer)

    async def complete_with_logprobs(self, messages: list[dict]) -> tuple[str, Any] | None:
        """Like `complete`, with the `logprobs.content` of the answer.

        In its place None if the endpoint gives none, or if reasoning that is not part of the answer came first.
        """
        answer = await self._choice(messages, with_logprobs=True)
        if answer is None:
            return None
        logprobs, message = answer.get("logprobs"), answer["message"]
        reasons = message.get("reasoning_content") or message.get("reasoning")
        return _content(answer), logprobs.get("content") if isinstance(logprobs, dict) and not reasons else None

    async def complete_in_form(self, messages: list[dict], schema: dict[str, Any]) -> dict[str, Any] | None:
        """The judge's answer, constrained to a JSON schema of an object; None without one.

        An endpoint whose first answer is not in the form does not constrain answers, and is not asked to again.
        """
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
        async with self._constraint_trial if self._constrains is None else contextlib.nullcontext():
            if self._constrains is False:
                return None
            async with self._slots:
                response = await self._post(orjson.dumps({**self._body(messages, None), "response_format": form}))
            if response is None:
                return None
            choice = _completion(response)
            self._count((choice or {}).get("usage"))
            answer = None if choice is None else _parsed(_content(choice["choices"][0]))
            self._constrains = self._constrains or answer is not None
            return answer

    def _body(self, messages: list[dict], model: str | None) -> dict[str, Any]:
        settings = self._recipe.judge
        return {
            "model": model or self.model,
            "messages": messages,
            "temperature": settings.temperature,
            "max_tokens": settings.max_tokens,
        }

    async def _choice(
        self, messages: list[dict], model: str | None = None, is_trial: bool = False, with_logprobs: bool = False
    ) -> dict[str, Any] | None:
        """The first choice of the completion. `with_logprobs`: with those of the likeliest tokens, if the endpoint gives them."""
        body = self._body(messages, model)
        async with self._slots:
            asks = with_logprobs and self._asks_logprobs
            response = await self._post(orjson.dumps({**body, **_LOGPROBS} if asks else body))
            if asks and response is not None and response.status in (400, 422):  # perhaps it does not know these fields
                response = await self._post(orjson.dumps(body))
                self._asks_logprobs = response is None or _completion(response) is None
        if response is None:
            return None
        answer = _completion(response)
        if answer is None:
            raise CallRefused(too_long=False) if is_trial else await self._refusal(response, model)
        self._count(answer.get("usage"))
        choice: dict[str, Any] = answer["choices"][0]
        return choice

    async def _post(self, body: bytes) -> HttpResponse | None:
        """The first response that is not a server failure. None after TRIES broken calls."""
        broken, avoided, problem = 0, None, ""
        while broken < TRIES:
            server = await self._pool.acquire(avoided)
            try:
                endpoint = server.locate()
                if endpoint is None:
                    self._skip(server, "no server has registered")
                    continue
                response = await self._client(endpoint).request("/chat/completions", body, self._recipe.judge.timeout_s)
                if response.status in _NOT_NOW:
                    self._skip(server, f"{endpoint.url} answers {response.status}", retry_after_s(response.retry_after))
                    continue
                self.spent.calls += 1
                if response.status < 500:
                    self._answers(server)
                    return response
                problem = f"it answers {response.status}"
            except Unreachable:
                self._skip(server, f"{endpoint.url if endpoint else 'the server'} cannot be reached")
                continue
            except RequestFailed as error:
                problem = str(error)
            finally:
                server.in_flight -= 1
            server.broke()
            broken, avoided = broken + 1, server
            if broken < TRIES:
                await asyncio.sleep(backoff_s(broken, 0.25, LONGEST_WAIT_S, jitter=True))
        self._count_failure(problem)
        return None

    def _client(self, endpoint: Endpoint) -> Client:
        key = endpoint.url, endpoint.api_key
        if key not in self._clients:
            proxy = proxy_for(endpoint.url) if self._uses_proxies else None
            self._clients[key] = Client(*key, _HEADERS, _LONGEST_ANSWER, proxy)
        return self._clients[key]

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    def _count(self, usage: object) -> None:
        counts = usage if isinstance(usage, dict) else {}
        prompt, completion = counts.get("prompt_tokens"), counts.get("completion_tokens")
        self.spent.prompt_tokens += prompt if isinstance(prompt, int) else 0
        self.spent.completion_tokens += completion if isinstance(completion, int) else 0

    def _count_failure(self, problem: str) -> None:
        """Count a call without an answer. Each problem is logged once."""
        self.spent.failed += 1
        if problem not in self._logged_failures:
            self._logged_failures.add(problem)
            log.warning(
                "a call to the judge failed: %s; the vote is invalid; a later line reports the number of invalid votes", problem
            )

    def _answers(self, endpoint: "EndpointState") -> None:
        endpoint.answered()
        self._has_answered = True
        if self._logged_away:
            log.info("the judge answers again")
        self._away_since, self._logged_away = None, False

    def _skip(self, endpoint: "EndpointState", problem: str, rest_s: float | None = None) -> None:
        """Let an unavailable endpoint rest; the next call uses another one. Raises ClawError after `patience_s`."""
        endpoint.back_off(rest_s)
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        away = now - self._away_since
        # Before the first answer, a server that was started together with this stage may still be loading its model.
        if away > (_AWAY_S if self._has_answered else _LOADING_S) and not self._logged_away:
            log.warning("the judge is not available (%s); waiting", problem)
            self._logged_away = True
        if self._patience_s is not None and away > self._patience_s:
            raise ClawError(
                f"the judge is not available: {problem}", "start `clawctl serve` or set judge.endpoint; nothing is lost"
            )

    def _own_endpoint(self) -> Endpoint | None:
        try:
            return own_endpoint(self._run, self._recipe, version=0)
        except ClawError:
            return None

    def _given_endpoint(self, url: str) -> Endpoint:
        ours = self._own_endpoint()
        key = self._recipe.judge.api_key or (ours.api_key if ours is not None and ours.url == url else "")
        return Endpoint(url=url, api_key=key, model=self.model)

    async def _refusal(self, response: HttpResponse, model: str | None) -> ClawError | CallRefused:
        """Find the cause of a refusal: key, model or all calls (an error for the user), or this turn only (a failed vote)."""
        problem, failure = f"the judge at {response.url} answers {response.status}", "the judge refused one turn"
        if response.status in _KEY_OR_MODEL or 300 <= response.status < 400:
            name = model or self.model
            ours = self._own_endpoint()
            if response.status == 401 and ours is not None and response.url.startswith(ours.url) and not self._recipe.judge.api_key:
                cure = "set CLAWCTL_API_KEY for judge to the server's key, or set serve.api_key in the recipe; nothing is lost"
                return ClawError(f"{problem}: this run's server was started with another key", cure)
            return ClawError(problem, f"check judge.endpoint, judge.api_key and judge.model ({name!r}); nothing is lost")
        cure = "check its log; judge.max_tokens may exceed its limit; nothing is lost"
        if response.status == 200:
            problem, failure = f"{problem} with data that is not a chat completion", "an answer was not a chat completion,"
            cure = (
                "check judge.endpoint: it is the base URL of an OpenAI-compatible server and usually ends in /v1; nothing is lost"
            )
        try:
            await self.complete(judge_messages("Say hello.", "Hello.", "Thanks.", "user", new_fence()), model, is_trial=True)
        except CallRefused:
            return ClawError(f"{problem} to every call", cure)
        self._count_failure(f"{failure} with status {response.status}")
        return CallRefused(response.status in (400, 413, 422) and _TOO_LONG.search(response.body[:4096]) is not None)


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        value = orjson.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _content(choice: dict[str, Any]) -> str:
    content = choice["message"].get("content")
    return content if isinstance(content, str) else ""


def _completion(response: HttpResponse) -> dict[str, Any] | None:
    """The body of the response if it is an OpenAI chat completion, otherwise None."""
    try:
        answer = orjson.loads(response.body) if response.status == 200 else None
        return answer if isinstance(answer["choices"][0]["message"], dict) else None  # type: ignore[index]
    except (ValueError, LookupError, TypeError):
        return None


@dataclass(slots=True)
class EndpointState:
    """One endpoint and its state."""

    find: Callable[[], Endpoint | None]  # returns the address if it is known; the address of this run's server may change
    endpoint: Endpoint | None = None
    in_flight: int = 0
    requests: int = 0
    backs_off_until: float = 0.0  # on the monotonic clock
    backoffs: int = 0  # consecutive rests
    breaks: int = 0  # consecutive broken calls
    next_slot: float = 0.0  # when the rate limit allows the next call

    def locate(self) -> Endpoint | None:
        self.endpoint = self.endpoint or self.find()
        return self.endpoint

    def answered(self) -> None:
        self.backoffs = self.breaks = 0

    def broke(self) -> None:
        """Record a call that timed out, broke off, or ended with a 5xx."""
        self.breaks += 1
        if self.breaks >= BREAKS:
            self.back_off(None)

    def back_off(self, retry_after_s: float | None) -> None:
        """Skip this endpoint for the requested time, or else for a time that grows with each rest."""
        now = time.monotonic()
        if self.backs_off_until > now and retry_after_s is None:
            return  # this call was in flight when the rest began
        self.backoffs += 1
        wait = backoff_s(self.backoffs, FIRST_REST_S, LONGEST_REST_S, jitter=True) if retry_after_s is None else retry_after_s
        self.backs_off_until = max(self.backs_off_until, now + wait)
        self.endpoint = None


class EndpointPool:
    """Selects the endpoint for a call: the one with the fewest calls in flight that does not rest, at most `per_s` per second."""

    def __init__(self, finders: list[Callable[[], Endpoint | None]], per_s: float | None) -> None:
        self.all = [EndpointState(find) for find in finders]
        self._gap_s = 1.0 / per_s if per_s else 0.0

    async def acquire(self, avoid: EndpointState | None = None) -> EndpointState:
        """Select an endpoint and wait for its rate limit. `avoid` is used only if there is no other.

        The caller must do `in_flight -= 1` afterwards.
        """
        while True:
            now = time.monotonic()
            awake = [server for server in self.all if server.backs_off_until <= now]
            if awake:
                break
            await asyncio.sleep(min(server.backs_off_until for server in self.all) - now)
        begins = {id(server): max(server.next_slot, now) for server in awake}
        endpoint = min(awake, key=lambda endpoint: (endpoint is avoid, begins[id(endpoint)], endpoint.in_flight, endpoint.requests))
        endpoint.in_flight += 1
        endpoint.requests += 1
        endpoint.next_slot = begins[id(endpoint)] + self._gap_s
        try:
            await asyncio.sleep(begins[id(endpoint)] - now)
        except asyncio.CancelledError:
            endpoint.in_flight -= 1
            raise
        return endpoint
