"""Adapters at an upstream: what we believe to be loaded is loaded, whatever comes at the same time."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.policies import ensure_base_policy, publish_policy
from clawctl.run_dir import open_run
from clawctl.serve.backends import Capabilities, NotYet, Unanswered
from clawctl.serve.backends.targets import Targets
from clawctl.serve.canary import CanaryFailure
from clawctl.serve.dialects import Refusal
from clawctl.types import Policy
from tests.waiting import until

ADAPTERS = Capabilities(ids=True, logprobs=True, processed=True, adapters=True, weights=False)


class Gated:
    """A control as vLLM answers it, whose unloading and scoring wait for their gates."""

    def __init__(self) -> None:
        self.loaded: set[str] = set()
        self.waits: list[str] = []
        self.unloading, self.scoring = threading.Event(), threading.Event()
        self.unloading.set()
        self.scoring.set()
        self.says = -1.0
        self.busy = False

    def load_adapter(self, name: str, folder: Path) -> None:
        if self.busy:
            raise Unanswered("the engine has no answer now", "")
        if name in self.loaded:
            raise ClawError(f"{name} has already been loaded", "")
        self.loaded.add(name)

    def unload_adapter(self, name: str) -> None:
        self.waits.append(f"unload {name}")
        assert self.unloading.wait(20)
        if name not in self.loaded:
            raise ClawError(f"{name} cannot be found", "")
        self.loaded.remove(name)

    def score(self, name: str, ids: list[int]) -> list[float]:
        self.waits.append(f"score {name}")
        assert self.scoring.wait(20)
        return [self.says] * (len(ids) - 1)


@pytest.fixture
def control() -> Gated:
    return Gated()


@pytest.fixture
def targets(tmp_path: Path, control: Gated) -> Targets:
    run = open_run(tmp_path / "run")
    ensure_base_policy(run, "m")
    canary = {"prompt_ids": [[1, 2]], "logprobs": [[None, -1.0]]}
    for version in (1, 2, 3):
        publish_policy(run, Policy(version, 0, version, None, "adapter", "m", [], canary, {}, 0.0), lambda folder: None)
    recipe = Recipe.model_validate({"model": {"path": "m", "name": "tiny"}, "serve": {"pinned_versions": 1}})
    targets = Targets(run, recipe, control)  # type: ignore[arg-type]
    targets.reset("tiny", ADAPTERS)
    return targets


def on_a_loop(targets: Targets, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def all() -> None:
        targets.start(asyncio.get_running_loop())
        await main()

    asyncio.run(all())


async def use(targets: Targets, version: int) -> str:
    async with targets.lease(version) as target:
        return target.name


def test_a_version_that_is_asked_for_while_it_is_unloaded_is_loaded_again(targets: Targets, control: Gated) -> None:
    async def main() -> None:
        control.unloading.clear()
        for version in (1, 2, 3):  # one more than may stay: the oldest goes
            await use(targets, version)
        await asyncio.to_thread(until, lambda: control.waits == ["unload tiny@1"])
        asking = asyncio.create_task(use(targets, 1))
        await asyncio.sleep(0.05)
        assert not asking.done()  # it waits until it is known whether the old one is gone
        control.unloading.set()
        assert await asking == "tiny@1"
        assert "tiny@1" in control.loaded

    on_a_loop(targets, main)


def test_who_ends_does_not_wait_for_the_unloading_of_others(targets: Targets, control: Gated) -> None:
    async def main() -> None:
        control.unloading.clear()
        async with asyncio.timeout(10):
            for version in (1, 2, 3):
                await use(targets, version)
        control.unloading.set()

    on_a_loop(targets, main)


def test_what_is_used_again_before_its_turn_comes_stays(targets: Targets, control: Gated) -> None:
    async def main() -> None:
        async with targets.lease(1), targets.lease(2), targets.lease(3):
            pass  # 1 and 2 are in use until the end: the first tidying takes one, and must look again before it takes another
        await asyncio.to_thread(until, lambda: len(control.loaded) == 2)
        async with targets.lease(2), targets.lease(3):
            await use(targets, 1)
            await asyncio.to_thread(until, lambda: control.loaded == {"tiny@2", "tiny@3"})

    on_a_loop(targets, main)


def test_a_version_that_goes_live_is_not_unloaded_while_its_canary_sings(targets: Targets, control: Gated) -> None:
    async def main() -> None:
        await use(targets, 1)
        control.scoring.clear()
        going = asyncio.create_task(asyncio.to_thread(targets.swap, 1))
        await asyncio.to_thread(until, lambda: control.waits == ["score tiny@1"])
        await use(targets, 2)
        await use(targets, 3)
        await asyncio.to_thread(until, lambda: len(control.loaded) == 2)
        control.scoring.set()
        await going
        assert targets.live == 1
        assert "tiny@1" in control.loaded

    on_a_loop(targets, main)


def test_a_version_whose_canary_fails_is_unloaded_unless_somebody_has_asked_for_it(targets: Targets, control: Gated) -> None:
    async def main() -> None:
        control.says = -5.0
        with pytest.raises(CanaryFailure):
            await asyncio.to_thread(targets.swap, 1)
        assert control.loaded == set()
        control.scoring.clear()
        going = asyncio.create_task(asyncio.to_thread(targets.swap, 1))
        await asyncio.to_thread(until, lambda: control.waits.count("score tiny@1") == 2)
        async with targets.lease(1) as target:
            control.scoring.set()
            with pytest.raises(CanaryFailure):
                await going
            assert target.name in control.loaded
        assert targets.live == 0

    on_a_loop(targets, main)


def test_a_version_that_the_engine_has_no_time_to_load_is_not_said_to_be_missing(targets: Targets, control: Gated) -> None:
    async def main() -> None:
        control.busy = True
        with pytest.raises(Refusal) as refused:
            await use(targets, 1)
        assert refused.value.status == 503
        control.busy = False
        assert await use(targets, 1) == "tiny@1"

    on_a_loop(targets, main)


# ---- a pause that does not end by itself ---------------------------------------------------------------------------------------

WEIGHTS = Capabilities(ids=True, logprobs=True, processed=True, adapters=False, weights=True)


class Pausing:
    """A control that samples only while it is not paused, and hears `resume` only from its `deaf`-th time on."""

    def __init__(self, deaf: int) -> None:
        self.deaf, self.resumed, self.paused = deaf, 0, False
        self.weights: list[str] = []

    def pause(self) -> float:
        self.paused = True
        return 0.0

    def reload(self, path: str, version: int) -> None:
        assert self.paused
        self.weights.append(f"{version}")

    def resume(self) -> None:
        self.resumed += 1
        if self.resumed <= self.deaf:
            raise Unanswered("the engine does not answer /resume", "")
        self.paused = False

    def score(self, name: str, ids: list[int]) -> list[float]:
        assert not self.paused
        return [-1.0] * (len(ids) - 1)


def pausing(tmp_path: Path, control: Any) -> Targets:
    run = open_run(tmp_path / "run")
    ensure_base_policy(run, "m")
    canary = {"prompt_ids": [[1, 2]], "logprobs": [[None, -1.0]]}
    publish_policy(run, Policy(1, 0, 1, None, "full", "m", [], canary, {}, 0.0), lambda folder: None)
    targets = Targets(run, Recipe.model_validate({"model": {"path": "m", "name": "tiny"}}), control)
    targets.reset("tiny", WEIGHTS)
    return targets


def test_an_engine_that_does_not_hear_resume_is_told_again_and_who_asks_meanwhile_is_told_why(tmp_path: Path) -> None:
    control = Pausing(deaf=2)
    targets = pausing(tmp_path, control)

    async def main() -> None:
        going = asyncio.create_task(asyncio.to_thread(targets.swap, 1))
        await asyncio.to_thread(until, lambda: targets.stuck is not None)
        assert targets.stuck == "the engine was paused for a swap and does not go on: the engine does not answer /resume"
        with pytest.raises(Refusal, match="does not go on") as refused:
            await use(targets, 0)
        assert (refused.value.status, refused.value.code) == (503, "engine_paused")
        await going
        assert (targets.stuck, targets.live, control.paused, control.weights) == (None, 1, False, ["1"])
        assert await use(targets, 1) == "tiny"

    on_a_loop(targets, main)


def test_an_engine_of_our_own_that_never_hears_resume_is_ended_and_the_old_version_stays_live(tmp_path: Path) -> None:
    control, ended = Pausing(deaf=1000), []
    targets = pausing(tmp_path, control)

    async def main() -> None:
        targets.start(asyncio.get_running_loop(), lambda: ended.append(True))
        with pytest.raises(Unanswered, match="it is started anew"):
            await asyncio.to_thread(targets.swap, 1)
        assert (ended, targets.live, targets.stuck) == ([True], 0, None)

    on_a_loop(targets, main)


def test_a_swap_waits_for_what_the_engine_could_not_be_asked(tmp_path: Path) -> None:
    targets = pausing(tmp_path, Pausing(deaf=0))
    targets.reset("tiny", Capabilities(ids=True, logprobs=True, processed=True, adapters=None, weights=None))

    async def main() -> None:
        with pytest.raises(NotYet, match="not known yet"):
            await asyncio.to_thread(targets.swap, 1)
        targets.can(WEIGHTS)
        await asyncio.to_thread(targets.swap, 1)
        assert targets.live == 1

    on_a_loop(targets, main)
