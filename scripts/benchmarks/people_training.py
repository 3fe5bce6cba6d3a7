"""A training step of each of several people: in turn, as the trainer makes them, and with one pass over the base model for all.

The joint pass is not part of the trainer. It shows here what it would save: the rows of all people pass the matrices of the base
model together, and each row gets the part of its own adapter. Its gradients are compared with those of separate passes. Short turns
favour it, because a product of few rows is slow: on a core of the machine of the results, products of 10 rows run at 11 GFLOPS,
those of 60 rows at 30, and those of 125 to 4,000 rows at 40.

`seconds_per_step_ratio` divides the processor time of such a step for all by that of their steps in turn, on one core. A step
is what the trainer computes and writes: teacher, forward and backward (`gradients`), the optimizer and the KL divergence from
version 0 (`apply`), the canary's logprobs, and the files of a checkpoint. The base model is loaded once in either case, and
that and the reading of turns are left out. `products_share` is the share of matrix products in a step. The products are the
same in a joint pass, so the ratio cannot fall below it unless a product of more rows is faster.
"""

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft.tuners.lora import Linear
from torch import Tensor
from torch.nn.functional import linear

from clawctl.config import Recipe
from clawctl.train.measures import Measures
from clawctl.train.sample import Batch, Sample
from clawctl.trainers.local.batches import Microbatch, make_microbatch, share_out
from clawctl.trainers.local.objective import objective_of
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.scores import sampled_logprobs, teacher_branches, turn_branches, with_open_hints
from clawctl.trainers.local.step import _apply, _gradients
from clawctl.trainers.local.trainer import LocalSnapshot, load_training
from clawctl.trainers.local.training import Training, put_adapter
from clawctl.trainers.local.trees import Branch
from scripts.benchmarks.table import Row

_TURNS, _SYSTEM, _FRESH, _SAID, _HINT = 4, 20, 20, 24, 20  # a step's turns, and the tokens of a turn's parts
_APART = 2**20  # added to the token ids of each following person, so that people's tries have no part in common
_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}
Weights = dict[str, Tensor]


def measure(model: str, people: int, rank: int) -> list[Row]:
    torch.set_num_threads(1)
    train = {"batch_turns": _TURNS, "turn_bound": None, "lora": {"rank": rank}, "threads": 1}
    recipe = Recipe.model_validate({"model": {"path": model}, "policies": {"per": "key"}, "train": train})
    training = load_training(recipe, Ranks(0, 1, torch.device("cpu")))
    adapters = [_adapter(training, seed) for seed in range(people)]
    batches = [_batch(training, adapter, seed) for seed, adapter in enumerate(adapters)]
    _in_turn(training, adapters[:1], batches[:1])  # warms up
    parts, alone = _in_turn(training, adapters, batches)
    joint_s, together = _timed(lambda: _together(training, adapters, batches))
    step_s = sum(parts.values())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        _in_turn(training, adapters[:1], batches[:1])
    times = {event.key: event.self_cpu_time_total for event in profile.key_averages()}
    products = sum(microseconds for name, microseconds in times.items() if name in _PRODUCTS)
    case = f"{people} people train {model}"
    return [
        Row(case, "seconds_per_step_ratio", (step_s - parts["gradients"] + joint_s) / step_s, "ratio"),
        Row(case, "seconds_per_step_in_turn", step_s / people, "s"),
        *(Row(case, f"{name}_share", seconds / step_s, "share") for name, seconds in parts.items()),
        Row(case, "products_share", products / sum(times.values()), "share"),
        Row(case, "gradients_ratio", joint_s / parts["gradients"], "ratio"),
        Row(case, "gradient_difference_max", max(map(_difference, alone, together)), ""),
    ]


def _adapter(training: Training, seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(weight.shape, generator=generator) * 0.02 for name, weight in training.policy.trained()}


def _batch(training: Training, adapter: Weights, seed: int) -> Batch:
    """Turns with the logprobs of this adapter; every second one has a hint, in the middle of the prompt that its teacher reads."""
    draw, policy = random.Random(seed), training.policy

    def some(count: int) -> list[int]:
        return [draw.randrange(3, policy.vocabulary) for _ in range(count)]

    system, samples = some(_SYSTEM), []
    for number in range(_TURNS):
        fresh = some(_FRESH)
        hinted = [*system, *some(_HINT), *fresh] if number % 2 else None
        reward = 1.0 if number % 2 else -1.0
        samples.append(Sample(f"{seed}-{number}", "a", "", system + fresh, some(_SAID), [0.0] * _SAID, 1.0, 0, reward, hinted))
    put_adapter(policy, adapter)
    microbatch = make_microbatch(turn_branches(samples), policy.merge, policy.device)
    with torch.no_grad():
        logprobs = policy.logprobs(microbatch).split(microbatch.lengths)
    return Batch(1, [replace(sample, logprobs=values.tolist()) for sample, values in zip(samples, logprobs, strict=True)])


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def _in_turn(training: Training, adapters: Sequence[Weights], batches: Sequence[Batch]) -> tuple[dict[str, float], list[Weights]]:
    """The seconds of all steps by part, and the gradients."""
    parts, gradients = dict.fromkeys(("gradients", "apply", "canary", "writing"), 0.0), list[Weights]()
    for adapter, batch in zip(adapters, batches, strict=True):
        put_adapter(training.policy, adapter)
        training.optimizer.state.clear()
        seconds, computed = _timed(partial(_gradients, training, batch))
        parts["gradients"] += seconds
        gradients.append({name: weight.grad.clone() for name, weight in training.policy.trained() if weight.grad is not None})
        parts["apply"] += _timed(partial(_apply, training, *computed))[0]
        seconds, canary = _timed(training.policy.canary)
        parts["canary"] += seconds
        snapshot = LocalSnapshot(canary, training.policy.published(), training, 1, None, None)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "policy").mkdir()
            parts["writing"] += _timed(partial(snapshot.save, Path(folder)))[0]
    return parts, gradients


# ---- one pass for all ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Rows:
    """The rows of the running pass: (person, first row, row after the last), by the number of rows that a layer gets."""

    runs: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)


class _LinearOfSeveral(torch.autograd.Function):
    """W x + b + s B A x, in which each run of rows has its own A and B."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None, scale: float, runs: Any, *adapters: Tensor
    ) -> Tensor:
        x_TI = x.reshape(-1, x.shape[-1])
        y_TO, smalls = linear(x_TI, weight_OI, bias_O), list[Tensor]()
        for person, start, stop in runs:
            smalls.append(x_TI[start:stop] @ adapters[2 * person].T)
            y_TO[start:stop].addmm_(smalls[-1], adapters[2 * person + 1].T, alpha=scale)
        ctx.save_for_backward(x_TI, weight_OI, *adapters, *smalls)
        ctx.runs, ctx.scale = runs, scale
        return y_TO.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        x_TI, weight_OI, *rest = ctx.saved_tensors
        adapters, smalls = rest[: len(rest) - len(ctx.runs)], rest[len(rest) - len(ctx.runs) :]
        d_TO = given[0].reshape(-1, given[0].shape[-1])
        d_x = d_TO @ weight_OI if ctx.needs_input_grad[0] else None
        gradients = [torch.zeros_like(weight) for weight in adapters]
        for (person, start, stop), small in zip(ctx.runs, smalls, strict=True):
            d_small = (d_TO[start:stop] @ adapters[2 * person + 1]).mul_(ctx.scale)
            if d_x is not None:
                d_x[start:stop].addmm_(d_small, adapters[2 * person])
            gradients[2 * person].addmm_(d_small.T, x_TI[start:stop])
            gradients[2 * person + 1].addmm_(d_TO[start:stop].T, small, alpha=ctx.scale)
        return None if d_x is None else d_x.view(*given[0].shape[:-1], -1), None, None, None, None, *gradients


@contextmanager
def _adapters_of_several(training: Training, adapters: Sequence[Weights]) -> Iterator[_Rows]:
    """Within this context the policy's layers compute with all adapters, each on the rows of its person."""
    rows, replaced = _Rows(), []
    for name, layer in training.policy.module.named_modules():
        if type(layer) is Linear:
            weights = [adapter[f"{name}.lora_{half}.default.weight"] for adapter in adapters for half in "AB"]

            def forward(x: Tensor, layer: Any = layer, weights: Any = weights) -> Tensor:
                base, runs = layer.base_layer, rows.runs[x.numel() // x.shape[-1]]
                made: Tensor = _LinearOfSeveral.apply(x, base.weight, base.bias, layer.scaling["default"], runs, *weights)
                return made

            replaced.append((layer, layer.forward))
            layer.forward = forward
    try:
        yield rows
    finally:
        for layer, before in replaced:
            layer.forward = before


def _shifted(branches: Sequence[Branch], person: int) -> list[Branch]:
    return [replace(branch, ids=branch.ids + person * _APART) for branch in branches]


def _laid(training: Training, branches: Sequence[Branch], rows: _Rows) -> Microbatch:
    """The tries of several people side by side."""
    laid = make_microbatch(branches, "tree", training.policy.device)
    assert laid.visible is not None
    person_T = laid.ids_BT.flatten() // _APART
    rows.runs = {len(person): _runs(person) for person in (person_T, person_T[laid.visible.queries_M])}
    return replace(laid, ids_BT=laid.ids_BT % _APART, targets_N=laid.targets_N % _APART)


def _runs(person_T: Tensor) -> list[tuple[int, int, int]]:
    who, counts = torch.unique_consecutive(person_T, return_counts=True)
    return [(int(person), int(stop - count), int(stop)) for person, count, stop in zip(who, counts, counts.cumsum(0), strict=True)]


def _together(training: Training, adapters: Sequence[Weights], batches: Sequence[Batch]) -> list[Weights]:
    """The gradients of each person's step, from one pass over the base model (a few, if there are too many tokens for one)."""
    policy, config = training.policy, training.config
    copies = [{name: weight.clone().requires_grad_() for name, weight in adapter.items()} for adapter in adapters]
    turns = [(person, sample) for person, batch in enumerate(batches) for sample in batch.samples]
    taught = [(person, sample) for person, sample in turns if with_open_hints([sample])]
    objectives, teacher = [objective_of(config, batch) for batch in batches], dict[str, Tensor]()
    with _adapters_of_several(training, copies) as rows:
        branches = [_shifted(teacher_branches([sample]), person)[0] for person, sample in taught]
        for group in share_out(branches, "tree", config.local.tokens_per_microbatch).groups:
            laid = _laid(training, [branches[index] for index in group], rows)
            with torch.no_grad():
                values = policy.logprobs(laid).split(laid.lengths)
            teacher |= {taught[index][1].turn_id: value for index, value in zip(group, values, strict=True)}
        branches = [_shifted(turn_branches([sample]), person)[0] for person, sample in turns]
        for group in share_out(branches, "tree", config.local.tokens_per_microbatch).groups:
            laid = _laid(training, [branches[index] for index in group], rows)
            scored = sampled_logprobs(training, laid, [turns[index][1] for index in group], teacher)
            loss = torch.zeros(())
            for person in {turns[index][0] for index in group}:
                some = [turn for index, turn in zip(group, scored, strict=True) if turns[index][0] == person]
                loss = loss + objectives[person].loss(some, Measures(), {})
            loss.backward()
    return [{name: weight.grad for name, weight in adapter.items() if weight.grad is not None} for adapter in copies]


def _difference(ours: Weights, theirs: Weights) -> float:
    """The largest difference of a gradient, as a share of the largest number of its matrix."""
    return max(float((ours[name] - theirs[name]).abs().max() / ours[name].abs().max().clamp(min=1e-12)) for name in ours)
