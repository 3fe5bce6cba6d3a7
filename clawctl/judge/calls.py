"""Asking the judge: plain OpenAI chat completions, patient with a server that is away, strict with one that refuses us."""

import asyncio
import logging
import time

import httpx

from clawctl.config import Recipe
from clawctl.endpoint import Endpoint, own_endpoint
from clawctl.errors import ClawError
from clawctl.judge.prompts import Vote, judge_messages, new_fence, read_vote
from clawctl.run_dir import RunDir

log = logging.getLogger(__name__)

TRIES = 4  # of a call that times out or breaks
LONGEST_WAIT_S = 5.0
_NOT_NOW = (429, 503)  # busy, or still loading its model
_KEY_OR_MODEL = (401, 403, 404)
_NO_VOTE = Vote(score=None, hint=None)
# Should the judge be this run's own server: its answers are not conversations to learn from.
_HEADERS = {"X-Turn-Type": "judge", "X-Capture": "off"}


class _Away(Exception):
    """The server cannot be asked just now; the message says why."""


class Calls:
    """Calls to one judge endpoint, `concurrency` at a time.

    A server that cannot be reached, is busy (429) or loads (503) is waited for: as long as it takes, or for `patience_s`, after
    which it is a ClawError. A call that times out, breaks or ends in another 5xx is tried TRIES times, then it is a failed vote.
    A refusal of our key or model (401, 403, 404), or of everything we ask (other 4xx), is a ClawError.
    """

    def __init__(self, run: RunDir, recipe: Recipe, patience_s: float | None = None) -> None:
        self.made = 0
        self.failed = 0
        self._run, self._recipe, self._patience_s = run, recipe, patience_s
        given = recipe.judge.endpoint
        if given is not None and not given.startswith(("http://", "https://")):
            raise ClawError(f"judge endpoint {given!r} is not an http URL", "give one such as http://127.0.0.1:8000/v1", 2)
        limits = httpx.Limits(max_connections=recipe.judge.concurrency, max_keepalive_connections=recipe.judge.concurrency)
        timeout = httpx.Timeout(recipe.judge.timeout_s, connect=10.0, pool=None)
        self._client = httpx.AsyncClient(limits=limits, timeout=timeout, headers=_HEADERS, trust_env=given is not None)
        self._turnstile = asyncio.Semaphore(recipe.judge.concurrency)
        self._endpoint: Endpoint | None = None
        self._away_since: float | None = None
        self._said_away = False

    @property
    def model(self) -> str:
        """The model that is asked, as the verdicts name it."""
        return self._recipe.judge.model or f"{self._recipe.model_name}@0"

    async def close(self) -> None:
        await self._client.aclose()

    async def vote(self, messages: list[dict]) -> Vote:
        """One answer of the judge, read. Raises ClawError where no call could succeed."""
        async with self._turnstile:
            response = await self._answered(messages)
        if response is None:
            return _NO_VOTE
        if response.status_code != 200:
            await self._blame(response)
            return _NO_VOTE
        try:
            return read_vote(response.json()["choices"][0]["message"]["content"] or "")
        except (ValueError, LookupError, TypeError):
            return _NO_VOTE

    async def _answered(self, messages: list[dict]) -> httpx.Response | None:
        """The response, if there is one that is not the server's own trouble; None after TRIES broken calls."""
        for broken in range(TRIES):
            await asyncio.sleep(min(0.25 * 2**broken, LONGEST_WAIT_S) if broken else 0)
            try:
                response = await self._reach(messages)
            except httpx.TransportError as error:
                log.debug("a call to the judge broke: %s", type(error).__name__)
                continue
            if response.status_code < 500:
                return response
        self.failed += 1
        return None

    async def _reach(self, messages: list[dict]) -> httpx.Response:
        """Ask until the server is there to be asked."""
        times = 0
        while True:
            try:
                response = await self._post(messages)
            except _Away as away:
                await self._wait(str(away), times)
                times += 1
                continue
            if self._said_away:
                log.info("the judge is there")
            self._away_since, self._said_away = None, False
            return response

    async def _post(self, messages: list[dict]) -> httpx.Response:
        self._endpoint = self._endpoint or self._find_endpoint()
        if self._endpoint is None:
            raise _Away("no server has announced itself")
        settings = self._recipe.judge
        body = {"model": self.model, "messages": messages, "temperature": settings.temperature, "max_tokens": settings.max_tokens}
        headers = {"Authorization": f"Bearer {self._endpoint.api_key}"} if self._endpoint.api_key else {}
        try:
            response = await self._client.post(f"{self._endpoint.url}/chat/completions", json=body, headers=headers)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _Away("it cannot be reached") from error
        if response.status_code in _NOT_NOW:
            raise _Away(f"it answers {response.status_code}")
        self.made += 1
        return response

    def _find_endpoint(self) -> Endpoint | None:
        settings = self._recipe.judge
        try:
            own = own_endpoint(self._run, self._recipe, version=0)
        except ClawError:
            own = None
        if settings.endpoint is None:
            return own
        url = settings.endpoint.rstrip("/")
        key = settings.api_key or (own.api_key if own is not None and own.url == url else "")
        return Endpoint(url=url, api_key=key, model=self.model)

    async def _wait(self, why: str, times: int) -> None:
        """Let a server that is away come back; it may do so at another address."""
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        away = now - self._away_since
        if away > 1.0 and not self._said_away:
            log.warning("the judge is away (%s), waiting for it", why)
            self._said_away = True
        if self._patience_s is not None and away > self._patience_s:
            where = self._endpoint.url if self._endpoint else f"of {self._run.root}"
            raise ClawError(f"the judge {where} is away: {why}", "start `clawctl serve` or set judge.endpoint; nothing is lost")
        if self._recipe.judge.endpoint is None:
            self._endpoint = None
        await asyncio.sleep(min(0.1 * 2 ** min(times, 10), LONGEST_WAIT_S))

    async def _blame(self, response: httpx.Response) -> None:
        """A refusal: of our key or model, or of everything, is the user's to mend; of this one turn (too long) is a failed vote."""
        where = f"the judge at {response.request.url} answers {response.status_code}"
        if response.status_code in _KEY_OR_MODEL or response.is_redirect:
            raise ClawError(where, f"check judge.endpoint, judge.api_key and judge.model ({self.model!r}); nothing is lost")
        small = judge_messages("Say hello.", "Hello.", "Thanks.", "user", new_fence())
        async with self._turnstile:
            answered = await self._answered(small)
        if answered is not None and 400 <= answered.status_code < 500:
            raise ClawError(
                f"{where} to everything it is asked", "see its log; judge.max_tokens may exceed its limit; nothing is lost"
            )
        self.failed += 1
        log.debug("the judge refused one turn with status %d", response.status_code)
