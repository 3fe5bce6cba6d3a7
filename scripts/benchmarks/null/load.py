"""The load: connections that each send a request as soon as the last one is answered. Prints a JSON line at the end.

A raw asyncio protocol, so that on a machine where asker and server share the cores little is taken by the asker.
"""

import argparse
import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import cast

import uvloop


@dataclass(slots=True)
class Count:
    requests: int = 0
    failures: int = 0
    latencies: list[float] = field(default_factory=list)
    said: str = ""  # the first failure


class Asker(asyncio.Protocol):
    """One connection: asks, reads to the end of the answer, asks again until the time is up."""

    def __init__(self, request: bytes, streamed: bool, until: float, count: Count) -> None:
        self._request, self._streamed, self._until, self._count = request, streamed, until, count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self._fail(f"the connection was closed: {exc}")
            self.done.set_result(None)

    def _ask(self) -> None:
        self._began, self._held = time.perf_counter(), b""
        self._transport.write(self._request)

    def _fail(self, said: str) -> None:
        self._count.failures += 1
        self._count.said = self._count.said or said

    def data_received(self, data: bytes) -> None:
        self._held = (self._held + data) if not self._streamed or len(self._held) < 400 else self._held[-16:] + data
        if not self._ended():
            return
        if b" 200 OK" not in self._head:
            self._fail(self._head[:300].decode(errors="replace"))
        else:
            self._count.requests += 1
            self._count.latencies.append(time.perf_counter() - self._began)
        if time.perf_counter() >= self._until:
            self.done.set_result(None)
            self._transport.close()
        else:
            self._ask()

    def _ended(self) -> bool:
        end = self._held.find(b"\r\n\r\n")
        if self._held.startswith(b"HTTP"):
            self._head = self._held[: max(end, 0) + 400]
        if self._held.endswith(b"0\r\n\r\n") and (self._streamed or b"transfer-encoding: chunked" in self._head.lower()):
            return True
        at = self._head.lower().find(b"content-length:")
        if end < 0 or at < 0:
            return False
        length = int(self._head[at + 15 :].split(b"\r\n", 1)[0])
        return len(self._held) >= end + 4 + length


async def ask(port: int, model: str, key: str, streamed: bool, connections: int, seconds: float) -> Count:
    """Ask for `seconds` on `connections`."""
    body = json.dumps({
        "model": model, "max_tokens": 200, "temperature": 1.0, "stream": streamed,
        "messages": [{"role": "system", "content": "You are kind."}, {"role": "user", "content": "Tell me a story."}],
    }, separators=(",", ":")).encode()  # fmt: skip
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    count, loop = Count(), asyncio.get_running_loop()
    until = time.perf_counter() + seconds
    askers = []
    for _ in range(connections):
        _, asker = await loop.create_connection(lambda: Asker(request, streamed, until, count), "127.0.0.1", port)
        askers.append(asker.done)
    await asyncio.wait(askers, timeout=seconds + 60)
    count.failures += sum(not done.done() for done in askers)
    return count


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="null")
    parser.add_argument("--key", default="key")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10)
    given = parser.parse_args()
    began = time.perf_counter()
    count = uvloop.run(ask(given.port, given.model, given.key, given.stream, given.connections, given.seconds))
    took = time.perf_counter() - began
    ordered = sorted(count.latencies) or [0.0]
    summary = {
        "rps": count.requests / took,
        "requests": count.requests,
        "failures": count.failures,
        "said": count.said,
        "p50_ms": 1000 * ordered[len(ordered) // 2],
        "p99_ms": 1000 * ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
    }
    print(json.dumps(summary))
