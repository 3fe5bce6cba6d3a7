"""A real HTTP server for chat completions, answered by a function of the test. It has no engine and no gateway."""

import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from clawctl.run.directory import RunDir, publish_bytes
from scripts.asgi import serving

Answer = Callable[[dict[str, Any]], str | int]  # the words, or a status that is no success


@dataclass
class Answering:
    """The server's address, and the requests that it received."""

    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)  # {"body": …, "headers": …}


@contextmanager
def answering(answer: Answer, breaks_streams: bool = False, health: dict[str, Any] | None = None) -> Iterator[Answering]:
    """Serve on a free port of this machine until the block ends. `breaks_streams`: a streamed answer ends in the middle."""
    state = Answering()

    async def complete(request: Request) -> Response:
        body = await request.json()
        state.asked.append({"body": body, "headers": dict(request.headers)})
        text = answer(body)
        if isinstance(text, int):
            return JSONResponse({"error": {"message": "no"}}, status_code=text)
        if body.get("stream"):
            return StreamingResponse(_events(text, breaks_streams), media_type="text/event-stream")
        return JSONResponse({"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]})

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": []})

    async def say_health(request: Request) -> Response:
        return JSONResponse(health)

    chat = [Route(f"{prefix}/v1/chat/completions", complete, methods=["POST"]) for prefix in ("", "/e/{capability}")]
    routes = [*chat, Route("/v1/models", models), Route("/health", say_health)]
    app = Starlette(routes=routes)
    with serving(app) as address:
        state.url = address + "/v1"
        yield state


async def _events(text: str, breaks: bool) -> AsyncIterator[str]:
    for word in text.split(" "):
        event = {"choices": [{"index": 0, "delta": {"content": f"{word} "}}]}
        yield f"data: {json.dumps(event, ensure_ascii=False)}\n\n"  # U+2028 stays as it is, as from most servers
    if not breaks:
        yield f"data: {json.dumps({'choices': [{'index': 0, 'delta': {}, 'finish_reason': 'stop'}]})}\n\n"
        yield "data: [DONE]\n\n"


def announce(run: RunDir, url: str) -> None:
    """Write what a server of this run would have written."""
    publish_bytes(run.api_key, b"key\n")
    publish_bytes(run.root / "serve.json", orjson.dumps({"url": url, "pid": os.getpid()}))
