"""Adapters at an upstream: the recorded set of loaded adapters is right under concurrency."""

import asyncio
import threading
from pathlib import Path

import pytest
from leasing import on_a_loop, use

from clawctl.config import Recipe
from clawctl.engines import Capabilities, Unanswered
from clawctl.engines.requests import Refusal
from clawctl.engines.upstream.targets import Targets
from clawctl.errors import ClawError
from clawctl.run.directory import open_run
from clawctl.run.policies import ensure_base_policy, publish_policy
from clawctl.run.rows import Policy
from clawctl.serve.canary import CanaryFailure
from tests.waiting import until

ADAPTERS = Capabilities(ids=True, logprobs=True, processed=True, adapters=True, weights=False)


class Gated:
    """A control with vLLM's answers. Its unloading and scoring of `watched` wait for their gates."""

    def __init__(self) -> None:
        self.loaded: set[str] = set()
        self.waits: list[str] = []
        self.unloading, self.scoring = threading.Event(), threading.Event()
        self.unloading.set()
        self.scoring.set()
        self.watched = "tiny@1"
        self.says: dict[str, float] = {}
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
        assert name in self.loaded
        if name == self.watched:
            self.waits.append(f"score {name}")
            assert self.scoring.wait(20)
        return [self.says.get(name, -1.0)] * (len(ids) - 1)


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


def test_a_version_that_is_asked_for_while_it_is_unloaded_is_loaded_again(targets: Targets, control: Gated) -> None:
    async def main() -> None:
        control.unloading.clear()
        for version in (1, 2, 3):  # one more than may stay: the oldest goes
            await use(targets, version)
        await asyncio.to_thread(until, lambda: "unload tiny@1" in control.waits)
        asking = asyncio.create_task(use(targets, 1))
        await asyncio.sleep(0.05)
        assert not asking.done()  # it waits until it is known whether the old one is gone
        control.unloading.set()
        assert await asking == "tiny@1"
        assert "tiny@1" in control.loaded

    on_a_loop(targets, main)


def test_a_request_that_ends_does_not_wait_for_the_unloading_of_others(targets: Targets, control: Gated) -> None:
    async def main() -> None:
        control.unloading.clear()
        async with asyncio.timeout(10):
            for version in (1, 2, 3):
                await use(targets, version)
        control.unloading.set()

    on_a_loop(targets, main)


def test_a_version_that_is_used_again_before_it_is_unloaded_stays(targets: Targets, control: Gated) -> None:
    async def main() -> None:
        async with targets.lease(1), targets.lease(2), targets.lease(3):
            pass  # 1 and 2 are in use until the end: the first tidying takes one, and must look again before it takes another
        await asyncio.to_thread(until, lambda: len(control.loaded) == 2)
        async with targets.lease(2), targets.lease(3):
            await use(targets, 1)
            await asyncio.to_thread(until, lambda: control.loaded == {"tiny@2", "tiny@3"})

    on_a_loop(targets, main)


def test_a_version_that_goes_live_is_not_unloaded_during_its_canary_check(targets: Targets, control: Gated) -> None:
    async def main() -> None:
        await use(targets, 1)
        control.scoring.clear()
        going = asyncio.create_task(asyncio.to_thread(targets.swap, 1))
        await asyncio.to_thread(until, lambda: control.waits == ["score tiny@1"] * 2)
        await use(targets, 2)
        await use(targets, 3)
        await asyncio.to_thread(until, lambda: len(control.loaded) == 2)
        control.scoring.set()
        await going
        assert targets.live == 1
        assert "tiny@1" in control.loaded

    on_a_loop(targets, main)


def test_a_version_whose_canary_fails_serves_no_request(targets: Targets, control: Gated) -> None:
    async def main() -> None:
        control.says["tiny@1"] = -5.0
        with pytest.raises(CanaryFailure):
            await asyncio.to_thread(targets.swap, 1)
        with pytest.raises(Refusal, match="the engine's results differ from the trainer's") as refused:
            await use(targets, 1)
        assert (refused.value.status, refused.value.code) == (404, "model_not_found")
        assert (control.loaded, targets.live) == (set(), 0)
        assert await use(targets, 2) == "tiny@2"

    on_a_loop(targets, main)


def test_requests_that_pin_a_version_wait_for_its_single_canary_check(targets: Targets, control: Gated) -> None:
    async def main() -> None:
        control.scoring.clear()
        asking = [asyncio.create_task(use(targets, 1)) for _ in range(3)]
        await asyncio.to_thread(until, lambda: control.waits)
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in asking)
        control.scoring.set()
        assert await asyncio.gather(*asking) == ["tiny@1"] * 3
        await use(targets, 1)
        assert control.waits == ["score tiny@1"]

    on_a_loop(targets, main)


def test_a_version_that_fails_to_go_live_is_unloaded_once_it_is_unused(targets: Targets, control: Gated) -> None:
    async def main() -> None:
        async with targets.lease(1) as target:
            control.says["tiny@1"] = -5.0
            with pytest.raises(CanaryFailure):
                await asyncio.to_thread(targets.swap, 1)
            assert target.name in control.loaded
        with pytest.raises(CanaryFailure):
            await asyncio.to_thread(targets.swap, 1)
        assert (control.loaded, targets.live) == (set(), 0)

    on_a_loop(targets, main)


def test_a_version_whose_client_goes_away_while_it_is_loaded_answers_the_next_one(targets: Targets, control: Gated) -> None:
    async def main() -> None:
        control.scoring.clear()
        asking = asyncio.create_task(use(targets, 1))
        await asyncio.to_thread(until, lambda: control.waits)
        asking.cancel()
        control.scoring.set()
        assert await use(targets, 1) == "tiny@1"
        assert control.loaded == {"tiny@1"}

    on_a_loop(targets, main)


def test_a_version_that_times_out_while_loading_is_not_reported_as_missing(targets: Targets, control: Gated) -> None:
    async def main() -> None:
        control.busy = True
        with pytest.raises(Refusal) as refused:
            await use(targets, 1)
        assert refused.value.status == 503
        control.busy = False
        assert await use(targets, 1) == "tiny@1"

    on_a_loop(targets, main)
