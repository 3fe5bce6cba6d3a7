"""Which engine answers: the live one, which follows `policies/LIVE`, or one of a few that are pinned to a version."""

import asyncio
import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from clawctl.errors import ClawError
from clawctl.policies import list_versions, live_version, read_policy
from clawctl.run_dir import RunDir, changes
from clawctl.serve.dialects import Refusal
from clawctl.serve.engines import Engine, Staged, Swap

_log = logging.getLogger("clawctl.serve")
_PINNED = re.compile(r"@(\d+)$")
_KEPT_SWAPS = 200


class CanaryFailure(Exception):
    """The engine computes other logprobs than the trainer did."""


@dataclass(slots=True)
class _Pinned:
    engine: Engine
    users: int = 0


class Versions:
    """Engines by version. `make` starts an engine for a version, in a thread."""

    def __init__(self, run: RunDir, live: Engine, make: Callable[[int], Engine], most_pinned: int) -> None:
        self.live = live
        self.swaps: list[Swap] = []
        self.last_swap_error: str | None = None
        self._run, self._make, self._most_pinned = run, make, most_pinned
        self._pinned: OrderedDict[int, _Pinned] = OrderedDict()  # least recently used first
        self._changed = asyncio.Condition()
        self._stop = threading.Event()
        self._follower = threading.Thread(target=self._follow, name="follow-live", daemon=True)
        self._refused: int | None = None  # the version that was tried and refused; not tried again until LIVE moves

    # ---- which engine ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def lease(self, model: str) -> AsyncIterator[tuple[Engine, bool]]:
        """The engine that answers for `model`, and whether it is pinned. `NAME@3` is version 3 and no other, even while 3 is live:
        a swap must not reach it. Raises Refusal for a version that is not published."""
        found = _PINNED.search(model)
        if found is None:
            yield self.live, False
            return
        pinned = await self._pin(int(found[1]))
        try:
            yield pinned.engine, True
        finally:
            pinned.users -= 1
            async with self._changed:
                self._changed.notify_all()

    async def _pin(self, version: int) -> _Pinned:
        ready = self._pinned.get(version)
        if ready is not None and ready.engine.failure() is None:
            self._pinned.move_to_end(version)
            ready.users += 1
            return ready
        if version not in await asyncio.to_thread(list_versions, self._run):
            raise Refusal(404, f"version {version} of this model is not published", "model", "model_not_found")
        async with self._changed:  # one at a time: two requests for a new version load it once
            if version in self._pinned and self._pinned[version].engine.failure() is not None:
                del self._pinned[version]  # it died; its requests have been told
            while version not in self._pinned and len(self._pinned) >= self._most_pinned:
                idle = next((old for old, pinned in self._pinned.items() if not pinned.users), None)
                if idle is None:
                    await self._changed.wait()
                    continue
                await asyncio.to_thread(self._pinned.pop(idle).engine.stop)
            if version not in self._pinned:
                self._pinned[version] = _Pinned(await asyncio.to_thread(self._load, version))
            self._pinned.move_to_end(version)
            self._pinned[version].users += 1
            return self._pinned[version]

    def _load(self, version: int) -> Engine:
        try:
            return self._make(version)
        except Exception as error:  # a policy can be broken in many ways; the caller is told, the log has the rest
            _log.exception("version %d cannot be loaded", version)
            raise Refusal(404, f"version {version} of this model cannot be loaded", "model", "model_not_found") from error

    # ---- following LIVE --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._follower.start()

    def stop(self) -> None:
        self._stop.set()
        if self._follower.is_alive():
            self._follower.join()
        for pinned in self._pinned.values():
            pinned.engine.stop()
        self.live.stop()

    def _follow(self) -> None:
        for _ in changes([self._run.policies], self._stop):
            self.follow_once()

    def follow_once(self) -> None:
        """Look at LIVE; swap if it moved. On any trouble the old version goes on serving, and the trouble is recorded."""
        try:
            wanted = live_version(self._run)
        except (ClawError, OSError) as error:
            self._alarm(None, error)
            return
        if wanted is None or wanted == self.live.version:
            self._refused = None
            return
        if wanted == self._refused:
            return
        try:
            self._swap(wanted)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a policy, the old one serves; it is recorded and shown
            self._alarm(wanted, error)

    def _swap(self, version: int) -> None:
        began = time.monotonic()
        staged = self.live.stage(version)
        check_canary(self._run, version, staged)
        load_ms = (time.monotonic() - began) * 1000
        pause_ms = self.live.swap(staged)
        self.swaps = [*self.swaps, Swap(version, time.time(), load_ms, pause_ms)][-_KEPT_SWAPS:]
        self.last_swap_error, self._refused = None, None
        _log.info("version %d serves (loaded in %.0f ms, paused %.1f ms)", version, load_ms, pause_ms)

    def _alarm(self, version: int | None, error: Exception) -> None:
        expected = isinstance(error, ClawError | CanaryFailure)
        problem = error.problem if isinstance(error, ClawError) else str(error) if expected else f"{type(error).__name__}: {error}"
        said = problem if version is None else f"version {version} does not go live: {problem}"
        if said != self.last_swap_error:
            _log.error("%s; version %d goes on serving", said, self.live.version, exc_info=None if expected else error)
        self.last_swap_error, self._refused = said, version


def check_canary(run: RunDir, version: int, staged: Staged) -> None:
    """Compare the logprobs of the policy's canary prompts with the trainer's. Raises CanaryFailure."""
    canary = read_policy(run, version).canary
    if canary is None:
        return
    worst = 0.0
    try:
        for ids, expected in zip(canary["prompt_ids"], canary["logprobs"], strict=True):
            # The trainer's [t] speaks of token t; nothing speaks of the first.
            pairs = zip(staged.score(ids), expected[1:], strict=True)
            worst = max([worst, *(abs(ours - theirs) if ours == ours else float("inf") for ours, theirs in pairs)])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CanaryFailure(f"its canary cannot be read: {error}") from error
    if not worst <= staged.tolerance:
        raise CanaryFailure(f"its canary is off by {worst:.3f} (at most {staged.tolerance})")
