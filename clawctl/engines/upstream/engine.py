"""A chat-completions server as an engine: a server that clawctl started, or one that already runs."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson

from clawctl.config import Recipe
from clawctl.config.environment import from_environment
from clawctl.control_tokens import texts_of_engine
from clawctl.engines import Capabilities, Reply, Sampled, Swap, Unanswered
from clawctl.engines.halt import Halt
from clawctl.engines.refusals import refusal
from clawctl.engines.requests import GenerationRequest, Refusal
from clawctl.engines.slots import PinnedSlots
from clawctl.engines.upstream.bodies import COMPLETIONS, BodyWriter, CallPlan, path_of, without_limit
from clawctl.engines.upstream.chunks import ChatConverter, ChunkConverter, UpstreamReply
from clawctl.engines.upstream.completions import CompletionConverter, PlainConverter
from clawctl.engines.upstream.forms import STRICT, UNKNOWN, AnswerForms, parsed_by_engine, without_strict
from clawctl.engines.upstream.probe import ProbeResult, missing, probe
from clawctl.engines.upstream.restarts import RestartWatch
from clawctl.engines.upstream.sglang import SglangControl
from clawctl.engines.upstream.splicer import Splicer
from clawctl.engines.upstream.targets import Target, Targets
from clawctl.engines.vllm.control import Control
from clawctl.engines.vllm.multiplex import Multiplexed
from clawctl.errors import ClawError
from clawctl.http_client import Client, RequestFailed, proxy_for
from clawctl.run.directory import RunDir
from clawctl.run.keys import OWN
from clawctl.run.policies import PolicyId, Version
from clawctl.serve.dialects.api import refuse_unsupported
from clawctl.serve.dialects.fields import LATER_SYSTEM, NO_IMAGES, TOOLS_UNSHOWN, later_system_as_user
from clawctl.serve.prompt import load_tokenizer
from clawctl.serve.sampling import altered_fields

_log = logging.getLogger("clawctl.serve")
PATIENCE_S = 300.0  # seconds that a request waits for an engine that starts, restarts or is being probed
_RETRY_S = 1.0
_ASK_AGAIN_S = 15.0  # seconds until features that could not be checked at start are probed again
_UNKNOWN = Capabilities(ids=False, logprobs=False, processed=False, adapters=False, weights=False)
_SPACED = "control tokens of the client with a space in them"
_RENDERED = ("chat_template_kwargs", "documents")  # fields of a request that the template reads
_WANTS_LIMIT = re.compile(r"max_(completion_|output_)?tokens")
_NOT_THERE = {404, 405, 501}


def start(run: RunDir, recipe: Recipe) -> "Upstream":
    """Start the engine of `serve.upstream`. Raises ClawError."""
    server = servers_of(recipe)[0]
    if recipe.serve.splice and server.kind != "vllm":
        _log.warning("serve.splice has no effect: among upstreams, only vLLM accepts prompts as token ids")
    return Upstream(run, recipe, server, splicing_tokenizer(recipe) if server.kind == "vllm" else None)


def servers_of(recipe: Recipe) -> "list[UpstreamServer]":
    """The servers of `serve.upstream`."""
    upstream = recipe.serve.upstream
    assert upstream is not None
    key = upstream.api_key or from_environment("UPSTREAM_KEY")
    return [UpstreamServer(url, upstream.kind, key, upstream.model) for url in (upstream.url, *upstream.others)]


def splicing_tokenizer(recipe: Recipe) -> Any:
    """The tokenizer for splicing with an external engine; None if nothing is spliced. Raises ClawError."""
    return load_tokenizer(recipe.model_path) if recipe.serve.splice else None


@dataclass(frozen=True, slots=True)
class UpstreamServer:
    """How a server is reached, and what kind it is: "vllm", "sglang" or "openai"."""

    url: str
    kind: str
    key: str | None
    model: str | None  # None: the first that it lists
    reload: str = "reload_weights"  # the worker's method that loads weights from a path


class Upstream:
    """See `clawctl.engines.Engine`."""

    def __init__(
        self, run: RunDir, recipe: Recipe, server: UpstreamServer, tokenizer: Any = None, forms: AnswerForms | None = None
    ) -> None:
        """With a `tokenizer`, earlier answers are put back as they were sampled. Without `forms`, the server follows requested
        forms by its own means, and the allowed tokens are unknown."""
        root, key = server.url.rstrip("/").removesuffix("/v1"), server.key
        self._recipe, self._kind, self._model, self._url = recipe, server.kind, server.model, root
        plain = Client(root, key, proxy=proxy_for(root))
        self._client = Multiplexed(plain)
        self._control = SglangControl(root, key) if server.kind == "sglang" else Control(root, key, server.reload)
        self._forms, self._masks_strict = forms, server.kind != "openai" and forms is None
        self._splicer = None if tokenizer is None else Splicer(tokenizer, plain, forms, recipe.serve.splice)
        self._probed: ProbeResult | None = None
        self._logged: list[str] = []  # log lines about missing features
        self._images: bool | None = None  # whether the model accepts images; None: unknown, the upstream decides
        self._control_texts = texts_of_engine(recipe.model_path)
        self._targets = Targets(run, recipe, self._control)
        self._watch = RestartWatch(plain, self._control, self._targets)
        self._slots = {int: PinnedSlots(recipe.serve.pinned_versions), PolicyId: PinnedSlots(recipe.policies.loaded)}
        self._up, self._halt = asyncio.Event(), Halt()

    @property
    def version(self) -> int:
        return self._targets.live

    @property
    def max_context(self) -> int | None:
        return None if self._probed is None else self._probed.max_context

    @property
    def capabilities(self) -> Capabilities:
        return _UNKNOWN if self._probed is None else self._probed.capabilities

    # ---- asks ------------------------------------------------------------------------------------------------------------

    async def begin(self, request: GenerationRequest, version: Version | None, stack: AsyncExitStack) -> list[Reply]:
        await self._ready()
        if self._images is False and any(isinstance(message["content"], list) for message in request.messages):
            raise Refusal(400, NO_IMAGES, "messages")
        self._refuse_unsupported(request)
        if version is not None:
            await stack.enter_async_context(self._slots[type(version)].acquire(version, request.key))
        target = await stack.enter_async_context(self._targets.lease(version))
        sent, request = request, without_strict(request) if self._masks_strict else request
        plan = CallPlan() if self._splicer is None or request.prompts else await self._splicer.plan(request, target.name)
        safe = self._without_control_texts(request) if plan.prompt is None and not request.prompts else request
        changes = [f"{STRICT} ignored"] * (request is not sent) + [_SPACED] * (safe is not request)
        replies = [self._reply(safe, target, plan) for _ in range(safe.n)]
        for reply in replies:
            reply.sampled.adapted = "; ".join(filter(None, [reply.sampled.adapted, *changes])) or None
            reply.sampled.ignored = (STRICT,) * (request is not sent)
            reply.complete = None if plan.form is None else plan.form.keep_sets
            stack.callback(reply.cancel)
        writer = BodyWriter(self._kind, self._targets.base, self.capabilities.logprobs, self._recipe.serve.max_tokens)
        bodies = ((reply, writer.body(safe, target, plan, reply.sampled, i)) for i, reply in enumerate(replies))
        sends = [self._send(safe, reply.sampled, body, partial(self._post, reply)) for reply, body in bodies]
        await (sends[0] if len(sends) == 1 else asyncio.gather(*sends))  # without gather, one task fewer before the first token
        return list(replies)

    def at_once(self, version: int, key: str) -> bool:
        return self._up.is_set() and self._targets.at_once(version) and self._slots[int].at_once(version, key)

    @asynccontextmanager
    async def hold(self, version: int) -> AsyncIterator[None]:
        await self._ready()
        async with self._slots[int].acquire(version, ""), self._targets.lease(version):
            yield

    def _refuse_unsupported(self, request: GenerationRequest) -> None:
        """Raises Refusal for features that only some servers have."""
        if self._kind == "openai":
            refuse_unsupported(request, "upstream")
            if request.continues:
                raise Refusal(400, "this upstream cannot continue a message: end with a user message", "messages")
        if self._kind == "sglang" and not request.prompted and not request.continues:
            raise Refusal(400, "SGLang does not support 'add_generation_prompt': remove it", "add_generation_prompt")
        if request.return_ids and not self.capabilities.ids:
            raise Refusal(400, "this engine does not return token ids: remove 'return_token_ids'", "return_token_ids")

    def _reply(self, request: GenerationRequest, target: Target, plan: CallPlan) -> UpstreamReply:
        sampled, ids = self._sampled(request, plan), bool(self.capabilities.ids)
        return UpstreamReply(sampled, target.clock, request.logprobs, ids, request.stream, self._converter(request, plan))

    def _converter(self, request: GenerationRequest, plan: CallPlan) -> ChunkConverter | None:
        if request.prompts:
            return PlainConverter(request.logprobs)
        if self._splicer is None or plan.prompt is None:
            return ChatConverter(request.logprobs, request.forbids_calls)
        return CompletionConverter(self._splicer.tokenizer, request, plan.prompt.thinking)

    def _without_control_texts(self, request: GenerationRequest) -> GenerationRequest:
        """The request with the client's control texts broken up. For an engine that renders the prompt itself, and would read these
        texts as control tokens."""
        fields = {name: request.engine_fields[name] for name in _RENDERED if name in request.engine_fields}
        sent = [request.messages, request.tools, request.tool_choice, fields]
        safe = [self._control_texts.broken_messages(request.messages), *map(self._control_texts.broken, sent[1:])]
        if all(old is new for old, new in zip(sent, safe, strict=True)):
            return request
        messages, tools, choice, fields = safe
        return replace(
            request, messages=messages, tools=tools, tool_choice=choice, engine_fields={**request.engine_fields, **fields}
        )

    async def _ready(self) -> None:
        if self._up.is_set():
            await self._halt.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._up.wait()
                return
        raise Refusal(503, f"{self.waiting_for()}; try again later", code="engine_starting")

    def _sampled(self, request: GenerationRequest, plan: CallPlan) -> Sampled:
        # The gateway has set both. They are always sent, because a server's own defaults may follow the model's files.
        temperature, top_p = (1.0 if value is None else value for value in (request.temperature, request.top_p))
        reason = altered_fields(temperature, top_p, request.top_k, *parsed_by_engine(request, plan.form))
        if reason is None and not self.capabilities.processed and temperature != 1:
            reason = "the engine returns logprobs before temperature"
        sampled = Sampled(temperature, top_p, request.top_k, untrainable=reason or (UNKNOWN if plan.form else None))
        sampled.spliced, sampled.unspliced = plan.spliced, plan.unspliced
        hidden = TOOLS_UNSHOWN if request.forbids_calls and self._kind != "openai" else None
        sampled.adapted = plan.prompt.adapted if plan.prompt else hidden
        return sampled

    async def _send(
        self, request: GenerationRequest, sampled: Sampled, body: dict[str, Any], post: Callable[[dict[str, Any]], Awaitable[None]]
    ) -> None:
        """Post the body, and retry it in another form if the upstream refuses it for a known reason. Raises Refusal."""
        limit = body.get("max_tokens")
        if limit is not None and request.max_tokens_may_shrink and self.max_context is not None and limit >= self.max_context:
            body = without_limit(body)
        try:
            await post(body)
        except Refusal as refused:
            may_shrink = request.max_tokens_may_shrink or request.max_tokens is None
            if refused.code == "context_length_exceeded" and may_shrink and body.get("max_tokens") is not None:
                await post(without_limit(body))  # the engine's own limit is the rest of the context
                return
            if refused.status in (400, 422) and body.get("max_tokens") is None and _WANTS_LIMIT.search(refused.message):
                message = f"{refused.message} (this upstream needs a limit: set max_tokens, or serve.max_tokens in the recipe)"
                raise Refusal(refused.status, message, "max_tokens", refused.code) from refused
            moved = later_system_as_user(request.messages)
            if refused.status != 400 or refused.code is not None or moved == request.messages or "messages" not in body:
                raise
            try:  # some templates accept a system message only at the beginning
                await post({**body, "messages": moved})
            except Refusal:
                raise refused from None  # the refusal had another cause
            sampled.adapted = "; ".join(filter(None, [LATER_SYSTEM, sampled.adapted]))

    async def _post(self, reply: UpstreamReply, body: dict[str, Any]) -> None:
        try:
            call = await self._client.stream(path_of(body), orjson.dumps(body), reply)
            if call.status == 200:
                reply.begun(call.release)
                return
            content = await call.read()
        except RequestFailed as error:
            raise Refusal(503, f"the engine cannot be reached: {error}", code="engine_unreachable") from error
        if path_of(body) == COMPLETIONS and call.status in _NOT_THERE and b"model" not in content.lower():
            raise Refusal(501, "this upstream does not support plain completions (/v1/completions)")
        raise refusal(call.status, content)

    async def count(self, request: GenerationRequest) -> int:
        await self._ready()
        request = self._without_control_texts(request)
        tools = (without_strict(request) if self._masks_strict else request).shown_tools
        body: dict[str, Any] = {"model": self._targets.base, "messages": request.messages} | ({"tools": tools} if tools else {})
        status, content = 404, b""
        if self._kind != "openai":
            with suppress(RequestFailed):
                body |= {"continue_final_message": True, "add_generation_prompt": False} if request.continues else {}
                body |= {"chat_template_kwargs": request.template_settings} if request.template_settings else {}
                answer = await self._client.request("/tokenize", orjson.dumps(body))
                status, content = answer.status, answer.body
        if status in _NOT_THERE:
            raise Refusal(501, "this engine does not count tokens")
        if status != 200:
            raise refusal(status, content)
        return int(orjson.loads(content)["count"])

    async def score(self, ids: Sequence[int], first: int, version: Version | None) -> tuple[int, list[float]]:
        if self._kind == "openai":
            raise Refusal(501, "this upstream does not score token ids: vLLM and SGLang do")
        await self._ready()
        if self.max_context is not None and len(ids) > self.max_context:
            raise Refusal(400, f"this engine scores at most {self.max_context} ids", "ids")
        async with AsyncExitStack() as stack:
            if version is not None:
                await stack.enter_async_context(self._slots[type(version)].acquire(version, OWN))
            target = await stack.enter_async_context(self._targets.lease(version))
            scored_by = target.clock.version
            try:
                logprobs = await asyncio.to_thread(self._control.score, target.name, ids, first)
            except Unanswered as error:
                raise Refusal(503, f"{error.problem}; try again later") from error
            except ClawError as error:
                raise Refusal(502, error.problem, code="engine_refused") from error
            if target.clock.version != scored_by or target.clock.doubt is not None:
                raise Refusal(503, "the weights changed while the ids were scored; try again")
        return scored_by, logprobs

    # ---- control -------------------------------------------------------------------------------------------------------------

    def load(self, version: int) -> Swap:
        return self._targets.swap(version)

    async def unload(self, version: int) -> bool:
        return await self._targets.unload(version)

    async def pause(self) -> None:
        async with self._halt.beginning("the engine is paused"):
            await self._control_by(self._control.pause)

    async def resume(self) -> None:
        await self._control_by(self._control.resume)
        self._halt.end()

    async def sleep(self) -> None:
        async with self._halt.beginning("the engine is asleep"):
            await self._control_by(self._control.sleep)

    async def wake(self) -> None:
        await self._control_by(self._control.wake)
        self._halt.end()

    async def _control_by(self, call: Callable[[], object]) -> None:
        """Call the engine's control. Raises Refusal if the server does not support the call, or refuses it."""
        if not self._up.is_set() or not self.capabilities.weights:
            cure = "start vLLM with VLLM_SERVER_DEV_MODE=1, or serve with --engine vllm"
            raise Refusal(501, f"this engine cannot be paused: {cure}", code="cannot_pause")
        try:
            await asyncio.to_thread(call)
        except Unanswered as error:
            raise Refusal(503, f"{error.problem}; try again later") from error
        except ClawError as error:
            raise Refusal(502, error.problem, code="engine_refused") from error

    # ---- life ------------------------------------------------------------------------------------------------------------

    async def keep(self, up: Callable[[], None]) -> None:
        try:
            await self._run(up)
        finally:
            await self._client.close()

    async def _run(self, up: Callable[[], None]) -> None:
        while True:
            await self._wait_and_probe(up)
            lost = await self._watch.restarted()
            self._up.clear()  # requests wait until LIVE is loaded again
            _log.warning("%s has restarted and lost %s", self._url, lost)

    async def _wait_and_probe(self, up: Callable[[], None], process: asyncio.subprocess.Process | None = None) -> None:
        """Wait for the server, find its features, catch up with LIVE, and accept requests."""
        self._targets.start(asyncio.get_running_loop(), None if process is None else partial(_end, process))
        logged = ""
        while process is None or process.returncode is None:
            try:
                self._probed = await asyncio.to_thread(probe, self._control, self._kind, self._model)
                break
            except ClawError as error:
                if process is None and error.problem != logged:
                    logged = error.problem
                    _log.warning("cannot find out what %s supports (%s); retrying until it answers", self._url, logged)
                await asyncio.sleep(_RETRY_S)
        else:
            return
        self._targets.reset(self._probed.model, self._apply_probe(self._probed))
        self._halt.end()  # a new process is not paused
        await asyncio.to_thread(up)
        self._up.set()
        while self._probed.unprobed:
            await asyncio.sleep(_ASK_AGAIN_S)
            with suppress(ClawError):
                self._targets.can(self._apply_probe(await asyncio.to_thread(probe, self._control, self._kind, self._model)))

    def _apply_probe(self, result: ProbeResult) -> Capabilities:
        """Adopt the features that were found, and log the missing ones."""
        can = replace(result.capabilities, images=self._images)
        self._probed = replace(result, capabilities=can)
        lines = [*missing(can), *result.warnings]
        lines += [
            f"some features could not be checked ({why}): they count as missing and are checked again" for why in result.unprobed
        ]
        for line in lines:
            if line not in self._logged:
                _log.warning("%s: %s", self._url, line)
        if self._logged and not lines:
            _log.info("%s: all features have been checked and are supported", self._url)
        self._logged = lines
        return can

    def waiting_for(self) -> str | None:
        return self._halt.reason or self._targets.stuck if self._up.is_set() else f"{self._url} does not answer yet"

    def doubt(self) -> str | None:
        return self._targets.doubt

    def failure(self) -> str | None:
        return None

    def stop(self) -> None:
        """Nothing to release: `keep` has closed the connections."""


def _end(process: asyncio.subprocess.Process) -> None:
    """End the engine process. Its supervising task restarts it."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
