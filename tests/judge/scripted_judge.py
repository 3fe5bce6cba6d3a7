"""A judge that is a real HTTP server with scripted answers, in place of an external OpenAI-compatible endpoint."""

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from clawctl.engines.vllm.child import free_port
from scripts.asgi import serving

Script = Callable[[str, int], str | Response]  # (the judge's user message, number of the call) -> its answer


class ScriptedJudge:
    """Serves `script` on a port of its own between `start` and `stop`; `asked` holds the bodies and `headers` the headers."""

    def __init__(self, script: Script, port: int | None = None, delay_s: float = 0.0) -> None:
        self.script, self.delay_s = script, delay_s
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.asked: list[dict] = []
        self.headers: list[dict] = []
        self.connections: set[tuple] = set()  # the callers' addresses
        self.max_at_once = self._now = 0
        self._running = ExitStack()
        self.wait_for_calls = 1  # the first answer waits until this many calls run concurrently, or for ten seconds

    def start(self) -> "ScriptedJudge":
        app = Starlette(routes=[Route("/v1/chat/completions", self._answer, methods=["POST"])])
        self._running.enter_context(serving(app, self.port))
        return self

    def stop(self) -> None:
        self._running.close()

    async def _answer(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body)
        self.headers.append(dict(request.headers))
        self.connections.add(tuple(request.client or ()))
        self._now += 1
        self.max_at_once = max(self.max_at_once, self._now)
        try:
            await asyncio.sleep(self.delay_s)
            patience = time.monotonic() + 10.0
            while self.max_at_once < self.wait_for_calls and time.monotonic() < patience:
                await asyncio.sleep(0.01)
            said = self.script(body["messages"][1]["content"], len(self.asked))
        finally:
            self._now -= 1
        if isinstance(said, Response):
            return said
        message = {"role": "assistant", "content": said}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        return JSONResponse({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})
