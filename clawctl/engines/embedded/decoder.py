"""One sampling model, in the process that holds the models."""

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from clawctl.config import Recipe
from clawctl.engines import EngineFailure, Swap
from clawctl.engines.embedded.batches import Batches
from clawctl.engines.embedded.blocks import Fresh, Request, Served
from clawctl.engines.embedded.cache import KvCache
from clawctl.engines.embedded.frames import Sampling, Token, TokenPiece
from clawctl.engines.embedded.llama import Llama
from clawctl.engines.embedded.sight import SeenPrompt, Sight
from clawctl.engines.embedded.steering import Steered, Steering, steers
from clawctl.engines.embedded.weights import StagedWeights, eos_ids_of, load_weights
from clawctl.engines.structured.grammars import Grammar
from clawctl.run.directory import RunDir
from clawctl.serve.canary import check_canary
from clawctl.vision import SentImage
from clawctl.vision.reader import image_reader
from clawctl.vision.tower import prepare


class Decoder:
    """Token ids go in; ids, logprobs and versions come out. Models with the same `cache` share its room. Create it in a thread,
    because loading takes time. With `beside`, requests share the steps of that decoder, if both share a base model. Raises like
    `load_weights`, and CanaryFailure. Call `generate` and all methods of `Running` on the event loop, everything else in any
    thread."""

    def __init__(
        self, run: RunDir, recipe: Recipe, version: int, cache: KvCache | None = None, beside: "Decoder | None" = None
    ) -> None:
        self._run, self._recipe = run, recipe
        self._served: Served | None = None  # in the batches of another decoder
        self._weights = load_weights(run, recipe, version)
        self._reader = image_reader(recipe.model_path)
        self._sight: Sight | None = None
        self.steering: Steering
        self._changing = threading.Lock()  # held while weights change, or are used outside the sampling thread
        model, self.version, self.eos_ids = self._weights.model, version, eos_ids_of(recipe.model_path)
        self.batches: Any  # Batches, or ContinuousBatches
        if isinstance(model, Llama):
            self._check(self._weights)
            self.vocabulary, self.steers = model.vocabulary, True
            if beside is not None and isinstance(beside.batches, Batches):
                self._served = beside.batches.join(model, version)
            if self._served is not None and beside is not None:
                self.steering, self.batches = beside.steering, beside.batches
            else:
                self.steering = Steering(self.vocabulary)
                cache = cache or KvCache(recipe.serve.kv_cache_tokens)
                self.batches = Batches(model, version, self.steering, self.eos_ids, cache, recipe.serve.max_batch_tokens)
        else:
            from clawctl.engines.patches.batching import ContinuousBatches, can_steer

            self._sight = None if self._reader is None else Sight(model, self._reader)
            self._check(self._weights)
            self.vocabulary, self.steers = int(model.config.get_text_config().vocab_size), can_steer(model)
            self.steering = Steering(self.vocabulary)
            self.batches = ContinuousBatches(model, version, self.steering, self.eos_ids, recipe, self._sight is not None)
            if self._sight is not None:
                self._sight.join(self.batches.manager)
        self.max_context: int = self.batches.max_context

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
        running = Running(self, number, take, steered)
        ids = list(prompt_ids) if seen is None else seen.ids
        served = self._served or getattr(self.batches, "served", None)
        running.request = Request(name, ids, len(ids) + sampling.max_tokens, sampling, running.deliver, served)
        if not self.batches.add(running.request, **({} if seen is None else Sight.settings(seen))):
            running.cancel()
            raise EngineFailure("the engine has stopped")
        return running

    def release(self, request: Request) -> None:
        """Stop sampling for a request."""
        self.batches.cancel(request)
        self.steering.forget(request.name)

    def stage(self, version: int) -> StagedWeights:
        """Load a published version in addition to the live one. Raises like `load_weights`."""
        staged = load_weights(self._run, self._recipe, version)
        if not isinstance(staged.model, Llama):
            staged.model.to(self._weights.model.dtype)  # the dtype in which it will serve
        if self._reader is not None:
            prepare(staged.model)
        return staged

    def replace(self, staged: StagedWeights) -> float:
        """Serve `staged` from the next token on; running requests continue. Returns the pause in ms. Raises ValueError."""
        if not staged.fits(self._weights):
            raise ValueError(f"the weights of policy {staged.version} do not match the model that is served")

        def served() -> None:
            if isinstance(staged.model, Llama):
                self._weights = staged
            else:  # the weights were copied
                self._weights = dataclasses.replace(staged, model=self._weights.model)
            self.version = staged.version

        with self._changing:
            return float(self.batches.replace(staged.model, staged.version, served))

    def swap(self, version: int) -> Swap:
        """Serve a published version once its canary check passes. Raises like `stage` and `replace`, and CanaryFailure."""
        began = time.monotonic()
        staged = self.stage(version)
        self._check(staged)
        load_ms = (time.monotonic() - began) * 1000
        return Swap(version, time.time(), load_ms, self.replace(staged))

    def score(self, ids: Sequence[int], first: int) -> tuple[int, list[float]]:
        """The version of the weights, and the logprobs of `ids[first:]`, each given all preceding ids."""
        with self._changing:
            return self.version, self._weights.score(ids, first)

    def pause(self) -> None:
        """Returns when no token is being sampled; requests are kept until `resume`."""
        self.batches.pause()

    def resume(self) -> None:
        self.batches.resume()

    def failure(self) -> str | None:
        """Why the model cannot continue, or None."""
        failure: str | None = self.batches.failure()
        return failure

    def stop(self) -> None:
        if self._served is None:
            self.batches.stop()
        else:
            self.batches.part(self._served)


class Running:
    """One running request."""

    def __init__(self, decoder: Decoder, number: int, take: Callable[[TokenPiece], None], steered: Steered | None) -> None:
        self._decoder, self._number, self._take, self._steered = decoder, number, take, steered
        self._start_version = decoder.version
        self._seen = self._sets = 0  # number of tokens and of allowed-token sets that were delivered
        self._ended = False
        self.request: Request | None = None

    def deliver(self, fresh: list[Fresh], ended: bool, error: str | None) -> None:
        """Pass on the new tokens of the request. Called on the event loop."""
        if self._ended:
            return
        if self._steered is not None and self._steered.failed is not None:
            self._end([], self._steered.failed, unfollowable=True)
            return
        tokens = [Token(*values) for values in fresh]
        if self._steered is not None and self._steered.tops:
            tops = self._steered.tops[self._seen : self._seen + len(tokens)]
            tokens = [token._replace(top=top) for token, top in zip(tokens, tops, strict=True)]
        if ended:
            self._end(tokens, error)
        elif tokens:
            self._take(self._piece(tokens))

    def _piece(self, tokens: list[Token], ended: bool = False, error: str | None = None, unfollowable: bool = False) -> TokenPiece:
        first, self._seen = self._seen, self._seen + len(tokens)
        which, sets = list[int](), list[bytes]()
        if self._steered is not None and (grammar := self._steered.grammar) is not None:
            which = grammar.which[first : self._seen]
            first_set, self._sets = self._sets, max([self._sets - 1, *which]) + 1  # sets are numbered in order of appearance
            sets = grammar.sets[first_set : self._sets]
        return TokenPiece(self._number, self._start_version, tokens, which, sets, ended, error, unfollowable)

    def _end(self, tokens: list[Token], error: str | None, unfollowable: bool = False) -> None:
        piece = self._piece(tokens, True, error, unfollowable)
        self.cancel()
        self._take(piece)

    def cancel(self) -> None:
        """Stop sampling, and deliver nothing more. Has no effect after the end."""
        assert self.request is not None
        self._ended = True
        self._decoder.release(self.request)
