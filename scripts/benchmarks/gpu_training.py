"""Cases of `scripts/bench gpu` about training: gradients, memory, speed, and out of memory."""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clawctl.config import Recipe
from clawctl.run.gguf import model_folder
from clawctl.train.measures import Measures
from clawctl.train.sample import Batch, Sample
from clawctl.trainers.local.batches import make_microbatch, share_out
from clawctl.trainers.local.costs import peak_flops
from clawctl.trainers.local.estimate import forecast
from clawctl.trainers.local.objective import objective_of
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.scores import turn_branches
from clawctl.trainers.local.step import add_gradients, train_step
from clawctl.trainers.local.trainer import load_training
from clawctl.trainers.local.training import Training
from scripts.benchmarks.gpu_models import SPOKEN, Bench, card_name, free, settle
from scripts.benchmarks.train_ours import useful_flops
from scripts.benchmarks.train_trl import matmul_flops
from scripts.benchmarks.train_turns import Turn, make_session

TURN = 150  # approximate number of tokens that a turn adds to a trie
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Shape:
    """One setting of training."""

    size: str  # of the model: "4b"
    tokens: int  # approximate size of the trie, and of the microbatch
    settings: dict[str, Any]

    @property
    def name(self) -> str:
        lora = self.settings.get("lora")
        parts = [self.size, "full" if lora is None else f"lora-r{lora['rank']}", f"{self.tokens // 1024}k"]
        share = self.settings.get("gradient_checkpointing")
        return " ".join([*parts, *([] if share is None else ["checkpointing" if share == 1 else f"checkpointing {share:.0%}"])])


LORA: dict[str, Any] = {"lora": {"rank": 16}}
CHECKPOINTED = {"gradient_checkpointing": True}
MEMORY = (Shape("0.6b", 8192, {}), Shape("4b", 8192, LORA), Shape("4b", 16384, LORA | CHECKPOINTED))
SPEED = (Shape("4b", 16384, LORA | {"gradient_checkpointing": 0.35}), Shape("4b", 8192, LORA))  # they fit a card of 80 GB
FULL = Shape("4b", 8192, CHECKPOINTED | {"optimizer_offload": True, "shard": "full"})


def session_of(tokens: int, vocabulary: int) -> list[Turn]:
    """Make a session whose trie has about `tokens` tokens. The system prompt is five eighths of them."""
    system = tokens * 5 // 8
    return make_session(max(2, (tokens - system) // TURN), system, vocabulary)


def recipe_of(model: Path, tokens: int, settings: dict[str, Any], one_copy: str = "auto") -> Recipe:
    """A recipe in bfloat16, which most processors compute slowly: a rehearsal without a card has float32."""
    dtype = "bfloat16" if torch.cuda.is_available() else "float32"
    train = {"method": "binary", "lr": 1e-6, "dtype": dtype, "tokens_per_microbatch": tokens, **settings}
    return Recipe.model_validate({"model": {"path": str(model), "one_copy": one_copy}, "train": train})


def open_training(bench: Bench, model: Path, tokens: int, settings: dict[str, Any], one_copy: str = "auto") -> Training:
    return load_training(recipe_of(model, tokens, settings, one_copy), Ranks(0, 1, bench.device))


def samples_of(training: Training, turns: Sequence[Turn]) -> list[Sample]:
    """Turns with the policy's own logprobs, as if just sampled, and alternating rewards."""
    plain = [
        Sample(f"turn-{i}", "a", "", prompt, completion, [0.0] * len(completion), 1.0, 0, 1.0 if i % 2 else -1.0, None)
        for i, (prompt, completion) in enumerate(turns)
    ]
    logprobs = logprobs_of(training, plain)
    return [replace(sample, logprobs=turn_logprobs.tolist()) for sample, turn_logprobs in zip(plain, logprobs, strict=True)]


@torch.no_grad()
def logprobs_of(training: Training, samples: Sequence[Sample]) -> list[Tensor]:
    branches, policy = turn_branches(samples), training.policy
    result: dict[int, Tensor] = {}
    for group in share_out(branches, policy.merge, training.config.local.tokens_per_microbatch).groups:
        batch = make_microbatch([branches[index] for index in group], policy.merge, policy.device)
        result.update(zip(group, policy.logprobs(batch).split(batch.lengths), strict=True))
    return [result[index] for index in range(len(samples))]


# ---- gradients -----------------------------------------------------------------------------------------------------------


def gradients(bench: Bench) -> None:
    """The gradient of a session as one trie, against the same turns as separate sequences. In bfloat16 both differ from float32;
    the trie may not differ more than the separate sequences by half. Each turn continues the one before it, which is a chain, or
    has a second answer as well."""
    merged, within = 1.0, True
    for dtype, branches, tokens in (("float32", True, 1500), ("bfloat16", True, 3000), ("bfloat16", False, 6000)):
        model = Path(model_folder("crafts")) if dtype == "float32" else bench.model("0.6b")
        name = f"{dtype} {'branches' if branches else 'chain'}"
        began = time.perf_counter()
        compared = compare(bench, model, dtype, bench.tokens(tokens), branches)
        bench.add(f"{name} gradient_error", compared["tree"], "relative to one sequence a turn in float32")
        bench.add(f"{name} gradient_error_alone", compared["alone"], f"the same of one sequence a turn in {dtype}")
        bench.add(f"{name} seconds", time.perf_counter() - began, "s, with compilation")
        merged *= compared["merged"]
        within &= compared["tree"] < (1e-3 if dtype == "float32" else 1.5 * compared["alone"] + 1e-3)
    bench.add("merged_as_trees", merged, "1: the trainer uses trees on this device")
    bench.add("within_tolerance", float(within), "1: yes")


def compare(bench: Bench, model: Path, dtype: str, tokens: int, branches: bool) -> dict[str, float]:
    """Relative errors of gradients: as a tree, and as separate sequences in the same type."""
    turns = session_of(tokens, SPOKEN)[:6]
    turns += [(prompt, completion[::-1]) for prompt, completion in turns] if branches else []
    tensors: dict[str, Tensor] = {}
    merged = 1.0
    samples: list[Sample] | None = None
    for name, merge, kind in (("exact", "none", "float32"), ("alone", "none", dtype), ("tree", "tree", dtype)):
        training = open_training(bench, model, 2 * tokens, {"merge": merge, "dtype": kind, "turn_bound": None, **LORA})
        with torch.no_grad():
            for _, parameter in training.policy.trained():
                parameter.copy_(torch.linspace(-0.02, 0.02, parameter.numel(), device=bench.device).view_as(parameter))
        if name == "tree":
            merged = float(training.policy.merge == "tree")
        samples = samples or samples_of(training, turns)
        batch = Batch(1, samples)
        add_gradients(training, objective_of(training.config, batch), Measures())
        tensors[name] = torch.cat([p.grad.float().flatten() for _, p in training.policy.trained() if p.grad is not None])
        del training
        free(bench.device)
    norm = tensors["exact"].norm()
    return {"merged": merged} | {name: float((tensors[name] - tensors["exact"]).norm() / norm) for name in ("alone", "tree")}


# ---- memory --------------------------------------------------------------------------------------------------------------


def memory(bench: Bench) -> None:
    """The peak of a step against the estimate, for three shapes."""
    for shape in MEMORY:
        with reported(bench, shape.name):
            measure_memory(bench, shape)
        free(bench.device)


def measure_memory(bench: Bench, shape: Shape) -> None:
    tokens = bench.tokens(shape.tokens)
    model = bench.model(shape.size)
    expected = forecast(recipe_of(model, tokens, shape.settings), Ranks(0, 1, bench.device))
    training = open_training(bench, model, tokens, shape.settings)
    samples = samples_of(training, session_of(tokens, SPOKEN))
    free(bench.device)
    result = train_step(training, Batch(1, samples))
    assert result.row is not None, result.problem
    result = train_step(training, Batch(2, samples))  # now with the optimizer's state
    assert result.row is not None, result.problem
    estimated, measured = expected.estimate.total, result.row["peak_memory_bytes"]
    bench.add(f"{shape.name} tokens", result.row["computed_tokens"], "tokens in the step")
    bench.add(f"{shape.name} measured", measured / GIB, "GiB")
    bench.add(f"{shape.name} estimated", estimated / GIB, "GiB")
    bench.add(f"{shape.name} measured_by_estimated", measured / estimated, "×")
    if bench.cuda:
        bench.add(f"{shape.name} reserved", torch.cuda.max_memory_reserved() / GIB, "GiB, with what the allocator keeps")


@contextmanager
def reported(bench: Bench, name: str) -> Iterator[None]:
    """A shape that runs out of memory leaves a row, and the next one is tried."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        bench.add(f"{name} out_of_memory", None, str(error).partition(". GPU")[0][:120])


# ---- speed ---------------------------------------------------------------------------------------------------------------


def train(bench: Bench) -> None:
    """Tokens per second and MFU of steps of one full trie. The log has the kernels of a step, the longest first."""
    for shape in SPEED:
        with reported(bench, shape.name):
            measure_speed(bench, shape, kernels=bench.cuda)
        free(bench.device)


def full(bench: Bench) -> None:
    """All weights of the same dimensions: masters, gradients and Adam in host memory."""
    if bench.cuda:
        measure_speed(bench, FULL)
    else:
        measure_speed(bench, Shape(FULL.size, FULL.tokens, CHECKPOINTED))


def measure_speed(bench: Bench, shape: Shape, kernels: bool = False) -> None:
    tokens = bench.tokens(shape.tokens)
    model, began = bench.model(shape.size), time.perf_counter()
    training = open_training(bench, model, 2 * tokens, shape.settings)
    print(f"{shape.name}: loaded in {time.perf_counter() - began:.1f} s", flush=True)
    samples = samples_of(training, session_of(tokens, SPOKEN))
    print(f"{shape.name}: scored after {time.perf_counter() - began:.1f} s", flush=True)
    useful = useful_flops(training, samples)
    rows, seconds = [], []
    for step in range(1, 3 if bench.tiny else 4):
        began = time.perf_counter()
        result = train_step(training, Batch(step, samples))
        settle(bench.device)
        seconds.append(time.perf_counter() - began)
        assert result.row is not None, result.problem
        rows.append(result.row)
        print(f"step {step}: {seconds[-1]:.2f} s {rows[-1]['seconds']}", flush=True)
    median, last = statistics.median(seconds[1:]), rows[-1]
    product = matmul_flops("bfloat16", bench.device, 256 if bench.tiny else 8192)
    peak = peak_flops(card_name(), None) or product
    bench.add(f"{shape.name} tokens_per_s", last["computed_tokens"] / median, "tokens/s")
    bench.add(f"{shape.name} mfu", useful / median / peak, "share of the card's peak")
    bench.add(f"{shape.name} matmul_peak_share", useful / median / product, "share of a large matrix product's speed")
    bench.add(f"{shape.name} step_seconds", median, "s")
    for phase, spent in last["seconds"].items():
        bench.add(f"{shape.name} {phase}", spent, "s of the last step")
    bench.add(f"{shape.name} first_step", seconds[0], "s, with compilation")
    bench.add(f"{shape.name} bounded_turns", last["bounded_turns"], "turns whose gradient is computed twice")
    bench.add(f"{shape.name} tree_saving", last["tree_saving"], "×")
    bench.add(f"{shape.name} peak_memory", last["peak_memory_bytes"] / GIB, "GiB")
    if kernels:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            train_step(training, Batch(9, samples))
            settle(bench.device)
        print(profile.key_averages().table(sort_by="cuda_time_total", row_limit=30, max_name_column_width=90), flush=True)


# ---- out of memory ---------------------------------------------------------------------------------------------------------


def out_of_memory(bench: Bench) -> None:
    """Steps in less memory than their microbatch needs: the step is made, and a turn that alone is too long is refused."""
    short, long = bench.tokens(2048), bench.tokens(40960)
    microbatch, fitting = (1024, 300) if bench.tiny else (16384, 5000)
    training = open_training(bench, bench.model("0.6b"), microbatch, LORA)
    turns = [turn for seed in range(6) for turn in make_session(2, short, SPOKEN, seed)]
    samples = samples_of(training, turns)
    with limited(bench, training, fitting):
        result = train_step(training, Batch(1, samples))
        bench.add("steps_lost", float(result.row is None), "steps")
        bench.add("turns_lost", float(len(samples) - (result.row or {"turns": 0})["turns"]), "turns")
        bench.add("tokens_a_microbatch_afterwards", training.config.local.tokens_per_microbatch, "tokens")
        (prompt, completion), *_ = make_session(2, long, SPOKEN, 99)
        whole = Sample("long", "a", "", prompt, completion, [-7.0] * len(completion), 1.0, 0, 1.0, None)
        result = train_step(training, Batch(2, [*samples, whole]))
        bench.add("long_turn_refused_with_reason", float("long" in result.refused), "1: yes")
        bench.add("other_turns_lost", float(len(samples) - (result.row or {"turns": 0})["turns"]), "turns")
        print(result.refused, flush=True)


@contextmanager
def limited(bench: Bench, training: Training, tokens: int) -> Iterator[None]:
    """Within this context, passes of much more than `tokens` tokens run out of memory. On a card the allocator gets less memory;
    elsewhere a hook of the embedding raises the allocator's error."""
    if bench.cuda:
        fitting = tokens * 3 // 10  # without checkpointing; with it, all but the long turn fit
        per_token = forecast(recipe_of(bench.model("0.6b"), fitting, LORA), Ranks(0, 1, bench.device)).estimate
        total = torch.cuda.get_device_properties(bench.device).total_memory
        allowed = torch.cuda.memory_allocated() + per_token.activations + per_token.logits + GIB // 2
        free(bench.device)
        torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / total))
        yield
        torch.cuda.set_per_process_memory_fraction(1.0)
        return

    def refuse(module: Any, arguments: tuple[Tensor, ...]) -> None:
        if arguments[0].numel() > tokens:
            raise torch.OutOfMemoryError(f"{arguments[0].numel()} tokens, {tokens} fit")

    hook = training.policy.causal.get_input_embeddings().register_forward_pre_hook(refuse)
    yield
    hook.remove()
