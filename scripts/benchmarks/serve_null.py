"""The cost of the proxy itself: an upstream that answers at once, through clawctl with capture on, through LiteLLM, and bare.

Case `null-upstream`. One process each for the upstream, the proxy and those who ask; the proxies are asked in turn, in rounds, and
medians are told. Every answer has 200 tokens; streams are compared in tokens, for clawctl puts tokens that come at once into one
frame. Before anything is timed each proxy must give the upstream's text, unharmed; clawctl must have captured every id.
"""

import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from clawctl.engines.vllm.child import free_port
from scripts.benchmarks.null.upstream import token
from scripts.benchmarks.table import Row, arguments, report

CASE = "null-upstream"
TOKENS = 200
_CONNECTIONS = 32
_MANY = 1000
_LITELLM = ["litellm[proxy]"]
_STARTS_S = 180


@dataclass(frozen=True, slots=True)
class Proxy:
    name: str
    port: int
    model: str
    process: psutil.Process
    key: str = "key"


def cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "clawctl-bench"


def litellm_command() -> str:
    """LiteLLM's own command, in a virtual environment of its own that is made once."""
    folder = cache() / "litellm"
    command = folder / "bin" / "litellm"
    if not command.exists():
        print("installing LiteLLM, once …", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", *_LITELLM], check=True)
    return str(command)


@contextmanager
def started(command: list[str], log: Path, **environment: str) -> Iterator[psutil.Process]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **environment})
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def null_upstream(tokens: int = TOKENS) -> Iterator[Proxy]:
    command = [sys.executable, "-m", "scripts.benchmarks.null.upstream", "--tokens", str(tokens)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Proxy("bare", int(process.stdout.readline()), "null", psutil.Process(process.pid))
    finally:
        process.kill()
        process.wait()


@contextmanager
def clawctl(folder: Path, upstream: int) -> Iterator[Proxy]:
    recipe = folder / "clawctl.yaml"
    recipe.write_text(yaml.safe_dump({"model": {"name": "null"}, "serve": {"port": 0, "api_key": "key"}}))
    command = [sys.executable, "-m", "clawctl", "serve", "--run", str(folder / "run"), "--recipe", str(recipe), "--intercept"]
    command += ["--upstream", f"http://127.0.0.1:{upstream}", "--upstream-kind", "vllm"]
    with started(command, folder / "clawctl.log") as process:
        announced = folder / "run" / "serve.json"
        wait_for(announced.exists, folder / "clawctl.log")
        port = int(json.loads(announced.read_text())["url"].rsplit(":", 1)[1].split("/")[0])
        yield Proxy("clawctl", port, "null", process)


@contextmanager
def litellm(folder: Path, upstream: int) -> Iterator[Proxy]:
    params = {"model": "openai/null", "api_base": f"http://127.0.0.1:{upstream}/v1", "api_key": "key"}
    key = f"sk-{secrets.token_hex(32)}"  # without a strong one it refuses to start
    locked = {"general_settings": {"master_key": key}}
    config = folder / "litellm.yaml"
    config.write_text(yaml.safe_dump({"model_list": [{"model_name": "null", "litellm_params": params}], **locked}))
    port = free_port()
    command = [litellm_command(), "--config", str(config), "--port", str(port), "--host", "127.0.0.1", "--num_workers", "1"]
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_TELEMETRY": "False"}
    with started(command, folder / "litellm.log", **quiet) as process:
        wait_for(lambda: answers(port, key), folder / "litellm.log")
        yield Proxy("litellm", port, "null", process, key)


def answers(port: int, key: str) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
    except httpx.HTTPError:
        return False


def wait_for(condition: Any, log: Path) -> None:
    deadline = time.monotonic() + _STARTS_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"it did not start: {log.read_text()[-2000:]}")
        time.sleep(0.2)


def check_text(proxy: Proxy) -> None:
    """The answer is the upstream's, streamed and not. Ends the benchmark if it is not."""
    expected = "".join(map(token, range(TOKENS)))
    body: dict[str, Any] = {"model": proxy.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": TOKENS}
    url, headers = f"http://127.0.0.1:{proxy.port}/v1/chat/completions", {"Authorization": f"Bearer {proxy.key}"}
    answer = httpx.post(url, json=body, headers=headers, timeout=60)
    said = answer.json()["choices"][0]["message"]["content"] if answer.status_code == 200 else answer.text
    streamed = ""
    with httpx.stream("POST", url, json={**body, "stream": True}, headers=headers, timeout=60) as lines:
        for line in lines.iter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line[6:])["choices"]
                streamed += (choices[0]["delta"].get("content") or "") if choices else ""
    if not said == streamed == expected:
        raise SystemExit(f"{proxy.name} changes the answer: {said[:300]!r} and streamed {streamed[:300]!r}")


def check_captured(run: Path) -> None:
    """What was answered is on disk with its ids and logprobs."""
    lines = [line for path in run.glob("captures/*.jsonl") for line in path.read_bytes().splitlines()]
    last = json.loads(lines[-1])
    if len(last["completion_ids"]) != TOKENS or len(last["logprobs"]) != TOKENS or last["untrainable_reason"] is not None:
        raise SystemExit(f"clawctl captured {last['completion_ids']} with reason {last['untrainable_reason']}")


def load(proxy: Proxy, streamed: bool, seconds: float, connections: int = _CONNECTIONS) -> dict[str, Any]:
    """Ask for a while; what was measured, with the CPU seconds that the proxy took."""
    command = [
        sys.executable,
        "-m",
        "scripts.benchmarks.null.load",
        "--port",
        str(proxy.port),
        "--model",
        proxy.model,
        "--key",
        proxy.key,
    ]
    command += ["--seconds", str(seconds), "--connections", str(connections), *(["--stream"] if streamed else [])]
    before = proxy.process.cpu_times()
    asking = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert asking.stdout is not None
    largest = 0
    while asking.poll() is None:
        largest = max(largest, proxy.process.memory_info().rss)
        time.sleep(0.1)
    after = proxy.process.cpu_times()
    measured: dict[str, Any] = json.loads(asking.stdout.read())
    if measured["failures"] or not measured["requests"]:
        raise SystemExit(f"{proxy.name}: {measured['failures']} requests failed: {measured['said']}")
    measured["cpu_s"] = after.user + after.system - before.user - before.system
    return {**measured, "rss_mb": largest / 1e6}


def run(quick: bool) -> list[Row]:
    """The rows of this case."""
    rounds, seconds = (1, 3.0) if quick else (5, 5.0)
    measured: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as name, null_upstream() as bare:
        folder = Path(name)
        with clawctl(folder, bare.port) as ours, litellm(folder, bare.port) as theirs:
            for proxy in (bare, ours, theirs):
                check_text(proxy)
            check_captured(folder / "run")
            for kind in ("whole", "stream"):
                for proxy in (bare, ours, theirs):
                    load(proxy, kind == "stream", 1.0)  # warm
            for _ in range(rounds):
                for kind in ("whole", "stream"):
                    for proxy in (bare, ours, theirs):
                        measured.setdefault((proxy.name, kind), []).append(load(proxy, kind == "stream", seconds))
                        clear(folder / "run")
            many = load(ours, True, seconds, _MANY)
            health = httpx.get(f"http://127.0.0.1:{ours.port}/health", headers={"x-api-key": "key"}).json()
    if health["capture"]["lost"]:
        raise SystemExit(f"{health['capture']['lost']} turns were not captured: the comparison would not be fair")
    return rows(measured, many)


def clear(run: Path) -> None:
    """Captures of 200 tokens at thousands a second fill a disk; the writer opens a new file when its own is gone."""
    for path in run.glob("captures/*.jsonl"):
        path.unlink()


def rows(measured: dict[tuple[str, str], list[dict[str, Any]]], many: dict[str, Any]) -> list[Row]:
    def median(proxy: str, kind: str, what: str) -> float:
        return float(statistics.median(run[what] for run in measured[proxy, kind]))

    rps = {proxy: median(proxy, "whole", "rps") for proxy in ("bare", "clawctl", "litellm")}
    tokens = {proxy: TOKENS * median(proxy, "stream", "rps") for proxy in ("bare", "clawctl", "litellm")}
    cpu = {
        kind: statistics.median(1e6 * run["cpu_s"] / (TOKENS * run["requests"]) for run in measured["clawctl", kind])
        for kind in ("whole", "stream")
    }
    rows = [
        Row(CASE, "rps_ratio_litellm", rps["clawctl"] / rps["litellm"], "ratio"),
        Row(CASE, "stream_tokens_ratio_litellm", tokens["clawctl"] / tokens["litellm"], "ratio"),
        Row(CASE, "rps_ratio_bare", rps["clawctl"] / rps["bare"], "ratio"),
        Row(CASE, "cpu_us_per_token", cpu["stream"], "µs"),
        Row(CASE, "cpu_us_per_token_whole", cpu["whole"], "µs"),
        Row(CASE, "rss_mb_1000_streams", many["rss_mb"], "MB"),
        Row(CASE, "latency_ms_p99", median("clawctl", "whole", "p99_ms"), "ms"),
        Row(CASE, "latency_ms_p99_litellm", median("litellm", "whole", "p99_ms"), "ms"),
    ]
    for proxy in ("bare", "clawctl", "litellm"):
        rows += [Row(CASE, f"rps_{proxy}", rps[proxy], "1/s"), Row(CASE, f"stream_tokens_s_{proxy}", tokens[proxy], "1/s")]
    return rows


if __name__ == "__main__":
    given = arguments(__doc__ or "")
    report("serve_null", run(given.quick), given.json)
