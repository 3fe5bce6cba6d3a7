"""The engines on the pretrained model: speed beside transformers' `generate`, time to ready, pause of a swap, exactness.

Both sides sample greedily, for the same prompts and the same number of new tokens, on the same number of threads, in turn.
`generate` computes no log-probabilities. The embedded engine is measured at its own door, the process with the models, which
returns ids, log-probabilities and versions, and once through the server. `products_ratio` compares the time between two tokens
with the matrix products that a step needs, which run in between.

    python -m scripts.benchmarks.real_engine --json FILE [--quick] [--threads N] [--part speed]
"""

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import orjson
import torch
import yaml

from clawctl.config import Recipe
from clawctl.engines.embedded.frames import Sampling
from clawctl.engines.embedded.process import ModelProcess
from clawctl.http_client import Client
from clawctl.run.directory import RunDir, open_run
from clawctl.run.policies import ensure_base_policy, publish_policy
from clawctl.run.rows import Policy
from scripts.benchmarks.streams import KEY, ask, clawctl, has_vllm
from scripts.benchmarks.table import Row, make_parser, report

MODEL = "smollm2"
STREAMS = (1, 4, 16, 64)
_QUICK_PARTS = ("speed", "ready", "exact")
_DATA = Path(__file__).parent / "real"
_RANK = 16  # of the adapters that are swapped
_SWAP_STREAMS, _SWAP_TOKENS = 16, 400
_BEFORE, _AFTER = 12, 4  # tokens of each stream before and after a swap
_EXACT_ANSWERS, _EXACT_TOKENS = 8, 32


def engine_rows(quick: bool = False, threads: int = 1, part: str | None = None) -> list[Row]:
    """The rows of all parts, or of one: speed, http, ready, swap, exact, vllm, trainer."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    torch.set_num_threads(threads)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="clawctl-bench-") as folder:
        measurement = _Measurement(Path(folder), threads, quick)
        for name, rows_of in measurement.parts().items():
            if part == name or (part is None and (not quick or name in _QUICK_PARTS)):
                rows += rows_of()
    return rows


class _Measurement:
    def __init__(self, folder: Path, threads: int, quick: bool) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._folder, self._threads = folder, threads
        self._tokens, self._rounds = (16, 1) if quick else (48, 5)
        self._streams = STREAMS[:3] if quick else STREAMS
        self._swaps = 2 if quick else 6
        self._recipe = Recipe.model_validate(self._settings())
        path = self._recipe.model_path
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        texts = [(_DATA / f"{name}_requests.txt").read_text().splitlines() for name in ("new", "past")]
        self._requests = [line for lines in texts for line in lines if line]
        self._asked = 0
        self._messages, self._prompts = self._fresh(max(STREAMS))

    def _fresh(self, count: int) -> tuple[list[list[dict[str, str]]], list[list[int]]]:
        """Requests that nobody has asked, so that no prompt is in a cache, and their ids."""
        self._asked += count
        numbered = [f"No. {self._asked - i}: {self._requests[i % len(self._requests)]}" for i in range(count)]
        messages = [[{"role": "user", "content": text}] for text in numbered]
        rendered: Any = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        return messages, rendered["input_ids"]

    def _settings(self, **serve: Any) -> dict[str, Any]:
        serve = {"api_key": KEY, "port": 0, "threads": self._threads, **serve}
        return {"model": {"path": MODEL, "dtype": "float32"}, "serve": serve}

    def parts(self) -> dict[str, Callable[[], list[Row]]]:
        return {
            "speed": self.speed, "http": self.http, "ready": self.ready, "swap": self.swap, "exact": self.exact, "vllm": self.vllm,
            "trainer": self.trainer,
        }  # fmt: skip

    @contextmanager
    def _engine(self, adapters: int = 0) -> Iterator[tuple[ModelProcess, RunDir]]:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            run = open_run(Path(folder) / "run")
            ensure_base_policy(run, self._recipe.model.path)
            for version in range(1, adapters + 1):
                self._publish(run, version)
            engine = ModelProcess(run, self._recipe)
            try:
                engine.wait()
                yield engine, run
            finally:
                engine.stop()

    # ---- speed ------------------------------------------------------------------------------------------------------------------

    def speed(self) -> list[Row]:
        with self._engine() as (engine, _):
            return asyncio.run(self._speed(engine))

    async def _speed(self, engine: ModelProcess) -> list[Row]:
        rows: list[Row] = []
        await engine.attach()
        products = _Products(self._recipe.model_path)
        await _answers(engine, self._prompts[:4], 4)
        for streams in self._streams:
            ours, theirs, gaps, alone = list[float](), list[float](), list[float](), list[float]()
            for _ in range(self._rounds if streams < 64 else self._rounds // 2):
                _, prompts = self._fresh(streams)
                began = time.perf_counter()
                answers = await _answers(engine, prompts, self._tokens)
                ours.append(time.perf_counter() - began)
                gaps += [after - before for answer in answers for before, after in pairwise(answer[-self._tokens // 2 :])]
                theirs.append(self._generate(prompts))
                alone += [products.seconds(streams) for _ in range(5)]
            case, count = f"engine@{streams}", streams * self._tokens
            step = statistics.median(gaps)
            rows += [
                Row(case, "ratio_transformers_generate", _median_ratio(theirs, ours), "ratio"),
                Row(case, "tokens_per_s", count / statistics.median(ours), "tokens/s"),
                Row(case, "tokens_per_s_generate", count / statistics.median(theirs), "tokens/s"),
                Row(case, "step_ms", 1000 * step, "ms"),
                Row(case, "products_ratio", step / statistics.median(alone), "ratio"),
            ]
        return rows

    def _generate(self, prompts: list[list[int]]) -> float:
        """Seconds of transformers' `generate`."""
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        seen = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        limits = {"max_new_tokens": self._tokens, "min_new_tokens": self._tokens, "pad_token_id": 0}
        began = time.perf_counter()
        self._model.generate(ids, attention_mask=seen, do_sample=False, **limits)
        return time.perf_counter() - began

    def http(self) -> list[Row]:
        """The same for 16 streams through the server, with captures."""
        streams = 16
        with tempfile.TemporaryDirectory(dir=self._folder) as folder, clawctl(Path(folder), self._settings()) as (url, _):
            client = Client(url, KEY)
            never = {"logit_bias": {str(self._tokenizer.eos_token_id): -100}}
            body = {
                "model": MODEL,
                "temperature": 0,
                "max_tokens": self._tokens,
                "stream_options": {"include_usage": True},
                **never,
            }

            async def pair() -> tuple[float, float]:
                requests, prompts = self._fresh(streams)
                bodies = [{**body, "messages": messages} for messages in requests]
                began = time.perf_counter()
                answers = await asyncio.gather(*(ask(client, "/v1/chat/completions", body) for body in bodies))
                if failed := [answer.failed for answer in answers if answer.failed]:
                    raise SystemExit(f"{len(failed)} requests failed: {failed[0]}")
                return time.perf_counter() - began, self._generate(prompts)

            async def pairs() -> list[tuple[float, float]]:
                measured = [await pair() for _ in range(1 + self._rounds)][1:]
                await client.close()
                return measured

            ours, theirs = zip(*asyncio.run(pairs()), strict=True)
        return [Row(f"engine@{streams} by HTTP", "ratio_transformers_generate", _median_ratio(theirs, ours), "ratio")]

    # ---- readiness and swaps ----------------------------------------------------------------------------------------------------

    def ready(self) -> list[Row]:
        """Seconds from the start of `clawctl serve` to the first /health/ready with status 200. The first start warms the disk."""
        seconds = [self._ready_s() for _ in range(4)][1:]
        return [Row("engine", "ready_s", statistics.median(seconds), "s")]

    def _ready_s(self) -> float:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            run, recipe = Path(folder) / "run", Path(folder) / "recipe.yaml"
            recipe.write_text(yaml.safe_dump(self._settings()))
            command = [sys.executable, "-m", "clawctl", "serve", "--run", str(run), "--recipe", str(recipe)]
            began = time.perf_counter()
            with (Path(folder) / "log").open("wb") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                while not _is_ready(run / "serve.json"):
                    if process.poll() is not None:
                        raise SystemExit((Path(folder) / "log").read_text())
                    time.sleep(0.02)
                return time.perf_counter() - began
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(60)

    @torch.no_grad()
    def _publish(self, run: RunDir, version: int) -> None:
        """Publish an adapter with its canary."""
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(version)
        lora = LoraConfig(r=_RANK, lora_alpha=2 * _RANK, target_modules="all-linear", init_lora_weights=False)
        adapted: Any = get_peft_model(self._model, lora).eval()
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.mul_(0.02)  # fresh adapters are far too strong to speak with
        ids = self._prompts[0]
        canary = {"prompt_ids": [ids], "logprobs": [[None, *_logprobs(adapted, ids[:1], ids[1:])]]}
        policy = Policy(version, 0, version, "combine", "adapter", MODEL, [], canary, {}, time.time())
        publish_policy(run, policy, lambda folder: adapted.save_pretrained(str(folder)))
        self._model = adapted.unload()

    def swap(self) -> list[Row]:
        with self._engine(adapters=2) as (engine, _):
            return asyncio.run(self._swap(engine))

    async def _swap(self, engine: ModelProcess) -> list[Row]:
        """The longest time without a token in any of 16 streams while a version is loaded and replaced, beyond the usual one."""
        await engine.attach()
        pauses, loads = list[float](), list[float]()
        for number in range(self._swaps):
            prompts, cut = self._prompts[:_SWAP_STREAMS], asyncio.Event()
            arrivals: list[list[float]] = [[] for _ in prompts]
            answering = asyncio.create_task(_answers(engine, prompts, _SWAP_TOKENS, arrivals, cut))
            await _more_tokens(arrivals, _BEFORE)
            began = time.perf_counter()
            swap = await asyncio.to_thread(engine.replace, 1 + number % 2)
            ended = time.perf_counter()
            await _more_tokens(arrivals, _AFTER)
            cut.set()
            await answering
            gaps = [(start, after - start) for answer in arrivals for start, after in pairwise(answer)]
            usual = statistics.median(gap for start, gap in gaps if start < began)
            longest = max(gap for start, gap in gaps if began - gap <= start <= ended + usual)
            pauses.append((longest - usual) / usual)
            loads.append(swap.load_ms)
        return [
            Row("engine", "adapter_swap_pause_steps", statistics.median(pauses), "decode steps of 16 streams"),
            Row("engine", "adapter_swap_pause_steps_max", max(pauses), "decode steps of 16 streams"),
            Row("engine", "adapter_swap_load_ms", statistics.median(loads), "ms"),
        ]

    # ---- exactness --------------------------------------------------------------------------------------------------------------

    def exact(self) -> list[Row]:
        return self._exact("engine embedded", {})

    def vllm(self) -> list[Row]:
        python = os.environ.get("CLAWCTL_VLLM_PYTHON")
        serve = {"engine": "vllm", "engine_python": python, "engine_args": ["--max-model-len", "2048", "--enforce-eager"]}
        if not has_vllm("engine vllm", Recipe.model_validate(self._settings(**serve))):
            return []
        return self._exact("engine vllm", serve)

    def _exact(self, case: str, serve: dict[str, Any]) -> list[Row]:
        """The largest difference of captured logprobs from a plain forward pass in float32 over the captured ids."""
        with tempfile.TemporaryDirectory(dir=self._folder) as folder, clawctl(Path(folder), self._settings(**serve)) as (url, root):
            with httpx.Client(base_url=url, headers={"x-api-key": KEY}, timeout=600) as client:
                for messages in self._messages[:_EXACT_ANSWERS]:
                    body = {"messages": messages, "temperature": 1, "max_tokens": _EXACT_TOKENS}
                    client.post("/v1/chat/completions", json={"model": MODEL, **body}).raise_for_status()
            captured = [line for file in open_run(root).captures.glob("*.jsonl") for line in file.read_bytes().splitlines()]
        worst = 0.0
        for line in map(orjson.loads, captured):
            expected = _logprobs(self._model, line["prompt_ids"], line["completion_ids"])
            worst = max([worst, *(abs(ours - theirs) for ours, theirs in zip(line["logprobs"], expected, strict=True))])
        return [Row(case, "logprob_difference_max", worst, "nats")]

    def trainer(self) -> list[Row]:
        """The same for the logprobs that the local trainer computes for its turns, as a trie."""
        from clawctl.trainers.local.batches import make_microbatch
        from clawctl.trainers.local.model import load_policy
        from clawctl.trainers.local.ranks import Ranks
        from clawctl.trainers.local.trees import make_branch

        recipe = {**self._settings(), "train": {"method": "binary", "lora": {"rank": _RANK}}}
        policy = load_policy(Recipe.model_validate(recipe), Ranks(0, 1, torch.device("cpu")))
        pairs = [(prompt, self._greedy(prompt)) for prompt in self._prompts[:_EXACT_ANSWERS]]
        branches = [make_branch(prompt, answer, 1.0) for prompt, answer in pairs]
        with torch.no_grad():
            ours = policy.logprobs(make_microbatch(branches, policy.merge, policy.device))
        theirs = [value for prompt, answer in pairs for value in _logprobs(self._model, prompt, answer)]
        return [Row("engine trainer", "logprob_difference_max", float((ours - torch.tensor(theirs)).abs().max()), "nats")]

    def _greedy(self, prompt: list[int]) -> list[int]:
        answer = self._model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=_EXACT_TOKENS, pad_token_id=0)
        ids: list[int] = answer[0, len(prompt) :].tolist()
        return ids


async def _answers(
    engine: ModelProcess,
    prompts: list[list[int]],
    tokens: int,
    arrivals: list[list[float]] | None = None,
    cut: asyncio.Event | None = None,
) -> list[list[float]]:
    """The arrival times of the tokens of each answer, in `arrivals` while they come. Answers end after `tokens` tokens, or once
    `cut` is set."""
    arrivals = [[] for _ in prompts] if arrivals is None else arrivals
    never_ends = dict.fromkeys(engine.about.eos_ids, -100.0)
    sampling = Sampling(0.0, 1.0, 0, tokens, logit_bias=never_ends)

    async def answer(prompt: list[int], times: list[float]) -> None:
        generation = engine.generate(None, prompt, sampling)
        async for fresh in generation:
            times += [time.perf_counter()] * len(fresh)
            if cut is not None and cut.is_set():
                generation.cancel()

    await asyncio.gather(*(answer(prompt, times) for prompt, times in zip(prompts, arrivals, strict=True)))
    return arrivals


async def _more_tokens(arrivals: list[list[float]], count: int) -> None:
    """Wait until each answer has `count` more tokens."""
    before = [len(times) for times in arrivals]
    while any(len(times) < start + count for times, start in zip(arrivals, before, strict=True)):
        await asyncio.sleep(0.02)


class _Products:
    """The matrix products of the embedded engine's decode steps, and nothing else."""

    def __init__(self, path: str) -> None:
        from safetensors.torch import load_file

        from clawctl.engines.embedded.llama import Llama

        config = orjson.loads((Path(path) / "config.json").read_bytes())
        self._model: Any = Llama(config, load_file(Path(path) / "model.safetensors"))
        self._config = config

    @torch.inference_mode()
    def seconds(self, rows: int) -> float:
        narrow_TD, wide_TI = torch.randn(rows, self._config["hidden_size"]), torch.randn(rows, self._config["intermediate_size"])
        began = time.perf_counter()
        for layer in self._model._layers:
            layer.qkv(narrow_TD)
            layer.output(narrow_TD)
            layer.gate_up(narrow_TD)
            layer.down(wide_TI)
        self._model._head(narrow_TD)
        return time.perf_counter() - began


@torch.no_grad()
def _logprobs(model: Any, prompt_ids: list[int], completion_ids: list[int]) -> list[float]:
    """By a plain forward pass in float32 over prompt and completion together. The vocabulary is summed up in float64, because
    PyTorch's log_softmax over 49,152 tokens in float32 is itself off by 1.3e-5 on average."""
    ids = torch.tensor([prompt_ids + completion_ids])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt_ids) - 1 : -1].double()
    logprobs: list[float] = logits.log_softmax(-1).gather(-1, ids[0, len(prompt_ids) :, None])[:, 0].tolist()
    return logprobs


def _is_ready(announced: Path) -> bool:
    try:
        url = orjson.loads(announced.read_bytes())["url"].removesuffix("/v1")
        return httpx.get(f"{url}/health/ready", timeout=5.0).status_code == 200
    except (OSError, httpx.HTTPError):
        return False


def _median_ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """Median over the rounds: what slows the machine for a while slows both."""
    return statistics.median(their / our for our, their in zip(ours, theirs, strict=True))


def main() -> None:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--threads", type=int, default=1, help="threads of each side")
    parser.add_argument("--part", help="speed, http, ready, swap, exact, vllm or trainer")
    arguments = parser.parse_args()
    report("real", engine_rows(arguments.quick, arguments.threads, arguments.part), arguments.json)


if __name__ == "__main__":
    main()
