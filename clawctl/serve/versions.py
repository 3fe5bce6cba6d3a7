"""Selects the version that answers a request: the live version, which follows `policies/LIVE`, or a version that the request
pins."""

import asyncio
import logging
import re
import textwrap
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from clawctl.engines import Engine, NotYet, Reply, Swap, Unanswered
from clawctl.engines.requests import GenerationRequest, Refusal
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, changes
from clawctl.run.keys import OWN
from clawctl.run.policies import PolicyId, Version, list_versions, live_version, policy_names
from clawctl.run.rows import DEFAULT_POLICY
from clawctl.serve.canary import CanaryFailure
from clawctl.serve.live import move_live_back
from clawctl.serve.people import People
from clawctl.serve.sharing import Sharing

T = TypeVar("T")
_log = logging.getLogger("clawctl.serve")
_POLL_S = 0.05
_PINNED = re.compile(r"(?:@([A-Za-z0-9._-]+))?@([0-9]+)\Z")
_LONGEST_NUMBER = 18  # digits; no version has more, and Python refuses to parse very long ones
_KEPT_SWAPS = 200
_LONGEST_PROBLEM = 500  # characters; the log has the full text of unexpected errors
_TRIES = 3  # attempts per version while it fails only because the engine does not answer; the version itself may be the cause


def is_pinned(request: GenerationRequest) -> bool:
    """Whether the request pins a version: `NAME@3`, or `NAME@anna@3` of another policy."""
    return _PINNED.search(request.model) is not None


class Versions:
    """Keeps an engine on the version that LIVE names."""

    def __init__(self, run: RunDir, live: Engine, pin: int | None = None) -> None:
        self.live = live
        self.swaps: list[Swap] = []
        self.swaps_done = self.swaps_refused = 0
        self.last_swap_error: str | None = None
        self._run, self._pin_live = run, pin
        self._stop = threading.Event()
        self._follower = threading.Thread(target=self._follow, name="follow-live", daemon=True)
        self._swap_lock = threading.Lock()
        self._refused: int | None = None  # the version that was refused; it is not retried until LIVE moves
        self._last_tried: int | None = None  # the version that was tried last
        self._unanswered = 0  # number of its attempts that the engine did not answer
        self._served = 0  # the version that went live last
        self._sharing = Sharing(run, live)
        self.people: People | None = None  # unless `policies.per` is `shared`
        self.asleep = False  # whether the engine sleeps until a request comes (`serve.sleep`)

    async def begin(self, request: GenerationRequest, stack: AsyncExitStack, shared: bool = False) -> list[Reply]:
        """Start the replies to a request. `NAME@3` is answered by version 3 only, even while 3 is live: a swap must not affect it.
        A candidate may answer a `shared` request (`gate.share`). Raises Refusal, also for a version that is not published."""
        version = await self.pinned(request.model, request.key)
        follows = version is None and self._pin_live is None
        is_replaced = (
            False  # whether the shared policy answers because the key's own one cannot, so that nothing is learned from it
        )
        if follows and self.people is not None:
            if (personal := await self.people.begin(request, stack)) is not None:
                return personal
            is_replaced = self.people.policy_of(request.key) != DEFAULT_POLICY
        if follows and shared and not is_replaced:
            candidate = self._sharing.version_for(request)
            if candidate is not None and (replies := await self._begin_shared(request, candidate, stack)) is not None:
                return replies
        replies = await self.live.begin(request, version, stack)
        if isinstance(version, PolicyId):
            for reply in replies:
                reply.sampled.policy = version.name
        elif version == 0 and shared and self.people is not None:  # practice, in which version 0 answers for a key
            for reply in replies:
                reply.sampled.policy = self.people.policy_of(request.key)
        elif is_replaced:
            for reply in replies:
                reply.sampled.untrainable = "answered by the shared policy"
        return replies

    async def pinned(self, model: str, key: str) -> Version | None:
        """The version that `NAME@3` names, or `NAME@anna@3` of another policy; None for `NAME`, the live policy. Raises Refusal if
        it is not published, or if it belongs to the policy of another key."""
        match = _PINNED.search(model)
        if match is None:
            return None
        number, run, may = match[2][:_LONGEST_NUMBER], self._run, True
        if self.people is not None and match[1] in (await asyncio.to_thread(policy_names, run))[1:]:
            run, may = run.of(match[1]), key == OWN or self.people.policy_of(key) == match[1]
        if not may or number != match[2] or int(number) not in await asyncio.to_thread(list_versions, run):
            raise Refusal(404, f"version {number} of this model is not published", "model", "model_not_found")
        return int(number) if run.policy == DEFAULT_POLICY else PolicyId(run.policy, int(number))

    async def between_swaps(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` while no swap takes place, and return its result."""
        while not self._swap_lock.acquire(blocking=False):
            await asyncio.sleep(_POLL_S)
        try:
            return await work()
        finally:
            self._swap_lock.release()

    async def _begin_shared(self, request: GenerationRequest, candidate: int, stack: AsyncExitStack) -> list[Reply] | None:
        """Replies of a candidate. None if it refuses; the live version then answers or refuses the request."""
        async with AsyncExitStack() as inner:
            try:
                replies = await self.live.begin(request, candidate, inner)
            except Refusal as refusal:
                _log.warning("candidate %d did not accept a request, so the live version answers it: %s", candidate, refusal)
                return None
            stack.push_async_exit(inner.pop_all())
        return replies

    # ---- following LIVE --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._follower.start()

    def leave(self) -> None:
        """Stop following LIVE; the event loop is about to end."""
        self._stop.set()
        self._sharing.end()

    def stop(self) -> None:
        """Stop the follower and the engine after the event loop has ended."""
        self._stop.set()
        if self._follower.is_alive():
            self._follower.join()
        self.live.stop()

    def _follow(self) -> None:
        for _ in changes([self._run.policies], self._stop):
            self.follow_once()
            self._sharing.refresh()

    def follow_once(self, begun: bool = False) -> None:
        """Check LIVE, and swap if it moved. On any problem the old version stays live, and the problem is recorded. `begun`: the
        engine has just started or restarted. Nothing is tried while the engine is not running."""
        with self._swap_lock:
            if begun or self.live.waiting_for() is None:
                self._check_live()
            if begun and self._refused is not None and self.live.version != self._served:
                self._serve_again()

    def _check_live(self) -> None:
        try:
            target = live_version(self._run) if self._pin_live is None else self._pin_live
        except (ClawError, OSError) as error:
            self._record_failure(None, error)
            return
        if target is None or (target == self.live.version and self.live.doubt() is None):
            self._refused = self._last_tried = None
            return
        if target == self._refused:
            return
        if target != self._last_tried:
            self._last_tried, self._unanswered = target, 0
        try:
            self._swap(target)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a policy, the old one stays live; it is recorded
            if self._stop.is_set():
                return  # the server's shutdown interrupted the swap
            self._record_failure(target, error)
            if isinstance(error, CanaryFailure) and self._pin_live is None:
                move_live_back(self._run, self.live.version, target, error)
            self._unanswered += isinstance(error, Unanswered) and not isinstance(error, NotYet)
            if isinstance(error, Unanswered) and self._unanswered < _TRIES:
                self._refused = None  # retried at the next check, or after a restart of the engine

    def _serve_again(self) -> None:
        """After a restart the engine has version 0. If LIVE names a refused version, load the previously served version."""
        try:
            self.live.load(self._served)
        except Exception:  # noqa: BLE001 - the engine keeps its weights, and the log has the error
            _log.exception(
                "version %d was served before but cannot be loaded now; serving version %d", self._served, self.live.version
            )
        else:
            _log.info("serving version %d again", self._served)

    def _swap(self, version: int) -> None:
        swap = self.live.load(version)
        self._served = version
        self.swaps = [*self.swaps, swap][-_KEPT_SWAPS:]
        self.swaps_done += 1
        self.last_swap_error, self._refused = None, None
        _log.info("serving version %d (loaded in %.0f ms, paused %.1f ms)", version, swap.load_ms, swap.pause_ms)

    def _record_failure(self, version: int | None, error: Exception) -> None:
        expected = isinstance(error, ClawError | CanaryFailure)
        problem = error.problem if isinstance(error, ClawError) else str(error) if expected else f"{type(error).__name__}: {error}"
        problem = textwrap.shorten(problem, _LONGEST_PROBLEM)  # torch lists every weight that does not fit
        message = problem if version is None else f"version {version} does not go live: {problem}"
        if message != self.last_swap_error:
            _log.error("%s; still serving version %d", message, self.live.version, exc_info=None if expected else error)
            self.swaps_refused += 1
        self.last_swap_error, self._refused = message, version
