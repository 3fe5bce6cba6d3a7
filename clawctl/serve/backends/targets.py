"""Which name at an upstream answers for which version, and how a new version gets there: as an adapter, or as full weights."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.policies import check_policy, policy_folder, read_policy
from clawctl.run_dir import RunDir
from clawctl.serve.backends import Capabilities, NotYet, Unanswered
from clawctl.serve.backends.control import Control
from clawctl.serve.backends.resuming import go_on
from clawctl.serve.backends.tokens import Clock
from clawctl.serve.backends.weights import check_weights
from clawctl.serve.canary import EXACT, ROUNDED, CanaryFailure, check_canary
from clawctl.serve.dialects import Refusal
from clawctl.serve.engines import Swap

_log = logging.getLogger("clawctl.serve")
Done = TypeVar("Done")
_LOAD_S = 900.0  # for a large adapter; the calls to the server give up before
_LOOP_S = 30.0  # an event loop that does not come round for so long has ended


@dataclass(slots=True)
class Target:
    """What is asked for at the upstream."""

    name: str
    clock: Clock
    steady: bool = True  # its weights stay what they are; else an answer may be of two versions
    users: int = 0


class Targets:
    """Adapters have immutable names, NAME@<version>, and are routed by a pointer: who runs stays on the old one, who comes takes
    the new one. Full weights replace one another under one name, within a pause that keeps running requests."""

    def __init__(self, run: RunDir, recipe: Recipe, control: Control) -> None:
        self._run, self._recipe, self._control = run, recipe, control
        self._most = recipe.serve.pinned_versions
        self._tolerance = EXACT if recipe.model.dtype == "float32" else ROUNDED
        self._open = asyncio.Event()
        self._loading = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: Callable[[], None] | None = None
        self.stuck: str | None = None  # why the engine answers nobody
        self._tidying: asyncio.Future[None] | None = None
        self.reset("", None)

    def start(self, loop: asyncio.AbstractEventLoop, end: Callable[[], None] | None = None) -> None:
        """`end`, called on the loop, ends an engine of our own, which is then started anew."""
        self._loop, self._end = loop, end

    def reset(self, base: str, can: Capabilities | None) -> None:
        """The upstream has begun anew, with version 0."""
        self.base, self._can = base, can
        self.live = 0
        self._weights = 0  # the version of the weights under `base`
        self._base_target = Target(base, Clock(0), steady=can is None or not can.weights)
        self._adapters: OrderedDict[int, Target] = OrderedDict()  # loaded ones, least recently used first
        self.stuck = None
        self._open.set()

    def can(self, can: Capabilities) -> None:
        """More is known of what the upstream can."""
        self._can = can
        self._base_target.steady = not can.weights

    # ---- who is asked ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def lease(self, version: int | None) -> AsyncIterator[Target]:
        """The target of the live policy, or of a pinned version. Raises Refusal if that cannot be served beside the live one."""
        await self._open.wait()  # full weights are being tried: who comes now is answered by what proves right
        if self.stuck is not None:
            raise Refusal(503, f"{self.stuck}; try again later", code="engine_paused")
        target = await self._target(self.live if version is None else version)
        target.users += 1
        try:
            yield target
        finally:
            target.users -= 1
            self._tidy_soon()

    async def _target(self, version: int) -> Target:
        if version == self._weights:
            return self._base_target
        if version not in self._adapters:
            await self._pin(version)
        self._adapters.move_to_end(version)
        return self._adapters[version]

    async def _pin(self, version: int) -> None:
        async with self._loading:
            try:
                if self._weights or not self._takes_adapters() or read_policy(self._run, version).kind != "adapter":
                    told = f"this engine serves one version at a time, now {self.live}; version {version} is not loaded"
                    raise Refusal(404, told, "model", "model_not_found")
                await self._load(version)
            except Unanswered as error:
                _log.warning("version %d cannot be loaded now: %s", version, error.problem)
                raise Refusal(503, f"version {version} of this model cannot be loaded now; try again later") from error
            except ClawError as error:
                _log.error("version %d cannot be loaded: %s", version, error.problem)
                raise Refusal(404, f"version {version} of this model cannot be loaded", "model", "model_not_found") from error

    # ---- what is loaded: `_loading` is held while it changes, here or there ------------------------------------------------

    async def _load(self, version: int) -> None:
        if version not in self._adapters:
            await asyncio.to_thread(self._control.load_adapter, self._name(version), self._folder(version))
            self._adapters[version] = Target(self._name(version), Clock(version))

    async def _unload(self, version: int) -> None:
        """Unless it is used again by now."""
        async with self._loading:
            target = self._adapters.get(version)
            if target is None or target.users or version == self.live:
                return
            del self._adapters[version]
            try:
                await asyncio.to_thread(self._control.unload_adapter, target.name)
            except ClawError as error:
                _log.warning("version %d cannot be unloaded: %s", version, error.problem)

    def _tidy_soon(self) -> None:
        """Unload the adapters that nobody uses, but for the newest few. Nobody waits for it."""
        if self._one_too_many() is not None and (self._tidying is None or self._tidying.done()):
            self._tidying = asyncio.ensure_future(self._tidy())

    async def _tidy(self) -> None:
        while (old := self._one_too_many()) is not None:
            await self._unload(old)

    def _one_too_many(self) -> int | None:
        if len(self._adapters) <= self._most + 1:
            return None
        return next((old for old, target in self._adapters.items() if not target.users and old != self.live), None)

    def _takes_adapters(self) -> bool:
        return self._can is not None and bool(self._can.adapters)

    def _need(self, able: bool | None, cannot: ClawError) -> None:
        if able is None:
            raise NotYet(f"it is not known yet whether that is so: {cannot.problem}", "it is being asked; see that it answers")
        if not able:
            raise cannot

    # ---- a new version, in a thread of its own ---------------------------------------------------------------------------

    def swap(self, version: int) -> Swap:
        """See `clawctl.serve.backends.Backend`."""
        kind = read_policy(self._run, version).kind
        if kind == "adapter" or (version == 0 and not self._weights):
            return self._swap_adapter(version)
        return self._swap_weights(version)

    def _swap_adapter(self, version: int) -> Swap:
        cure = "start it with LoRA and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
        self._need(None if self._can is None else self._can.adapters, ClawError("this engine takes no adapters", cure))
        if self._weights:
            raise ClawError("an adapter needs the base model below it, other weights serve", "point LIVE at version 0 first")
        began = time.monotonic()
        held, fresh = self._wait_on_loop(self._hold(version), _LOAD_S)
        try:
            name = self._name(version) if version else self.base
            check_canary(self._run, version, lambda ids: self._control.score(name, ids), self._tolerance)
        except (CanaryFailure, ClawError):
            self._wait_on_loop(self._let_go(version, held, fresh), _LOAD_S)
            raise
        load_ms = (time.monotonic() - began) * 1000
        self._on_loop(self._point_at, version)
        self._wait_on_loop(self._let_go(version, held, False), _LOAD_S)
        return Swap(version, time.time(), load_ms, 0.0)

    async def _hold(self, version: int) -> tuple[Target, bool]:
        """Load an adapter and keep it from being unloaded; whether it came only now."""
        if not version:
            return self._base_target, False
        async with self._loading:
            fresh = version not in self._adapters
            await self._load(version)
            held = self._adapters[version]
            held.users += 1
        return held, fresh

    async def _let_go(self, version: int, held: Target, unload: bool) -> None:
        held.users -= bool(version)
        if unload:
            await self._unload(version)
        self._tidy_soon()

    def _point_at(self, version: int) -> None:
        self.live = version

    def _swap_weights(self, version: int) -> Swap:
        """Pause, reload, resume; the canary sings while new requests wait. If it fails, the old weights come back the same way."""
        cure = "start vLLM with VLLM_SERVER_DEV_MODE=1, or `--engine vllm`"
        self._need(None if self._can is None else self._can.weights, ClawError("this engine cannot reload weights", cure))
        old = self._weights
        path = self._path(version)  # it is read through here, while the engine goes on
        self._on_loop(self._open.clear)
        try:
            pause_ms = self._replace(version, path, old)
            try:
                check_canary(self._run, version, lambda ids: self._control.score(self.base, ids), self._tolerance)
            except (CanaryFailure, ClawError):
                self._base_target.clock.refused.add(version)
                self._replace(old, self._path(old), old)
                raise
            self._base_target.clock.refused.discard(version)
            self._on_loop(self._weights_are, version)
        finally:
            self._on_loop(self._open.set)
        return Swap(version, time.time(), 0.0, pause_ms)

    def _replace(self, version: int, path: str, old: int) -> float:
        """Milliseconds without a token. If the new weights cannot be read, the old ones are read again."""
        end = self._end
        try:
            began = self._control.pause()
        except Unanswered:  # it may have heard us
            self._go_on(end)
            raise
        try:
            try:
                self._control.reload(path, version)
            except ClawError:
                self._control.reload(self._path(old), old)
                raise
            # What was sampled before the pause has been read by then, for the loop has gone round: what comes now is new.
            self._on_loop(self._turn_clock, version)
        finally:
            self._go_on(end)
        return (time.monotonic() - began) * 1000

    def _go_on(self, end: Callable[[], None] | None) -> None:
        """Let the paused engine sample again. Raises Unanswered where that cannot be."""
        assert self._loop is not None
        go_on(self._control, self._loop.is_running, partial(self._on_loop, self._stick), end and partial(self._on_loop, end))

    def _stick(self, problem: str | None) -> None:
        self.stuck = problem
        if problem is None:
            self._open.clear()  # until it is known which weights prove right
        else:
            self._open.set()  # who waits is told

    def _turn_clock(self, version: int) -> None:
        self._base_target.clock.version = version

    def _weights_are(self, version: int) -> None:
        self.live = self._weights = version

    def _on_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        """Run `call` on the event loop, after everything that could be read until now has been read."""

        async def run() -> None:
            for _ in range(3):
                await asyncio.sleep(0)
            call(*arguments)

        self._wait_on_loop(run(), _LOOP_S)

    def _wait_on_loop(self, work: Coroutine[Any, Any, Done], longest_s: float) -> Done:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(longest_s)

    def _name(self, version: int) -> str:
        return f"{self._recipe.model_name}@{version}"

    def _folder(self, version: int) -> Path:
        check_policy(self._run, version)
        folder = policy_folder(self._run, version).resolve()
        check_weights(folder, Path(self._recipe.model_path))
        return folder

    def _path(self, version: int) -> str:
        full = read_policy(self._run, version).kind == "full"
        return str(self._folder(version)) if full else self._recipe.model_path
