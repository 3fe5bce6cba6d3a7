"""A hundred hot swaps under load, of adapters and of full weights, on both engines: failed requests, gaps, wrong version tags.

Case `swap`. Streams run all the time while `policies/LIVE` moves from version to version. `logprob_mismatch_max` is the largest
difference between a captured logprob and the one that the trainer's model of the claimed version computes over the same ids, over
every answer that one version sampled alone; answers that ran across a swap of full weights carry two versions and are counted.
CLAWCTL_VLLM_PYTHON names the Python that has vLLM, if that which runs this has none; without any, the rows of vLLM are left out,
and that is said.
"""

import asyncio
import os
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import orjson
import torch

from clawctl.config import Recipe
from clawctl.engines import THERE_AND_BACK
from clawctl.http_client import Client
from clawctl.run.directory import RunDir, open_run
from clawctl.run.gguf import model_folder
from clawctl.run.policies import move_live, publish_policy
from clawctl.run.rows import Policy
from scripts.benchmarks.streams import KEY, Stream, ask, clawctl, has_vllm
from scripts.benchmarks.table import Row

CASE = "swap"
_VERSIONS = 3  # published ones that LIVE moves between
_STREAMS, _TOKENS = 4, 200
CANARY_IDS = [[3, 4, 5, 6], [7, 8, 9]]
_PATIENCE_S = 60.0


def run(quick: bool) -> list[Row]:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    torch.set_num_threads(1)
    rows = []
    for engine in ("transformers", "vllm"):
        for kind in ("adapter", "full"):
            recipe = _recipe(engine, kind, quick)
            if engine == "vllm" and not has_vllm(f"{CASE}/{engine}/{kind}", Recipe.model_validate(recipe)):
                continue
            with tempfile.TemporaryDirectory(prefix="clawctl-bench-") as folder, clawctl(Path(folder), recipe) as (url, root):
                rows += _case(f"{CASE}/{engine}/{kind}", url, open_run(root), kind, 6 if quick else 100)
    return rows


def _recipe(engine: str, kind: str, quick: bool) -> dict[str, Any]:
    serve: dict[str, Any] = {"engine": engine, "api_key": KEY, "port": 0, "threads": 1}
    eager = ["--enforce-eager"] if quick else []  # compiling takes longer than a few swaps
    if engine == "vllm":
        serve |= {"engine_python": os.environ.get("CLAWCTL_VLLM_PYTHON"), "engine_args": ["--max-model-len", "4096", *eager]}
    train = {"lora": {"rank": 8, "alpha": 16.0}} if kind == "adapter" else {}
    return {"model": {"path": "crafts", "dtype": "float32"}, "serve": serve, "train": train}


def _case(case: str, url: str, run: RunDir, kind: str, swaps: int) -> list[Row]:
    models = {0: base_model(), **{version: publish(run, version, kind) for version in range(1, _VERSIONS + 1)}}
    answers, waits, pauses = asyncio.run(_load(url, run, swaps))
    health = httpx.get(f"{url}/health").json()
    if health["last_swap_error"] is not None:
        raise SystemExit(f"{case}: {health['last_swap_error']}")
    gaps = [after - before for answer in answers for before, after in pairwise(answer.pieces)]
    mismatch, alone, crossed = _mismatch(run, models)
    return [
        Row(case, "failed_requests", sum(answer.failed is not None for answer in answers), "requests"),
        Row(case, "token_gap_ms_max", 1000 * max(gaps), "ms"),
        Row(case, "token_gap_ms_p50", 1000 * statistics.median(gaps), "ms"),
        Row(case, "swap_ms_p50", 1000 * statistics.median(waits), "ms"),
        Row(case, "swap_pause_ms_p50", statistics.median(pauses), "ms"),
        Row(case, "swaps", len(waits), "swaps"),
        Row(case, "requests", len(answers), "requests"),
        Row(case, "logprob_mismatch_max", mismatch, "nats"),
        Row(case, "answers_by_one_version", alone, "answers"),
        Row(case, "answers_by_two_versions", crossed, "answers"),
    ]


def base_model() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_folder("crafts"), dtype=torch.float32).eval()


@torch.no_grad()
def publish(run: RunDir, version: int, kind: str) -> Any:
    """A policy a little off the base, with its canary."""
    model = base_model()
    torch.manual_seed(version)
    if kind == "adapter":
        from peft import LoraConfig, get_peft_model

        lora = LoraConfig(r=8, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
        model = get_peft_model(model, lora).eval()
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.mul_(0.1)  # fresh adapters are far too strong to speak with
    else:
        for parameter in model.parameters():
            parameter.add_(0.003 * torch.randn_like(parameter))
    canary = {"prompt_ids": CANARY_IDS, "logprobs": [[None, *logprobs_of(model, ids[:1], ids[1:])] for ids in CANARY_IDS]}
    policy = Policy(version, 0, version, "combine", kind, "crafts", [], canary, {}, time.time())  # type: ignore[arg-type]
    publish_policy(run, policy, model.save_pretrained)
    return model


@torch.no_grad()
def logprobs_of(model: Any, prompt_ids: list[int], completion_ids: list[int]) -> list[float]:
    """By a plain forward pass over prompt and completion together."""
    ids = torch.tensor([prompt_ids + completion_ids])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt_ids) - 1 : -1].float()
    logprobs: list[float] = logits.log_softmax(-1).gather(-1, ids[0, len(prompt_ids) :, None])[:, 0].tolist()
    return logprobs


async def _load(url: str, run: RunDir, swaps: int) -> tuple[list[Stream], list[float], list[float]]:
    """Every answer, the seconds from each move of LIVE to its serving, and the milliseconds without a token that serve tells."""
    client, answers, over = Client(url, KEY), [], asyncio.Event()
    messages = [{"role": "user", "content": "Dan has 3 apples and gets 4. How many?"}]
    body: dict[str, Any] = {"model": "crafts", "messages": messages}
    body |= {"max_tokens": _TOKENS, "stream_options": {"include_usage": True}}

    async def talk() -> None:
        while not over.is_set():
            answers.append(await ask(client, "/v1/chat/completions", body))

    talking = [asyncio.create_task(talk()) for _ in range(_STREAMS)]
    await asyncio.sleep(1)
    waits, pauses = [], []
    async with httpx.AsyncClient() as http:
        for number in range(swaps):
            version, began = 1 + number % _VERSIONS, time.monotonic()
            await asyncio.to_thread(move_live, run, version)
            while (health := (await http.get(f"{url}/health")).json())["live"] != version:
                if time.monotonic() - began > _PATIENCE_S:
                    raise SystemExit(f"version {version} does not go live: {health['last_swap_error']}")
                await asyncio.sleep(0.01)
            waits.append(time.monotonic() - began)
            pauses.append(health["swaps"][-1]["pause_ms"] if health["swaps"] else 0.0)
            await asyncio.sleep(0.3)
    over.set()
    await asyncio.gather(*talking)
    await client.close()
    return answers, waits, pauses


def _mismatch(run: RunDir, models: dict[int, Any]) -> tuple[float, int, int]:
    worst, alone, crossed = 0.0, 0, 0
    for path in run.captures.glob("*.jsonl"):
        for line in map(orjson.loads, path.read_bytes().splitlines()):
            if line["untrainable_reason"] == THERE_AND_BACK:  # faster than the circle turns
                crossed += 1
                continue
            if line["status"] != "ok" or line["untrainable_reason"] is not None:
                raise SystemExit(f"a turn was not captured as it should be: {line['status']}, {line['untrainable_reason']}")
            if line["policy_version"] != line["policy_version_end"]:
                crossed += 1
                continue
            expected = logprobs_of(models[line["policy_version"]], line["prompt_ids"], line["completion_ids"])
            worst = max([worst, *(abs(ours - theirs) for ours, theirs in zip(line["logprobs"], expected, strict=True))])
            alone += 1
    return worst, alone, crossed
