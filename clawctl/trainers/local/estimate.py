"""Estimates memory and time before the first step, and suggests changes if memory is too small. Loads no weights."""

import logging
import os
from bisect import bisect_right
from dataclasses import dataclass, fields
from typing import Any

import torch

from clawctl.architectures import skeleton
from clawctl.config import LoraConfig, Recipe, TrainConfig
from clawctl.errors import ClawError
from clawctl.memory import CUDA_CONTEXT, GIB, ONCE, PROCESS, Needs
from clawctl.trainers.local.costs import (
    MemoryEstimate,
    Shape,
    Spread,
    estimate,
    measured_flops,
    peak_flops,
    seconds_a_microbatch,
    shape_of,
)
from clawctl.trainers.local.loading import borrows, shares_files
from clawctl.trainers.local.ranks import Ranks, is_sharded

log = logging.getLogger("clawctl.train")

REACHED = 0.4  # fraction of a GPU's peak that training reaches
_MOST_TOKENS = 1 << 22  # of a turn
_TOO_HIGH = 1.1  # what an estimate may be of the memory that is used: measured on cards, it was within a tenth


@dataclass(frozen=True, slots=True)
class Forecast:
    """The estimated requirements of training a recipe on this machine."""

    estimate: MemoryEstimate
    memory: int | None  # bytes of a device that training may use; None: unknown
    ranks: int
    sharded: bool
    parameters: int
    trained: int
    peak: float | None  # operations per second of a device; None: unknown
    seconds: float | None  # upper bound for a full microbatch; None: the device's speed is unknown
    advice: tuple[str, ...]  # changes, each of which would make it fit
    experts: str | None = None  # what an adapter does not train

    @property
    def fits(self) -> bool | None:
        return None if self.memory is None else self.estimate.total <= self.memory

    @property
    def exceeds_memory(self) -> bool:
        return self.memory is not None and self.estimate.certain > self.memory

    def lines(self) -> list[str]:
        """The forecast as lines for the user."""
        how = f"{self.ranks} device{'s' if self.ranks > 1 else ''}" + (", weights sharded" if self.sharded else "")
        lines = [f"{self.parameters / 1e9:.2f} billion weights, {self.trained / 1e6:.1f} million of them trained; {how}"]
        parts = {field.name: getattr(self.estimate, field.name) for field in fields(self.estimate)}
        lines += [f"  {name:<12}{size / GIB:9.2f} GiB" for name, size in parts.items() if size]
        memory = "" if self.memory is None else f" of {self.memory / GIB:.2f}: " + ("fits" if self.fits else "does NOT fit")
        lines.append(f"  {'total':<12}{self.estimate.total / GIB:9.2f} GiB per device{memory}")
        if self.seconds is not None and self.peak is not None:
            speed = f"{REACHED:.0%} of the device's peak of {round(self.peak / 1e12, 2):g} teraflops"
            lines.append(f"  a full microbatch takes about {float(format(self.seconds, '.2g')):g} s at {speed}")
        else:
            lines.append("  the time is not known, because the device is not; set train.peak_tflops to get an estimate")
        if self.experts is not None:
            lines.append(f"  {self.experts}")
        return lines + [f"  would fit: {change}" for change in self.advice]


def forecast(recipe: Recipe, ranks: Ranks) -> Forecast:
    """The forecast for a recipe. Raises ClawError if the model is unknown or the settings are invalid."""
    config, causal = recipe.train, skeleton(recipe.model_path)
    shape, memory = shape_of(causal, config), device_memory(config, ranks)
    result = _estimate(shape, config, ranks)
    fits = memory is None or result.total <= memory
    name = torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" and torch.cuda.is_available() else None
    peak = peak_flops(name, config.local.peak_tflops)
    if peak is None and ranks.device.type == "cpu":
        peak = measured_flops(torch.bfloat16 if config.local.dtype == "bfloat16" else torch.float32)
    seconds = seconds_a_microbatch(shape, config, REACHED * peak) if peak else None
    changes = () if fits or memory is None else tuple(_advice(causal, config, ranks, memory))
    sharded = is_sharded(config, ranks)
    parts = result, memory, ranks.world, sharded, shape.weights, shape.trained, peak, seconds, changes
    return Forecast(*parts, experts=_untrained_experts(shape.experts, shape.weights, config))


def _untrained_experts(experts: int, weights: int, config: TrainConfig) -> str | None:
    """What an adapter leaves out of a mixture of experts; None if nothing."""
    if not experts or config.lora is None:
        return None
    kept = ", nor does train.lora.quantize reach them" if config.lora.quantize is not None else ""
    return f"experts, which are {experts / weights:.0%} of the weights, are not trained by an adapter, on all-linear either{kept}"


def check_memory(recipe: Recipe, ranks: Ranks) -> None:
    """Log the estimate. Raises ClawError if weights, gradients and optimizer alone exceed the device's memory."""
    result = forecast(recipe, ranks)
    for line in result.lines():
        log.info("%s", line)
    if result.experts is not None:
        log.warning("%s", result.experts)
    if result.exceeds_memory and not recipe.train.local.ignore_estimate:
        assert result.memory is not None
        need, have = result.estimate.certain / GIB, result.memory / GIB
        first = result.advice[0] if result.advice else "train a smaller model, or use more devices"
        raise ClawError(
            f"training {recipe.model.path} needs at least {need:#.3g} GiB per device, which has {have:#.3g}",
            f"{first}; --estimate shows details, --ignore-estimate trains anyway",
            2,
        )
    if result.fits is False:
        log.warning("training may run out of memory; these settings would fit: %s", "; ".join(result.advice) or "none are known")


def longest_turn(recipe: Recipe, ranks: Ranks) -> int | None:
    """How many tokens a turn may have to fit alone into the device's memory with all layers checkpointed, if the estimate is a
    tenth too high. None: the memory is not certain, as on a CPU, or `ignore_estimate` is set.
    """
    config = recipe.train
    memory = device_memory(config, ranks)
    is_certain = ranks.device.type == "cuda" or config.local.device_memory_gb is not None
    if memory is None or not is_certain or config.local.ignore_estimate:
        return None
    shape = shape_of(skeleton(recipe.model_path), config)

    def bytes_of(tokens: int) -> int:
        alone = config.changed(gradient_checkpointing=1.0, tokens_per_microbatch=tokens)
        return _estimate(shape, alone, ranks).total

    longest = bisect_right(range(1, _MOST_TOKENS), int(_TOO_HIGH * memory), key=bytes_of)
    log.info("turns of more than %d tokens are refused, because they do not fit (train.longest_turn_tokens)", longest)
    return longest


def needs_of(recipe: Recipe, ranks: Ranks) -> Needs:
    """What training takes of a box. Raises ClawError."""
    config, causal = recipe.train, skeleton(recipe.model_path)
    shape = shape_of(causal, config)
    experts = _untrained_experts(shape.experts, shape.weights, config)
    needed, offload = _estimate(shape, config, ranks), config.local.optimizer_offload and ranks.device.type == "cuda"
    device = {field.name: size for field in fields(needed) if (size := getattr(needed, field.name))}
    if ranks.device.type != "cuda":
        if shares_files(recipe, ranks.device.type) and causal.config.dtype != torch.float32:  # None: as most models, 16 bits
            device["weights"] += 4 * shape.vocabulary * shape.hidden - 4 * shape.weights  # the head, of the canary
            device[ONCE] = 2 * shape.weights
        return Needs(device, {"process": PROCESS}, note=experts)
    host = {"processes": PROCESS * ranks.world}
    if offload:
        before = 4 if config.lr == "auto" else 0  # the weights before a step, which is then scaled
        host["weights, gradients and optimizer"] = 4 * shape.weights + (12 + before) * shape.trained
    else:  # each process reads the model before it moves to the GPU
        host["weights while they are read"] = ranks.world * shape.weights * (4 if config.lora is None else 2)
    if config.lora is not None and config.lora.quantize is not None:
        host["unquantised weights for the canary"] = 2 * shape.weights
    if config.lora is None:
        host["a version to publish"] = 2 * shape.weights
    device["CUDA"] = CUDA_CONTEXT
    if borrows(recipe, ranks.device.type) and not is_sharded(config, ranks):
        device["weights"] -= 2 * shape.weights
        device[ONCE] = 2 * shape.weights
    over = sum(device.values()) - int(config.local.device_memory_gb * GIB) if config.local.device_memory_gb else 0
    if over <= 0:
        return Needs(device, host, note=experts)
    problem = (
        f"training needs {sum(device.values()) / GIB:.1f} GiB, more than train.device_memory_gb {config.local.device_memory_gb:g}"
    )
    return Needs(device, host, over, problem, experts)


def device_memory(config: TrainConfig, ranks: Ranks) -> int | None:
    """Bytes that one trainer may use: what is free on a GPU minus CUDA's own, or its share of the machine's memory. None if
    unknown."""
    cuda, memory_gb = ranks.device.type == "cuda", config.local.device_memory_gb
    if memory_gb is not None:
        return max(0, int(memory_gb * GIB) - (CUDA_CONTEXT if cuda else 0))
    if cuda:
        return torch.cuda.mem_get_info(ranks.device)[0] - CUDA_CONTEXT if torch.cuda.is_available() else None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // ranks.world


def _estimate(shape: Shape, config: TrainConfig, ranks: Ranks) -> MemoryEstimate:
    offload = config.local.optimizer_offload and ranks.device.type == "cuda"
    return estimate(shape, config, Spread(ranks.world, is_sharded(config, ranks), offload))


def _advice(causal: Any, config: TrainConfig, ranks: Ranks, memory: int) -> list[str]:
    """Changes that would make it fit, the smallest first; or several together if no single one is enough."""
    cuda, tokens = ranks.device.type == "cuda", config.local.tokens_per_microbatch
    changes: list[tuple[str, dict[str, Any]]] = [
        ("train.gradient_checkpointing: 0.5", {"gradient_checkpointing": 0.5}),
        ("train.gradient_checkpointing: true", {"gradient_checkpointing": 1.0}),
        *((f"train.tokens_per_microbatch: {tokens >> n}", {"tokens_per_microbatch": tokens >> n}) for n in (1, 2, 3)),
    ]
    if cuda:
        changes += [("train.dtype: bfloat16", {"dtype": "bfloat16"})]
        if config.lora is None:
            changes += [("train.optimizer_offload: true", {"optimizer_offload": True, "shard": "auto"})]
    if config.lora is None:
        changes += [("train.lora: {rank: 16}", {"lora": LoraConfig()})]
    result: list[str] = []
    changed, texts = config, dict[str, str]()
    for text, change in changes:
        alone = config.changed(**change)
        if _estimate(shape_of(causal, alone), alone, ranks).total <= memory:
            result.append(text)
            continue
        changed = changed.changed(**change)
        texts[text.partition(":")[0]] = text
        if not result and len(texts) > 1 and _estimate(shape_of(causal, changed), changed, ranks).total <= memory:
            return [" with ".join(texts.values())]
    return result
