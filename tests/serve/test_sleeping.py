"""`serve.sleep`: hours in which the engine sleeps while nobody asks anything."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from clawctl.engines.requests import Refusal
from clawctl.run.directory import open_run
from clawctl.serve.sleeping import Sleeping
from clawctl.serve.versions import Versions
from tests.serve.served import Server, until


def hours(begin_h: float, end_h: float) -> str:
    """Hours of the day, counted from now."""
    return "-".join((datetime.now() + timedelta(hours=hour)).strftime("%H:%M") for hour in (begin_h, end_h))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("sleeping") / "run", model_path, sleep=hours(-1, 2), sleep_idle_s=0) as running:
        yield running


def asked(server: Server, timeout: float = 60) -> httpx.Response:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    return httpx.post(f"{server.url}/chat/completions", json=body, headers={"authorization": "Bearer key"}, timeout=timeout)


def is_asleep(server: Server) -> bool:
    return bool(server.health()["engine"]["waiting_for"] == "the engine is asleep")


def test_a_request_wakes_an_engine_that_sleeps_at_these_hours(server: Server) -> None:
    for _ in range(2):  # it falls asleep again
        until(lambda: is_asleep(server))
        assert httpx.get(f"{server.url.removesuffix('/v1')}/health/ready").status_code == 200, "a request is welcome"
        assert asked(server).status_code == 200
    assert "the engine is awake: a request came" in server.log.read_text()


def test_many_requests_at_once_find_it_awake(server: Server) -> None:
    """Also those that come while it falls asleep or wakes."""
    for _ in range(2):
        until(lambda: is_asleep(server))
        with ThreadPoolExecutor(8) as threads:
            assert {answer.status_code for answer in threads.map(lambda _: asked(server), range(16))} == {200}


def test_scores_wake_it_as_well(server: Server) -> None:
    until(lambda: is_asleep(server))
    body = {"model": "tiny", "ids": [5, 6, 7]}
    scored = httpx.post(f"{server.url}/score", json=body, headers={"authorization": "Bearer key"}, timeout=60)
    assert len(scored.json()["logprobs"]) == 2


def test_an_operator_who_paused_the_engine_is_not_overruled(server: Server) -> None:
    def control(what: str) -> None:
        url = f"{server.url.removesuffix('/v1')}/engine/{what}"
        httpx.post(url, json={}, headers={"authorization": "Bearer key"}, timeout=60).raise_for_status()

    control("wake")
    control("pause")
    with pytest.raises(httpx.ReadTimeout):
        asked(server, timeout=3)
    control("resume")
    until(lambda: is_asleep(server))


def test_at_other_hours_it_stays_awake(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path, sleep=hours(2, 3), sleep_idle_s=0) as server:
        time.sleep(3)
        assert not is_asleep(server)


class StandIn:
    """An engine whose calls fail with these statuses before they work."""

    def __init__(self, sleep: Sequence[int] = (), wake: Sequence[int] = ()) -> None:
        self.failures = {"asleep": list(sleep), "awake": list(wake)}
        self.state = "awake"

    def waiting_for(self) -> str | None:
        return None if self.state == "awake" else "the engine is asleep"

    async def _become(self, state: str) -> None:
        if self.failures[state]:
            raise Refusal(self.failures[state].pop(0), "it does not answer")
        self.state = state

    async def sleep(self) -> None:
        await self._become("asleep")

    async def wake(self) -> None:
        await self._become("awake")


def sleeping(tmp_path: Path, engine: Any, when: str) -> tuple[Sleeping, Versions]:
    versions = Versions(open_run(tmp_path / "run"), engine)
    return Sleeping(when, 0, versions, lambda: 0), versions


async def until_state(engine: StandIn, state: str) -> None:
    async with asyncio.timeout(60):
        while engine.state != state:
            await asyncio.sleep(0.05)


def test_an_engine_that_cannot_sleep_is_not_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keeper, versions = sleeping(tmp_path, StandIn(sleep=[501]), hours(-1, 2))
    asyncio.run(keeper.keep())  # ends
    assert caplog.messages == ["serve.sleep: it does not answer"]
    assert not versions.asleep


def test_an_engine_that_does_not_wake_is_woken_by_the_next_request(tmp_path: Path) -> None:
    engine = StandIn(wake=[503])
    keeper, versions = sleeping(tmp_path, engine, hours(-1, 2))

    async def story() -> None:
        keeping = asyncio.ensure_future(keeper.keep())
        await until_state(engine, "asleep")
        with keeper.asking():
            with pytest.raises(Refusal, match="does not wake: it does not answer") as refused:
                await keeper.wake()
            assert (refused.value.status, versions.asleep) == (503, True)
            await keeper.wake()
            assert (engine.state, versions.asleep) == ("awake", False)
        keeping.cancel()

    asyncio.run(story())


def test_an_engine_that_does_not_wake_at_the_end_of_its_hours_is_woken_later(tmp_path: Path) -> None:
    engine = StandIn(wake=[503, 503])
    keeper, versions = sleeping(tmp_path, engine, hours(2, 3))
    engine.state, versions.asleep = "asleep", True  # since the night

    async def story() -> None:
        keeping = asyncio.ensure_future(keeper.keep())
        await until_state(engine, "awake")
        keeping.cancel()

    asyncio.run(story())
    assert not versions.asleep


def test_an_engine_whose_sleep_was_not_confirmed_is_woken_all_the_same(tmp_path: Path) -> None:
    engine = StandIn(sleep=[503])
    keeper, versions = sleeping(tmp_path, engine, hours(-1, 2))

    async def story() -> None:
        keeping = asyncio.ensure_future(keeper.keep())
        async with asyncio.timeout(60):
            while not versions.asleep:
                await asyncio.sleep(0.05)
        engine.state = "asleep"  # its answer was lost
        await keeper.wake()
        keeping.cancel()

    asyncio.run(story())
    assert (engine.state, versions.asleep) == ("awake", False)
