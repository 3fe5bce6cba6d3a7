"""Two vLLM servers of their own behind one clawctl: swaps, a server that lags, one that is killed, and one that is alone.

Case `vllm-pool`. Both servers are vLLM as it is, for CPU, with the model `crafts` and one thread each. Clients ask without a pause
while three adapters go live. During the second swap one server is stopped for a while, so it lags. Then it is killed and started
again, and at last the other one is killed, so that the first one answers all. `logprob_mismatch_max` compares each answer of an
adapter with a forward pass of the version that its row names.

Case `vllm-restart`. One server alone is killed and started again. It knows no adapter then, and must get the live one.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import torch

from clawctl.config import Recipe
from clawctl.engines.vllm.child import free_port
from clawctl.run.checksums import read_sealed
from clawctl.run.directory import RunDir, open_run
from clawctl.run.gguf import model_folder
from clawctl.run.policies import move_live
from scripts.benchmarks.serve_matrix import ask, difference
from scripts.benchmarks.serve_swap import logprobs_of, publish
from scripts.benchmarks.streams import KEY, clawctl, has_vllm
from scripts.benchmarks.table import Row

CASE, ALONE = "vllm-pool", "vllm-restart"
_CLIENTS, _TOKENS = 3, 16
_STARTS_S, _PATIENCE_S = 1200.0, 600.0
_LOADED = 4  # answers between two events
_ARGUMENTS = (
    "--dtype float32 --max-model-len 1024 --max-num-seqs 8 --enforce-eager --distributed-executor-backend uni "
    "--logprobs-mode processed_logprobs --enable-prompt-tokens-details --enable-lora --max-loras 4 --max-lora-rank 8"
)
_ENVIRONMENT = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_API_KEY": KEY,
}  # fmt: skip


def run(quick: bool) -> list[Row]:
    torch.set_num_threads(1)
    if not has_vllm(CASE, Recipe.model_validate({"serve": {"engine_python": os.environ.get("CLAWCTL_VLLM_PYTHON")}})):
        return []
    with tempfile.TemporaryDirectory(prefix="clawctl-bench-") as folder, _servers(Path(folder)) as (first, second):
        with _gateway(Path(folder) / "pool", [first, second]) as (url, root):
            rows = _pool(url, open_run(root), first, second)
        with _gateway(Path(folder) / "alone", [second]) as (url, root):
            return [*rows, *_alone(url, open_run(root), second)]


class VllmServer:
    """`vllm serve` at a port of its own."""

    def __init__(self, log: Path) -> None:
        self.port, self._log = free_port(), log
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        python = os.environ.get("CLAWCTL_VLLM_PYTHON", sys.executable)
        command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model_folder("crafts"), *_ARGUMENTS.split()]
        command += ["--served-model-name", "crafts", "--host", "127.0.0.1", "--port", str(self.port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | _ENVIRONMENT, start_new_session=True)

    def signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            os.killpg(self._process.pid, number)
        if number == signal.SIGKILL:
            self._process.wait()

    def answers(self) -> bool:
        if self._process.poll() is not None:
            raise SystemExit(f"vLLM ended: {self._log.read_text(errors='replace')[-2000:]}")
        try:
            return httpx.get(f"{self.url}/health", timeout=10).is_success
        except httpx.HTTPError:
            return False


@contextmanager
def _servers(folder: Path) -> Iterator[list[VllmServer]]:
    servers = [VllmServer(folder / f"{name}.log") for name in ("first", "second")]
    try:
        for server in servers:
            _until(server.answers, _STARTS_S)
        yield servers
    finally:
        for server in servers:
            server.signal(signal.SIGKILL)


@contextmanager
def _gateway(folder: Path, servers: list[VllmServer]) -> Iterator[tuple[str, Path]]:
    folder.mkdir()
    url, *others = [server.url for server in servers]
    upstream = {"kind": "vllm", "url": url, "others": others, "api_key": KEY, "model": "crafts"}
    recipe = {"model": {"path": "crafts", "dtype": "float32"}, "train": {"lora": {"rank": 8, "alpha": 16.0}}}
    with clawctl(folder, {**recipe, "serve": {"upstream": upstream, "api_key": KEY, "port": 0}}) as (url, root):
        yield f"{url}/v1", root


class _Clients:
    """Clients that ask without a pause."""

    def __init__(self, url: str) -> None:
        self.answered, self.failed = 0, list[str]()
        self._url, self._over = url, threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(_CLIENTS)]

    def _ask(self, client: int) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            try:
                ask(self._url, f"Client {client} has {number} apples. How many?", _TOKENS)
                self.answered += 1
            except httpx.HTTPError as error:
                self.failed.append(str(error))

    def more(self) -> None:
        target = self.answered + _LOADED
        _until(lambda: self.answered >= target)

    def __enter__(self) -> "_Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def _pool(url: str, run: RunDir, first: VllmServer, second: VllmServer) -> list[Row]:
    versions: dict[int, Any] = {number: publish(run, number, "adapter") for number in (1, 2, 3)}
    _until(lambda: _at(url) == [0, 0])
    with _Clients(url) as clients:
        clients.more()
        swap_s = _go_live(url, run, 1)
        _until(lambda: _at(url) == [1, 1])
        clients.more()
        second.signal(signal.SIGSTOP)
        lagging_s = _go_live(url, run, 2)
        second.signal(signal.SIGCONT)
        caught_up_s = _until(lambda: _at(url) == [2, 2])
        clients.more()
        second.signal(signal.SIGKILL)
        clients.more()
        _go_live(url, run, 3)
        second.start()
        _until(second.answers, _STARTS_S)
        restarted_s = _until(lambda: _at(url) == [3, 3])
        clients.more()
        first.signal(signal.SIGKILL)
        clients.more()
    lines = _lines(run)
    by_adapter = [line for line in lines if line["policy_version"]]
    return [
        Row(CASE, "refused_requests", len(clients.failed), "requests"),
        Row(CASE, "answers", clients.answered, "answers"),
        Row(CASE, "answers_by_adapters", len(by_adapter), "answers"),
        Row(CASE, "versions", len({line["policy_version"] for line in lines}), "count"),
        Row(CASE, "logprob_mismatch_max", max(_mismatch(versions, line) for line in by_adapter), "nats"),
        Row(CASE, "swap_ms", 1000 * swap_s, "ms"),
        Row(CASE, "swap_beside_a_stopped_server_ms", 1000 * lagging_s, "ms"),
        Row(CASE, "stopped_server_has_the_version_after_ms", 1000 * caught_up_s, "ms"),
        Row(CASE, "restarted_server_has_the_version_after_ms", 1000 * restarted_s, "ms"),
    ]


def _alone(url: str, run: RunDir, server: VllmServer) -> list[Row]:
    versions = {1: publish(run, 1, "adapter")}
    _until(lambda: _health(url)["ready"])
    _go_live(url, run, 1)
    ask(url, "How many apples?", _TOKENS)
    server.signal(signal.SIGKILL)
    server.start()
    _until(server.answers, _STARTS_S)
    began = time.monotonic()
    _until(lambda: _is_answered(url))
    waited_s = time.monotonic() - began
    ask(url, "How many pears?", _TOKENS)
    lines = _lines(run)
    return [
        Row(ALONE, "version_after_the_restart", lines[-1]["policy_version"], "number"),
        Row(ALONE, "answers_again_after_ms", 1000 * waited_s, "ms"),
        Row(ALONE, "logprob_mismatch_max", max(_mismatch(versions, line) for line in lines), "nats"),
    ]


def _is_answered(url: str) -> bool:
    try:
        ask(url, "How many apples?", _TOKENS)
    except httpx.HTTPStatusError:
        return False
    return True


def _health(url: str) -> dict[str, Any]:
    health: dict[str, Any] = httpx.get(f"{url.removesuffix('/v1')}/health", timeout=60).json()
    return health


def _at(url: str) -> list[int | None]:
    """The version of each member."""
    return [member["version"] for member in _health(url)["engine"]["members"]]


def _go_live(url: str, run: RunDir, version: int) -> float:
    move_live(run, version)
    return _until(lambda: _health(url)["live"] == version)


def _until(condition: Callable[[], bool], patience_s: float = _PATIENCE_S) -> float:
    """The seconds until the condition holds."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > patience_s:
            raise SystemExit("the pool does not come to the next step")
        time.sleep(0.1)
    return time.monotonic() - began


def _lines(run: RunDir) -> list[dict[str, Any]]:
    lines = [read_sealed(line) for path in sorted(run.captures.glob("*.jsonl")) for line in path.read_bytes().splitlines()]
    return [line for line in lines if line["status"] == "ok"]


def _mismatch(versions: dict[int, Any], line: dict[str, Any]) -> float:
    expected = logprobs_of(versions[line["policy_version"]], line["prompt_ids"], line["completion_ids"])
    return difference(line["logprobs"], expected)
