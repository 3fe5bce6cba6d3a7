"""What an agent's next request costs the server: a conversation of 50 kB, of which 1 kB is new.

Case `agent-prompts`. An upstream that computes nothing answers with few tokens, so that the figure is the prompt's: reading,
checking, redaction and capture. Processor time of the server and the processes that it started, streamed and not.
"""

import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from scripts.benchmarks import serve_null
from scripts.benchmarks.table import Row

CASE = "agent-prompts"
_TOKENS = 20
_BYTES, _NEW, _ANSWER = 50_000, 1_000, 220  # of a conversation, of what each request adds, and of an answer that comes back
_WARM = 4


class Agent:
    """A client whose conversation grows: tool results of the same size as the real ones, in prose."""

    def __init__(self, proxy: serve_null.Proxy, streamed: bool, size: int, seed: str) -> None:
        self._draw = random.Random(seed)
        self._words = [word for word in (Path(__file__).parent / "NOTES.md").read_text().split() if word.isascii()]
        self._url, self._body = f"http://127.0.0.1:{proxy.port}/v1/chat/completions", {"model": proxy.model, "max_tokens": _TOKENS}
        self._client = httpx.Client(headers={"authorization": f"Bearer {proxy.key}"}, timeout=60)
        self._streamed = streamed
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": self._text(size - 15_000)}]
        for _ in range(5):
            self.messages += [{"role": "user", "content": self._text(3_000)}, {"role": "assistant", "content": "Done."}]

    def _text(self, size: int) -> str:
        return " ".join(self._draw.choices(self._words, k=size // 4))[:size]

    def ask(self) -> None:
        self.messages.append({"role": "user", "content": self._text(_NEW - _ANSWER)})
        answer = self._client.post(self._url, json={**self._body, "messages": self.messages, "stream": self._streamed})
        answer.raise_for_status()
        said = "".join(map(serve_null.token, range(_TOKENS)))
        if not self._streamed and answer.json()["choices"][0]["message"]["content"] != said:
            raise SystemExit(f"the answer was changed: {answer.text[:300]}")
        self.messages.append({"role": "assistant", "content": said})


def cpu_s(proxy: serve_null.Proxy) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in (proxy.process, *proxy.process.children(recursive=True)))


def run(quick: bool) -> list[Row]:
    """The rows of this case."""
    rounds, requests, rows = 1 if quick else 5, 20, list[Row]()
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_null.null_upstream(_TOKENS) as bare,
        serve_null.clawctl(Path(folder), bare.port) as ours,
    ):
        for kind in ("whole", "stream"):
            measured(ours, kind == "stream", requests, f"{kind}, warm")  # rules are compiled when a text needs them
            taken = [measured(ours, kind == "stream", requests, f"{kind} {number}") for number in range(rounds)]
            rows.append(Row(f"{CASE}, {kind}", "cpu_ms_per_request", statistics.median(taken), "ms"))
    return [*rows, Row(CASE, "kb", _BYTES / 1000, "kB"), Row(CASE, "new_kb", _NEW / 1000, "kB")]


def measured(proxy: serve_null.Proxy, streamed: bool, requests: int, seed: str) -> float:
    agent = Agent(proxy, streamed, _BYTES - (_WARM + requests // 2) * _NEW, seed)
    for _ in range(_WARM):
        agent.ask()
    time.sleep(0.3)  # what the server does behind an answer
    before = cpu_s(proxy)
    for _ in range(requests):
        agent.ask()
    time.sleep(0.3)
    return 1000 * (cpu_s(proxy) - before) / requests
