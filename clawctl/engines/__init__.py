"""The interface of engines. Token ids go in; ids, logprobs and versions come out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


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
