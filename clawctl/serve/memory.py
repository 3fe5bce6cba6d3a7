"""What `clawctl serve` needs of the memory that the stages of a box share."""

import argparse
from typing import Any

from clawctl.architectures import cached_numbers_a_token, skeleton
from clawctl.config import Recipe
from clawctl.engines.embedded.llama import is_llama
from clawctl.errors import ClawError
from clawctl.memory import CUDA_CONTEXT, GIB, PROCESS, Needs

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
    size = 2 if recipe.model.dtype == "bfloat16" or (card is None and is_llama(config)) else 4
    cached = (2 if recipe.model.dtype == "bfloat16" and card is not None else 4) * cached_numbers_a_token(config)
    tokens, others = recipe.serve.kv_cache_tokens, recipe.adapters_beside_live + (recipe.judge.ask and _judges_itself(recipe))
    shares = recipe.serve.patches and is_llama(config) and recipe.train.lora is not None
    parts = {"weights": size * weights}
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
    """Numbers of the GPUs that hold the engine's weights."""
    gpus = recipe.serve.gpus or [0]
    return gpus if recipe.serve.engine == "vllm" else gpus[:1]


def _vllm(recipe: Recipe, config: dict[str, Any], weights: int, adapter: int, card: int | None) -> Needs:
    """vLLM takes its share of the whole card, whatever it needs. The rest of the share is its cache."""
    if card is None:
        raise ClawError(
            "serve.engine is vllm, but there is no GPU", "name a card with --card, or use serve.engine: transformers", 2
        )
    options = vllm_options(recipe)
    at_once = recipe.adapters_beside_live + 2 if recipe.train.lora is not None else 0
    parts = {"weights": 2 * weights // options.tp}
    parts |= {f"adapters of {at_once} versions": 2 * adapter * at_once // options.tp} if at_once else {}
    parts["computation and graphs"] = _VLLM_COMPUTED
    a_token = 2 * cached_numbers_a_token(config) // options.tp
    share = int(options.share * (card or 0))
    room = share - sum(parts.values())
    tokens, longest = max(0, room) // a_token, options.length or int(config["max_position_embeddings"])
    parts[f"KV cache of {tokens:,} tokens"] = max(0, room)
    host = {"gateway": PROCESS, "vLLM": _VLLM_PROCESS * options.tp}
    if tokens >= longest:
        return Needs(parts, host)
    problem = (
        f"vLLM's share of {share / GIB:.1f} GiB caches {tokens:,} tokens, and a request may have {longest:,} (--max-model-len)"
    )
    return Needs(parts, host, longest * a_token - room, problem)


def vllm_options(recipe: Recipe) -> Any:
    """`share` of a card, longest request `length`, and number of cards `tp`, as vLLM reads them from `serve.engine_args`."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--gpu-memory-utilization", dest="share", type=float, default=_VLLM_SHARE)
    parser.add_argument("--max-model-len", dest="length", type=int, default=0)
    parser.add_argument("--tensor-parallel-size", "-tp", dest="tp", type=int, default=1)
    return parser.parse_known_args([part for arg in recipe.serve.engine_args for part in arg.split("=", 1)])[0]


def _judges_itself(recipe: Recipe) -> bool:
    """Whether version 0 of the served model judges."""
    return not (recipe.judge.endpoint or recipe.judge.endpoints or recipe.judge.prm or recipe.judge.custom_rm)


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
