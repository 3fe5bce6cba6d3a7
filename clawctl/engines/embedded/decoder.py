"""One sampling model: transformers' continuous batching, in a thread of the process that holds the models."""

import bisect
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from clawctl.config import Recipe
from clawctl.engines import EngineFailure, Swap
from clawctl.engines.embedded.frames import Sampling, Token, TokenPiece
from clawctl.engines.embedded.grammars import Grammar
from clawctl.engines.embedded.sight import SeenPrompt, Sight
from clawctl.engines.embedded.steering import Steered, Steering, steers
from clawctl.engines.embedded.weights import StagedWeights, load_model
from clawctl.engines.patches.batching import Outputs, can_steer, clear_prefix_cache, start_batching
from clawctl.engines.patches.padding import pad_linears
from clawctl.run.directory import RunDir
from clawctl.serve.canary import check_canary
from clawctl.vision.reader import SentImage, image_reader
from clawctl.vision.tower import prepare

_GREEDY = 1e-6  # a temperature that leaves only the most likely token
_PAGE = 32  # tokens per cache page; prefixes are shared in whole pages
_LOOK_S = 0.1
_MAX_RUNNING = 256  # requests per engine step


class Decoder:
    """Token ids go in; ids, logprobs and versions come out. Create it in a thread, because loading takes time. Raises like
    `load_model`, and CanaryFailure. Call `generate` and all methods of `Running` on the event loop, everything else in any
    thread."""

    def __init__(self, run: RunDir, recipe: Recipe, version: int) -> None:
        self._run, self._recipe = run, recipe
        self.model = load_model(run, recipe, version)
        if recipe.serve.patches:
            pad_linears(self.model)
        self._reader = image_reader(recipe.model_path)
        self._sight = None if self._reader is None else Sight(self.model, self._reader)
        self._check(StagedWeights(version, self.model))
        self.version = version
        config = self.model.config.get_text_config()
        self.vocabulary = int(config.vocab_size)
        self.steers = can_steer(self.model)
        self.steering = Steering(self.vocabulary)
        self.max_context = min(int(config.max_position_embeddings), recipe.serve.kv_cache_tokens)
        eos = self.model.generation_config.eos_token_id
        self.eos_ids = frozenset([eos] if isinstance(eos, int) else eos or [])
        self._weights = threading.Lock()  # held while weights change, or are used outside the sampling thread
        self._resumed: threading.Event | None = None  # ends the current pause, if any
        self._swap_times: list[float] = [float("-inf")]  # time.perf_counter() at which …
        self._swap_versions: list[int] = [version]  # … this version took over
        self.outputs = Outputs()
        steering = self.steering if self.steers else None
        settings = (self._generation_config(), self._batching_config())
        self.manager = start_batching(self.model, *settings, self.outputs, steering, fast=recipe.serve.patches)
        if self._sight is not None:
            self._sight.join(self.manager)

    def _generation_config(self) -> GenerationConfig:
        # None of these values is a default, so transformers creates all processors; each request brings its own values.
        return GenerationConfig(do_sample=True, temperature=0.7, top_p=0.9, top_k=20, eos_token_id=sorted(self.eos_ids) or -1)

    def _batching_config(self) -> ContinuousBatchingConfig:
        return ContinuousBatchingConfig(
            page_size=_PAGE,
            num_blocks=max(1, self._recipe.serve.kv_cache_tokens // _PAGE),
            max_batch_tokens=self._recipe.serve.max_batch_tokens,
            max_requests_per_batch=min(_MAX_RUNNING, self._recipe.serve.max_batch_tokens),
            return_logprobs=True,
            per_request_processors=True,
            # Image embeddings belong to one batch, and are not a static input of a graph
            use_cuda_graph=None if self._sight is None else False,
            use_async_batching=None if self._sight is None else False,
        )

    def _check(self, loaded: StagedWeights) -> None:
        """Run the canary check. Raises CanaryFailure."""
        score_image = None if self._reader is None else partial(loaded.score_image, self._reader)
        check_canary(self._run, loaded.version, loaded.score, loaded.tolerance, score_image)

    def prepare_images(self, prompt_ids: Sequence[int], images: Sequence[SentImage]) -> SeenPrompt:
        """A prompt with images for `generate`. Slow. Raises UnreadableImage, EngineFailure."""
        if self._sight is None:
            raise EngineFailure("this model takes no images")
        return self._sight.prepare_images(prompt_ids, images)

    def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        take: Callable[[TokenPiece], None],
        number: int = 0,
        grammar: Grammar | None = None,
        seen: SeenPrompt | None = None,
    ) -> "Running":
        """Begin to sample. `take` receives the results as pieces of request `number`. `grammar` then belongs to the answer. `seen`:
        the prompt with its images. Raises EngineFailure."""
        name = uuid4().hex
        steered = None
        if self.steers and (grammar is not None or steers(sampling)):
            steered = self.steering.register(name, list(prompt_ids), sampling, grammar, self.eos_ids)
        running = Running(self, name, number, take, steered)
        self.outputs.register(name, running.deliver)
        added = self.manager.add_request(
            list(prompt_ids) if seen is None else seen.ids,
            request_id=name,
            max_new_tokens=sampling.max_tokens,
            streaming=True,
            record_timestamps=True,
            temperature=max(float(sampling.temperature), _GREEDY),
            top_p=float(sampling.top_p),
            top_k=min(sampling.top_k, self.vocabulary) or self.vocabulary,
            **({} if seen is None else Sight.settings(seen)),
        )
        if added is None:
            self.outputs.forget(name)
            self.steering.forget(name)
            raise EngineFailure("the engine has stopped")
        return running

    def version_at(self, sampled: float) -> int:
        """The version whose weights computed a token that was sampled at `sampled` (time.perf_counter()). It is exact, because the
        sampling loop stops while weights change."""
        return self._swap_versions[bisect.bisect_right(self._swap_times, sampled) - 1]

    def stage(self, version: int) -> StagedWeights:
        """Load a published version in addition to the live one. Raises like `load_model`."""
        model = load_model(self._run, self._recipe, version).to(self.model.dtype)  # the dtype in which it will serve
        if self._reader is not None:
            prepare(model)
        return StagedWeights(version, model)

    @torch.no_grad()
    def replace(self, staged: StagedWeights) -> float:
        """Serve `staged` from the next token on; running requests continue. Returns the pause in ms. Raises ValueError."""
        current, coming = self.model.state_dict(), staged.model.state_dict()
        if current.keys() != coming.keys() or any(current[name].shape != coming[name].shape for name in current):
            raise ValueError(f"the weights of policy {staged.version} do not match the model that is served")
        with self._weights, self.manager.pause():
            began = time.perf_counter()
            for name, tensor in current.items():
                tensor.copy_(coming[name])
            clear_prefix_cache(self.manager)
            self._swap_versions.append(staged.version)
            self._swap_times.append(time.perf_counter())
            self.version = staged.version
            return (time.perf_counter() - began) * 1000

    def swap(self, version: int) -> Swap:
        """Serve a published version once its canary check passes. Raises like `stage` and `replace`, and CanaryFailure."""
        began = time.monotonic()
        staged = self.stage(version)
        self._check(staged)
        load_ms = (time.monotonic() - began) * 1000
        return Swap(version, time.time(), load_ms, self.replace(staged))

    def score(self, ids: Sequence[int], first: int) -> tuple[int, list[float]]:
        """The version of the weights, and the logprobs of `ids[first:]`, each given all preceding ids."""
        with self._weights:
            return self.version, StagedWeights(self.version, self.model).score(ids, first)

    def pause(self) -> None:
        """Returns when no token is being sampled; requests are kept until `resume`."""
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
        """Why the model cannot continue, or None."""
        if self.manager.is_running():
            return None
        return str(self.manager.background_thread_status.fatal_error or "the engine has stopped")

    def stop(self) -> None:
        self.resume()  # a paused loop does not end
        self.manager.stop(block=True, timeout=30, hard_stop=True)


class Running:
    """One running request."""

    def __init__(
        self, decoder: Decoder, request_id: str, number: int, take: Callable[[TokenPiece], None], steered: Steered | None
    ) -> None:
        self._decoder, self._number, self._take, self._steered = decoder, number, take, steered
        self.request_id = request_id
        self._start_version = decoder.version
        self._seen = self._sets = 0  # number of tokens and of allowed-token sets that were delivered
        self._ended = False

    def deliver(self, output: Any) -> None:
        """Pass on the new results of the request. Called on the event loop."""
        if self._ended:
            return
        if self._steered is not None and self._steered.failed is not None:
            self._end([], self._steered.failed, unfollowable=True)
            return
        new = len(output.generated_tokens) - self._seen
        tokens = self._tokens(output, new) if new > 0 else []
        if output.is_finished():
            self._end(tokens, output.error)
        elif tokens:
            self._take(self._piece(tokens))

    def _tokens(self, output: Any, new: int) -> list[Token]:
        # Counted from the end, because a request that restarted for lack of cache has lost its earlier timestamps.
        fresh = zip(output.generated_tokens[-new:], output.logprobs[-new:], output.timestamps[-new:], strict=True)
        tokens = [Token(token, logprob, self._decoder.version_at(at)) for token, logprob, at in fresh]
        if self._steered is not None and self._steered.tops:
            tops = self._steered.tops[self._seen : self._seen + new]
            tokens = [token._replace(top=top) for token, top in zip(tokens, tops, strict=True)]
        return tokens

    def _piece(self, tokens: list[Token], ended: bool = False, error: str | None = None, unfollowable: bool = False) -> TokenPiece:
        first, self._seen = self._seen, self._seen + len(tokens)
        which, sets = list[int](), list[bytes]()
        if self._steered is not None and self._steered.sets is not None:
            which = self._steered.sets.which[first : self._seen]
            first_set, self._sets = self._sets, max([self._sets - 1, *which]) + 1  # sets are numbered in order of appearance
            sets = self._steered.sets.distinct[first_set : self._sets]
        return TokenPiece(self._number, self._start_version, tokens, which, sets, ended, error, unfollowable)

    def _end(self, tokens: list[Token], error: str | None, unfollowable: bool = False) -> None:
        piece = self._piece(tokens, True, error, unfollowable)
        self._ended = not unfollowable  # otherwise it is still sampling
        self.cancel()
        self._take(piece)

    def cancel(self) -> None:
        """Stop sampling, and deliver nothing more. Has no effect after the end."""
        if not self._ended:
            self._ended = True
            self._decoder.manager.cancel_request(self.request_id)
        self._decoder.outputs.forget(self.request_id)
        self._decoder.steering.forget(self.request_id)
