"""Engines of pinned versions: each is loaded once, and none is lost."""

import asyncio
import threading
from typing import Any

import pytest

from clawctl.serve.backends.pins import Pins
from clawctl.serve.canary import CanaryFailure
from clawctl.serve.dialects import Refusal
from tests.waiting import until


class Idle:
    """An engine that nobody asks."""

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
            raise CanaryFailure("its canary is off by 4.000 (at most 0.05)")
        self.made.append(Idle())
        return self.made[-1]


def test_an_engine_whose_client_goes_away_while_it_is_loaded_serves_the_next_one_and_is_stopped() -> None:
    make = Making()
    pins = Pins(make, most=1)

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
        with pytest.raises(Refusal, match="the engine computes something else with it than its trainer did") as refused:
            async with Pins(Making(), most=1).lease(9):
                pass
        assert (refused.value.status, refused.value.code) == (404, "model_not_found")

    asyncio.run(main())
