"""Cases of `scripts/bench gpu` about serving: the canary, the embedded engine, and a card shared with training."""

import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from clawctl.config import Recipe
from clawctl.engines.embedded.decoder import Decoder
from clawctl.engines.embedded.frames import Sampling, TokenPiece
from clawctl.engines.embedded.weights import load_weights
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, open_run
from clawctl.run.gguf import model_folder
from clawctl.run.policies import ensure_base_policy, publish_policy
from clawctl.run.rows import Policy
from clawctl.train.sample import Batch
from clawctl.trainers.local.model import load_policy
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.step import train_step
from scripts.benchmarks.gpu_models import SPOKEN, Bench, free, settle
from scripts.benchmarks.gpu_training import open_training, samples_of, session_of

STREAMS = (1, 32, 128)
_CERTAIN = 0.1  # spread of the embeddings of a random model that is as certain as a trained one


def recipe_of(model: Path, quantize: str | None = None, one_copy: str = "auto", **serve: Any) -> Recipe:
    lora = {"rank": 16} | ({} if quantize is None else {"quantize": quantize})
    sections = {"serve": {"kv_cache_tokens": 131072, **serve}, "train": {"method": "binary", "dtype": "bfloat16", "lora": lora}}
    return Recipe.model_validate({"model": {"path": str(model), "dtype": "bfloat16", "one_copy": one_copy}, **sections})


def new_run(recipe: Recipe) -> RunDir:
    run = open_run(Path(tempfile.mkdtemp(prefix="clawctl-gpu-run-")) / "run")
    ensure_base_policy(run, recipe.model.path)
    return run


def publish_adapter(run: RunDir, recipe: Recipe, device: torch.device, version: int = 1) -> dict[str, Any]:
    """Publish a version whose adapter changes all layers a little, as the trainer does. Returns its canary."""
    policy = load_policy(recipe, Ranks(0, 1, device))
    torch.manual_seed(version)
    with torch.no_grad():
        for name, parameter in policy.trained():
            if "lora_B" in name:
                parameter.normal_(0, 0.002)
    canary, weights = policy.canary(), policy.published()
    about = Policy(version, 0, version, "binary", "adapter", recipe.model.path, [], canary, {}, time.time())
    publish_policy(run, about, lambda folder: policy.save(folder, weights))
    return canary


# ---- canary ----------------------------------------------------------------------------------------------------------------


def canary(bench: Bench) -> None:
    """The distance between the trainer's logprobs of the canary prompts and the engine's, for a trained model and a random one."""
    for name, model in (("crafts", Path(model_folder("crafts"))), ("0.6b", bench.model("0.6b", spread=_CERTAIN))):
        for quantize in (None, "nf4"):
            label = f"{name} {quantize or 'bfloat16'}"
            recipe = recipe_of(model, quantize)
            run = new_run(recipe)
            try:
                expected = publish_adapter(run, recipe, bench.device)
            except ClawError as error:
                bench.add(f"{label} skipped", None, error.problem)
                continue
            weights = load_weights(run, recipe, 1)
            gaps = [
                abs(ours - theirs)
                for ids, values in zip(expected["prompt_ids"], expected["logprobs"], strict=True)
                for ours, theirs in zip(weights.score(ids), values[1:], strict=True)
            ]
            bench.add(f"{label} canary_mean", statistics.mean(gaps), "nats")
            bench.add(f"{label} canary_max", max(gaps), "nats")
            bench.add(f"{label} tolerance", weights.tolerance, "nats")
            bench.add(f"{label} passes", float(max(gaps) <= weights.tolerance), "1: yes")
            del weights
            free(bench.device)


# ---- engine ----------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Answer:
    """One stream: the time of each piece, and its error."""

    begun: float = field(default_factory=time.perf_counter)
    times: list[float] = field(default_factory=list)  # of each token
    error: str | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, piece: TokenPiece) -> None:
        self.times += [time.perf_counter()] * len(piece.tokens)
        if piece.ended:
            self.error = piece.error
            self.ended.set()


async def answers(decoder: Decoder, streams: int, prompt: int, tokens: int, seed: int) -> list[Answer]:
    """Sample `tokens` tokens in each of several streams, after prompts that share nothing."""
    draw = random.Random(seed)
    begun = []
    for _ in range(streams):
        answer = Answer()
        ids = [draw.randrange(3, decoder.vocabulary) for _ in range(prompt)]
        decoder.generate(ids, Sampling(temperature=1.0, top_p=1.0, top_k=0, max_tokens=tokens), answer.take)
        begun.append(answer)
    await asyncio.gather(*(answer.ended.wait() for answer in begun))
    return begun


def engine(bench: Bench) -> None:
    """Tokens per second of the embedded engine, the first token, and a swap under load."""
    recipe = recipe_of(bench.model("0.6b"))
    run = new_run(recipe)
    decoder = Decoder(run, recipe, 0)
    prompt, tokens = (32, 8) if bench.tiny else (256, 128)
    asyncio.run(answers(decoder, 2, prompt, 4, seed=1))  # warms up
    for count in STREAMS[:2] if bench.tiny else STREAMS:
        add_speed(bench, f"{count} streams", asyncio.run(answers(decoder, count, prompt, tokens, seed=2 + count)))
    publish_adapter(run, recipe, bench.device)
    asyncio.run(swap_under_load(bench, decoder, prompt, 2 * tokens))
    decoder.stop()
    del decoder
    free(bench.device)
    if bench.tiny:
        return  # the CPU's way of the same library is measured by `scripts/bench serve`
    plain = recipe_of(bench.model("0.6b"), patches=False, kv_cache_tokens=32768)
    decoder = Decoder(new_run(plain), plain, 0)
    asyncio.run(answers(decoder, 2, prompt, 4, seed=1))
    for count in STREAMS[:2]:
        add_speed(bench, f"{count} streams without patches", asyncio.run(answers(decoder, count, prompt, tokens, seed=2 + count)))
    decoder.stop()


def add_speed(bench: Bench, name: str, done: Sequence[Answer]) -> None:
    sampled = sum(len(answer.times) for answer in done)
    seconds = max(answer.times[-1] for answer in done) - min(answer.begun for answer in done)
    decoding = max(answer.times[-1] for answer in done) - max(answer.times[0] for answer in done)
    bench.add(f"{name} tokens_per_s", sampled / seconds, "tokens/s, with prompts")
    bench.add(f"{name} decode_tokens_per_s", (sampled - len(done)) / max(decoding, 1e-9), "tokens/s after every first token")
    bench.add(f"{name} first_token_ms", 1000 * statistics.median(answer.times[0] - answer.begun for answer in done), "ms")
    bench.add(f"{name} failed", sum(answer.error is not None for answer in done), "requests")


async def swap_under_load(bench: Bench, decoder: Decoder, prompt: int, tokens: int) -> None:
    load = asyncio.create_task(answers(decoder, 4 if bench.tiny else 32, prompt, tokens, seed=99))
    await asyncio.sleep(0.05)
    swap = await asyncio.to_thread(decoder.swap, 1)
    done = await load
    gaps = [after - before for answer in done for before, after in pairwise(answer.times)]
    bench.add("swap load_ms", swap.load_ms, "ms, with the canary check")
    bench.add("swap pause_ms", swap.pause_ms, "ms in which no token is sampled")
    bench.add("swap longest_gap_ms", 1000 * max(gaps), "ms between two tokens of a stream")
    bench.add("swap failed", sum(answer.error is not None for answer in done), "requests")


# ---- shared ----------------------------------------------------------------------------------------------------------------


def shared(bench: Bench) -> None:
    """Tokens per second of the engine, and seconds of a training step, alone and together."""
    recipe = recipe_of(bench.model("0.6b"))
    decoder = Decoder(new_run(recipe), recipe, 0)
    load = Load(decoder, 2 if bench.tiny else 32)
    load.begin()
    alone = load.rate(0.5 if bench.tiny else 3.0)
    command = [sys.executable, "-m", "scripts.benchmarks.gpu_serving", str(bench.folder), str(int(bench.tiny))]
    with running_trainer(command) as steps:
        next(steps)  # the first one compiles
        before, began = load.tokens, time.perf_counter()
        together = [next(steps) for _ in range(2 if bench.tiny else 6)]
        while_training = (load.tokens - before) / (time.perf_counter() - began)
        load.end()
        next(steps)
        single = [next(steps) for _ in range(2 if bench.tiny else 6)]
    bench.add("tokens_per_s alone", alone, "tokens/s")
    bench.add("tokens_per_s while_training", while_training, "tokens/s")
    bench.add("step_seconds alone", statistics.median(single), "s")
    bench.add("step_seconds while_serving", statistics.median(together), "s")
    bench.add("failed", load.failed, "requests")
    if bench.cuda:
        free_bytes, total = torch.cuda.mem_get_info(bench.device)
        bench.add("memory_in_use", (total - free_bytes) / 2**30, "GiB, after the trainer has ended")
    decoder.stop()


def one_copy(bench: Bench) -> None:
    """Memory of a card that serves and trains, tokens per second of the engine, and seconds of a step, with two copies of the base
    model and with one."""
    used: dict[str, float] = {}
    for copies, setting in (("two copies", "never"), ("one copy", "always")):
        free(bench.device)
        before = torch.cuda.mem_get_info(bench.device)[0] if bench.cuda else 0
        recipe = recipe_of(bench.model("4b"), None, setting, kv_cache_tokens=8192)
        decoder = Decoder(new_run(recipe), recipe, 0)
        load = Load(decoder, 2 if bench.tiny else 8)
        load.begin()
        bench.add(f"tokens_per_s {copies}", load.rate(0.5 if bench.tiny else 3.0), "tokens/s")
        load.end()
        command = [sys.executable, "-m", "scripts.benchmarks.gpu_serving", str(bench.folder), str(int(bench.tiny)), "4b", setting]
        with running_trainer(command) as steps:
            bench.add(f"step_seconds {copies}", min(next(steps) for _ in range(3)), "s")
            if bench.cuda:
                used[copies] = (before - torch.cuda.mem_get_info(bench.device)[0]) / 2**30
                bench.add(f"memory_in_use {copies}", used[copies], "GiB of both")
        decoder.stop()
        del decoder, load
    if used:
        bench.add("memory_ratio_two_copies", used["one copy"] / used["two copies"], "")


@contextmanager
def running_trainer(command: list[str]) -> Iterator[Iterator[float]]:
    """The seconds of its steps. The trainer ends with the block, whatever happens in it."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        try:
            yield (float(line) for line in trainer.stdout if line[:1].isdigit())
        finally:
            trainer.kill()


class Load:
    """Keeps a number of streams busy, in a thread of its own."""

    def __init__(self, decoder: Decoder, streams: int) -> None:
        self._decoder, self._streams, self._ending = decoder, streams, False
        self.tokens = self.failed = 0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ending = True
        self._thread.join()

    def rate(self, seconds: float) -> float:
        before = self.tokens
        time.sleep(seconds)
        return (self.tokens - before) / seconds

    async def _run(self) -> None:
        await asyncio.gather(*(self._stream(seed) for seed in range(self._streams)))

    async def _stream(self, seed: int) -> None:
        draw = random.Random(seed)
        while not self._ending:
            answer = Answer()
            ids = [draw.randrange(3, self._decoder.vocabulary) for _ in range(128)]
            sampling = Sampling(temperature=1.0, top_p=1.0, top_k=0, max_tokens=64)

            def take(piece: TokenPiece, answer: Answer = answer) -> None:
                self.tokens += len(piece.tokens)
                answer.take(piece)

            self._decoder.generate(ids, sampling, take)
            await answer.ended.wait()
            self.failed += answer.error is not None


def train_for_ever(bench: Bench, size: str = "0.6b", one_copy: str = "auto") -> None:
    """In the trainer's process: print the seconds of each step."""
    tokens = bench.tokens(4096)
    training = open_training(bench, bench.model(size), 2 * tokens, {"lora": {"rank": 16}}, one_copy)
    samples = samples_of(training, session_of(tokens, SPOKEN))
    step = 0
    while True:
        step += 1
        began = time.perf_counter()
        train_step(training, Batch(step, samples))
        settle(bench.device)
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError):
        surroundings = Bench(Path(sys.argv[1]), bool(int(sys.argv[2])), lambda *row: print(json.dumps(row), file=sys.stderr))
        train_for_ever(surroundings, *sys.argv[3:])
