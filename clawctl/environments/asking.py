"""One chat completion over HTTP, as an environment of a few lines needs it."""

import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import httpx

from clawctl.run.endpoint import Endpoint

TIMEOUT_S = 300.0  # sixteen calls at a time on two cores need it


class Refused(Exception):
    """The server did not answer a request properly: another status than 200, or an answer that broke off."""

    def __init__(self, problem: str, status: int | None = None):
        super().__init__(problem)
        self.status = status  # None: no complete HTTP answer at all


async def ask(
    endpoint: Endpoint,
    messages: list[dict[str, Any]],
    headers: Mapping[str, str] | None = None,
    stream: bool = False,
    client: httpx.AsyncClient | None = None,
    **sampling: Any,
) -> str:
    """One chat completion, with the headers and the sampling of `endpoint`. Returns the text of the answer. Raises Refused."""
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
            raise Refused(f"status {response.status_code}: {response.text[:200]}", response.status_code)
        return str(response.json()["choices"][0]["message"].get("content") or "")
    except httpx.HTTPError as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise Refused(f"not a chat completion: {error!r}") from error


def new_client(endpoint: Endpoint) -> httpx.AsyncClient:
    secure = endpoint.url.startswith("https:")  # without TLS, certificates take 20 ms to load for nothing
    return httpx.AsyncClient(timeout=TIMEOUT_S, verify=secure)


async def _ask_streaming(client: httpx.AsyncClient, request: dict[str, Any], body: dict[str, Any]) -> str:
    words: list[str] = []
    ended = False
    async with client.stream("POST", **request, json=body) as response:
        if response.status_code != 200:
            text = (await response.aread()).decode(errors="replace")
            raise Refused(f"status {response.status_code}: {text[:200]}", response.status_code)
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
    return "".join(words)


async def complete(endpoint: Endpoint, messages: list[dict[str, Any]], client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    """One chat completion with further fields, such as `tools`. Returns its message: `content`, `tool_calls`. Raises Refused."""
    body = {"model": endpoint.model, "messages": messages, **endpoint.sampling, **fields}
    headers = {"Authorization": f"Bearer {endpoint.api_key}", **endpoint.headers}
    try:
        response = await client.post(f"{endpoint.url}/chat/completions", json=body, headers=headers)
        if response.status_code != 200:
            raise Refused(f"status {response.status_code}: {response.text[:200]}", response.status_code)
        return dict(response.json()["choices"][0]["message"])
    except httpx.HTTPError as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise Refused(f"not a chat completion: {error!r}") from error
