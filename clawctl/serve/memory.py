"""What `clawctl serve` needs of the memory that the stages of a box share."""

import argparse
import math
from dataclasses import dataclass
from typing import Any, NoReturn

from clawctl.architectures import cached_numbers_a_token, skeleton
from clawctl.config import Recipe
from clawctl.engines.embedded.llama import is_llama, packed_bytes
from clawctl.errors import ClawError
from clawctl.memory import CUDA_CONTEXT, GIB, ONCE, PROCESS, Needs

_COMPUTED = 1 * GIB  # activations and logits of a step, in the embedded engine
_VLLM_COMPUTED = 2 * GIB  # vLLM's profile of its largest step, and its CUDA graphs
_VLLM_SHARE = 0.9  # vLLM's default
_VLLM_PROCESS = 6 * GIB


def serving_needs(recipe: Recipe, card: int | None) -> Needs:
    """The needs on each GPU of `serving_gpus`, where `card` is the memory of one; without one, those of the host. Raises
    ClawError."""
    if recipe.serve.upstream is not None or recipe.serve.engine not in ("transformers", "vllm"):
        return Needs(host={"gateway": PROCESS})
    causal = skeleton(recipe.model_path)
    config = causal.config.get_text_config().to_dict()
    weights = sum(parameter.numel() for parameter in causal.parameters())
    adapter = _adapter_weights(causal, recipe)
    if recipe.serve.engine == "vllm":
        return _vllm(recipe, config, weights, adapter, card)
    size = 2 if recipe.model.dtype == "bfloat16" else 4
    cached = (2 if recipe.model.dtype == "bfloat16" and card is not None else 4) * cached_numbers_a_token(config)
    tokens, others = recipe.serve.kv_cache_tokens, recipe.adapters_beside_live + (recipe.judge.ask and _judges_itself(recipe))
    shares = recipe.serve.patches and is_llama(config) and recipe.train.lora is not None
    parts = {"weights": size * weights}
    if recipe.serve.patches and is_llama(config):
        if recipe.model.one_copy == "always":
            parts = {ONCE: (2 if card is None else size) * weights}
        elif card is None:
            parts = {"weights, packed for a CPU": _packed_bytes(causal)}
    if shares:
        parts |= {
            f"adapters of {1 + others} versions": 8 * adapter * (1 + others),
            f"KV cache of {tokens:,} tokens": cached * tokens,
        }
    else:
        parts |= {
            f"weights of {others} more versions": size * weights * others,
            f"KV caches of {1 + others} versions, {tokens:,} tokens each": cached * tokens * (1 + others),
        }
    parts["computation"] = _COMPUTED
    host = {"gateway and engine": 2 * PROCESS}
    return Needs(parts | ({"CUDA": CUDA_CONTEXT} if card is not None else {}), host)


def serving_gpus(recipe: Recipe) -> list[int]:
    """Numbers of the GPUs that hold the engine's weights. Raises ClawError (exit code 2)."""
    if recipe.serve.engine != "vllm" or recipe.serve.upstream is not None:
        return (recipe.serve.gpus or [0])[:1]
    count, named = vllm_options(recipe).gpus, recipe.serve.gpus
    if named is not None and len(named) < count:
        raise ClawError(
            f"serve.engine_args asks for {count} GPUs, and serve.gpus names {len(named)}",
            "name as many in serve.gpus, or lower --tensor-parallel-size",
            2,
        )
    return list(range(count)) if named is None else named[:count]


def _vllm(recipe: Recipe, config: dict[str, Any], weights: int, adapter: int, card: int | None) -> Needs:
    """vLLM takes its share of the whole card, whatever it needs. The rest of the share is its cache."""
    if card is None:
        raise ClawError(
            "serve.engine is vllm, but there is no GPU", "name a card with --card, or use serve.engine: transformers", 2
        )
    options = vllm_options(recipe)
    at_once = recipe.adapters_beside_live + 2 if recipe.train.lora is not None else 0
    parts = {"weights": 2 * weights // options.split}
    parts |= {f"adapters of {at_once} versions": 2 * adapter * at_once // options.split} if at_once else {}
    parts["computation and graphs"] = _VLLM_COMPUTED
    a_token = 2 * cached_numbers_a_token(config) // options.split
    share = int(options.share * card)
    room = share - sum(parts.values())
    tokens, longest = max(0, room) // a_token, options.longest(int(config["max_position_embeddings"]))
    parts[f"KV cache of {tokens:,} tokens"] = max(0, room)
    host = {"gateway": PROCESS, "vLLM": _VLLM_PROCESS * options.gpus}
    if tokens >= longest:
        return Needs(parts, host)
    problem = (
        f"vLLM's share of {share / GIB:.1f} GiB caches {tokens:,} tokens, and a request may have {longest:,} (--max-model-len)"
    )
    return Needs(parts, host, longest * a_token - room, problem)


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """What vLLM reads from `serve.engine_args` about memory."""

    share: float  # of each card
    length: int | None  # the longest request in tokens; None: as the model allows; 0: as the cache allows
    split: int  # cards that share the weights
    copies: int

    @property
    def gpus(self) -> int:
        return self.split * self.copies

    def longest(self, of_model: int) -> int:
        return of_model if self.length is None else max(1, self.length)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        cure = 'correct it, as in ["--max-model-len", "32768", "--gpu-memory-utilization", "0.9"]'
        raise ClawError(f"serve.engine_args: {message.removeprefix('argument ')}", cure, 2)


def vllm_options(recipe: Recipe) -> VllmOptions:
    """Raises ClawError (exit code 2) for values that vLLM could not use either."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--gpu-memory-utilization", dest="share", type=_share, default=_VLLM_SHARE)
    parser.add_argument("--max-model-len", dest="length", type=_tokens)
    for option in (("--tensor-parallel-size", "-tp"), ("--pipeline-parallel-size", "-pp"), ("--data-parallel-size", "-dp")):
        parser.add_argument(*option, dest=option[1][1:], type=_count, default=1)
    words = list[str]()
    for argument in recipe.serve.engine_args:
        name, is_pair, value = argument.partition("=")
        if argument.startswith("-") and " " in name:
            parser.error(f"{argument!r} is one word, and should be two")
        words += [name.replace("_", "-") if name.startswith("--") else name, *([value] if is_pair else [])]
    given = parser.parse_known_args(words)[0]
    return VllmOptions(given.share, given.length, given.tp * given.pp, given.dp)


def _share(text: str) -> float:
    if not 0 < (share := _number(float, text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share of a card, which is above 0 and at most 1")
    return share


def _count(text: str) -> int:
    if not (count := _number(int, text)) >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GPUs, which is 1 or more")
    return int(count)


def _tokens(text: str) -> int:
    if text in ("auto", "-1"):
        return 0
    units = {"k": 10**3, "m": 10**6, "K": 2**10, "M": 2**20}
    tokens = _number(float, text[:-1]) * units[text[-1]] if text[-1:] in units else _number(int, text)
    if not tokens >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tokens, such as 32768 or 32k")
    return int(tokens)


def _number(kind: type[int | float], text: str) -> float:
    try:
        return kind(text)
    except ValueError:
        return math.nan


def _judges_itself(recipe: Recipe) -> bool:
    """Whether version 0 of the served model judges."""
    return not (recipe.judge.endpoint or recipe.judge.endpoints or recipe.judge.prm or recipe.judge.custom_rm)


def _packed_bytes(causal: Any) -> int:
    from torch import nn

    linear = {name: module for name, module in causal.named_modules() if isinstance(module, nn.Linear)}
    table: int = 2 * causal.get_input_embeddings().weight.numel()
    return table + sum(packed_bytes(name, module.out_features, module.in_features) for name, module in linear.items())


def _adapter_weights(causal: Any, recipe: Recipe) -> int:
    from torch import nn

    lora, head = recipe.train.lora, causal.get_output_embeddings()
    if lora is None:
        return 0
    return sum(
        lora.rank * (module.in_features + module.out_features)
        for name, module in causal.named_modules()
        if isinstance(module, nn.Linear)
        and module is not head
        and (lora.targets == "all-linear" or name.rpartition(".")[2] in lora.targets)
    )
