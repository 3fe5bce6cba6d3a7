"""The interface of engines. Token ids go in; ids, logprobs and versions come out."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clawctl.run.allowed import Allowed


class Token(NamedTuple):
    """One sampled token, as the engine sampled it."""

    id: int
    logprob: float  # of the distribution it was drawn from: after temperature, top_p and top_k
    version: int  # of the policy whose weights computed it
    top: Sequence[tuple[int, float]] = ()  # the likeliest ids at its place, if requested


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn."""

    temperature: float  # 0: the likeliest token
    top_p: float
    top_k: int  # 0: off
    max_tokens: int
    min_p: float = 0.0  # 0: off
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    repetition_penalty: float = 1.0  # 1: off
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None  # with it the same prompt and weights give the same ids
    top_logprobs: int = 0  # number of likeliest ids that are returned with each token


@dataclass(frozen=True, slots=True)
class Swap:
    """One change of the weights that an engine serves."""

    version: int
    at: float  # unix seconds
    load_ms: float  # reading the weights and checking the canary, while serving
    pause_ms: float  # for so long running requests made no token


class EngineFailure(Exception):
    """The engine failed. The message may be shown to clients."""


class CannotFollow(EngineFailure):
    """A grammar that a client asked for cannot be compiled or followed within the limits; the message is for the client."""


class Generation(Protocol):
    """One running request."""

    def __aiter__(self) -> AsyncIterator[list[Token]]:
        """New tokens, at least one at a time, up to and including the end token. Raises EngineFailure."""
        ...

    def cancel(self) -> None:
        """Stop sampling: the iteration ends after the delivered tokens. It has no effect after the end."""
        ...

    def allowed(self, count: int) -> Allowed | None:
        """Which tokens could be drawn in the place of each of the first `count`; None: any, for no grammar was asked for."""
        ...


class Following(Protocol):
    """The tokens that are allowed next in one answer: see `clawctl.engines.embedded.grammars.Grammar`."""

    def mask(self) -> NDArray[np.uint8] | None: ...

    def take(self, token: int) -> None: ...

    def close(self) -> None: ...


class Staged(Protocol):
    """Weights that are loaded besides the live ones."""

    @property
    def version(self) -> int: ...

    @property
    def tolerance(self) -> float:
        """Largest difference between a logprob and the trainer's from rounding alone."""
        ...

    def score(self, ids: Sequence[int]) -> list[float]:
        """Logprobs of `ids[1:]`, each given all ids before it. Called in its own thread."""
        ...


class Engine(Protocol):
    """Runs one model with one policy version at a time. All methods but `stage`, `swap` and `stop` belong to the event loop."""

    version: int  # that new requests begin with
    max_context: int  # tokens of prompt and answer together
    eos_ids: frozenset[int]
    vocabulary: int
    steers: bool  # whether it honours more of a Sampling than its first four fields, and grammars

    def generate(self, prompt_ids: Sequence[int], sampling: Sampling, grammar: Following | None = None) -> Generation:
        """Begin to sample; `grammar` then belongs to the answer. Raises EngineFailure."""
        ...

    def stage(self, version: int) -> Staged:
        """Load a published version besides the live one. Raises ClawError, OSError, ValueError, RuntimeError."""
        ...

    def swap(self, staged: Staged) -> float:
        """Serve `staged` from the next token on; running requests continue. Returns the pause in milliseconds."""
        ...

    def failure(self) -> str | None:
        """Why the engine is dead, or None while it lives."""
        ...

    def stop(self) -> None:
        """End; running requests fail."""
        ...
