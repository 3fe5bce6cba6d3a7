"""The cost of clawctl between a client and vLLM: through it with capture on, and directly to the same server, in turns.

Case `vllm-cpu`. `clawctl serve --engine vllm` starts the server; its port and key are read from the process. Four ways ask the same
vLLM for the same number of tokens, in turn: `straight` asks for what a client asks for; `recorded` goes straight as well, but
asks for ids and logprobs too, as clawctl must; `relay` asks so through a process that hands on bytes and looks at none; `clawctl`
is through clawctl, which asks so. What vLLM takes for telling lies between the first two, what any server in between costs before
the third, and what is ours after it. What clawctl's vLLM does in another way than its own is telling ids and logprobs, and taking
our requests over one connection: `straight` has nothing of either. CLAWCTL_VLLM_PYTHON names the Python that has vLLM, if that
which runs this has none.
"""

import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from clawctl.config import Recipe
from clawctl.engines.vllm.child import SERVER
from clawctl.http_client import Client
from clawctl.run.checksums import read_sealed
from scripts.benchmarks.streams import KEY, Stream, ask, clawctl, has_vllm
from scripts.benchmarks.table import Row

Way = tuple[Client, dict[str, Any]]  # whom to ask, and what for beside an answer

CASE = "vllm-cpu"
_STREAMS = (1, 8, 32, 64)
_FIRSTS = 8  # times to first token in a round, at least
_WORDS = ("apples", "pears", "add", "half", "twice", "seven", "many", "left", "each", "boxes", "why", "sum")


def run(quick: bool) -> list[Row]:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    tokens, rounds = (32, 2) if quick else (128, 24)
    arguments = ["--max-model-len", "4096", "--max-num-seqs", "80"]
    serve = {"engine": "vllm", "engine_python": os.environ.get("CLAWCTL_VLLM_PYTHON"), "engine_args": arguments}
    recipe: dict[str, Any] = {"model": {"path": "crafts", "dtype": "float32"}, "serve": {**serve, "api_key": KEY, "port": 0}}
    if not has_vllm(CASE, Recipe.model_validate(recipe)):
        return []
    with tempfile.TemporaryDirectory(prefix="clawctl-bench-") as folder, clawctl(Path(folder), recipe) as (through, run):
        straight, key = _child(run)
        with _relay(straight) as relay:
            return asyncio.run(_measure(Client(straight, key), Client(relay, key), Client(through, KEY), tokens, rounds))


def _child(run: Path) -> tuple[str, str]:
    """URL and key of the vLLM that clawctl started."""
    served = psutil.Process(read_sealed((run / "serve.json").read_bytes())["pid"])
    server = next(child for child in served.children(recursive=True) if child.cmdline()[1:3] == ["-m", SERVER])
    arguments = server.cmdline()
    return f"http://127.0.0.1:{arguments[arguments.index('--port') + 1]}", server.environ()["VLLM_API_KEY"]


@contextmanager
def _relay(server: str) -> Iterator[str]:
    command = [sys.executable, "-m", "scripts.benchmarks.null.relay", server.rpartition(":")[2]]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


async def _measure(straight: Client, relay: Client, through: Client, tokens: int, rounds: int) -> list[Row]:
    rows = []
    telling = {"return_token_ids": True, "logprobs": True, "top_logprobs": 0}
    ways: dict[str, Way] = {
        "straight": (straight, {}),
        "recorded": (straight, telling),
        "relay": (relay, telling),
        "clawctl": (through, {}),
    }
    for target in ways.values():
        await _round(target, 2, 8)  # the first ones pay for what is made once
    for streams in _STREAMS:
        rates: dict[str, list[float]] = {way: [] for way in ways}
        firsts: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(_fewer(rounds, streams)):
            for way in _turned(list(ways), number):
                rounds_of = [await _round(ways[way], streams, tokens) for _ in range(max(1, _FIRSTS // streams))]
                answers = [answer for target, _ in rounds_of for answer in target]
                rates[way].append(sum(answer.tokens for answer in answers) / sum(seconds for _, seconds in rounds_of))
                firsts[way] += [1000 * (answer.pieces[0] - answer.asked_at) for answer in answers if answer.pieces]
        rate = {way: statistics.median(rates[way]) for way in ways}
        first = {way: statistics.median(firsts[way]) for way in ways}
        case = f"{CASE}@{streams}"
        rows += [
            Row(case, "throughput_ratio", _ratio(rates["clawctl"], rates["straight"]), "ratio"),
            Row(case, "throughput_ratio_recorded", _ratio(rates["recorded"], rates["straight"]), "ratio"),
            Row(case, "throughput_ratio_relay", _ratio(rates["relay"], rates["straight"]), "ratio"),
            Row(case, "ttft_added_ms_p50", first["clawctl"] - first["straight"], "ms"),
            Row(case, "ttft_added_recorded_ms_p50", first["recorded"] - first["straight"], "ms"),
            Row(case, "ttft_added_relay_ms_p50", first["relay"] - first["straight"], "ms"),
            *(Row(case, f"tokens_per_s_{way}", rate[way], "tokens/s") for way in ways),
        ]
    return rows


def _fewer(rounds: int, streams: int) -> int:
    """All of them only where a round is short: the machine's own ups and downs are as long as some rounds."""
    return rounds if streams == 8 or rounds < 4 else rounds // 2 if streams > 8 else rounds // 3


def _ratio(ours: list[float], theirs: list[float]) -> float:
    """Median over the rounds: what slows the machine for a while slows both."""
    return statistics.median(our / their for our, their in zip(ours, theirs, strict=True))


def _turned(ways: list[str], number: int) -> list[str]:
    """Each goes first as often as the others, and is followed by either."""
    ways = ways[number % len(ways) :] + ways[: number % len(ways)]
    return ways if number % 2 == 0 else ways[::-1]


async def _round(way: Way, streams: int, tokens: int) -> tuple[list[Stream], float]:
    client, extra = way
    began = time.perf_counter()
    answers = await asyncio.gather(*(ask(client, "/v1/chat/completions", _body(tokens) | extra) for _ in range(streams)))
    seconds = time.perf_counter() - began
    failed = [answer.failed for answer in answers if answer.failed]
    if failed:
        raise SystemExit(f"{len(failed)} of {streams} requests failed: {failed[0]}")
    return list(answers), seconds


def _body(tokens: int) -> dict[str, Any]:
    content = " ".join(random.choices(_WORDS, k=40))  # no two alike: nothing of it is cached
    body = {"model": "crafts", "messages": [{"role": "user", "content": content}], "max_tokens": tokens, "temperature": 1.0}
    return {**body, "ignore_eos": True, "stream_options": {"include_usage": True}}
