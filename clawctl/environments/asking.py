"""One chat completion over HTTP, for environments of a few lines."""

import json
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import httpx

from clawctl.run.endpoint import Endpoint

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
    client: httpx.AsyncClient | None = None,
    **sampling: Any,
) -> str:
    """Request one chat completion with the headers and sampling of `endpoint`. Returns the answer's text. Raises Refused."""
    body = {"model": endpoint.model, "messages": messages, **endpoint.sampling, **sampling}
    request: dict[str, Any] = {
        "url": f"{endpoint.url}/chat/completions",
        "headers": {"Authorization": f"Bearer {endpoint.api_key}", **endpoint.headers, **(headers or {})},
    }
    try:
        async with AsyncExitStack() as stack:
            used = client if client is not None else await stack.enter_async_context(new_client(endpoint))
            if stream:
                return await _ask_streaming(used, request, {**body, "stream": True})
            response = await used.post(**request, json=body)
        if response.status_code != 200:
            raise _refused(response.status_code, response.text)
        answer = response.json()
        count_call(answer.get("usage"))
        return str(answer["choices"][0]["message"].get("content") or "")
    except httpx.HTTPError as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise Refused(f"not a chat completion: {error!r}") from error


def _refused(status: int, text: str) -> Refused:
    try:
        code = json.loads(text)["error"]["code"]
    except (ValueError, LookupError, TypeError):
        code = None
    return Refused(f"status {status}: {text[:200]}", status, code if isinstance(code, str) else None)


def new_client(endpoint: Endpoint) -> httpx.AsyncClient:
    secure = endpoint.url.startswith("https:")  # loading certificates takes 20 ms, which plain HTTP does not need
    return httpx.AsyncClient(timeout=TIMEOUT_S, verify=secure)


async def _ask_streaming(client: httpx.AsyncClient, request: dict[str, Any], body: dict[str, Any]) -> str:
    words: list[str] = []
    ended = False
    async with client.stream("POST", **request, json=body) as response:
        if response.status_code != 200:
            raise _refused(response.status_code, (await response.aread()).decode(errors="replace"))
        async for line in response.aiter_lines():
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                ended = True
                continue
            event = json.loads(data)
            if "error" in event:
                raise Refused(f"error in the stream: {str(event['error'])[:200]}")
            words += [choice["delta"].get("content") or "" for choice in event["choices"]]
    if not ended:
        raise Refused("the stream broke off")
    count_call(None)
    return "".join(words)


async def complete(endpoint: Endpoint, messages: list[dict[str, Any]], client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    """Request one chat completion with further fields, such as `tools`. Raises Refused.

    Returns its message: `content`, `tool_calls`, and `turn_id`, which is the key of the turn in `Outcome.steps`."""
    body = {"model": endpoint.model, "messages": messages, **endpoint.sampling, **fields}
    headers = {"Authorization": f"Bearer {endpoint.api_key}", **endpoint.headers}
    try:
        response = await client.post(f"{endpoint.url}/chat/completions", json=body, headers=headers)
        if response.status_code != 200:
            raise _refused(response.status_code, response.text)
        answer = response.json()
        count_call(answer.get("usage"))
        return {**answer["choices"][0]["message"], "turn_id": str(answer.get("id", "")).removeprefix("chatcmpl-")}
    except httpx.HTTPError as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise Refused(f"not a chat completion: {error!r}") from error
