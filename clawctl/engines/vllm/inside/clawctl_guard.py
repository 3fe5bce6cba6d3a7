"""ASGI middleware at vLLM's plugin point `--middleware`: every path needs the key.

vLLM's own check leaves /pause, /collective_rpc and similar paths open.
"""

import hmac
import os
from typing import Any

import clawctl_multiplex  # type: ignore[import-not-found]  # in the same folder, on vLLM's path


class Guard:
    """Accepts only requests with the key with which the server was started."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._wanted = b"Bearer " + os.environ["VLLM_API_KEY"].encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await clawctl_multiplex.answer_over_socket(scope["app"])
        given = next((value for name, value in scope.get("headers", ()) if name == b"authorization"), b"")
        if scope["type"] != "http" or hmac.compare_digest(given, self._wanted):
            await self._app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})
