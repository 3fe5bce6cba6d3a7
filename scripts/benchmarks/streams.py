"""Concurrent streaming chat completions with the time of each piece, which serving benchmarks use as load."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import yaml

from clawctl.config import Recipe
from clawctl.engines.vllm.child import check_vllm
from clawctl.errors import ClawError
from clawctl.http_client import Client, RequestFailed

KEY = "benchmark"
_STARTS_S = 900


@dataclass(slots=True)
class Stream:
    """One answer: the times of the request and of each piece, and the number of tokens."""

    asked_at: float = field(default_factory=time.perf_counter)
    pieces: list[float] = field(default_factory=list)
    tokens: int = 0
    failed: str | None = None

    def __post_init__(self) -> None:
        self._done = asyncio.Event()
        self._rest = b""

    _done: asyncio.Event = field(init=False)
    _rest: bytes = field(init=False)

    def feed(self, data: bytes) -> None:
        now = time.perf_counter()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                self._take(orjson.loads(line[6:]), now)

    def _take(self, chunk: dict[str, Any], now: float) -> None:
        if chunk.get("usage"):
            self.tokens = chunk["usage"]["completion_tokens"]
        if "error" in chunk:
            self.failed = str(chunk["error"])
        if any(choice["delta"].get("content") for choice in chunk.get("choices", ())):
            self.pieces.append(now)

    def ended(self, error: str | None) -> None:
        self.failed = self.failed or error or (None if self.tokens else "no usage was told")
        self._done.set()

    async def wait(self) -> None:
        await self._done.wait()


async def ask(client: Client, path: str, body: dict[str, Any]) -> Stream:
    """Send one request and read its whole stream."""
    stream = Stream()
    try:
        answer = await client.stream(path, orjson.dumps({**body, "stream": True}), stream)
        if answer.status == 200:
            await stream.wait()
            answer.release()
        else:
            stream.failed = f"{answer.status} {(await answer.read())[:200]!r}"
    except RequestFailed as broken:
        stream.failed = str(broken)
    return stream


@contextmanager
def clawctl(folder: Path, recipe: dict[str, Any]) -> Iterator[tuple[str, Path]]:
    """Run a server on a new run with captures. Yields its base URL and the run."""
    run, path = folder / "run", folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    command = [sys.executable, "-m", "clawctl", "serve", "--run", str(run), "--recipe", str(path), "--intercept"]
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _until(lambda: (run / "serve.json").exists(), process, folder / "serve.log")
        yield orjson.loads((run / "serve.json").read_bytes())["url"].removesuffix("/v1"), run
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def has_vllm(case: str, recipe: Recipe) -> bool:
    """Whether the Python in the recipe has vLLM. If not, a message is printed."""
    try:
        check_vllm(recipe)
    except ClawError as missing:
        print(f"{case}: {missing.problem}; its rows are left out", file=sys.stderr)
        return False
    return True


def _until(condition: Any, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _STARTS_S
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{log.stem} did not start: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.2)
