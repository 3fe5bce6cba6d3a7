"""Settings of vLLM, one after another: whether a server starts with them, and whether its logprobs and swaps are right.

Case `vllm-matrix`. Each setting is a `clawctl serve --engine vllm --engine-args "…"` with the model `crafts`. It answers several
chats at once, one of them with a long prompt that is sent twice. Then an adapter and all weights are swapped while an answer runs,
and given ids are scored by each version. `logprob_mismatch_max` and `score_error_max` compare with a forward pass of the
model itself. The reason is printed if a setting does not start. CLAWCTL_VLLM_PYTHON names the Python that has vLLM.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil
import torch
import yaml

from clawctl.config import Recipe
from clawctl.run.checksums import read_sealed
from clawctl.run.directory import RunDir, open_run
from clawctl.run.policies import move_live
from scripts.benchmarks.serve_swap import base_model, logprobs_of, publish
from scripts.benchmarks.streams import KEY, has_vllm
from scripts.benchmarks.table import Row

CASE = "vllm-matrix"
_COMMON = "--max-model-len 4096 --enforce-eager"
_IDS = [3, 17, 42, 99, 5, 6, 7]  # to score
_TOKENS, _LONG_TOKENS = 24, 400
_STARTS_S, _SWAPS_S = 600.0, 120.0
_ADAPTER, _FULL = 1, 2  # versions


@dataclass(frozen=True, slots=True)
class Setting:
    name: str  # "two-api-servers"
    arguments: str  # "--api-server-count 2"
    adapters: bool = True  # `train.lora` is set, and an adapter is swapped


SETTINGS = (
    Setting("defaults", ""),
    Setting("two-api-servers", "--api-server-count 2", adapters=False),
    Setting("two-api-servers-adapters", "--api-server-count 2"),
    Setting("tensor-parallel", "--tensor-parallel-size 2"),
    Setting("no-prefix-cache", "--no-enable-prefix-caching"),
    Setting("chunked-prefill", "--max-num-batched-tokens 256"),
    Setting("no-chunked-prefill", "--no-enable-chunked-prefill"),
)


def run(quick: bool, only: Sequence[str] = ()) -> list[Row]:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    torch.set_num_threads(1)
    if unknown := set(only) - {setting.name for setting in SETTINGS}:
        raise SystemExit(
            f"there is no setting {', '.join(unknown)}; choose from: {', '.join(setting.name for setting in SETTINGS)}"
        )
    rows: list[Row] = []
    for setting in SETTINGS:
        if only and setting.name not in only:
            continue
        case, recipe = f"{CASE}/{setting.name}", recipe_of(setting)
        if not has_vllm(case, Recipe.model_validate(recipe)):
            return []
        with tempfile.TemporaryDirectory(prefix="clawctl-bench-") as folder, served(Path(folder), recipe, setting) as url:
            if url is None:
                rows.append(Row(case, "starts", 0, "share"))
                continue
            rows += measured(case, url, open_run(Path(folder) / "run"), setting)
    return rows


def recipe_of(setting: Setting) -> dict[str, Any]:
    serve = {"engine": "vllm", "engine_python": os.environ.get("CLAWCTL_VLLM_PYTHON"), "api_key": KEY, "port": 0, "threads": 1}
    train = {"lora": {"rank": 8, "alpha": 16.0}} if setting.adapters else {}
    return {"model": {"path": "crafts", "dtype": "float32"}, "serve": serve, "train": train}


@contextmanager
def served(folder: Path, recipe: dict[str, Any], setting: Setting) -> Iterator[str | None]:
    """The URL of a server; None if it did not start, with its last words printed."""
    run, path, log = folder / "run", folder / "recipe.yaml", folder / "serve.log"
    path.write_text(yaml.safe_dump(recipe))
    arguments = [_COMMON, *filter(None, [setting.arguments])]
    options = ["--recipe", str(path), "--intercept", f"--engine-args={' '.join(arguments)}"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "clawctl", "serve", "--run", str(run), *options], stdout=file, stderr=file
        )
    try:
        deadline = time.monotonic() + _STARTS_S
        while not (run / "serve.json").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                print(f"{setting.name} ({setting.arguments}) does not start: {log.read_text()[-1500:]}", file=sys.stderr)
                yield None
                return
            time.sleep(0.2)
        yield str(orjson.loads((run / "serve.json").read_bytes())["url"])
    finally:
        process.terminate()
        process.wait(60)


def measured(case: str, url: str, run: RunDir, setting: Setting) -> list[Row]:
    models: dict[int, Any] = {0: base_model()}
    servers = api_servers(run)
    with ThreadPoolExecutor(4) as pool:
        together = [pool.submit(ask, url, f"Dan has {number} apples. How many?") for number in (3, 4, 5)]
        ask(url, _long_prompt())
        for answer in together:
            answer.result()
    cached = ask(url, _long_prompt())["usage"]["prompt_tokens_details"]["cached_tokens"]
    errors, waits = [score_error(url, models[0])], {}
    kinds = ([(_ADAPTER, "adapter")] if setting.adapters else []) + [(_FULL, "full")]
    for version, kind in kinds:
        models[version] = publish(run, version, kind)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(ask, url, "count", _LONG_TOKENS)
            time.sleep(0.5)
            waits[kind] = go_live(url, run, version)
            running.result()
        for number in (6, 7):
            ask(url, f"Dan has {number} apples. How many?")
        errors.append(score_error(url, models[version]))
    lines = [read_sealed(line) for path in sorted(run.captures.glob("*.jsonl")) for line in path.read_bytes().splitlines()]
    crossing = [line for line in lines if len(line["completion_ids"]) == _LONG_TOKENS]
    short = [line for line in lines if line not in crossing]
    for reason in {line["untrainable_reason"] for line in short} - {None}:
        print(f"{case}: untrainable: {reason}", file=sys.stderr)
    return [
        Row(case, "starts", 1, "share"),
        Row(case, "api_servers", servers, "processes"),
        Row(case, "answers", len(short), "answers"),
        Row(case, "untrainable", sum(line["untrainable_reason"] is not None for line in short), "answers"),
        Row(case, "versions", len({line["policy_version"] for line in short}), "count"),
        Row(case, "answers_across_swaps", len(crossing), "answers"),
        Row(case, "logprob_mismatch_max", max(mismatch(models, line) for line in short), "nats"),
        Row(case, "score_error_max", max(errors), "nats"),
        Row(case, "cached_tokens", cached, "tokens"),
        *(Row(case, f"{kind}_swap_ms", 1000 * wait_s, "ms") for kind, wait_s in waits.items()),
    ]


def _long_prompt() -> str:
    return " ".join(f"{number} apples and {number + 1} pears" for number in range(160))


def ask(url: str, text: str, tokens: int = _TOKENS) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    body = {"model": "crafts", "messages": messages, "max_tokens": tokens, "ignore_eos": tokens > _TOKENS}
    answer = httpx.post(f"{url}/chat/completions", json=body, headers=_HEADERS, timeout=300)
    answer.raise_for_status()
    scored: dict[str, Any] = answer.json()
    return scored


_HEADERS = {"authorization": f"Bearer {KEY}"}


def score_error(url: str, model: Any) -> float:
    answer = httpx.post(f"{url}/score", json={"model": "crafts", "ids": _IDS, "first": 1}, headers=_HEADERS, timeout=300)
    answer.raise_for_status()
    return difference(answer.json()["logprobs"], logprobs_of(model, _IDS[:1], _IDS[1:]))


def mismatch(models: dict[int, Any], line: dict[str, Any]) -> float:
    return difference(line["logprobs"], logprobs_of(models[line["policy_version"]], line["prompt_ids"], line["completion_ids"]))


def difference(ours: list[float], theirs: list[float]) -> float:
    return max(abs(ours_at - other) for ours_at, other in zip(ours, theirs, strict=True))


def go_live(url: str, run: RunDir, version: int) -> float:
    """The seconds until `version` serves."""
    move_live(run, version)
    began = time.monotonic()
    while (health := httpx.get(f"{url.removesuffix('/v1')}/health", timeout=60).json())["live"] != version:
        if time.monotonic() - began > _SWAPS_S:
            raise SystemExit(f"version {version} does not go live: {health['last_swap_error']}")
        time.sleep(0.02)
    return time.monotonic() - began


def api_servers(run: RunDir) -> int:
    """vLLM's processes that take requests. With several, each has a title of its own."""
    served = psutil.Process(read_sealed((run.root / "serve.json").read_bytes())["pid"])
    titles = [" ".join(child.cmdline()) for child in served.children(recursive=True)]
    return max(1, sum("APIServer" in title for title in titles))
