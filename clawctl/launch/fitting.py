"""Chooses settings with which a recipe fits a box, and writes them into its text: `clawctl up --estimate RECIPE --fit`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from clawctl.config import Recipe
from clawctl.config.editing import with_value
from clawctl.errors import ClawError
from clawctl.launch.plan import MemoryPlan, plan_memory
from clawctl.memory import Box
from clawctl.serve.memory import vllm_options

Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FittingChange:
    key: str  # "train.tokens_per_microbatch"
    value: Any
    reason: str


def fit(load: Callable[[Settings], Recipe], box: Box) -> tuple[list[FittingChange], MemoryPlan]:
    """The changes with which the recipe fits, and its plan with them. `load` reads the recipe with further settings.

    Raises ClawError (exit code 2) if no known changes are enough."""
    made: dict[str, FittingChange] = {}

    def plan_with(changes: dict[str, FittingChange]) -> MemoryPlan:
        return plan_memory(load({change.key: change.value for change in changes.values()}), box)

    plan = plan_with(made)
    tried = 0
    while plan.problems:
        candidates = list(_changes(load({change.key: change.value for change in made.values()}), box))
        if tried >= len(candidates):
            raise ClawError(f"no settings are known with which it fits: {'; '.join(plan.problems)}", "choose a smaller model", 2)
        change = candidates[tried]
        changed = plan_with({**made, change.key: change})
        if _excess(changed) < _excess(plan):
            made, plan, tried = {**made, change.key: change}, changed, 0
        else:
            tried += 1
    for key in list(made):  # what a later change made unnecessary
        fewer = {other: change for other, change in made.items() if other != key}
        if not (without := plan_with(fewer)).problems:
            made, plan = fewer, without
    return list(made.values()), plan


def fitted(text: str, changes: list[FittingChange]) -> str:
    """The text of a recipe with the changes, each with its reason."""
    for change in changes:
        text = with_value(text, change.key, change.value, change.reason)
    return text


def _excess(plan: MemoryPlan) -> int:
    """Bytes that are missing."""
    missing = sum(max(0, plan.need(gpu) - free) for gpu in plan.memories if (free := plan.free(gpu)) is not None)
    return missing + plan.short


def _changes(recipe: Recipe, box: Box) -> Iterator[FittingChange]:
    """Changes that reduce memory, the least harmful first."""
    train, local, serve, cuda = recipe.train, recipe.train.local, recipe.serve, bool(box.free)
    if local.gradient_checkpointing < 0.5:
        yield FittingChange("train.gradient_checkpointing", 0.5, "stores only the input of half of the layers; a sixth more time")
    if local.gradient_checkpointing < 1:
        yield FittingChange("train.gradient_checkpointing", True, "stores each layer's input only; a third more time")
    if cuda and local.dtype != "bfloat16":
        yield FittingChange("train.dtype", "bfloat16", "half of the activations")
    yield from _smaller("train.tokens_per_microbatch", local.tokens_per_microbatch, 2048, "longer sessions are cut between turns")
    if serve.engine == "transformers":
        yield from _smaller("serve.kv_cache_tokens", serve.kv_cache_tokens, 32768, "of all running conversations together")
    elif serve.engine == "vllm":
        yield from _vllm_changes(recipe)
    if cuda and train.lora is None and not local.optimizer_offload:
        yield FittingChange("train.optimizer_offload", True, "masters, gradients and optimizer are in host memory")
    if train.lora is None:
        yield FittingChange("train.lora", {"rank": 16, "alpha": 32}, "an adapter; all weights do not fit")
    elif cuda and train.lora.quantize is None and train.backend.kind == "local":
        yield FittingChange("train.lora.quantize", "nf4", "the trainer's frozen base in 4 bits; needs bitsandbytes")
    if train.lora is not None:
        yield from _smaller("train.lora.rank", train.lora.rank, 8, "smaller versions")
    if serve.pinned_versions > 1:
        yield FittingChange("serve.pinned_versions", 1, "fewer versions beside the live one")
    yield from _smaller("train.tokens_per_microbatch", local.tokens_per_microbatch, 512, "longer sessions are cut between turns")
    if serve.engine == "transformers":
        yield from _smaller("serve.kv_cache_tokens", serve.kv_cache_tokens, 8192, "of all running conversations together")


def _smaller(key: str, value: int, least: int, reason: str) -> Iterator[FittingChange]:
    if value > least:
        yield FittingChange(key, max(least, value // 2), reason)


def _vllm_changes(recipe: Recipe) -> Iterator[FittingChange]:
    options = vllm_options(recipe)
    shared = set(recipe.train.gpus or [0]) & set(recipe.serve.gpus or [0]) and "train" in recipe.up.stages
    for share in (options.share - 0.05, options.share + 0.05) if shared else (0.95,):
        if 0.1 <= share <= 0.95:
            yield FittingChange(
                "serve.engine_args", _replaced(recipe, "--gpu-memory-utilization", f"{share:.2f}"), "vLLM's share of the card"
            )
    if not options.length or options.length > 8192:
        yield FittingChange(
            "serve.engine_args", _replaced(recipe, "--max-model-len", str((options.length or 65536) // 2)), "a shorter context"
        )


def _replaced(recipe: Recipe, option: str, value: str) -> list[str]:
    arguments = list(recipe.serve.engine_args)
    if option in arguments:
        arguments[arguments.index(option) + 1] = value
        return arguments
    return [*arguments, option, value]
