"""`serve.sleep`: hours in which the engine sleeps while nobody asks anything."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import httpx
import pytest

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
