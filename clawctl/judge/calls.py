"""Calls to the judge: plain OpenAI chat completions. It waits for an unavailable server and stops on a refusal."""

import asyncio
import logging
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from clawctl.config import DEMO_MODEL, Recipe
from clawctl.errors import ClawError
from clawctl.http_client import Answer, Broken, Unreachable
from clawctl.judge.endpoints import Place, Places, retry_after_s
from clawctl.judge.posts import Posts
from clawctl.judge.prompts import judge_messages, new_fence
from clawctl.run.directory import RunDir
from clawctl.run.endpoint import Endpoint, own_endpoint

log = logging.getLogger(__name__)

TRIES = 4  # of a call that times out or breaks
LONGEST_WAIT_S = 5.0
_TOO_LONG = re.compile(rb"(?i)context|token|length|too (?:long|large)|maximum")  # how servers report a prompt that is too long
_NOT_NOW = (429, 503)  # busy, or still loading its model
_KEY_OR_MODEL = (401, 403, 404)
# Should the judge be this run's own server: its answers are not conversations to learn from.
_HEADERS = {"X-Turn-Type": "judge", "X-Capture": "off"}


class _Away(Exception):
    """The server is not available at the moment. The message gives the reason."""


class Refused(Exception):
    """The server answers other calls, but refused this one or answered it with something else than a chat completion."""

    def __init__(self, too_long: bool) -> None:
        super().__init__("refused")
        self.too_long = too_long  # it says so


@dataclass(slots=True)
class Spent:
    """The cost of a worker's calls."""

    calls: int = 0
    failed: int = 0  # no answer after TRIES, or a refusal of this one turn
    prompt_tokens: int = 0  # as the endpoint counts them
    completion_tokens: int = 0


class Calls:
    """Calls to the judge's endpoints, `concurrency` at a time, over kept connections.

    A server that is unreachable, busy (429) or loading (503) is skipped for as long as its Retry-After says, and the others are
    called. If none is available, calls wait without limit, or for `patience_s` and then raise ClawError. A call that times out,
    breaks or gets another 5xx is tried TRIES times, on another endpoint if there is one. After that it has no answer. A refusal of
    the key or model (401, 403, 404), or of all calls (other 4xx), is a ClawError.
    """

    def __init__(self, run: RunDir, recipe: Recipe, patience_s: float | None = None) -> None:
        self.spent = Spent()
        self._run, self._recipe, self._patience_s = run, recipe, patience_s
        settings = recipe.judge
        urls = [settings.endpoint, *settings.endpoints] if settings.endpoint else settings.endpoints
        given = list(dict.fromkeys(url.rstrip("/") for url in urls))
        finders: list[Callable[[], Endpoint | None]] = [partial(self._given_endpoint, url) for url in given]
        self._places = Places(finders or [self._own_endpoint], settings.requests_per_s)
        if not ((settings.api_key or "").isascii() and (settings.api_key or "").isprintable()):
            raise ClawError(
                "judge.api_key contains characters that an HTTP header must not contain",
                "copy it again: letters, digits and signs in one line",
                2,
            )
        self._posts = Posts(settings.timeout_s, _HEADERS, trust_env=bool(given))
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._away_since: float | None = None
        self._said_away = False
        self._told: set[str] = set()  # why calls had no answer

    @property
    def model(self) -> str:
        """The model that is asked, as the verdicts name it."""
        return self._recipe.judge.model or f"{self._recipe.model_name}@0"

    @property
    def asks_demo_model(self) -> bool:
        """Whether the model that is asked is a version of this run's own, which is the demo model."""
        own = self.model.partition("@")[0] == self._recipe.model_name
        return own and self._recipe.model_path == str(DEMO_MODEL)

    async def close(self) -> None:
        await self._posts.close()

    async def ask(self, messages: list[dict], model: str | None = None) -> str | None:
        """The judge's answer in its final channel; None if there was none.

        Raises Refused if the server refuses only this call, and ClawError if no call can succeed.
        """
        response = await self._in_turn(messages, model)
        if response is None:
            return None
        answer = _completion(response)
        if answer is None:
            await self._blame(response, model)  # raises
            return None
        self._count(answer.get("usage"))
        said = answer["choices"][0]["message"].get("content")
        return said if isinstance(said, str) else ""

    def _count(self, usage: object) -> None:
        counts = usage if isinstance(usage, dict) else {}
        prompt, completion = counts.get("prompt_tokens"), counts.get("completion_tokens")
        self.spent.prompt_tokens += prompt if isinstance(prompt, int) else 0
        self.spent.completion_tokens += completion if isinstance(completion, int) else 0

    async def _in_turn(self, messages: list[dict], model: str | None) -> Answer | None:
        async with self._slots:
            return await self._answered(messages, model)

    async def _answered(self, messages: list[dict], model: str | None) -> Answer | None:
        """The response, if there is one that is not the server's own trouble; None after TRIES broken calls."""
        broken, shun, why = 0, None, ""
        while broken < TRIES:
            place = await self._places.take(shun)
            try:
                response = await self._post(place, messages, model)
            except _Away as away:
                self._wait(str(away))
                continue
            except Broken as error:
                why = str(error)
            else:
                if response.status < 500:
                    self._is_there(place)
                    return response
                why = f"it answers {response.status}"
            finally:
                place.in_flight -= 1
            place.broke()
            broken, shun = broken + 1, place
            if broken < TRIES:
                await asyncio.sleep(min(0.25 * 2 ** (broken - 1), LONGEST_WAIT_S) * random.uniform(0.5, 1.0))
        self._fail(why)
        return None

    def _fail(self, why: str) -> None:
        """Record a call without an answer. Each reason is logged once; the counts contain the rest."""
        self.spent.failed += 1
        if why not in self._told:
            self._told.add(why)
            log.warning("a call to the judge failed: %s; the vote is invalid, and the count of invalid votes follows below", why)

    async def _post(self, place: Place, messages: list[dict], model: str | None) -> Answer:
        """Call one endpoint. Raises Broken, or _Away if it is not available; it is then skipped for a while."""
        endpoint = place.locate()
        if endpoint is None:
            place.rest(None)
            raise _Away("no server has registered")
        settings = self._recipe.judge
        body = {
            "model": model or self.model,
            "messages": messages,
            "temperature": settings.temperature,
            "max_tokens": settings.max_tokens,
        }
        try:
            response = await self._posts.post(f"{endpoint.url}/chat/completions", endpoint.api_key, orjson.dumps(body))
        except Unreachable as error:
            place.rest(None)
            raise _Away(f"{endpoint.url} cannot be reached") from error
        if response.status in _NOT_NOW:
            place.rest(retry_after_s(response.retry_after))
            raise _Away(f"{endpoint.url} answers {response.status}")
        self.spent.calls += 1
        return response

    def _is_there(self, place: Place) -> None:
        place.answered()
        if self._said_away:
            log.info("the judge answers again")
        self._away_since, self._said_away = None, False

    def _wait(self, why: str) -> None:
        """Handle an unavailable endpoint. The next call goes to the one with the fewest calls in flight. Logs the problem, and
        gives up after a while."""
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        away = now - self._away_since
        if away > 1.0 and not self._said_away:
            log.warning("the judge is not available (%s); waiting", why)
            self._said_away = True
        if self._patience_s is not None and away > self._patience_s:
            raise ClawError(f"the judge is not available: {why}", "start `clawctl serve` or set judge.endpoint; nothing is lost")

    def _own_endpoint(self) -> Endpoint | None:
        try:
            return own_endpoint(self._run, self._recipe, version=0)
        except ClawError:
            return None

    def _given_endpoint(self, url: str) -> Endpoint:
        own = self._own_endpoint()
        key = self._recipe.judge.api_key or (own.api_key if own is not None and own.url == url else "")
        return Endpoint(url=url, api_key=key, model=self.model)

    async def _blame(self, response: Answer, model: str | None) -> None:
        """Handle a refusal. One of the key, the model or all calls is an error for the user; one of this turn only (too long) is a
        failed vote."""
        where, told = f"the judge at {response.url} answers {response.status}", "the judge refused one turn"
        if response.status in _KEY_OR_MODEL or 300 <= response.status < 400:
            asked = model or self.model
            own = self._own_endpoint()
            if response.status == 401 and own is not None and response.url.startswith(own.url) and not self._recipe.judge.api_key:
                cure = "set CLAWCTL_API_KEY for judge to the server's key, or set serve.api_key in the recipe; nothing is lost"
                raise ClawError(f"{where}: this run's server was started with another key", cure)
            raise ClawError(where, f"check judge.endpoint, judge.api_key and judge.model ({asked!r}); nothing is lost")
        cure = "check its log; judge.max_tokens may exceed its limit; nothing is lost"
        if response.status == 200:
            where, told = f"{where} with something other than a chat completion", "an answer was not a chat completion,"
            cure = (
                "check judge.endpoint: it is the base URL of an OpenAI-compatible server and usually ends in /v1; nothing is lost"
            )
        small = judge_messages("Say hello.", "Hello.", "Thanks.", "user", new_fence())
        answered = await self._in_turn(small, model)
        if answered is not None and answered.status < 500 and _completion(answered) is None:
            raise ClawError(f"{where} to every call", cure)
        self._fail(f"{told} with status {response.status}")
        raise Refused(response.status in (400, 413, 422) and _TOO_LONG.search(response.body[:4096]) is not None)


def _completion(response: Answer) -> dict[str, Any] | None:
    """The body, if it is an OpenAI chat completion."""
    try:
        answer = orjson.loads(response.body) if response.status == 200 else None
        return answer if isinstance(answer["choices"][0]["message"], dict) else None  # type: ignore[index]
    except (ValueError, LookupError, TypeError):
        return None
