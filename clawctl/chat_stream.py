"""Requests of clawctl's own chat windows to the run's server, and the stream of an answer as it arrives."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from clawctl.errors import ClawError
from clawctl.http_client import Client, RequestFailed
from clawctl.printing import plain
from clawctl.run.endpoint import Endpoint


@dataclass(slots=True, kw_only=True)
class ChatStream(ABC):
    """Receives the stream (`ResponseReceiver`). A subclass shows each piece of the answer."""

    text: str = ""
    completion: str | None = None  # id of the completion
    problem: str | None = None  # why there is no whole answer
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    rest: bytes = b""  # of a line that has not ended

    @abstractmethod
    def show(self, piece: str) -> None: ...

    def feed(self, data: bytes) -> None:
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                self._take(orjson.loads(line[6:]))

    def _take(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            self.problem = str(chunk["error"].get("message"))
        self.completion = chunk.get("id") or self.completion
        for choice in chunk.get("choices") or ():
            if piece := choice["delta"].get("content"):
                self.text += piece
                self.show(piece)

    def ended(self, error: str | None) -> None:
        self.problem = self.problem or error
        self.is_over.set()


async def stream_answer(
    endpoint: Endpoint, headers: Mapping[str, str], messages: list[dict[str, Any]], receiver: ChatStream
) -> None:
    """Let `receiver` have the next answer. Raises ClawError for a refusal, RequestFailed without an answer."""
    body = orjson.dumps({"model": endpoint.model, "messages": messages, "stream": True})
    async with Client(endpoint.url, endpoint.api_key, headers) as client:
        stream = await client.stream("/chat/completions", body, receiver)
        if stream.status != 200:
            raise _refusal(stream.status, await stream.read())
        await receiver.is_over.wait()
        stream.release()


async def call(endpoint: Endpoint, method: str, path: str, body: dict[str, Any] | None = None) -> None:
    """One request, such as a rating. Raises ClawError for a refusal, and if the server does not answer."""
    try:
        async with Client(endpoint.url, endpoint.api_key) as client:
            response = await client.request(path, b"" if body is None else orjson.dumps(body), 60.0, method)
    except RequestFailed as error:
        problem = f"the server at {endpoint.url} does not answer ({error})"
        raise ClawError(problem, "start it: clawctl start, or clawctl up") from error
    if response.status >= 300:
        raise _refusal(response.status, response.body)


def _refusal(status: int, body: bytes) -> ClawError:
    message = f"the server answers {status}"
    with suppress(orjson.JSONDecodeError, LookupError, TypeError):
        message = str(orjson.loads(body)["error"]["message"])
    return ClawError(plain(message), "see `clawctl docs clients`")
