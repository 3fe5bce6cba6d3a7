"""The messages between the gateway and the process that holds the models: MessagePack, each after its length in 4 bytes.

The gateway sends `StartWorker` once and waits for `Ready`. Then both sides may send at any time. The gateway assigns a number to
each request, grammar and call. All tokens that running requests sampled in one engine step form one `Step`, which is written at
once.
"""

import socket
from asyncio import IncompleteReadError, StreamReader
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from clawctl.engines import CannotFollow, EngineFailure
from clawctl.errors import ClawError
from clawctl.serve.canary import CanaryFailure
from clawctl.vision import SentImage

_LENGTH = 4  # bytes, big-endian


class Token(NamedTuple):
    """One token as the engine sampled it."""

    id: int
    logprob: float  # under the distribution it was drawn from: after temperature, top_p and top_k
    version: int  # policy version whose weights computed it
    top: Sequence[tuple[int, float]] = ()  # the most likely ids at this position, if requested


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters of a request."""

    temperature: float  # 0: the most likely token
    top_p: float
    top_k: int  # 0: off
    max_tokens: int
    min_p: float = 0.0  # 0: off
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    repetition_penalty: float = 1.0  # 1: off
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None  # with a seed, the same prompt and weights give the same ids
    top_logprobs: int = 0  # number of most likely ids returned with each token


class _Frame(msgspec.Struct, array_like=True, tag=True):
    pass


# ---- from the gateway --------------------------------------------------------------------------------------------------------


class StartWorker(_Frame):
    run: str  # the run directory
    recipe: str  # as JSON
    log_level: str


class Generate(_Frame):
    number: int
    model: int | str | None  # a version beside the live one: 3, or anna@3 of another policy; None: the live model
    prompt_ids: list[int]
    sampling: Sampling
    grammar: int | None
    images: list[SentImage] = []  # msgspec copies this default


class Cancel(_Frame):
    number: int


class Discard(_Frame):
    """Release a grammar."""

    number: int


class ProcessCall(_Frame):
    """A call of one of these methods, which is answered by `Done` or `Failed`:

    compile(grammar, specification)      prepare a grammar; its JSON is described in `clawctl.serve.structured`
    load(version), unload(version)       a version in addition to the live model
    replace(version) -> Swap             load a version's weights into the live model once its canary check passes
    pause(), resume()                    stop and continue sampling on all models
    score(model, ids, first)             -> the version of the weights, and the logprobs of ids[first:]
    """

    number: int
    method: str
    arguments: tuple[Any, ...]


# ---- from the process --------------------------------------------------------------------------------------------------------


class Ready(_Frame):
    """The live model is loaded, with version 0. Pinned versions have the same values."""

    vocabulary: int
    max_context: int
    eos_ids: frozenset[int]
    steers: bool


class TokenPiece(_Frame):
    """The results of one request in one engine step."""

    number: int
    start_version: int  # the version that the request began with
    tokens: list[Token]
    which: list[int]  # with a grammar: for each token, the index of its set of allowed tokens; -1: any
    sets: list[bytes]  # the sets that `which` refers to for the first time
    ended: bool
    error: str | None
    unfollowable: bool  # the grammar caused the error
    unreadable: bool = False  # an image caused the error, which is for the client


class Step(_Frame):
    pieces: list[TokenPiece]


class Done(_Frame):
    number: int
    result: Any


class Failed(_Frame):
    number: int
    kind: str
    problem: str
    fix: str
    exit_code: int


class Died(_Frame):
    """A model cannot continue."""

    model: int | str | None
    problem: str


ToProcess = StartWorker | Generate | Cancel | Discard | ProcessCall
FromProcess = Ready | Step | Done | Failed | Died
to_process: msgspec.msgpack.Decoder[ToProcess] = msgspec.msgpack.Decoder(ToProcess)
from_process: msgspec.msgpack.Decoder[FromProcess] = msgspec.msgpack.Decoder(FromProcess)
_encode = msgspec.msgpack.Encoder().encode


def packed(message: ToProcess | FromProcess) -> bytes:
    data = _encode(message)
    return len(data).to_bytes(_LENGTH, "big") + data


async def received(reader: StreamReader) -> AsyncIterator[bytes]:
    """The messages as bytes, until the other side closes the connection."""
    try:
        while True:
            length = int.from_bytes(await reader.readexactly(_LENGTH), "big")
            yield await reader.readexactly(length)
    except (IncompleteReadError, ConnectionError):
        return


_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (CanaryFailure, CannotFollow, EngineFailure, OSError, ValueError, RuntimeError)
}


def failed(number: int, error: Exception) -> Failed:
    if isinstance(error, ClawError):
        return Failed(number, "ClawError", error.problem, error.fix, error.exit_code)
    kind = type(error).__name__
    return Failed(number, kind, str(error) if kind in _KINDS else f"{kind}: {error}", "", 1)


def as_exception(failure: Failed) -> Exception:
    if failure.kind == "ClawError":
        return ClawError(failure.problem, failure.fix, failure.exit_code)
    return _KINDS.get(failure.kind, RuntimeError)(failure.problem)


def blocking_read(connection: socket.socket) -> FromProcess | None:
    """The next message, read before an event loop takes over; None if the other side has closed the connection."""
    length = int.from_bytes(connection.recv(_LENGTH, socket.MSG_WAITALL), "big")
    data = connection.recv(length, socket.MSG_WAITALL)
    return from_process.decode(data) if length and len(data) == length else None
