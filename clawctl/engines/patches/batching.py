"""Transformers' continuous batching, for models that `engines.embedded.llama` does not compute: other architectures, images, GPUs.

Patched are its outputs, its sampling on a CPU, its attention on a CPU, and its prefix caching after a swap.
"""

import bisect
import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AttentionInterface, ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager, OutputRouter

from clawctl.config import Recipe
from clawctl.engines.embedded.blocks import Request
from clawctl.engines.embedded.frames import Sampling
from clawctl.engines.embedded.steering import Steering
from clawctl.engines.patches import paged_attention
from clawctl.errors import ClawError

_log = logging.getLogger("clawctl.serve")
_START_S, _LOOK_S = 120, 0.1
_GREEDY = 1e-6  # a temperature that leaves only the most likely token
_PAGE = 32  # tokens per cache page; prefixes are shared in whole pages
_MAX_RUNNING = 256  # requests per engine step
_CANCELLED = Sampling(1.0, 1.0, 0, 1)


class _Outputs(OutputRouter):
    """Passes the engine thread's results to the event loop, with one call per engine step. Results for a closed loop are
    dropped."""

    def __init__(self, version_at: Callable[[float], int]) -> None:
        super().__init__()
        self._version_at = version_at
        self.receivers: dict[str, tuple[Request, int]] = {}  # running requests, and the number of tokens that they have received

    def deliver(self, output: Any) -> None:
        self.deliver_batch([output])

    def deliver_batch(self, outputs: list[Any]) -> None:
        receivers = [self.receivers.get(output.request_id) for output in outputs]
        for loop in {receiver[0].loop for receiver in receivers if receiver is not None}:
            try:
                loop.call_soon_threadsafe(self._deliver, outputs)
            except RuntimeError:  # the loop is closed, because the server is stopping
                _log.debug("outputs for a closed event loop are dropped")

    def _deliver(self, outputs: list[Any]) -> None:
        for output in outputs:
            request, seen = self.receivers.get(output.request_id, (None, 0))
            new = len(output.generated_tokens) - seen
            if request is None or (new <= 0 and not output.is_finished()):
                continue
            self.receivers[output.request_id] = request, max(seen, len(output.generated_tokens))
            # Counted from the end, because a request that restarted for lack of cache has lost its earlier timestamps.
            fresh = (
                zip(output.generated_tokens[-new:], output.logprobs[-new:], output.timestamps[-new:], strict=True)
                if new > 0
                else ()
            )
            request.take(
                [(token, logprob, self._version_at(at)) for token, logprob, at in fresh], output.is_finished(), output.error
            )


class _CpuManager(ContinuousBatchingManager):
    """Uses clawctl's attention, which needs no mask over the whole cache."""

    def switch_to_cb_friendly_attn(self, model: Any, auto_switch_to_flash: bool = True) -> None:
        model.set_attn_implementation(paged_attention.NAME)


class ContinuousBatches:
    """See `engines.embedded.batches.Batches`. `model` is one of transformers. Its images belong to one batch each, so with images
    there are no graphs. Raises ClawError if it cannot start."""

    def __init__(
        self, model: Any, version: int, steering: Steering, eos_ids: frozenset[int], recipe: Recipe, images: bool = False
    ) -> None:
        logging.getLogger("ContinuousBatchingLogger").setLevel("WARNING")
        self._model, self._vocabulary = model, int(model.config.get_text_config().vocab_size)
        self._swap_times, self._swap_versions = [float("-inf")], [version]  # since when which version samples
        self._resumed: threading.Event | None = None  # ends the current pause, if any
        self._outputs = _Outputs(self._version_at)
        serve = recipe.serve
        self.max_context = min(int(model.config.get_text_config().max_position_embeddings), serve.kv_cache_tokens)
        # None of these values is a default, so transformers creates all processors; each request brings its own values.
        generation = GenerationConfig(do_sample=True, temperature=0.7, top_p=0.9, top_k=20, eos_token_id=sorted(eos_ids) or -1)
        batching = ContinuousBatchingConfig(
            page_size=_PAGE,
            num_blocks=max(1, serve.kv_cache_tokens // _PAGE),
            max_batch_tokens=serve.max_batch_tokens,
            max_requests_per_batch=min(_MAX_RUNNING, serve.max_batch_tokens),
            return_logprobs=True,
            per_request_processors=True,
            use_cuda_graph=False if images else None,
            use_async_batching=False if images else None,
        )
        if serve.patches and model.device.type == "cpu" and _only_full_attention(model.config.get_text_config()):
            AttentionInterface.register(paged_attention.NAME, paged_attention.paged_attention)
            self.manager = _CpuManager(model, generation, batching)
        else:
            self.manager = model.init_continuous_batching(generation_config=generation, continuous_batching_config=batching)
        self.manager.output_router = self._outputs
        self._steering = steering if can_steer(model) else None
        if self._steering is not None:
            self.manager.logit_processor.clear()  # `_sample` does their work, and nothing for settings that no request uses
        self.manager.start()
        self._wait_for_start()
        if self._steering is not None:
            assert self.manager.batch_processor is not None
            self.manager.batch_processor.model_runner._sample = self._sample

    def _sample(self, scores: torch.Tensor, output_ids: torch.Tensor) -> None:
        """Draw from scores [1, B, V], and write ids and logprobs [2, B] as int32. Replaces a method of transformers' runner."""
        assert self._steering is not None
        assert self.manager.batch_processor is not None
        batch = self.manager.batch_processor.inputs_and_outputs.requests_in_batch
        names = [output.state.request_id for output in batch if output.has_new_token]
        receivers = [self._outputs.receivers.get(name) for name in names]
        settings = [_CANCELLED if receiver is None else receiver[0].sampling for receiver in receivers]
        ids, logprobs = self._steering.sample(names, settings, scores[0])
        output_ids[0, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
        output_ids[1, : len(ids)] = torch.tensor(logprobs).view(torch.int32)

    def _wait_for_start(self) -> None:
        deadline = time.monotonic() + _START_S
        while self.manager.batch_processor is None:
            if not self.manager.is_running() or time.monotonic() > deadline:
                cause = self.manager.background_thread_status.fatal_error
                raise ClawError(f"the engine did not start: {cause}", "lower serve.kv_cache_tokens or serve.max_batch_tokens")
            time.sleep(0.01)

    def add(self, request: Request, **settings: Any) -> bool:
        """Begin to sample. Returns False if the engine has stopped. `settings` are further ones for transformers."""
        self._outputs.receivers[request.name] = request, 0
        if self._steering is None:
            sampling = request.sampling
            settings |= {"temperature": max(float(sampling.temperature), _GREEDY), "top_p": float(sampling.top_p)}
            settings["top_k"] = min(sampling.top_k, self._vocabulary) or self._vocabulary
        added = self.manager.add_request(
            request.ids,
            request_id=request.name,
            max_new_tokens=request.limit - len(request.ids),
            streaming=True,
            record_timestamps=True,
            **settings,
        )
        return added is not None

    def cancel(self, request: Request) -> None:
        if self._outputs.receivers.pop(request.name, None) is not None:
            self.manager.cancel_request(request.name)

    def _version_at(self, sampled: float) -> int:
        """The version whose weights computed a token that was sampled at `sampled` (time.perf_counter()). It is exact, because the
        sampling loop stops while weights change."""
        return self._swap_versions[bisect.bisect_right(self._swap_times, sampled) - 1]

    @torch.no_grad()
    def replace(self, model: Any, version: int, done: Callable[[], None]) -> float:
        current, coming = self._model.state_dict(), model.state_dict()
        with self.manager.pause():
            began = time.perf_counter()
            for name, tensor in current.items():
                tensor.copy_(coming[name])
            _clear_prefix_cache(self.manager)
            self._swap_versions.append(version)
            self._swap_times.append(time.perf_counter())
            done()
            return (time.perf_counter() - began) * 1000

    def pause(self) -> None:
        paused = threading.Event()

        def hold(until: threading.Event) -> None:  # transformers requires that the same thread begins and ends a pause
            with self.manager.pause():
                paused.set()
                until.wait()

        if self._resumed is None:
            self._resumed = threading.Event()
            threading.Thread(target=hold, args=(self._resumed,), name="pause", daemon=True).start()
            while not paused.wait(_LOOK_S) and self.failure() is None:
                pass

    def resume(self) -> None:
        if self._resumed is not None:
            self._resumed.set()
            self._resumed = None

    def failure(self) -> str | None:
        if self.manager.is_running():
            return None
        return str(self.manager.background_thread_status.fatal_error or "the engine has stopped")

    @property
    def idle(self) -> bool:
        assert self.manager.batch_processor is not None
        return not self.manager.batch_processor.scheduler.active_requests

    def stop(self) -> None:
        self.resume()  # a paused loop does not end
        self.manager.stop(block=True, timeout=30, hard_stop=True)


def can_steer(model: Any) -> bool:
    """Whether each step ends before the next one is prepared. On a GPU transformers prepares steps ahead, and replays graphs."""
    return bool(model.device.type == "cpu")


def _only_full_attention(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    return set(kinds) == {"full_attention"} and getattr(config, "sliding_window", None) is None


def _clear_prefix_cache(manager: ContinuousBatchingManager) -> None:
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
