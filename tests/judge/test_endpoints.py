"""Several endpoints as one: rates, backoffs and retries, against real servers and by the clock alone."""

import asyncio
import time

import pytest
from starlette.responses import Response

from clawctl.config import Recipe
from clawctl.engines.vllm.child import free_port
from clawctl.errors import ClawError
from clawctl.judge.client import EndpointPool, EndpointState, JudgeClient
from clawctl.judge.worker import judge
from clawctl.run.directory import RunDir, published
from clawctl.run.endpoint import Endpoint
from clawctl.run.shards import read_verdicts
from tests.judge.made_turns import reply, shard


def recipe(*urls: str, **settings: object) -> Recipe:
    given = {
        "endpoints": list(urls),
        "model": "scripted",
        "api_key": "k",
        "votes": 1,
        "timeout_s": 5.0,
        "fitness": "skip",
        **settings,
    }
    return Recipe.model_validate({"judge": given})


def rewards(run) -> list[float | None]:
    return [verdict.reward for path in published(run.verdicts, ".parquet") for verdict in read_verdicts(path)]


def good(text: str, number: int) -> str:
    return "\\boxed{1}"


def places(count: int, per_s: float | None = None) -> EndpointPool:
    return EndpointPool([lambda name=name: Endpoint(f"http://{name}", "", "m") for name in "abc"[:count]], per_s)


def test_the_endpoint_with_the_fewest_calls_in_flight_is_next() -> None:
    async def ask() -> list[int]:
        endpoints = places(3)
        first = [await endpoints.acquire() for _ in range(6)]
        assert sorted(endpoint.in_flight for endpoint in endpoints.all) == [2, 2, 2]
        first[1].in_flight -= 2
        assert await endpoints.acquire() is first[1]
        return [endpoint.requests for endpoint in endpoints.all]

    assert sum(asyncio.run(ask())) == 7


def test_an_endpoint_that_backs_off_is_skipped_and_the_one_that_just_failed_is_avoided() -> None:
    async def ask() -> None:
        endpoints = places(2)
        first, second = endpoints.all
        first.back_off(retry_after_s=60.0)
        assert [await endpoints.acquire() for _ in range(3)] == [second] * 3
        first.backs_off_until = 0.0
        assert await endpoints.acquire(avoid=first) is second  # although it is busier
        first.back_off(60.0)
        assert await endpoints.acquire(avoid=second) is second  # there is no other

    asyncio.run(ask())


def test_backoffs_grow_until_it_answers_and_have_jitter() -> None:
    def wait_after(times: int) -> float:
        endpoint = EndpointState(lambda: None)
        for _ in range(times):
            endpoint.backs_off_until = 0.0
            endpoint.back_off(None)
        return endpoint.backs_off_until - time.monotonic()

    assert 0.04 <= wait_after(1) <= 0.1 < 0.3 <= wait_after(4) <= 0.8 < 2.4 <= wait_after(20) <= 5.0
    assert len({round(wait_after(20), 6) for _ in range(5)}) == 5


def test_calls_begin_no_faster_than_the_rate() -> None:
    async def ask() -> float:
        endpoints = places(2, per_s=50)
        begun = time.monotonic()
        await asyncio.gather(*(endpoints.acquire() for _ in range(12)))  # six each: the sixth begins 5 gaps later
        return time.monotonic() - begun

    assert asyncio.run(ask()) >= 5 / 50


def test_several_endpoints_share_the_calls(run, serving) -> None:
    first, second = serving(good, delay_s=0.02), serving(good, delay_s=0.02)
    shard(run, "1-a", [reply("thanks") for _ in range(40)])
    judge(run, recipe(first.url, second.url, concurrency=8), once=True)
    assert rewards(run) == [1.0] * 40
    assert len(first.asked) + len(second.asked) == 40
    assert min(len(first.asked), len(second.asked)) >= 12


def test_with_one_endpoint_gone_the_other_does_all_and_no_vote_is_lost(run, serving) -> None:
    server = serving(good)
    shard(run, "1-a", [reply("thanks") for _ in range(20)])
    judge(run, recipe(f"http://127.0.0.1:{free_port()}/v1", server.url, concurrency=4, timeout_s=30.0), once=True)
    assert (rewards(run), len(server.asked)) == ([1.0] * 20, 20)


def test_a_call_that_breaks_at_one_endpoint_is_tried_at_the_other(run, serving) -> None:
    broken, sound = serving(lambda text, number: Response(status_code=500)), serving(good)
    shard(run, "1-a", [reply("thanks") for _ in range(10)])
    judge(run, recipe(broken.url, sound.url, concurrency=2), once=True)
    assert rewards(run) == [1.0] * 10
    assert len(broken.asked) < 10  # it rested


def test_retry_after_is_honoured(run, serving) -> None:
    moments: list[float] = []

    def once_busy(text: str, number: int) -> str | Response:
        moments.append(time.monotonic())
        return Response(status_code=429, headers={"Retry-After": "0.6"}) if number == 1 else "\\boxed{1}"

    server = serving(once_busy)
    shard(run, "1-a", [reply("thanks")])
    judge(run, recipe(server.url), once=True)
    assert rewards(run) == [1.0]
    assert moments[1] - moments[0] >= 0.6


def test_an_endpoint_of_many_that_refuses_our_key_is_named(run, serving) -> None:
    sound, strange = serving(good), serving(lambda text, number: Response(status_code=401))
    shard(run, "1-a", [reply("thanks") for _ in range(8)])
    with pytest.raises(ClawError, match=f"{strange.port}.* answers 401"):
        judge(run, recipe(sound.url, strange.url), once=True)


def test_all_calls_go_through_connections_that_are_kept(run, serving) -> None:
    server = serving(good)
    shard(run, "1-a", [reply("thanks") for _ in range(40)])
    judge(run, recipe(server.url, concurrency=4), once=True)
    assert len(server.connections) <= 4


@pytest.mark.parametrize("key", ["two\r\nlines", "a\tb", "kéy"])
def test_a_key_that_no_header_may_hold_is_a_problem_with_a_cure(run: RunDir, key: str) -> None:
    with pytest.raises(ClawError, match=r"judge\.api_key") as refused:
        JudgeClient(run, Recipe.model_validate({"judge": {"endpoint": "http://127.0.0.1:9/v1", "api_key": key}}))
    assert refused.value.exit_code == 2
