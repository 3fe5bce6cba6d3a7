"""Patches for transformers' continuous batching: outputs, processors that cost nothing when unused, and prefix caching after a
swap."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AttentionInterface, ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching import cb_logits_processors as processors
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager, OutputRouter

from clawctl.engines.embedded.steering import MinPProcessor, Steering, SteeringProcessor
from clawctl.engines.patches import paged_attention
from clawctl.errors import ClawError

_log = logging.getLogger("clawctl.serve")
_START_S = 120


class Outputs(OutputRouter):
    """Passes the engine thread's results to the event loop, with one call per engine step. Results for a closed loop are
    dropped."""

    def __init__(self) -> None:
        super().__init__()
        self._receivers: dict[str, tuple[Callable[[Any], None], asyncio.AbstractEventLoop]] = {}

    def register(self, request_id: str, take: Callable[[Any], None]) -> None:
        """Call `take` on the running event loop with each output of the request."""
        self._receivers[request_id] = (take, asyncio.get_running_loop())

    def forget(self, request_id: str) -> None:
        self._receivers.pop(request_id, None)

    def deliver(self, output: Any) -> None:
        self.deliver_batch([output])

    def deliver_batch(self, outputs: list[Any]) -> None:
        loops = {receiver[1] for output in outputs if (receiver := self._receivers.get(output.request_id))}
        for loop in loops:
            try:
                loop.call_soon_threadsafe(self._deliver, outputs)
            except RuntimeError:  # the loop is closed, because the server is stopping
                _log.debug("outputs for a closed event loop are dropped")

    def _deliver(self, outputs: list[Any]) -> None:
        for output in outputs:
            receiver = self._receivers.get(output.request_id)
            if receiver is not None:
                receiver[0](output)


class _CpuManager(ContinuousBatchingManager):
    """Uses clawctl's attention, which needs no mask over the whole cache."""

    def switch_to_cb_friendly_attn(self, model: Any, auto_switch_to_flash: bool = True) -> None:
        model.set_attn_implementation(paged_attention.NAME)


class _TopK(processors.ContinuousBatchingTopKLogitsWarper):
    """Sorts the vocabulary only if a request in the batch uses top_k."""

    def __init__(self, original: Any, off: int) -> None:
        super().__init__(original)
        self._off, self._used = off, True

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        self._used = any(each.state.logit_processor_kwargs["top_k"] < self._off for each in requests_with_new_token)
        return super().prepare_tensor_args(requests_with_new_token)

    def __call__(self, scores: Any, tensor_arg: torch.Tensor) -> Any:
        return super().__call__(scores, tensor_arg) if self._used else scores


class _TopP(processors.ContinuousBatchingTopPLogitsWarper):
    """Sorts the vocabulary only if a request in the batch uses top_p."""

    def __init__(self, original: Any) -> None:
        super().__init__(original)
        self._used = True

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        self._used = any(each.state.logit_processor_kwargs["top_p"] < 1 for each in requests_with_new_token)
        return super().prepare_tensor_args(requests_with_new_token)

    def __call__(self, scores: Any, tensor_arg: torch.Tensor) -> Any:
        return super().__call__(scores, tensor_arg) if self._used else scores


def start_batching(
    model: Any,
    generation: GenerationConfig,
    batching: ContinuousBatchingConfig,
    outputs: Outputs,
    steering: Steering | None,
    fast: bool = True,
) -> ContinuousBatchingManager:
    """Start the sampling thread; returns when it is ready. `fast`: on a CPU, use clawctl's attention, top-k and top-p, which do not
    change results. Raises ClawError with the reason if it cannot start."""
    logging.getLogger("ContinuousBatchingLogger").setLevel("WARNING")
    if fast and model.device.type == "cpu" and _only_full_attention(model.config.get_text_config()):
        AttentionInterface.register(paged_attention.NAME, paged_attention.paged_attention)
        manager = _CpuManager(model, generation, batching)
        _make_lazy(manager, model.config.get_text_config().vocab_size)
    else:
        manager = model.init_continuous_batching(generation_config=generation, continuous_batching_config=batching)
    if steering is not None:
        _steer(manager, steering)
    manager.output_router = outputs
    manager.start()
    deadline = time.monotonic() + _START_S
    while manager.batch_processor is None:
        if not manager.is_running() or time.monotonic() > deadline:
            cause = manager.background_thread_status.fatal_error
            raise ClawError(f"the engine did not start: {cause}", "lower serve.kv_cache_tokens or serve.max_batch_tokens")
        time.sleep(0.01)
    if steering is not None:
        runner = manager.batch_processor.model_runner
        runner._sample = steering.steered(runner._sample)  # type: ignore[method-assign, assignment]
    return manager


def can_steer(model: Any) -> bool:
    """Whether each step ends before the next one is prepared. On a GPU transformers prepares steps ahead, and replays graphs."""
    return bool(model.device.type == "cpu")


def _steer(manager: ContinuousBatchingManager, steering: Steering) -> None:
    pipeline = manager.logit_processor.logits_processor
    is_temperature = [isinstance(each, processors.ContinuousBatchingTemperatureLogitsWarper) for each in pipeline]
    pipeline.insert(is_temperature.index(True) + 1, MinPProcessor(steering))
    pipeline.insert(0, SteeringProcessor(steering))
    manager.logit_processor.tensors_required += 2


def _only_full_attention(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    return set(kinds) == {"full_attention"} and getattr(config, "sliding_window", None) is None


def _make_lazy(manager: ContinuousBatchingManager, vocabulary: int) -> None:
    pipeline = manager.logit_processor.logits_processor
    for i, processor in enumerate(pipeline):
        if isinstance(processor, processors.ContinuousBatchingTopKLogitsWarper):
            pipeline[i] = _TopK(processor, vocabulary)
        elif isinstance(processor, processors.ContinuousBatchingTopPLogitsWarper):
            pipeline[i] = _TopP(processor)


def clear_prefix_cache(manager: ContinuousBatchingManager) -> None:
    """Prevent later requests from sharing any page computed so far. Call it within a pause. Running requests keep their pages.

    The cache finds a page by the hash of its tokens, chained to the previous page. Pages of running requests get a random hash that
    no text has. Their later pages, computed partly by old weights, chain to it and are therefore never found either.
    """
    assert manager.batch_processor is not None
    cache = manager.batch_processor.cache
    cache.evict_cached_blocks()
    for allocator in cache.cache_allocators.values():
        ledger = allocator.ledger
        ledger.hash_to_block.clear()
        ledger.block_to_hash.clear()
        for table in allocator.block_table.values():
            for block in table:
                if block not in ledger.block_to_hash:
                    hidden = secrets.randbits(64)
                    ledger.block_to_hash[block] = hidden
                    ledger.hash_to_block[hidden] = block
