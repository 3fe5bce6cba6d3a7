"""Measures the judge stage: its resistance to attacks, its accuracy, and its throughput relative to a bare loop.

The peer is a bare loop with one plain `httpx.AsyncClient` and as many tasks as the judge may have calls in flight. It sends
prepared prompts of the same length, as many as the judge stage. `throughput_ratio_bare` is the median ratio of adjacent runs in the
order ABBA. The stage's time includes reading shards, voting and writing verdicts. The endpoint is a null judge in a separate
process, which answers after a fixed time.
"""

import asyncio
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from clawctl.config import Recipe
from clawctl.extensions.judge_lab.attacks import read_attacks
from clawctl.extensions.judge_lab.calibrate import flips
from clawctl.judge.fences import new_fence
from clawctl.judge.prompts import judge_messages
from clawctl.judge.protocol import Evidence, read_evidence
from clawctl.judge.view import view_turn
from clawctl.judge.worker import judge
from clawctl.run.directory import RunDir, open_run, published
from clawctl.run.rows import Turn
from clawctl.run.shards import read_verdicts, write_turns
from scripts.benchmarks.judge_obedient import obey
from scripts.benchmarks.table import Row, arguments, report

# Other forms than those of the suite: they show a defence that works on the suite alone.
HELD_OUT = read_attacks(Path(__file__).with_name("judge_held_out.jsonl"))

CONCURRENCY = 16
SHARD = 256  # turns per shard, as in collect
NULL_LATENCIES_S = (0.2, 0.05)
PAIRS = 4
DIFFER = 0.2  # share of the votes that are random


def main() -> None:
    options = arguments(__doc__ or "")
    with tempfile.TemporaryDirectory(prefix="clawctl-bench-") as folder:
        rows = rows_of(Path(folder), options.quick)
    report("judge", rows, options.json)


def rows_of(folder: Path, quick: bool) -> list[Row]:
    """Measure framing on a judge that obeys all unfenced text, and throughput on a judge that answers after a fixed time."""
    rows = []
    with null_judge(0.0) as url:
        flipped = asyncio.run(flips(open_run(folder / "obedient"), judged_by(url, rules=False)))
        rows += [
            Row("obedient judge", "attack_flip_rate", flipped["attack_flip_rate"], "share"),
            Row("obedient judge", "accuracy", flipped["right_without"], "share"),
            Row("obedient judge", "attacks", flipped["attacks"], "turns"),
        ]
        flipped = asyncio.run(flips(open_run(folder / "obedient"), judged_by(url, rules=False), HELD_OUT))
        rows += [
            Row("obedient judge, held-out attacks", "attack_flip_rate", flipped["attack_flip_rate"], "share"),
            Row("obedient judge, held-out attacks", "attacks", flipped["attacks"], "turns"),
        ]
    for latency in NULL_LATENCIES_S:
        turns = int((5 if quick else 20) * CONCURRENCY / latency)
        with null_judge(latency) as url:
            rows += throughput_rows(f"null judge, {1000 * latency:.0f} ms", folder / f"null-{latency}", judged_by(url), turns)
    latency = NULL_LATENCIES_S[-1]
    with null_judge(latency, DIFFER) as url:
        case = f"null judge, {1000 * latency:.0f} ms, up to 3 votes"
        rows += throughput_rows(case, folder / "null-votes", judged_by(url, votes=3), turns // 2)
    return rows


# ---- throughput ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    calls: int
    seconds: float
    cpu_s: float  # of this process, without the endpoint

    @property
    def rate(self) -> float:
        return self.calls / self.seconds


def throughput_rows(case: str, folder: Path, recipe: Recipe, count: int, pairs: int = PAIRS) -> list[Row]:
    """Measure the judge worker and the bare loop alternately."""
    turns = [_load_turn(number) for number in range(count)]
    ours: list[Run] = []
    bare: list[Run] = []
    for pair in range(pairs):
        run = open_run(folder / str(pair))
        for first in range(0, count, SHARD):
            write_turns(run.trajectories / f"{first:08d}.parquet", turns[first : first + SHARD])
        seen = [turn for path in published(run.trajectories, ".parquet") for turn in read_evidence(path)]
        if pair == 0:
            _bare(recipe, seen, 2 * CONCURRENCY)  # warm-up: the server's first calls are slow
        if pair % 2:
            bare.append(_bare(recipe, seen, ours[0].calls))
        ours.append(_ours(recipe, run))
        if not pair % 2:
            bare.append(_bare(recipe, seen, ours[0].calls))
    ratio = statistics.median(mine.rate / theirs.rate for mine, theirs in zip(ours, bare, strict=True))
    return [
        Row(case, "throughput_ratio_bare", ratio, "ratio"),
        Row(case, "calls_per_s", statistics.median(run.rate for run in ours), "1/s"),
        Row(case, "calls_per_s_bare", statistics.median(run.rate for run in bare), "1/s"),
        Row(case, "cpu_us_per_call", 1e6 * statistics.median(run.cpu_s / run.calls for run in ours), "us"),
        Row(case, "cpu_us_per_call_bare", 1e6 * statistics.median(run.cpu_s / run.calls for run in bare), "us"),
    ]


def _ours(recipe: Recipe, run: RunDir) -> Run:
    begun, used = time.monotonic(), time.process_time()
    judge(run, recipe, once=True)
    seconds, cpu_s = time.monotonic() - begun, time.process_time() - used
    verdicts = [verdict for path in published(run.verdicts, ".parquet") for verdict in read_verdicts(path)]
    return Run(sum(len(verdict.votes) for verdict in verdicts), seconds, cpu_s)


def _bare(recipe: Recipe, turns: list[Evidence], calls: int) -> Run:
    seconds, cpu_s = asyncio.run(bare_loop(recipe, list(islice(cycle(turns), calls))))
    return Run(calls, seconds, cpu_s)


async def bare_loop(recipe: Recipe, turns: list[Evidence]) -> tuple[float, float]:
    """Return wall and processor seconds for one prepared call per turn, with `CONCURRENCY` calls in flight."""
    settings = recipe.judge
    bodies = iter([_body(recipe, turn) for turn in turns])
    limits = httpx.Limits(max_connections=CONCURRENCY, max_keepalive_connections=CONCURRENCY)
    headers = {"Authorization": f"Bearer {settings.api_key}", "X-Capture": "off"}

    async def ask(client: httpx.AsyncClient) -> None:
        for body in bodies:
            answer = await client.post(f"{settings.endpoint}/chat/completions", json=body)
            answer.raise_for_status()
            answer.json()

    async with httpx.AsyncClient(limits=limits, headers=headers, timeout=120) as client:
        begun, used = time.monotonic(), time.process_time()
        await asyncio.gather(*(ask(client) for _ in range(CONCURRENCY)))
        return time.monotonic() - begun, time.process_time() - used


def _body(recipe: Recipe, turn: Evidence) -> dict[str, Any]:
    settings, seen = recipe.judge, view_turn(turn, recipe.judge.history_chars)
    messages = judge_messages(seen.request, seen.answer, seen.next_state, seen.role, new_fence(), seen.earlier)
    sampling = {"temperature": settings.temperature, "max_tokens": settings.max_tokens}
    return {"model": settings.model, "messages": messages, **sampling}


def _load_turn(number: int) -> Turn:
    """Make a turn of a long conversation. Its row repeats 2,000 prompt tokens, as collect's rows do."""
    return Turn(
        turn_id=f"t{number:06d}", session_id=f"s{number // 20:05d}", parent_turn_id=None, turn_index=number % 20, kind="main",
        source="serve", task_id=None, group_id=None, user="default", created_at=float(number),
        messages=[{"role": "user", "content": f"What is {number} times 3?"}], tools=None,
        response={"role": "assistant", "content": f"{number} times 3 is {3 * number}, because it is {number} three times."},
        next_state=[{"role": "user", "content": "nice, thanks"}], prompt_ids=list(range(2000)),
        completion_ids=list(range(60)), logprobs=[-0.5] * 60, policy_version=0, policy_version_end=0, temperature=1.0, top_p=1.0,
        top_k=0, finish_reason="stop", outcome_reward=None, feedback=None, trainable=True, untrainable_reason=None,
    )  # fmt: skip


def judged_by(endpoint: str, **settings: Any) -> Recipe:
    given = {
        "api_key": "k",
        "model": "null",
        "votes": 1,
        "concurrency": CONCURRENCY,
        "max_tokens": 64,
        "fitness": "skip",
        "notes": False,
        **settings,
    }
    return Recipe.model_validate({"judge": {"endpoint": endpoint, **given}})


@contextmanager
def null_judge(latency_s: float, differ: float = 0.0) -> Iterator[str]:
    """Run a server that answers like the obedient judge after `latency_s`. The share `differ` of its votes is random."""
    context = multiprocessing.get_context("spawn")
    ports: Any = context.Queue()
    server = context.Process(target=_serve_null, args=(latency_s, differ, ports), daemon=True)
    server.start()
    try:
        yield f"http://127.0.0.1:{ports.get(timeout=60)}/v1"
    finally:
        server.terminate()
        server.join()


def _serve_null(latency_s: float, differ: float, ports: Any) -> None:
    rng = Random(0)

    async def answer(request: Request) -> JSONResponse:
        body = await request.json()
        await asyncio.sleep(latency_s)
        said = f"\\boxed{{{rng.choice((-1, 0, 1))}}}" if rng.random() < differ else obey(body["messages"][1]["content"])
        message = {"role": "assistant", "content": said}
        usage = {"prompt_tokens": 300, "completion_tokens": 10}
        return JSONResponse({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})

    async def serve() -> None:
        app = Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])
        server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical"))
        serving = asyncio.ensure_future(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        ports.put(server.servers[0].sockets[0].getsockname()[1])
        await serving

    asyncio.run(serve())


if __name__ == "__main__":
    main()
