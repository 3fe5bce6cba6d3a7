"""The embedded engine: this process renders prompts and parses answers; another process runs the models on token ids."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from clawctl.config import Recipe
from clawctl.engines import THERE_AND_BACK, CannotFollow, Capabilities, EngineFailure, Reply, Sampled, Swap
from clawctl.engines.embedded.frames import Sampling, Token
from clawctl.engines.embedded.pins import Pins
from clawctl.engines.embedded.process import ChildGeneration, ModelProcess
from clawctl.engines.halt import Halt
from clawctl.engines.requests import GenerationRequest, Refusal, Shown
from clawctl.run.keys import OWN
from clawctl.run.policies import PolicyId, Version
from clawctl.serve.answer_decoder import AnswerDecoder
from clawctl.serve.dialects.api import refuse_unsupported
from clawctl.serve.dialects.fields import steering
from clawctl.serve.dialects.settings import check_known
from clawctl.serve.prompt import Rendered, plain_in_thread, render_in_thread
from clawctl.serve.request_sizes import beyond_context
from clawctl.serve.sampling import altered_fields, unsupported_field
from clawctl.serve.structured import api_name, is_requested, specification, unenforceable
from clawctl.serve.switches import switches
from clawctl.serve.work_queues import KeyedLock, WorkQueues
from clawctl.vision.reader import image_reader

# Concurrent structured requests, per key and in total, which have their own processes; further requests wait. Answers per request.
_STRUCTURED_PER_KEY, _STRUCTURED, _STRUCTURED_CHOICES = 32, 96, 8


class Embedded:
    """See `clawctl.engines.Engine`. `models` has loaded version 0."""

    def __init__(self, recipe: Recipe, tokenizer: Any, models: ModelProcess) -> None:
        self._recipe, self._tokenizer, self._models = recipe, tokenizer, models
        self._reader = image_reader(recipe.model_path)
        self.capabilities = Capabilities(
            ids=True, logprobs=True, processed=True, adapters=True, weights=True, images=self._reader is not None
        )
        self.version = 0
        self.max_context = models.about.max_context
        self._compiling, self._structured_limit = KeyedLock(), _StructuredLimit()
        self._queues = WorkQueues()
        self._switches = switches(tokenizer.chat_template)
        self._up, self._halt = False, Halt()
        limits = {int: recipe.serve.pinned_versions, PolicyId: recipe.policies.loaded}
        self._pins = {kind: Pins(self._load, limit) for kind, limit in limits.items()}

    def _load(self, version: Version) -> "Pinned":
        self._models.load(version)
        return Pinned(self._models, version)

    async def begin(self, request: GenerationRequest, version: Version | None, stack: AsyncExitStack) -> list[Reply]:
        about = self._models.about
        if param := unsupported_field(request.tool_choice if request.use_tools else None, request.engine_fields, about.steers):
            param = api_name(request, param)
            raise Refusal(400, f"the embedded engine does not support '{param}': remove it, or serve with --engine vllm", param)
        refuse_unsupported(request, "embedded")
        await self._models.attach()
        await self._halt.wait()
        if version is not None:
            await stack.enter_async_context(self._pins[type(version)].lease(version, request.key))
        prompt = await self._rendered(request)
        if any(not 0 <= token < about.vocabulary for token in prompt.ids):
            raise Refusal(400, f"a token id of the prompt is {about.vocabulary} or larger", "prompt")
        sampling = self._sampling(request, len(prompt.ids))
        grammars = await self._opened(request, prompt.thinking, stack)
        replies: list[Reply] = []
        try:
            for i in range(request.n):
                seed = None if sampling.seed is None else sampling.seed + i
                grammar = grammars[i] if grammars else None
                generation = self._models.generate(version, prompt.ids, replace(sampling, seed=seed), grammar, prompt.images)
                stack.callback(generation.cancel)
                decoder = AnswerDecoder(self._tokenizer, request, prompt.thinking, prompt.ids if request.prompts else ())
                fields = {name: value for name, value in request.engine_fields.items() if name != "response_format"}
                reason = altered_fields(sampling.temperature, sampling.top_p, sampling.top_k, None, fields)
                sampled = Sampled(sampling.temperature, sampling.top_p, sampling.top_k, prompt.ids, [], [], untrainable=reason)
                sampled.images = [image.placed for image in prompt.images] or None
                replies.append(EmbeddedReply(generation, decoder, prompt, sampled, about.eos_ids))
        except EngineFailure as failure:
            raise Refusal(500, str(failure)) from failure
        return replies

    def at_once(self, version: int, key: str) -> bool:
        return self._pins[int].at_once(version, key)

    @asynccontextmanager
    async def hold(self, version: int) -> AsyncIterator[None]:
        await self._models.attach()
        async with self._pins[int].lease(version):
            yield

    async def _opened(self, request: GenerationRequest, thinking: bool, stack: AsyncExitStack) -> list[int]:
        """The numbers of the answers' grammars; empty if the format is free. Another process compiles them, because a schema can
        take any time, and keys take turns. Raises Refusal."""
        if not is_requested(request):
            return []
        if request.n > _STRUCTURED_CHOICES:
            raise Refusal(400, f"'n' may be at most {_STRUCTURED_CHOICES} with structured output", "n")
        packed = specification(request, self._tokenizer, thinking, self._switches)
        await stack.enter_async_context(self._structured_limit.slot(request.key))
        opened: list[int] = []
        for _ in range(request.n):
            async with self._compiling.of(request.key):
                compiling = asyncio.ensure_future(asyncio.to_thread(self._models.compile, packed))
                try:
                    opened.append(await asyncio.shield(compiling))
                except CannotFollow as problem:
                    raise unenforceable(request, problem) from problem
                except EngineFailure as failure:
                    raise Refusal(500, str(failure)) from failure
                except asyncio.CancelledError:  # the turn ends with the work, even if the client is gone
                    with suppress(EngineFailure):
                        self._models.discard(await compiling)
                    raise
            stack.callback(self._models.discard, opened[-1])
        return opened

    async def count(self, request: GenerationRequest) -> int:
        return len((await self._rendered(request)).ids)

    async def score(self, ids: Sequence[int], first: int, version: Version | None) -> tuple[int, list[float]]:
        if max(ids) >= self._models.about.vocabulary or len(ids) > self.max_context:
            limits = f"{self.max_context} ids below {self._models.about.vocabulary}"
            raise Refusal(400, f"this engine scores at most {limits}", "ids")
        await self._models.attach()
        await self._halt.wait()
        async with AsyncExitStack() as stack:
            if version is not None:
                await stack.enter_async_context(self._pins[type(version)].lease(version, OWN))
            try:
                return await asyncio.to_thread(self._models.score, ids, first, version)
            except EngineFailure as failure:
                raise Refusal(500, str(failure)) from failure

    async def _rendered(self, request: GenerationRequest) -> Rendered:
        if request.prompts:
            return await plain_in_thread(self._tokenizer, request, self._queues)
        check_known(request.template_settings, self._switches)
        return await render_in_thread(self._tokenizer, request, self._queues, self._recipe.serve.splice, self._reader)

    def _sampling(self, request: GenerationRequest, prompt: int) -> Sampling:
        serve, longest = self._recipe.serve, self.max_context
        if not prompt:
            raise Refusal(400, "the prompt is empty", "messages")
        answer = 1 if request.max_tokens is None or request.max_tokens_may_shrink else request.max_tokens
        if prompt + answer > longest:
            raise beyond_context(longest, str(prompt + answer), prompt, answer, "prompt" if request.prompts else "messages")
        return Sampling(
            temperature=1.0 if request.temperature is None else request.temperature,  # the gateway has set both
            top_p=1.0 if request.top_p is None else request.top_p,
            top_k=request.top_k,
            max_tokens=min(request.max_tokens or serve.max_tokens or longest, longest - prompt),
            top_logprobs=request.top_logprobs if request.logprobs else 0,
            **steering(request.engine_fields, self._models.about.vocabulary),
        )

    def load(self, version: int) -> Swap:
        swap = self._models.replace(version)
        self.version = version
        return swap

    async def unload(self, version: int) -> bool:
        return await self._pins[int].unload(version)

    async def pause(self) -> None:
        async with self._halt.beginning("the engine is paused"):
            await self._call(self._models.pause)

    async def resume(self) -> None:
        await self._call(self._models.resume)
        self._halt.end()

    async def sleep(self) -> None:
        """Unload only versions that are not in use; the live weights and the cache belong to running requests."""
        async with self._halt.beginning("the engine is asleep"):
            await self._call(self._models.pause)
            for pins in self._pins.values():
                await pins.unload_idle()

    async def wake(self) -> None:
        await self.resume()

    async def _call(self, call: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(call)
        except EngineFailure as failure:
            raise Refusal(500, str(failure)) from failure

    async def keep(self, up: Callable[[], None]) -> None:
        await self._models.attach()
        await asyncio.to_thread(up)
        self._up = True
        await self._models.ended()

    def waiting_for(self) -> str | None:
        return self._halt.reason if self._up else "the engine is starting"

    def doubt(self) -> None:
        return None

    def failure(self) -> str | None:
        return self._models.failure()

    def stop(self) -> None:
        self._models.stop()


@dataclass(frozen=True, slots=True)
class Pinned:
    """A version that is loaded in addition to the live model."""

    models: ModelProcess
    version: Version

    def failure(self) -> str | None:
        return self.models.failure(self.version)

    def stop(self) -> None:
        self.models.unload(self.version)


class _StructuredLimit:
    """Limits structured requests. The requests of one key leave capacity for other keys and wait for each other."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(_STRUCTURED)
        self._of_key: dict[str, asyncio.Semaphore] = {}

    @asynccontextmanager
    async def slot(self, key: str) -> AsyncIterator[None]:
        async with self._of_key.setdefault(key, asyncio.Semaphore(_STRUCTURED_PER_KEY)), self._all:
            yield


class EmbeddedReply:
    """See `clawctl.engines.Reply`."""

    def __init__(
        self, generation: ChildGeneration, decoder: AnswerDecoder, prompt: Rendered, sampled: Sampled, eos_ids: frozenset[int]
    ) -> None:
        self._generation, self._decoder, self._eos_ids = generation, decoder, eos_ids
        self._stopped = self._cancelled = False
        self._ended = False  # the model sampled an end token
        self._versions = set[int | None]()  # versions that sampled at least one token
        self.sampled = sampled
        sampled.prompt_tokens = len(prompt.ids)
        sampled.spliced, sampled.unspliced, sampled.adapted = prompt.spliced, prompt.unspliced, prompt.adapted

    async def __aiter__(self) -> AsyncIterator[Shown]:
        decoder, sampled = self._decoder, self.sampled
        async for tokens in self._generation:
            self._add_tokens(tokens)
            if shown := decoder.shown():
                yield shown
            if self._stopped:
                self._generation.cancel()
                break
        if shown := decoder.end():
            yield shown
        if self._stopped:
            sampled.finish_reason = "tool_calls" if decoder.called else "stop"
        elif not self._cancelled:
            sampled.finish_reason = "length"
        sampled.cut_call = decoder.ended_in_call and not self._ended
        self._keep_sets()

    def _keep_sets(self) -> None:
        """Store the allowed tokens at each position, which the trainer needs."""
        sampled = self.sampled
        allowed = self._generation.allowed(len(sampled.completion_ids or ()))
        if allowed is not None:
            sampled.allowed = allowed.packed()
            if sampled.allowed is None:
                sampled.untrainable = sampled.untrainable or "structured output: its sets of tokens are too large"

    def _add_tokens(self, tokens: list[Token]) -> None:
        decoder, sampled = self._decoder, self.sampled
        assert sampled.completion_ids is not None
        assert sampled.logprobs is not None
        for token in tokens:
            sampled.completion_ids.append(token.id)
            sampled.logprobs.append(token.logprob)
            sampled.completion_tokens += 1
            sampled.version_end = token.version
            self._versions.add(token.version)
            if sampled.version is None:  # the old weights may have computed part of the prompt
                sampled.version = self._generation.start_version
                self._versions |= {self._generation.start_version}
            self._stopped = self._ended = token.id in self._eos_ids
            decoder.add(token.id, token.logprob, token.top, self._stopped)
            if decoder.hit:
                self._stopped, sampled.stop_sequence = True, decoder.hit
                break
        sampled.reasoning_tokens = decoder.reasoning_tokens
        if sampled.version == sampled.version_end and len(self._versions) > 1:
            sampled.untrainable = sampled.untrainable or THERE_AND_BACK

    def cancel(self) -> None:
        self._cancelled = True
        self._generation.cancel()
