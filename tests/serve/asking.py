"""Handmade requests."""

from typing import Any

import httpx
import orjson

from tests.serve.served import Server


def post(server: Server, content: bytes, key: str = "key", path: str = "/chat/completions", **headers: str) -> httpx.Response:
    return httpx.post(server.url + path, content=content, headers={"Authorization": f"Bearer {key}", **headers}, timeout=60)


def body(**settings: Any) -> bytes:
    return orjson.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, **settings})
