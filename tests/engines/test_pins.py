"""Engines of pinned versions: each is loaded once and released."""

import asyncio
import threading
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from clawctl.engines.embedded.pins import Pins
from clawctl.engines.requests import Refusal
from clawctl.engines.slots import PinnedSlots
from clawctl.run.keys import OWN, add_key
from clawctl.run.policies import publish_policy
from clawctl.run.rows import Policy
from clawctl.serve.canary import CanaryFailure
from tests.serve.asking import body, post
from tests.serve.served import Server, perturbed
from tests.waiting import until


class Idle:
    """An engine without requests."""

    stopped = False

    def failure(self) -> None:
        return None

    def stop(self) -> None:
        self.stopped = True


class Making:
    """Of engines: slowly, while `loading` is clear."""

    def __init__(self) -> None:
        self.loading, self.made = threading.Event(), list[Idle]()
        self.loading.set()
        self.begun = 0

    def __call__(self, version: int) -> Any:
        self.begun += 1
        assert self.loading.wait(20)
        if version == 9:
            raise CanaryFailure("its canary differs by 4.000 (limit 0.05)")
        self.made.append(Idle())
        return self.made[-1]


def test_an_engine_whose_client_goes_away_while_it_is_loaded_serves_the_next_one_and_is_stopped() -> None:
    make = Making()
    pins = Pins(make, limit=1)

    async def ask(version: int) -> Any:
        async with pins.lease(version) as engine:
            return engine

    async def main() -> None:
        make.loading.clear()
        asking = asyncio.create_task(ask(1))
        await asyncio.to_thread(until, lambda: make.begun)
        asking.cancel()
        await asyncio.sleep(0.05)
        make.loading.set()
        assert await ask(1) is make.made[0]
        assert asking.cancelled()
        await ask(2)
        assert [engine.stopped for engine in make.made] == [True, False]

    asyncio.run(main())


def test_a_version_whose_canary_fails_is_refused_with_the_reason() -> None:
    async def main() -> None:
        with pytest.raises(Refusal, match="the engine's results differ from the trainer's") as refused:
            async with Pins(Making(), limit=1).lease(9):
                pass
        assert (refused.value.status, refused.value.code) == (404, "model_not_found")

    asyncio.run(main())


async def holding(places: PinnedSlots, version: int, key: str) -> AsyncExitStack:
    """A place, until the stack is closed."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(places.acquire(version, key))
        return stack.pop_all()


def test_the_runs_own_key_has_places_that_no_client_can_take() -> None:
    async def main() -> None:
        places = PinnedSlots(2, turn_s=0.0, patience_s=0.2)
        held = [await holding(places, version, "anna") for version in (3, 5)]
        for version in (0, 7):  # a judge, and a gate
            held.append(await holding(places, version, OWN))
        for version in (0, 7, 8):  # a version that the run itself has loaded leaves no place for clients either
            with pytest.raises(Refusal, match="could not be loaded") as refused:
                await holding(places, version, "anna")
            assert refused.value.status == 503
        for stack in held:
            await stack.aclose()
        await (await holding(places, 8, "anna")).aclose()

    asyncio.run(main())


def test_a_version_that_others_wait_for_takes_no_new_requests_once_its_turn_is_over() -> None:
    async def main() -> None:
        places = PinnedSlots(1, turn_s=0.0, patience_s=20)
        first = await holding(places, 3, "anna")
        order = list[int]()

        async def ask(version: int) -> None:
            async with places.acquire(version, "bob"):
                order.append(version)

        asking = []
        for version in (5, 3):  # what comes for 3 now comes behind what waits for 5
            asking.append(asyncio.create_task(ask(version)))
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert order == []
        await first.aclose()
        await asyncio.gather(*asking)
        assert order == [5, 3]

    asyncio.run(main())


def test_while_versions_are_loaded_or_held_version_0_stays() -> None:
    make = Making()
    pins = Pins(make, limit=1)

    async def main() -> None:
        for version in (0, 1, 2, 0, 3, 0):
            async with pins.lease(version, OWN):
                pass
        assert make.begun == 4

    asyncio.run(main())


def test_two_endless_pinned_streams_do_not_keep_the_run_itself_from_version_0(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path) as server:
        for version in (1, 2):
            policy = Policy(version, 0, version, None, "full", str(model_path), [], None, {}, 0.0)
            publish_policy(server.run, policy, perturbed(model_path, version).save_pretrained)
        anna = add_key(server.run, "anna")
        until(lambda: post(server, body(), anna).status_code == 200)
        ask = {"model": "tiny@1", "max_tokens": 3500, "stream": True, "temperature": 2, "n": 8}
        with ExitStack() as streams:
            for version in (1, 2):
                content = body(**ask | {"model": f"tiny@{version}"})
                headers = {"Authorization": f"Bearer {anna}"}
                call = httpx.stream("POST", server.url + "/chat/completions", content=content, headers=headers, timeout=120)
                next(streams.enter_context(call).iter_lines())
            assert post(server, body(model="tiny@0")).status_code == 200
