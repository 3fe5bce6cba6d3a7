"""The embedded engine: transformers' continuous batching, in a thread of this process."""

import asyncio
import bisect
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import uuid4

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from clawctl.config import Recipe
from clawctl.engines import CannotFollow, EngineFailure, Following, Sampling, Staged, Token
from clawctl.engines.embedded.steering import Steered, Steering, steers
from clawctl.engines.embedded.weights import StagedWeights, load_model
from clawctl.engines.patches.batching import Outputs, can_steer, forget_prefixes, start_batching
from clawctl.engines.patches.padding import pad_linears
from clawctl.run.allowed import Allowed
from clawctl.run.directory import RunDir
from clawctl.serve.canary import check_canary

_GREEDY = 1e-6  # a temperature that leaves only the likeliest token
_PAGE = 32  # tokens in a page of the cache: prefixes are shared in whole pages
_MAX_RUNNING = 256  # requests in one engine step


class TransformersEngine:
    """See `clawctl.engines.Engine`. Made in a thread: loading takes a moment. Raises as `load_model`; CanaryFailure."""

    def __init__(self, run: RunDir, recipe: Recipe, version: int) -> None:
        self._run, self._recipe = run, recipe
        self.model = load_model(run, recipe, version)
        pad_linears(self.model)
        loaded = StagedWeights(version, self.model)
        check_canary(run, version, loaded.score, loaded.tolerance)
        self.version = version
        config = self.model.config.get_text_config()
        self.vocabulary = int(config.vocab_size)
        self.steers = can_steer(self.model)
        self.steering = Steering(self.vocabulary)
        self.max_context = min(int(config.max_position_embeddings), recipe.serve.kv_cache_tokens)
        eos = self.model.generation_config.eos_token_id
        self.eos_ids = frozenset([eos] if isinstance(eos, int) else eos or [])
        self._swap_times: list[float] = [float("-inf")]  # time.perf_counter() at which …
        self._swap_versions: list[int] = [version]  # … this version took over
        self.outputs = Outputs()
        steering = self.steering if self.steers else None
        self.manager = start_batching(self.model, self._generation_config(), self._batching_config(), self.outputs, steering)

    def _generation_config(self) -> GenerationConfig:
        # Values that are not the defaults, so that transformers makes the processors; each request brings its own.
        return GenerationConfig(do_sample=True, temperature=0.7, top_p=0.9, top_k=20, eos_token_id=sorted(self.eos_ids) or -1)

    def _batching_config(self) -> ContinuousBatchingConfig:
        return ContinuousBatchingConfig(
            page_size=_PAGE,
            num_blocks=max(1, self._recipe.serve.kv_cache_tokens // _PAGE),
            max_batch_tokens=self._recipe.serve.max_batch_tokens,
            max_requests_per_batch=min(_MAX_RUNNING, self._recipe.serve.max_batch_tokens),
            return_logprobs=True,
            per_request_processors=True,
        )

    def generate(self, prompt_ids: Sequence[int], sampling: Sampling, grammar: Following | None = None) -> "TransformersGeneration":
        name = uuid4().hex
        steered = None
        if self.steers and (grammar is not None or steers(sampling)):
            steered = self.steering.register(name, list(prompt_ids), sampling, grammar, self.eos_ids)
        generation = TransformersGeneration(self, name, steered)
        self.outputs.register(generation.request_id, generation.deliver)
        added = self.manager.add_request(
            list(prompt_ids),
            request_id=generation.request_id,
            max_new_tokens=sampling.max_tokens,
            streaming=True,
            record_timestamps=True,
            temperature=max(float(sampling.temperature), _GREEDY),
            top_p=float(sampling.top_p),
            top_k=min(sampling.top_k, self.vocabulary) or self.vocabulary,
        )
        if added is None:
            self.outputs.forget(generation.request_id)
            self.steering.forget(generation.request_id)
            raise EngineFailure("the engine has stopped")
        return generation

    def version_at(self, sampled: float) -> int:
        """The version whose weights computed a token that was sampled at `sampled` (time.perf_counter()). It is exact, because the
        sampling loop stops while weights change."""
        return self._swap_versions[bisect.bisect_right(self._swap_times, sampled) - 1]

    def stage(self, version: int) -> Staged:
        model = load_model(self._run, self._recipe, version).to(self.model.dtype)  # as it will serve
        return StagedWeights(version, model)

    @torch.no_grad()
    def swap(self, staged: Staged) -> float:
        assert isinstance(staged, StagedWeights)
        current, coming = self.model.state_dict(), staged.model.state_dict()
        if current.keys() != coming.keys() or any(current[name].shape != coming[name].shape for name in current):
            raise ValueError(f"the weights of policy {staged.version} do not match the model that is served")
        with self.manager.pause():
            began = time.perf_counter()
            for name, tensor in current.items():
                tensor.copy_(coming[name])
            forget_prefixes(self.manager)
            self._swap_versions.append(staged.version)
            self._swap_times.append(time.perf_counter())
            self.version = staged.version
            return (time.perf_counter() - began) * 1000

    def failure(self) -> str | None:
        if self.manager.is_running():
            return None
        return str(self.manager.background_thread_status.fatal_error or "the engine has stopped")

    def stop(self) -> None:
        self.manager.stop(block=True, timeout=30, hard_stop=True)


class TransformersGeneration:
    """See `clawctl.engines.Generation`."""

    def __init__(self, engine: TransformersEngine, request_id: str, steered: Steered | None) -> None:
        self._engine, self._steered = engine, steered
        self.request_id = request_id
        self._seen = 0
        self._tokens: list[Token] = []
        self._ended = False
        self._error: EngineFailure | None = None
        self._news = asyncio.Event()

    def deliver(self, output: Any) -> None:
        """Take the engine's results; called on the event loop."""
        new = len(output.generated_tokens) - self._seen
        if new > 0 and not self._ended:
            # Counted from the end: a request that restarted for lack of cache lost its earlier times.
            fresh = zip(output.generated_tokens[-new:], output.logprobs[-new:], output.timestamps[-new:], strict=True)
            tokens = [Token(token, logprob, self._engine.version_at(at)) for token, logprob, at in fresh]
            if self._steered is not None and self._steered.tops:
                tops = self._steered.tops[self._seen : self._seen + new]
                tokens = [token._replace(top=top) for token, top in zip(tokens, tops, strict=True)]
            if self._steered is not None and self._steered.failed is not None:
                self._error = CannotFollow(self._steered.failed)
                self.cancel()
                return
            self._tokens += tokens
            self._seen += new
        if output.is_finished() and not self._ended:
            self._ended = True
            self._error = None if output.error is None else EngineFailure(output.error)
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[list[Token]]:
        try:
            while not (self._ended and not self._tokens):
                await self._news.wait()
                self._news.clear()
                tokens, self._tokens = self._tokens, []
                if tokens:
                    yield tokens
                if self._ended:
                    self._news.set()
            if self._error is not None:
                raise self._error
        finally:
            self.cancel()

    def allowed(self, count: int) -> Allowed | None:
        sets = None if self._steered is None else self._steered.sets
        return None if sets is None else sets.first(count)

    def cancel(self) -> None:
        if not self._ended:
            self._ended = True
            self._engine.manager.cancel_request(self.request_id)
        self._engine.outputs.forget(self.request_id)
        self._engine.steering.forget(self.request_id)
        self._news.set()
