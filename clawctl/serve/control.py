"""Engine requests that need the run's own key: the logprobs of given token ids, pausing, and unloading."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from clawctl.engines.requests import GenerationRequest, Refusal, ShownToken
from clawctl.run.keys import OWN
from clawctl.serve.versions import Versions
from clawctl.serve.work_queues import WorkQueues

CONTROLS = ("pause", "resume", "sleep", "wake", "unload")
T = TypeVar("T", bound=msgspec.Struct)
_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class ScoreRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /v1/score`."""

    model: str
    ids: Annotated[list[_TokenId], msgspec.Meta(min_length=2)]
    first: Annotated[int, msgspec.Meta(ge=1)] = 1  # return the logprobs of ids[first:]


async def score(versions: Versions, raw: bytes, key: str) -> dict[str, Any]:
    """The answer to `POST /v1/score`. Raises Refusal."""
    _check_key(key)
    request = _decoded(raw, ScoreRequest)
    if request.first >= len(request.ids):
        raise Refusal(400, "'first' must be the index of one of the ids", "first")
    version, logprobs = await versions.live.score(request.ids, request.first, await versions.pinned(request.model, key))
    return {"object": "score", "model": request.model, "version": version, "logprobs": logprobs}


async def _score_ids(versions: Versions, model: str, ids: Sequence[int], first: int, key: str) -> list[float]:
    """The logprobs of `ids[first:]`, for a plain completion with `echo` and `logprobs`. Raises Refusal."""
    _check_key(key)
    try:
        return (await versions.live.score(ids, first, await versions.pinned(model, key)))[1]
    except Refusal as refusal:
        param = "prompt" if refusal.param == "ids" else refusal.param
        raise Refusal(refusal.status, refusal.message, param, refusal.code) from refusal


async def score_prompt(
    versions: Versions, request: GenerationRequest, queues: WorkQueues, text_of: Callable[[Sequence[int]], str]
) -> list[ShownToken]:
    """The tokens of a prompt with their logprobs. Raises Refusal."""
    prompt, first = request.prompts[0], request.score_from or 1
    if isinstance(prompt, str):
        raise Refusal(400, "'logprobs' with 'echo' needs a prompt of token ids", "prompt")
    logprobs = await _score_ids(versions, request.model, prompt, first, request.key) if first < len(prompt) else []

    def shown() -> list[ShownToken]:
        values = [*[None] * min(first, len(prompt)), *logprobs]
        return [ShownToken(text_of([token]), value, []) for token, value in zip(prompt, values, strict=True)]

    return await queues.run(request.key, len(prompt), shown)


class UnloadRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /engine/unload`."""

    version: Annotated[int, msgspec.Meta(ge=0)]


async def control(versions: Versions, what: str, raw: bytes, key: str) -> dict[str, Any]:
    """The answer to `POST /engine/WHAT`. Versions that were promoted in the meantime go live when the engine samples again. Raises
    Refusal."""
    _check_key(key)
    engine = versions.live
    if what == "unload":
        version = _decoded(raw, UnloadRequest).version
        return {"object": "engine", "version": version, "unloaded": await engine.unload(version)}
    works = {"pause": engine.pause, "resume": engine.resume, "sleep": engine.sleep, "wake": engine.wake}
    await versions.between_swaps(works[what])
    return {"object": "engine", "waiting_for": engine.waiting_for()}


def _check_key(key: str) -> None:
    if key != OWN:
        raise Refusal(403, "this needs the run's own key", code="own_key_needed")


def _decoded(raw: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        fields = ", ".join(field.name for field in msgspec.structs.fields(kind))
        raise Refusal(400, f"the body is not valid: {error}; the fields are {fields}") from error
