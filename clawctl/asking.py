"""One chat completion over HTTP, for environments of a few lines."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

from clawctl.http_client import Client, HttpResponse, RequestFailed, fetch, proxy_for
from clawctl.run.endpoint import Endpoint
from clawctl.run.handles import turn_of

TIMEOUT_S = 300.0  # sixteen concurrent calls on two cores need this long
_USED_UP = {"episode_over": "time", "context_length_exceeded": "context"}  # endings by the server's error code


class Refused(Exception):
    """The server did not answer a request properly: the status was not 200, or the answer broke off."""

    def __init__(self, problem: str, status: int | None = None, code: str | None = None):
        super().__init__(problem)
        self.status = status  # None: there was no complete HTTP response
        self.code = code  # the code in the server's error: "context_length_exceeded", "episode_over"

    @property
    def used_up(self) -> str | None:
        """What the policy used up: "time" or "context", an ending of the episode. None if the server failed."""
        return _USED_UP.get(self.code or "")


@dataclass(slots=True)
class CallCost:
    """The number of model calls and their tokens."""

    calls: int = 0
    tokens: int = 0  # in prompts and answers; a call whose answer has no `usage` adds none


_spent: ContextVar[CallCost | None] = ContextVar("spent", default=None)


@contextmanager
def counted_calls() -> Iterator[CallCost]:
    """Count the model calls made inside the block, including calls from tasks and threads that start there."""
    spent = CallCost()
    token = _spent.set(spent)
    try:
        yield spent
    finally:
        _spent.reset(token)


def count_call(usage: Any) -> None:
    """Count one call and the tokens in its `usage`. `ask` calls this; code that uses its own client must call it."""
    spent = _spent.get()
    if spent is not None:
        spent.calls += 1
        spent.tokens += int(usage.get("total_tokens") or 0) if isinstance(usage, dict) else 0


async def ask(
    endpoint: Endpoint,
    messages: list[dict[str, Any]],
    headers: Mapping[str, str] | None = None,
    stream: bool = False,
    client: Client | None = None,
    **sampling: Any,
) -> str:
    """Request one chat completion with the headers and sampling of `endpoint`. Returns the answer's text. Raises Refused."""
    body = {"model": endpoint.model, "messages": messages, **endpoint.sampling, **sampling}
    if stream:
        return _streamed_text(await _post(endpoint, {**body, "stream": True}, client, headers))
    return str(_message(await _post(endpoint, body, client, headers)).get("content") or "")


async def complete(endpoint: Endpoint, messages: list[dict[str, Any]], client: Client, **fields: Any) -> dict[str, Any]:
    """Request one chat completion with further fields, such as `tools`. Raises Refused.

    Returns its message: `content`, `tool_calls`, and `turn_id`, which is the key of the turn in `Outcome.steps`."""
    return _message(await _post(endpoint, {"model": endpoint.model, "messages": messages, **endpoint.sampling, **fields}, client))


async def completion(endpoint: Endpoint, client: Client, **fields: Any) -> dict[str, Any]:
    """Request one chat completion. Returns the whole answer, with all that the server adds (`return_token_ids`). Raises Refused."""
    try:
        answer: dict[str, Any] = orjson.loads((await _post(endpoint, {**endpoint.sampling, **fields}, client)).body)
        count_call(answer.get("usage"))
        return answer
    except (ValueError, AttributeError) as error:
        raise Refused(f"not a chat completion: {error!r}") from error


def new_client(endpoint: Endpoint) -> Client:
    """A client for several calls to the server of `endpoint`. Use it with `async with`."""
    server = _server_of(endpoint)
    return Client(server, None, proxy=proxy_for(server))


def _server_of(endpoint: Endpoint) -> str:
    parts = urlsplit(endpoint.url)
    return f"{parts.scheme}://{parts.netloc}"


async def _post(
    endpoint: Endpoint, body: dict[str, Any], client: Client | None, headers: Mapping[str, str] | None = None
) -> HttpResponse:
    server = _server_of(endpoint)
    if client is None or client.url != server:
        async with new_client(endpoint) as opened:
            return await _post(endpoint, body, opened, headers)
    path, sent = f"{endpoint.url.removeprefix(server)}/chat/completions", orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS)
    given = {"authorization": f"Bearer {endpoint.api_key}", **endpoint.headers, **(headers or {})}
    try:
        response = await client.request(path, sent, TIMEOUT_S, headers=given)
    except RequestFailed as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    if response.status != 200:
        raise _refused(response)
    return response


def _refused(response: HttpResponse) -> Refused:
    try:
        code = orjson.loads(response.body)["error"]["code"]
    except (ValueError, LookupError, TypeError):
        code = None
    text = response.body[:800].decode(errors="replace")[:200]
    return Refused(f"status {response.status}: {text}", response.status, code if isinstance(code, str) else None)


def _message(response: HttpResponse) -> dict[str, Any]:
    """The message of a chat completion, with its `turn_id`. Counts the call. Raises Refused."""
    try:
        answer = orjson.loads(response.body)
        count_call(answer.get("usage"))
        named = str(answer.get("id", ""))
        return {**answer["choices"][0]["message"], "turn_id": turn_of(named) or named}
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise Refused(f"not a chat completion: {error!r}") from error


def _streamed_text(response: HttpResponse) -> str:
    """The text of a streamed chat completion. Counts the call. Raises Refused."""
    pieces: list[str] = []
    lines = response.body.split(b"\n")  # not `splitlines`, which also splits at U+2028 within the text
    data = [line.removeprefix(b"data:").strip() for line in lines if line.startswith(b"data:")]
    if b"[DONE]" not in data:
        raise Refused("the stream broke off")
    try:
        for event in map(orjson.loads, data[: data.index(b"[DONE]")]):
            if "error" in event:
                raise Refused(f"error in the stream: {str(event['error'])[:200]}")
            pieces += [choice["delta"].get("content") or "" for choice in event["choices"]]
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise Refused(f"not a chat completion: {error!r}") from error
    count_call(None)
    return "".join(pieces)


class ServerHealth:
    """The health of the run's server, which may run on another machine."""

    def __init__(self, find: Callable[[], Endpoint]) -> None:
        self._find = find
        self._thread = ThreadPoolExecutor(1)  # `fetch` needs a thread without an event loop

    def read(self) -> dict[str, object]:
        """{} if the server does not answer."""
        server = self._find()
        try:
            url = f"{server.url.removesuffix('/v1')}/health"
            response = self._thread.submit(fetch, "GET", url, key=server.api_key, timeout_s=5.0)
            return dict(orjson.loads(response.result().body))
        except (RequestFailed, ValueError, TypeError):
            return {}

    def idle_for(self) -> float | None:
        """Seconds without a request of a person; None if the server does not answer."""
        idle_s = self.read().get("idle_s")
        return float(idle_s) if isinstance(idle_s, int | float) else None
