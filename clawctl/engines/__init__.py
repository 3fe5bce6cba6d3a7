"""The engine seam: an engine runs the model behind serve. A request goes in; events, token ids, logprobs and versions come out.

Three kinds are built in: `embedded` (transformers in a child process), `vllm` (vLLM's server as a child process) and `upstream` (an
external server). A recipe selects one with `serve.engine` or `serve.upstream`. A custom engine is a function `start(run, recipe) ->
Engine`, named as `file.py:start` or registered by an installed package (`clawctl.engines`). The serving process imports no torch,
so an engine runs its model in another process.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from clawctl.config import Recipe
from clawctl.engines.requests import Extras, GenerationRequest, Shown
from clawctl.errors import ClawError
from clawctl.registry import Registry
from clawctl.run.directory import RunDir
from clawctl.run.policies import Version
from clawctl.run.rows import DEFAULT_POLICY, PromptImage

# The first and last version of a turn do not show this.
THERE_AND_BACK = "the weights changed and changed back while it was sampled"


class EngineFailure(Exception):
    """The engine failed. The message may be shown to clients."""


class CannotFollow(EngineFailure):
    """A grammar that a client requested cannot be compiled or followed within the limits. The message is for the client."""


class Unanswered(ClawError):
    """The engine did not answer a call of clawctl. A retry may succeed."""


class NotYet(Unanswered):
    """The engine's features are not known yet; clawctl is still probing them."""


@dataclass(slots=True)
class Sampled:
    """The data of one answer so far. Missing values are None and are never filled in."""

    temperature: float  # as applied
    top_p: float
    top_k: int  # 0: off
    prompt_ids: list[int] | None = None
    completion_ids: list[int] | None = None
    logprobs: list[float] | None = None  # one per id in completion_ids
    version: int | None = None  # policy version at the first sampled token
    version_end: int | None = None  # policy version at the last sampled token
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    reasoning_tokens: int = 0  # included in completion_tokens
    finish_reason: str | None = None  # "stop", "length", "tool_calls"
    stop_sequence: str | None = None  # the stop string of the request that ended the answer
    cut_call: bool | None = None  # a limit or a stop ended it within a tool call; None: only the engine has seen the markup
    first_at: float | None = None  # unix seconds at which the first token arrived; None: when the first piece was shown
    usage: dict[str, Any] | None = None  # in chat form, from an upstream
    extras: Extras | None = None  # further fields from an upstream
    policy: str = DEFAULT_POLICY  # the policy that both versions belong to
    untrainable: str | None = None  # the engine's reason why the turn cannot be trained
    allowed: str | None = None  # the tokens that were allowed at each position, see `clawctl.run.allowed_tokens`; None: any
    spliced: int | None = None  # number of earlier answers put back as sampled; None: not requested
    unspliced: str | None = None  # the reason why known earlier answers were not put back
    adapted: str | None = None  # changes to the prompt that the template or the engine required
    ignored: tuple[str, ...] = ()  # fields of the request that were not passed to the engine
    images: list[PromptImage] | None = None  # in `prompt_ids`; None: no images, or unknown


class Reply(Protocol):
    """One running answer."""

    sampled: Sampled

    def __aiter__(self) -> AsyncIterator[Shown]:
        """The events as they arrive, or in one piece if the client does not stream. At the end `sampled` is complete. Raises
        EngineFailure, and Refusal if the engine refuses late."""
        ...

    def cancel(self) -> None:
        """Stop sampling: the iteration ends after the delivered events. Has no effect after the end."""
        ...


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The features of a backend. Missing features are logged and shown in /health. None: the backend did not answer, which counts
    as missing."""

    ids: bool | None
    logprobs: bool | None  # one per sampled token
    processed: bool | None  # under the distribution that was sampled from, not the model's own at temperature 1
    adapters: bool | None  # can load an adapter while it serves
    weights: bool | None  # can load full weights while it serves
    images: bool | None = None  # None: unknown until a request contains one


@dataclass(frozen=True, slots=True)
class Swap:
    """One change of the weights that an engine serves."""

    version: int
    at: float  # unix seconds
    load_ms: float  # reading the weights and checking the canary, while serving
    pause_ms: float  # time during which running requests produced no token


class Engine(Protocol):
    """Runs the model behind serve. `load` is called in its own thread, `stop` after the event loop has ended, and everything else
    on the event loop."""

    # ---- properties --------------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version that new requests begin with."""
        ...

    @property
    def max_context(self) -> int | None:
        """Maximum number of tokens of prompt and answer together; None if the engine does not report it."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    # ---- requests --------------------------------------------------------------------------------------------------------

    async def begin(self, request: GenerationRequest, version: Version | None, stack: AsyncExitStack) -> list[Reply]:
        """Begin a request: returns `request.n` running replies of the live policy, or of a pinned `version`. Resources that must be
        released with them are pushed onto `stack`. Raises Refusal."""
        ...

    async def count(self, request: GenerationRequest) -> int:
        """Number of tokens of the prompt. Raises Refusal."""
        ...

    async def score(self, ids: Sequence[int], first: int, version: Version | None) -> tuple[int, list[float]]:
        """Score ids with the live policy, or with a pinned `version`. Returns the version and the logprob of each of `ids[first:]`
        given all preceding ids, at temperature 1. Raises Refusal, also if the engine cannot score."""
        ...

    def hold(self, version: int) -> AbstractAsyncContextManager[None]:
        """Keep a version loaded in addition to the live one. Raises Refusal if it cannot be loaded."""
        ...

    def at_once(self, version: int, key: str) -> bool:
        """Whether a request of `key` that pins `version` can begin without waiting for a place or for weights."""
        ...

    # ---- control ---------------------------------------------------------------------------------------------------------

    def load(self, version: int) -> Swap:
        """Serve a published version from now on, once its canary check passes. Running requests continue. On failure the old
        version stays live, and CanaryFailure, ClawError, OSError, ValueError or RuntimeError is raised."""
        ...

    async def unload(self, version: int) -> bool:
        """Unload a pinned version. Returns whether it is unloaded; False while requests use it, or if it is live."""
        ...

    async def pause(self) -> None:
        """Returns when no token is being sampled. Until `resume`, running requests are kept and new ones wait. Raises Refusal if
        the engine cannot pause; the next three methods do the same."""
        ...

    async def resume(self) -> None:
        """End a pause. Has no effect without one."""
        ...

    async def sleep(self) -> None:
        """Pause, and release the memory that the engine does not need until `wake`."""
        ...

    async def wake(self) -> None:
        """End a sleep. Has no effect without one."""
        ...

    # ---- life ------------------------------------------------------------------------------------------------------------

    async def keep(self, up: Callable[[], None]) -> None:
        """Keep the engine running. `up` is called in a thread whenever the engine starts to serve version 0, before it answers any
        request. Returns, or raises ClawError, if the engine cannot continue."""
        ...

    def waiting_for(self) -> str | None:
        """Why requests currently have to wait ("vLLM is starting"), or None."""
        ...

    def doubt(self) -> str | None:
        """Why the loaded weights are currently unknown, or None. Turns that are sampled in the meantime are not trained."""
        ...

    def failure(self) -> str | None:
        """Why the engine is dead and the process should end, or None while it runs."""
        ...

    def stop(self) -> None: ...


ENGINES: Registry[Callable[[RunDir, Recipe], Engine]] = Registry(
    "engine",
    "clawctl.engines",
    {"transformers": "clawctl.engines.embedded.start:start", "vllm": "clawctl.engines.vllm.child:start"},
)
