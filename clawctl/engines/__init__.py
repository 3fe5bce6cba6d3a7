"""The engine seam: what runs the model behind serve. A request goes in; events, token ids, logprobs and versions come out.

Three kinds are built in: `embedded` (transformers in a child process), `vllm` (vLLM's server as a child process) and `upstream` (a
server that somebody else runs). A recipe names one with `serve.engine` or `serve.upstream`. An engine of your own is a function
`start(run, recipe) -> Engine`, named as `file.py:start` or announced by an installed package (`clawctl.engines`). The process that
serves imports no torch, so an engine runs its model in another process.
"""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.registry import Registry
from clawctl.run.directory import RunDir
from clawctl.run.rows import PromptImage
from clawctl.serve.dialects import Extras, GenerationRequest, Shown

_log = logging.getLogger("clawctl.serve")
THERE_AND_BACK = "the weights changed and changed back while it was sampled"  # its first and last version do not show this


class EngineFailure(Exception):
    """The engine failed. The message may be shown to clients."""


class CannotFollow(EngineFailure):
    """A grammar that a client asked for cannot be compiled or followed within the limits; the message is for the client."""


class Unanswered(ClawError):
    """The engine did not answer a call of clawctl. A retry may succeed."""


class NotYet(Unanswered):
    """The engine's features are not known yet; clawctl is asking."""


@dataclass(slots=True)
class Sampled:
    """The data of one answer so far. Missing values are None and are never filled in."""

    temperature: float  # as applied
    top_p: float
    top_k: int  # 0: off
    prompt_ids: list[int] | None = None
    completion_ids: list[int] | None = None
    logprobs: list[float] | None = None  # one for each of completion_ids
    version: int | None = None  # of the policy at the first sampled token
    version_end: int | None = None  # at the last one
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    reasoning_tokens: int = 0  # of the completion's
    finish_reason: str | None = None  # "stop", "length", "tool_calls"
    stop_sequence: str | None = None  # the one of the request's stops that ended it
    cut_call: bool | None = None  # a limit or a stop ended it within a tool call; None: only the engine has seen the markup
    first_at: float | None = None  # unix seconds when its first token was there; None: when its first piece was shown
    usage: dict[str, Any] | None = None  # in chat form, from an upstream
    extras: Extras | None = None  # further fields from an upstream
    untrainable: str | None = None  # why the turn cannot be trained, as far as the engine is concerned
    allowed: str | None = None  # the tokens that were allowed at each place, see `clawctl.run.allowed_tokens`; None: any
    spliced: int | None = None  # earlier answers that were put back as sampled; None: not asked for
    unspliced: str | None = None  # why earlier answers that were known were not put back
    adapted: str | None = None  # changes to the messages that the template required
    images: list[PromptImage] | None = None  # in `prompt_ids`; None: none, or not known


class Reply(Protocol):
    """One running answer."""

    sampled: Sampled

    def __aiter__(self) -> AsyncIterator[Shown]:
        """The events as they arrive, or in one piece if the client does not stream. At the end `sampled` is complete. Raises
        EngineFailure, and Refusal if the engine refuses late."""
        ...

    def cancel(self) -> None:
        """Stop sampling: the iteration ends after the delivered events. It has no effect after the end."""
        ...


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The features of a backend. Missing features are logged and shown in /health. None: the backend did not answer, which counts
    as no."""

    ids: bool | None
    logprobs: bool | None  # one for each sampled token
    processed: bool | None  # of the distribution that was sampled from, not of the model's own at temperature 1
    adapters: bool | None  # can take up an adapter while it serves
    weights: bool | None  # can take up full weights while it serves
    images: bool | None = None  # None: not known before one is sent


@dataclass(frozen=True, slots=True)
class Swap:
    """One change of the weights that an engine serves."""

    version: int
    at: float  # unix seconds
    load_ms: float  # reading the weights and checking the canary, while serving
    pause_ms: float  # for so long running requests made no token


class Engine(Protocol):
    """Runs the model behind serve. `load` is called in a thread of its own, `stop` after the event loop has ended, everything else
    on the event loop."""

    # ---- what it is ------------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """That new requests begin with."""
        ...

    @property
    def max_context(self) -> int | None:
        """Maximum tokens of prompt and answer together; None if the engine does not report it."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    # ---- requests --------------------------------------------------------------------------------------------------------

    async def begin(self, request: GenerationRequest, version: int | None, stack: AsyncExitStack) -> list[Reply]:
        """The one place where a request begins: `request.n` running replies of the live policy, or of a pinned `version`. Resources
        to release with them go onto `stack`. Raises Refusal."""
        ...

    async def count(self, request: GenerationRequest) -> int:
        """Tokens of the prompt. Raises Refusal."""
        ...

    async def score(self, ids: Sequence[int], first: int, version: int | None) -> tuple[int, list[float]]:
        """The version that scored, and the logprob of each of `ids[first:]` given all ids before it, at temperature 1. It is that
        of the live policy, or a pinned `version`. Raises Refusal, also if the engine cannot score."""
        ...

    def hold(self, version: int) -> AbstractAsyncContextManager[None]:
        """Keep a version loaded besides the live one. Raises Refusal if it cannot be loaded."""
        ...

    def at_once(self, version: int, key: str) -> bool:
        """Whether a request of `key` that is pinned to `version` begins without waiting for a place or for weights."""
        ...

    # ---- control ---------------------------------------------------------------------------------------------------------

    def load(self, version: int) -> Swap:
        """Serve a published version from now on, once its canary passes. Running requests go on. On failure the old version stays
        live, and it raises CanaryFailure, ClawError, OSError, ValueError or RuntimeError."""
        ...

    async def unload(self, version: int) -> bool:
        """Take a pinned version out of memory. Whether it is out: not if requests use it, or if it is live."""
        ...

    async def pause(self) -> None:
        """Returns when no token is being sampled. Until `resume`, running requests are kept and new ones wait. Raises Refusal if it
        cannot; so do the next three."""
        ...

    async def resume(self) -> None:
        """End a pause. It has no effect without one."""
        ...

    async def sleep(self) -> None:
        """Pause, and give back the memory that the engine can do without, until `wake`."""
        ...

    async def wake(self) -> None:
        """End a sleep. It has no effect without one."""
        ...

    # ---- life ------------------------------------------------------------------------------------------------------------

    async def keep(self, up: Callable[[], None]) -> None:
        """Keep the engine running. `up` is called in a thread whenever it starts to serve version 0, before any request is
        answered. Ends, or raises ClawError, if the engine cannot continue."""
        ...

    def waiting_for(self) -> str | None:
        """Why requests have to wait just now ("vLLM is starting"), or None."""
        ...

    def doubt(self) -> str | None:
        """Why the loaded weights are not known at the moment, or None. Turns sampled meanwhile are not trained."""
        ...

    def failure(self) -> str | None:
        """Why the engine is dead and the process should end, or None while it lives."""
        ...

    def stop(self) -> None: ...


ENGINES: Registry[Callable[[RunDir, Recipe], Engine]] = Registry(
    "engine",
    "clawctl.engines",
    {"transformers": "clawctl.engines.embedded.engine:start", "vllm": "clawctl.engines.vllm.child:start"},
)


def start_engine(run: RunDir, recipe: Recipe) -> Engine:
    """The engine that the recipe names (`serve.upstream`, else `serve.engine`). It starts with version 0. Raises ClawError."""
    if recipe.serve.upstream is not None:
        from clawctl.engines.upstream.engine import start

        return start(run, recipe)
    if recipe.serve.engine != "vllm" and recipe.serve.engine_args:
        _log.warning("serve.engine_args has no effect: it needs `--engine vllm`")
    return ENGINES.load(recipe.serve.engine, "serve.engine")(run, recipe)
