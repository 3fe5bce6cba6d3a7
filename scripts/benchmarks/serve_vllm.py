"""What standing between a client and vLLM costs: through clawctl with capture on, and straight to the same server, in turn.

Case `vllm-cpu`. Both ask the same vLLM for the same number of tokens; the way straight asks for what a client asks for, the way
through clawctl makes vLLM tell ids and logprobs of every token as well. CLAWCTL_VLLM_PYTHON names the Python that has
vLLM, if that which runs this has none.
"""

import asyncio
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from clawctl.config import Recipe
from clawctl.serve.backends.http import Client
from scripts.benchmarks.streams import KEY, Stream, ask, clawctl, has_vllm, vllm
from scripts.benchmarks.table import Row

CASE = "vllm-cpu"
_STREAMS = (1, 8, 32, 64)
_WORDS = ("apples", "pears", "add", "half", "twice", "seven", "many", "left", "each", "boxes", "why", "sum")


def run(quick: bool) -> list[Row]:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    tokens, rounds = (32, 2) if quick else (128, 7)
    arguments = ["--max-model-len", "4096", "--max-num-seqs", "80"]
    engine = {"engine": "vllm", "engine_python": os.environ.get("CLAWCTL_VLLM_PYTHON"), "engine_args": arguments}
    recipe: dict[str, Any] = {"model": {"path": "demo", "dtype": "float32"}, "serve": engine}
    served = Recipe.model_validate(recipe)
    if not has_vllm(CASE, served):
        return []
    with tempfile.TemporaryDirectory(prefix="clawctl-bench-") as folder, vllm(Path(folder), served) as straight:
        upstream = {"url": straight, "kind": "vllm", "api_key": KEY}
        with clawctl(Path(folder), {**recipe, "serve": {"api_key": KEY, "port": 0, "upstream": upstream}}) as (through, _):
            return asyncio.run(_measure(straight, through, tokens, rounds))


async def _measure(straight: str, through: str, tokens: int, rounds: int) -> list[Row]:
    rows = []
    ways = {"straight": Client(straight, KEY), "clawctl": Client(through, KEY)}
    for client in ways.values():
        await _round(client, 2, 8)  # the first ones pay for what is made once
    for streams in _STREAMS:
        rates: dict[str, list[float]] = {way: [] for way in ways}
        firsts: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(rounds):
            for way in sorted(ways, reverse=number % 2 == 0):  # each goes first as often as the other
                answers, seconds = await _round(ways[way], streams, tokens)
                rates[way].append(sum(answer.tokens for answer in answers) / seconds)
                firsts[way] += [1000 * (answer.pieces[0] - answer.asked) for answer in answers if answer.pieces]
        middle = {way: statistics.median(rates[way]) for way in ways}
        added = statistics.median(firsts["clawctl"]) - statistics.median(firsts["straight"])
        case = f"{CASE}@{streams}"
        ratio = statistics.median(ours / theirs for ours, theirs in zip(rates["clawctl"], rates["straight"], strict=True))
        rows += [
            Row(case, "throughput_ratio", ratio, "ratio"),
            Row(case, "ttft_added_ms_p50", added, "ms"),
            Row(case, "tokens_per_s_clawctl", middle["clawctl"], "tokens/s"),
            Row(case, "tokens_per_s_straight", middle["straight"], "tokens/s"),
        ]
    return rows


async def _round(client: Client, streams: int, tokens: int) -> tuple[list[Stream], float]:
    began = time.perf_counter()
    answers = await asyncio.gather(*(ask(client, "/v1/chat/completions", _body(tokens)) for _ in range(streams)))
    seconds = time.perf_counter() - began
    failed = [answer.failed for answer in answers if answer.failed]
    if failed:
        raise SystemExit(f"{len(failed)} of {streams} requests failed: {failed[0]}")
    return list(answers), seconds


def _body(tokens: int) -> dict[str, Any]:
    content = " ".join(random.choices(_WORDS, k=40))  # no two alike: nothing of it is cached
    asked = {"model": "demo", "messages": [{"role": "user", "content": content}], "max_tokens": tokens, "temperature": 1.0}
    return {**asked, "ignore_eos": True, "stream_options": {"include_usage": True}}
