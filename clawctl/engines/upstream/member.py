"""One vLLM server of a pool: whether it answers, which adapters it has, and answers that begin once more if it fails."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any

from clawctl.config import Recipe
from clawctl.engines import CannotFollow, Capabilities, EngineFailure, Reply, Unanswered
from clawctl.engines.requests import Refusal, Shown
from clawctl.engines.upstream.engine import Upstream, UpstreamServer
from clawctl.engines.upstream.probe import ProbeResult
from clawctl.engines.upstream.restarts import LOOK_S
from clawctl.run.directory import RunDir
from clawctl.run.policies import Version

_log = logging.getLogger("clawctl.serve")


class Member(Upstream):
    """It holds the base model and adapters. All members cannot replace full weights at one moment."""

    def __init__(self, run: RunDir, recipe: Recipe, server: UpstreamServer, tokenizer: Any, changed: Callable[[], None]) -> None:
        super().__init__(run, recipe, server, tokenizer)
        self.url = self._url
        self.running = self.answered = 0
        self.failed: Exception | None = None  # why it does not have the wanted version
        self._changed, self._suspected = changed, asyncio.Event()
        self._silent: str | None = None  # why it does not answer

    @property
    def ready(self) -> bool:
        return self._up.is_set() and self._silent is None

    @property
    def refuses(self) -> bool:
        return self.failed is not None and not isinstance(self.failed, Unanswered)

    def has(self, version: Version) -> bool:
        return version == 0 or version in self._targets.adapters

    def loaded(self, version: int) -> AbstractAsyncContextManager[None]:
        """See `Targets.loaded`."""
        return self._targets.loaded(version)

    def go_live(self, version: int) -> None:
        self._targets.live, self.failed = version, None

    @contextmanager
    def answering(self) -> Iterator[None]:
        self.running += 1
        self.answered += 1
        try:
            yield
        finally:
            self.running -= 1

    def suspect(self, why: str) -> None:
        """Count it as silent until it has shown that it answers, and which adapters it has."""
        self._silent = why
        self._suspected.set()

    def status(self) -> dict[str, Any]:
        """For /health."""
        failed = None if self.failed is None else getattr(self.failed, "problem", str(self.failed))
        problem = self._silent or failed if self._up.is_set() else self.waiting_for()
        version = self.version if self.ready else None
        return {"url": self.url, "version": version, "running": self.running, "answered": self.answered, "problem": problem}

    async def _run(self, up: Callable[[], None]) -> None:
        await asyncio.gather(self._wait_and_probe(up), self._look())

    async def _look(self) -> None:
        """Notice its end, and a restart: the adapters are then missing from its list of models."""
        await self._up.wait()
        while True:
            adapters = self._targets.adapters
            self._suspected.clear()
            listed, silent = await self._watch.listed()
            if listed is not None:
                self._targets.lose({version: target for version, target in adapters.items() if target.name not in listed})
            if not self._suspected.is_set():  # otherwise a request has failed since this look began
                self._silent = silent
            self._changed()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._suspected.wait()

    def _apply_probe(self, result: ProbeResult) -> Capabilities:
        return super()._apply_probe(replace(result, capabilities=replace(result.capabilities, weights=False)))


class MemberReply:
    """See `clawctl.engines.Reply`. An answer of which nothing was shown begins again if its member fails, at most `tries` times."""

    def __init__(
        self, reply: Reply, member: Member, stream: bool, again: Callable[[], Awaitable[tuple[Member, Reply]]], tries: int
    ) -> None:
        self._reply, self._member, self._stream, self._again, self._tries = reply, member, stream, again, tries
        self.sampled, self._cancelled = reply.sampled, False

    async def __aiter__(self) -> AsyncIterator[Shown]:
        policy, untrainable = self.sampled.policy, self.sampled.untrainable
        while True:
            held, is_shown = list[Shown](), False  # an answer that is not streamed arrives with its end, also if it was broken off
            try:
                async for shown in self._reply:
                    if self._stream:
                        is_shown = True
                        yield shown
                    else:
                        held.append(shown)
                break
            except CannotFollow:
                raise
            except EngineFailure as failure:
                self._member.suspect(str(failure))
                if is_shown or not await self._begins_again(failure):
                    for shown in held:
                        yield shown
                    raise
                self.sampled.policy, self.sampled.untrainable = policy, untrainable
        for shown in held:
            yield shown

    async def _begins_again(self, failure: EngineFailure) -> bool:
        if self._cancelled or not self._tries:
            return False
        self._tries -= 1
        _log.warning("%s: %s; the request begins again", self._member.url, failure)
        try:
            self._member, self._reply = await self._again()
        except Refusal:
            return False
        self.sampled = self._reply.sampled
        if self._cancelled:
            self._reply.cancel()
        return True

    def cancel(self) -> None:
        self._cancelled = True
        self._reply.cancel()
