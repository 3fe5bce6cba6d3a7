"""Several vLLM servers as one engine. Each loads every version itself, and a request goes to one that has the version it needs.

A version goes live once half of the members that answer have loaded and checked it, or with fewer if the others cannot. From then
on these answer all new requests: the first alone might not bear that, and the last may take long. A member that lags, has
restarted or was away is asked again once it has the live version.
"""

import asyncio
import hashlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, TypeVar

from clawctl.backoff import backoff_s
from clawctl.config import Recipe
from clawctl.engines import Capabilities, Reply, Swap, Unanswered
from clawctl.engines.event_loop import OnLoop
from clawctl.engines.requests import GenerationRequest, Refusal
from clawctl.engines.upstream.engine import PATIENCE_S, servers_of, splicing_tokenizer
from clawctl.engines.upstream.member import Member, MemberReply
from clawctl.errors import ClawError
from clawctl.http_client import Unreachable
from clawctl.run.directory import RunDir
from clawctl.run.policies import Version, read_policy
from clawctl.serve.canary import CanaryFailure

_log = logging.getLogger("clawctl.serve")
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 30.0  # before a member that has failed to load a version tries it again
_LOAD_S = 900.0
_SPARE = 4  # answers by which a member may exceed twice the mean before its conversations go to another one
Result = TypeVar("Result")


def start(run: RunDir, recipe: Recipe) -> "Pool":
    """Start the engine of `serve.upstream` with `others`. Raises ClawError."""
    return Pool(run, recipe)


class Pool:
    """See `clawctl.engines.Engine`."""

    def __init__(self, run: RunDir, recipe: Recipe) -> None:
        self._run, tokenizer = run, splicing_tokenizer(recipe)
        self._members = [Member(run, recipe, server, tokenizer, self._notify) for server in servers_of(recipe)]
        self.version = self._wanted = 0  # the live version, and that or the one that is about to be live
        self._loaded, self._failed = set[Member](), dict[Member, Exception]()  # members with `_wanted`, and without it
        self._begun = False
        self._on_loop, self._changed = OnLoop(), asyncio.Event()  # the event is replaced at each notification

    @property
    def max_context(self) -> int | None:
        return min((member.max_context for member in self._members if member.max_context is not None), default=None)

    @property
    def capabilities(self) -> Capabilities:
        return next(iter(self._ready()), self._members[0]).capabilities

    def members(self) -> list[dict[str, Any]]:
        """For /health."""
        return [member.status() for member in self._members]

    # ---- requests --------------------------------------------------------------------------------------------------------

    async def begin(self, request: GenerationRequest, version: Version | None, stack: AsyncExitStack) -> list[Reply]:
        resources = await stack.enter_async_context(AsyncExitStack())  # still open if the request begins again

        async def begin(member: Member) -> tuple[Member, list[Reply]]:
            async with AsyncExitStack() as inner:
                inner.enter_context(member.answering())
                replies = await member.begin(request, version, inner)
                resources.push_async_exit(inner.pop_all())
            return member, replies

        async def again() -> tuple[Member, Reply]:
            member, (reply,) = await self._ask(where, version, begin)
            return member, reply

        where = None if request.prompts else request.conversation
        member, replies = await self._ask(where, version, begin)
        tries = len(self._members) if request.n == 1 else 0
        return [MemberReply(reply, member, request.stream, again, tries) for reply in replies]

    async def count(self, request: GenerationRequest) -> int:
        return await self._ask(None, None, lambda member: member.count(request))

    async def score(self, ids: Sequence[int], first: int, version: Version | None) -> tuple[int, list[float]]:
        return await self._ask(None, version, lambda member: member.score(ids, first, version))

    @asynccontextmanager
    async def hold(self, version: int) -> AsyncIterator[None]:
        async with (await self._choose(None, version, Counter())).hold(version):
            yield

    def at_once(self, version: int, key: str) -> bool:
        return any(member.has(version) and member.at_once(version, key) for member in self._ready())

    async def _ask(self, where: str | None, version: Version | None, ask: Callable[[Member], Awaitable[Result]]) -> Result:
        """Ask a member, and others if it does not answer. Raises Refusal."""
        tries = Counter[Member]()
        while True:
            member = await self._choose(where, version, tries)
            try:
                return await ask(member)
            except Refusal as refused:
                fails = refused.status in (502, 503) and refused.code != "pinned_versions_busy"
                if not (fails or refused.status == 429 or refused.code == "model_not_found"):
                    raise  # any member would refuse it
                if fails:
                    member.suspect(refused.message)
                tries[member] += not isinstance(refused.__cause__, Unreachable)
                if tries.total() > max(2, len(self._members)):
                    raise

    async def _choose(self, where: str | None, version: Version | None, tries: Counter[Member]) -> Member:
        """Wait for a member that may be asked. Raises Refusal."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while not (able := self._able(version)):
                    await self._changed.wait()
                fewest = min(tries[member] for member in able)
                able = [member for member in able if tries[member] == fewest]
                loads = version is not None and not able[0].has(version)  # one member loads it for all conversations
                return _pick(able, str(version) if loads else where)
        raise Refusal(503, f"{self.waiting_for() or 'no server answers'}; try again later", code="engine_starting")

    def _able(self, version: Version | None) -> list[Member]:
        """The members that have the version. Any may be asked for a pinned version that none has, because it is loaded for its
        requests. If none has the live version, an older one answers where the live one cannot be loaded."""
        ready = self._ready() if self._begun else []
        if version is not None:
            return [member for member in ready if member.has(version)] or ready
        live = [member for member in ready if member.version == self.version]
        return live or [member for member in ready if member.refuses and member.version < self.version]

    def _ready(self) -> list[Member]:
        return [member for member in self._members if member.ready]

    # ---- versions --------------------------------------------------------------------------------------------------------

    def load(self, version: int) -> Swap:
        if read_policy(self._run, version).kind == "full":
            raise ClawError("a pool of servers loads adapters only", "set train.lora, or name one server")
        return self._on_loop.wait(self._load(version), _LOAD_S)

    async def _load(self, version: int) -> Swap:
        began = time.monotonic()
        self._wanted, self._loaded, self._failed = version, set(), {}
        self._notify()
        try:
            while self.version != version:
                voters = self._ready()
                loaded, failed = ([member for member in voters if member in some] for some in (self._loaded, self._failed))
                if loaded and (2 * len(loaded) >= len(voters) or len(loaded) + len(failed) == len(voters)):
                    for member in loaded:
                        member.go_live(version)
                    self.version = version  # at the same moment, so that a request meets the live version everywhere
                elif len(failed) == len(voters):
                    errors = [self._failed[member] for member in failed] or [Unanswered("no server answers", "start one")]
                    raise next(error for kind in (Unanswered, ClawError, Exception) for error in errors if isinstance(error, kind))
                else:
                    await self._changed.wait()
        finally:
            self._wanted = self.version
            self._notify()
        return Swap(version, time.time(), (time.monotonic() - began) * 1000, 0.0)

    async def _tend(self, member: Member) -> None:
        """Load the wanted version at a member whenever it lacks it."""
        failures = 0
        while True:
            wanted = self._wanted
            if not member.ready or member.version == wanted:
                failures = 0
                await self._changed.wait()
                continue
            try:
                await self._give(member, wanted)
            except (CanaryFailure, ClawError, OSError, ValueError, RuntimeError) as error:
                if self._wanted != wanted:
                    continue
                failures += 1
                if str(error) != str(member.failed):
                    _log.error("%s does not load version %d: %s", member.url, wanted, getattr(error, "problem", error))
                self._failed[member] = member.failed = error
                self._notify()
                with suppress(TimeoutError):
                    async with asyncio.timeout(backoff_s(failures, _FIRST_WAIT_S, _LONGEST_WAIT_S)):
                        while self._wanted == wanted:
                            await self._changed.wait()

    async def _give(self, member: Member, version: int) -> None:
        """Load a version at a member, where it goes live when it is live in the pool. Raises like `load`."""
        async with member.loaded(version):
            self._loaded.add(member)
            self._notify()
            while version == self._wanted != self.version:
                await self._changed.wait()
            if self.version != version:
                raise ClawError(f"version {version} did not go live", "promote it again")
            member.go_live(version)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def unload(self, version: int) -> bool:
        return all(await asyncio.gather(*(member.unload(version) for member in self._ready())))

    async def pause(self) -> None:
        raise Refusal(501, "a pool of servers cannot be paused", code="cannot_pause")

    resume = sleep = wake = pause

    # ---- life ------------------------------------------------------------------------------------------------------------

    async def keep(self, up: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._on_loop.start(loop)
        loop.set_default_executor(ThreadPoolExecutor(16 + 2 * len(self._members)))  # a load may occupy a thread for minutes
        async with asyncio.TaskGroup() as tasks:
            for member in self._members:
                tasks.create_task(member.keep(lambda: None))
                tasks.create_task(self._tend(member))
            while not self._ready():
                await self._changed.wait()
            await asyncio.to_thread(up)
            self._begun = True
            self._notify()

    def waiting_for(self) -> str | None:
        if self._able(None):
            return None
        reasons = (f"{status['url']}: {status['problem'] or 'it loads a version'}" for status in self.members())
        return f"no server of the pool is ready ({'; '.join(reasons)})"

    def doubt(self) -> str | None:
        return None

    def failure(self) -> str | None:
        return None

    def stop(self) -> None:
        """Nothing to release: `keep` has closed the connections."""


def _pick(able: Sequence[Member], where: str | None) -> Member:
    """The member of a conversation, which has its prefix in the cache. The least busy one if that one has too much to do, or
    without a conversation. Rendezvous hashing: a member that comes or goes moves only its own conversations."""
    least = min(able, key=lambda member: member.running)
    if where is None:
        return least
    home = max(able, key=lambda member: hashlib.blake2b(f"{member.url} {where}".encode()).digest())
    return least if home.running > 2 * sum(member.running for member in able) / len(able) + _SPARE else home
