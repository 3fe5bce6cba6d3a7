"""Requests of an episode: the address `/e/<capability>/v1`, the routes that it opens, and retries.

The capability names session, task, group and attempt, so a client cannot claim others. It opens model calls only, because an agent
must not give itself a rating or an outcome.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from clawctl.config.serve import SamplingRule, ServeConfig, TemperatureConfig
from clawctl.engines.requests import GenerationRequest, Refusal
from clawctl.run.capabilities import PREFIX, Capability, Measurement, read_capability
from clawctl.serve.answer import EventStream
from clawctl.serve.request_context import RequestContext
from clawctl.serve.versions import is_pinned

_ADDRESS = "/e/"
OPEN_TO_EPISODES: Final = frozenset(
    ("chat", "responses", "messages", "completions", "count_tokens", "input_tokens", "models", "health")
)
_KEPT_S = 900.0  # how long an answer is kept for a retry
_KEPT_BYTES = 64 << 20


def capability_in(scope: Scope) -> tuple[str | None, Scope]:
    """The capability in a request's path (None for other paths), and the scope of the request without that prefix."""
    path: str = scope["path"]
    if not path.startswith(_ADDRESS):
        return None, scope
    given, _, rest = path[len(_ADDRESS) :].partition("/")
    return given, {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode()}


def open_capability(secret: bytes, given: str, api: str) -> Capability:
    """The episode that a capability grants access to, for a route of this name. Raises Refusal."""
    capability = read_capability(secret, given)
    if capability is None:
        raise Refusal(401, "this is not the address of an episode of this run", code="invalid_episode")
    if api not in OPEN_TO_EPISODES:
        raise Refusal(403, "the address of an episode accepts model calls only", code="not_in_an_episode")
    if time.time() >= capability.expires_at:
        raise Refusal(403, "this episode is over: its deadline has passed", code="episode_over")
    return capability


def is_capability(key: str) -> bool:
    """Whether a client sent a capability as its API key."""
    return key.startswith(PREFIX)


def hints_of(episode: Capability, hints: dict[str, Any]) -> dict[str, Any]:
    """The hints of a request, with the capability's values in place of the client's claims. The episode ends with its outcome, not
    with a client's claim, and a header cannot rate it."""
    claims = {
        "session_id": episode.session_id,
        "task_id": episode.task_id,
        "group_id": episode.group_id,
        "episode": episode.attempt,
    }
    return {**{name: value for name, value in hints.items() if name != "feedback"}, **claims, "session_done": False}


def of_version(request: GenerationRequest, live: str, measurement: Measurement | None) -> GenerationRequest:
    """The request for the version that the episode is played with, regardless of the model that the client names: the live version,
    or the measured one. Only version 0 may be named, because practice begins with the answers of the untrained model."""
    if measurement is None:
        return replace(request, model=live) if is_pinned(request) and request.model != f"{live}@0" else request
    requested = measurement.max_tokens if request.max_tokens is None else request.max_tokens
    return replace(request, model=measurement.model, max_tokens=min(requested, measurement.max_tokens))


def sampling_rule(config: ServeConfig, measurement: Measurement | None, default: float) -> SamplingRule:
    """The sampling rule for episodes, regardless of the request: the recipe's, the default or the measurement's temperature, and no
    setting that changes the distribution."""
    temperature = config.sampling.temperature or TemperatureConfig(always=default)
    if measurement is not None:
        temperature = TemperatureConfig(always=measurement.temperature)
    return SamplingRule(temperature=temperature, ignore="all")


class Recording:
    """One answer, recorded for every client that requests it."""

    def __init__(self) -> None:
        self.began_at = time.monotonic()
        self.start: Message | None = None
        self.bodies: list[Message] = []
        self.size = 0
        self.ended = False
        self.failed: Exception | None = None
        self.sampling = ""  # see `RequestContext.sampling`
        self._changed = asyncio.Event()

    async def send(self, message: Message) -> None:
        """Record one ASGI message of the answer."""
        if message["type"] == "http.response.start":
            self.start = message
        else:
            self.bodies.append(message)
            self.size += len(message.get("body", b""))
        self._notify()

    def end(self, failed: Exception | None = None) -> None:
        self.ended, self.failed = True, failed
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_start(self) -> "Replay":
        """The response, once it has begun. Raises the error that prevented it."""
        while self.start is None and not self.ended:
            await self._changed.wait()
        if self.start is None:
            raise self.failed or RuntimeError("an answer ended before it began")
        return Replay(self, self.start)

    async def has_body(self, index: int) -> bool:
        """Wait for the body message at index `index`. False if the answer has ended before it."""
        while index >= len(self.bodies) and not self.ended:
            await self._changed.wait()
        return index < len(self.bodies)


class Replay:
    """A response that sends the recorded part of an answer, and then the rest as it arrives."""

    def __init__(self, recording: Recording, start: Message) -> None:
        self._recording = recording
        self.status_code: int = start["status"]
        self.raw_headers: list[tuple[bytes, bytes]] = list(start["headers"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        index = 0
        while await self._recording.has_body(index):
            await send(self._recording.bodies[index])
            index += 1


async def never_disconnects(*_: object) -> Message:
    """An ASGI `receive` for a client that never disconnects."""
    return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


class Retries:
    """The answers of running episodes, so that a repeated request receives the answer that was already sampled.

    SDKs resend a body after a timeout or a broken connection. Sampling it again would leave turns without a next state. An answer
    is therefore sampled to its end even if its client disconnects, and another request with the same body in the same episode
    receives it. Failed answers are not kept.
    """

    def __init__(self) -> None:
        self._recordings: OrderedDict[tuple[str, str, bytes], Recording] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(
        self,
        key: tuple[str, str, bytes],
        context: RequestContext,
        make: Callable[[RequestContext], Awaitable[Response | EventStream]],
        scope: Scope,
    ) -> Replay:
        """The answer for `key`: episode, API and digest of the body. `make` samples it if there is no recording. Raises
        Refusal."""
        self._remove_expired()
        recording = self._recordings.get(key)
        if recording is None:
            recording = self._recordings[key] = Recording()
            task = asyncio.create_task(self._record(key, recording, replace(context, status=200), make, scope))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        replay = await recording.wait_for_start()
        context.sampling = recording.sampling
        return replay

    async def _record(
        self,
        key: tuple[str, str, bytes],
        recording: Recording,
        context: RequestContext,
        make: Callable[[RequestContext], Awaitable[Response | EventStream]],
        scope: Scope,
    ) -> None:
        failed: Exception | None = None
        try:
            response = await make(context)
            recording.sampling = context.sampling
            await response(scope, never_disconnects, recording.send)
        except Exception as error:  # noqa: BLE001 - the edge of the request: every client that waits for it gets the error
            failed = error
        if failed is not None or context.status != 200:
            self._recordings.pop(key, None)
        recording.end(failed)

    def _remove_expired(self) -> None:
        """Remove expired recordings, and the oldest ones while all together are too large. Answers that are still being sampled
        stay."""
        size = sum(recording.size for recording in self._recordings.values())
        for key, recording in list(self._recordings.items()):
            is_old = time.monotonic() - recording.began_at > _KEPT_S
            if not is_old and size <= _KEPT_BYTES:
                return
            if recording.ended:
                size -= recording.size
                del self._recordings[key]
