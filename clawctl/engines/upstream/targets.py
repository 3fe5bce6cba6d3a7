"""Maps versions to model names of an upstream, and loads new versions there: as an adapter, or as full weights."""

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from clawctl.backoff import backoff_s
from clawctl.config import Recipe
from clawctl.engines import Capabilities, NotYet, Swap, Unanswered
from clawctl.engines.event_loop import OnLoop
from clawctl.engines.refusals import canary_refusal
from clawctl.engines.requests import Refusal
from clawctl.engines.upstream.adapters import Adapters, Target
from clawctl.engines.upstream.tokens import Clock
from clawctl.engines.vllm.control import Control
from clawctl.engines.weights import check_weights
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir
from clawctl.run.policies import Version, check_policy, located, read_policy
from clawctl.serve.canary import EXACT, ROUNDED, CanaryFailure, check_canary

_log = logging.getLogger("clawctl.serve")
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.25, 5.0  # before the next attempt to resume a paused engine
_RESUMES = 5  # attempts to resume clawctl's own engine before it is ended
_LOAD_S = 900.0  # for a large adapter; the calls to the server have shorter timeouts


class Targets:
    """Routes requests to weights. Adapters have immutable names, NAME@<version>. Running requests keep their adapter, and new ones
    use the new adapter. Full weights replace each other under one name, within a pause that keeps running requests."""

    def __init__(self, run: RunDir, recipe: Recipe, control: Control) -> None:
        self._run, self._recipe, self._control = run, recipe, control
        self._tolerance = EXACT if recipe.model.dtype == "float32" else ROUNDED
        self._adapters = Adapters(
            self._name, self._load, self._verify_adapter, control.unload_adapter, lambda: self.live, recipe.adapters_beside_live
        )
        self._open = asyncio.Event()
        self._on_loop = OnLoop()
        self._end: Callable[[], None] | None = None
        self.stuck: str | None = None  # why the engine answers no request
        self.reset("", None)

    def start(self, loop: asyncio.AbstractEventLoop, end: Callable[[], None] | None = None) -> None:
        """`end` ends clawctl's own engine, which is then restarted; it is called on the loop."""
        self._on_loop.start(loop)
        self._end = end

    def reset(self, base: str, can: Capabilities | None) -> None:
        """Reset the state, because the upstream has restarted with version 0."""
        self.base, self._can = base, can
        self.live = 0
        self._weights = 0  # version of the weights under `base`
        self._base_target = Target(base, Clock(0), steady=can is None or not can.weights)
        self._adapters.reset()
        self.stuck = None
        self._open.set()

    def can(self, can: Capabilities) -> None:
        """Update the known features of the upstream."""
        self._can = can
        self._base_target.steady = not can.weights

    @property
    def adapters(self) -> dict[Version, Target]:
        """The loaded adapters."""
        return dict(self._adapters.loaded)

    @property
    def weights(self) -> int:
        """The version whose full weights the server has. 0: the base model, or weights that are unknown or being replaced."""
        return self._weights if self._open.is_set() and self.doubt is None else 0

    def lose(self, adapters: dict[Version, Target]) -> None:
        """These adapters are not loaded any more: the upstream has restarted."""
        for version, target in adapters.items():
            if self._adapters.loaded.get(version) is target:
                del self._adapters.loaded[version]
        if self.live and self.live not in self._adapters.loaded:
            self.live = 0

    @property
    def doubt(self) -> str | None:
        """Why it is unknown which weights answer, or None."""
        return self._base_target.clock.doubt

    # ---- routing ---------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def lease(self, version: Version | None) -> AsyncIterator[Target]:
        """The target of the live policy, or of a pinned version. Raises Refusal if that version cannot be served in addition to the
        live one."""
        while not self._open.is_set():  # new requests wait until full weights have passed their canary check
            await self._open.wait()
        if self.stuck is not None:
            raise Refusal(503, f"{self.stuck}; try again later", code="engine_paused")
        target = await self._use(self.live if version is None else version)
        try:
            yield target
        finally:
            self._adapters.release(target)

    def at_once(self, version: Version) -> bool:
        """Whether `lease` returns without waiting."""
        return self._open.is_set() and self.stuck is None and version in self._adapters.loaded

    async def _use(self, version: Version) -> Target:
        if version == self._weights or (not self._weights and self._kind(version) == "base"):
            self._base_target.users += 1
            return self._base_target
        try:
            if self._weights or not (self._can and self._can.adapters) or self._kind(version) != "adapter":
                message = f"this engine serves one version at a time, currently {self.live}; version {version} is not loaded"
                raise Refusal(404, message, "model", "model_not_found")
            return (await self._adapters.use(version))[0]
        except Unanswered as error:
            _log.warning("cannot load version %s now: %s", version, error.problem)
            raise Refusal(503, f"version {version} of this model cannot be loaded now; try again later") from error
        except CanaryFailure as error:
            raise canary_refusal(version, error) from error
        except ClawError as error:
            _log.error("cannot load version %s: %s", version, error.problem)
            raise Refusal(404, f"version {version} of this model cannot be loaded", "model", "model_not_found") from error

    def _kind(self, version: Version) -> str:
        return "adapter" if version in self._adapters.loaded else read_policy(*located(self._run, version)).kind

    async def unload(self, version: int) -> bool:
        """Unload a version. Returns whether the engine has unloaded it; False while it is in use or live."""
        await self._adapters.forget(version)
        return version not in self._adapters.loaded and version not in (self.live, self._weights)

    # ---- loading an adapter, in a thread: see `Adapters` --------------------------------------------------------------------

    def _load(self, version: Version) -> None:
        self._control.load_adapter(self._name(version), self._folder(version))

    def _verify_adapter(self, version: Version) -> None:
        self._check_canary(version, self._name(version))

    def _check_canary(self, version: Version, name: str) -> None:
        check_canary(*located(self._run, version), lambda ids: self._control.score(name, ids), self._tolerance)

    def _require(self, supported: bool | None, cannot: ClawError) -> None:
        if supported is None:
            raise NotYet(f"this is not confirmed yet: {cannot.problem}", "clawctl retries; check that the engine answers")
        if not supported:
            raise cannot

    # ---- a new version, in its own thread --------------------------------------------------------------------------------

    def swap(self, version: int) -> Swap:
        """See `clawctl.engines.Engine.load`."""
        adapter = read_policy(self._run, version).kind == "adapter"
        if adapter and self.doubt is not None:
            self._swap_weights(0)
        if adapter or (version == 0 and not self._weights and self.doubt is None):
            return self._swap_adapter(version)
        return self._swap_weights(version)

    def _swap_adapter(self, version: int) -> Swap:
        async def swap() -> None:
            async with self.loaded(version):
                self.live = version

        began = time.monotonic()
        self._on_loop.wait(swap(), _LOAD_S)
        return Swap(version, time.time(), (time.monotonic() - began) * 1000, 0.0)

    @asynccontextmanager
    async def loaded(self, version: int) -> AsyncIterator[None]:
        """Keep an adapter, or the base model as version 0, loaded after its canary check. If the block fails, the adapter is
        unloaded. Raises like `swap`."""
        cure = "start it with LoRA and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
        self._require(None if self._can is None else self._can.adapters, ClawError("this engine does not load adapters", cure))
        if self._weights:
            raise ClawError("an adapter needs the base model, but other weights are loaded", "set LIVE to version 0 first")
        target, fresh = await self._hold(version)
        failed = True
        try:
            if not fresh:  # otherwise its canary check has just passed
                await asyncio.to_thread(self._check_canary, version, target.name)
            yield
            failed = False
        finally:
            await self._release(version, target, failed)

    async def _hold(self, version: int) -> tuple[Target, bool]:
        """Protect an adapter from being unloaded, and load it if needed. Returns whether this call loaded it."""
        if version:
            return await self._adapters.use(version)
        self._base_target.users += 1
        return self._base_target, False

    async def _release(self, version: int, target: Target, failed: bool) -> None:
        self._adapters.release(target)
        if failed:
            await self._adapters.forget(version)

    # ---- full weights, in that thread ------------------------------------------------------------------------------------

    def _swap_weights(self, version: int) -> Swap:
        """Pause, reload and resume; new requests wait during the canary check. If it fails, the old weights are reloaded in the
        same way."""
        cure = "start vLLM with VLLM_SERVER_DEV_MODE=1, or `--engine vllm`"
        self._require(None if self._can is None else self._can.weights, ClawError("this engine cannot reload weights", cure))
        old = self._weights
        path = self._path(version)  # checks the files while the engine keeps serving
        self._on_loop.call(self._open.clear)
        try:
            self._on_loop.wait(self._adapters.settled(), _LOAD_S)  # canary results are valid only for the weights they ran on
            pause_ms = self._replace(version, path, old)
            try:
                self._check_canary(version, self.base)
            except (CanaryFailure, ClawError) as error:
                self._base_target.clock.refused.add(version)
                self._restore_weights(old, error)
                raise
            self._on_loop.call(self._set_live_weights, version)
        finally:
            self._on_loop.call(self._open.set)
        return Swap(version, time.time(), 0.0, pause_ms)

    def _restore_weights(self, old: int, refused: Exception) -> None:
        """Replace refused weights with the old ones. If that fails, the loaded weights are unknown. Raises ClawError in that
        case."""
        end = self._end
        try:
            self._replace(old, self._path(old), old)
        except ClawError as error:
            problem = f"{refused.problem if isinstance(refused, ClawError) else refused}; {error.problem}"
            if self.doubt is None:
                raise self._weights_unknown(old, problem, type(error), end) from refused
            raise type(error)(problem, error.fix) from refused

    def _replace(self, version: int, path: str, old: int) -> float:
        """Replace the weights. Returns the pause in ms, during which no token is sampled. If the new weights cannot be read, the
        old ones are reloaded."""
        end, is_certain = self._end, True
        try:
            began = self._control.pause()
        except Unanswered:  # the pause may have taken effect
            self._resume_engine(end)
            raise
        try:
            try:
                self._control.reload(path, version)
            except ClawError as error:
                is_certain = self._reload_old(old)
                if is_certain:
                    raise
                raise self._weights_unknown(old, error.problem, type(error), end) from error
            # Tokens sampled before the pause have been read by now, because the loop has run once; later tokens are from the new
            # weights. Several API servers each send their own tokens, which had the time of the reload to arrive.
            self._on_loop.call(self._set_clock, version)
        finally:
            if is_certain or end is None:  # clawctl's own engine must not sample with unknown weights
                self._resume_engine(end)
        return (time.monotonic() - began) * 1000

    def _reload_old(self, old: int) -> bool:
        try:
            self._control.reload(self._path(old), old)
        except ClawError as error:
            _log.error("cannot reload version %d: %s", old, error.problem)
            return False
        self._on_loop.call(self._set_clock, old)
        return True

    def _weights_unknown(self, old: int, problem: str, kind: type[ClawError], end: Callable[[], None] | None) -> ClawError:
        """It is uncertain which weights are loaded. clawctl's own engine is restarted. Turns of any other engine are not trained
        until a version goes live."""
        doubt = f"the loaded weights are not known: a swap failed, and version {old} could not be reloaded"
        self._on_loop.call(self._doubt, doubt, end)
        if end is None:
            cure = "promote an intact version, or restart the engine"
            return kind(f"{problem}; {doubt}; new turns are not trained until a version goes live", cure)
        return kind(f"{problem}; {doubt}; the engine is restarted", "promote an intact version")

    def _doubt(self, doubt: str, end: Callable[[], None] | None) -> None:
        self._base_target.clock.doubt = doubt
        for adapter in self._adapters.loaded.values():
            adapter.clock.doubt = doubt
        if end is not None and end is self._end:  # otherwise another process has already started
            self.stuck = f"{doubt}; the engine is restarted"
            end()

    def _resume_engine(self, end: Callable[[], None] | None) -> None:
        """Resume the paused engine, which answers no request until then. clawctl's own engine is ended if it does not resume, so
        that it is restarted; resuming any other engine is retried indefinitely. Raises Unanswered if it stays paused."""
        stuck = False
        for tried in itertools.count(1):
            try:
                self._control.resume()
                break
            except ClawError as error:
                problem = f"the engine was paused for a swap and does not resume: {error.problem}"
                if not self._on_loop.running():
                    raise Unanswered(problem, "resume it manually, or restart it") from error
                if end is not None and tried == _RESUMES:
                    self._on_loop.call(end)
                    raise Unanswered(f"{problem}; it is restarted", "its own log has the details") from error
                wait_s = backoff_s(tried, _FIRST_WAIT_S, _LONGEST_WAIT_S)
                _log.error("%s; retrying in %g s", problem, wait_s)
                if end is None:
                    stuck = True
                    self._on_loop.call(self._set_stuck, problem)
                time.sleep(wait_s)
        if stuck:
            _log.warning("the engine has resumed")
            self._on_loop.call(self._set_stuck, None)

    def _set_stuck(self, problem: str | None) -> None:
        self.stuck = problem
        if problem is None:
            self._open.clear()  # until the canary check has decided
        else:
            self._open.set()  # waiting requests are refused with the reason

    def _set_clock(self, version: int) -> None:
        clock = self._base_target.clock
        clock.version, clock.doubt = version, None
        clock.unverified = None if version == self._weights else version
        # Running requests continue on other base weights than their adapter was trained on.
        for adapter in self._adapters.loaded.values():
            adapter.clock.doubt = f"sampled by an adapter above version {version}" if version else None

    def _set_live_weights(self, version: int) -> None:
        self.live = self._weights = version
        self._base_target.clock.unverified = None
        self._base_target.clock.refused.discard(version)

    def _name(self, version: Version) -> str:
        return f"{self._recipe.model_name}@{version}"

    def _folder(self, version: Version) -> Path:
        run, number = located(self._run, version)
        check_policy(run, number)
        folder = run.version_folder(number).resolve()
        check_weights(folder, Path(self._recipe.model_path))
        return folder

    def _path(self, version: int) -> str:
        full = read_policy(self._run, version).kind == "full"
        return str(self._folder(version)) if full else self._recipe.model_path
