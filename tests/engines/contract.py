"""The requirements for every engine (`clawctl.engines.Engine`), seen over HTTP."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.serve.served import Server, logprobs_of
from tests.waiting import until

IDS = [3, 17, 42, 99, 5, 6, 7]
_LONG = 800  # tokens of an answer that still runs when a busy machine gets to halting the engine


def score(server: Server, model: str = "tiny", key: str = "key", **body: Any) -> httpx.Response:
    request = {"model": model, "ids": IDS, **body}
    return httpx.post(f"{server.url}/score", json=request, headers={"authorization": f"Bearer {key}"}, timeout=300)


def scores_given_ids_by_the_version_that_is_named(server: Server, models: dict[str, Any], versions: dict[str, int]) -> None:
    """`models` and `versions` by the name to ask for."""
    live = server.health()["live"]
    for name, model in models.items():
        for first in (1, 4):
            answer = score(server, name, first=first).json()
            assert (answer["model"], answer["version"]) == (name, versions[name])
            assert answer["logprobs"] == pytest.approx(logprobs_of(model, IDS[:first], IDS[first:]), abs=1e-4)
    assert server.health()["live"] == live


def refuses_ids_that_cannot_be_scored(server: Server, context: int) -> None:
    for body in (
        {"ids": [3]},
        {"ids": [3, -1]},
        {"ids": [3, "a"]},
        {"first": 0},
        {"first": len(IDS)},
        {"ids": [3] * (context + 1)},
    ):
        assert score(server, **body).status_code == 400, body
    assert score(server, "tiny@77").status_code == 404


def control(server: Server, what: str, key: str = "key", **body: Any) -> httpx.Response:
    root = server.url.removesuffix("/v1")
    return httpx.post(f"{root}/engine/{what}", json=body, headers={"authorization": f"Bearer {key}"}, timeout=300)


def keeps_requests_while_it_is_halted(server: Server, halt: str, go_on: str, endless: dict[str, Any], tokens: int = _LONG) -> None:
    """A running answer stops, a new request waits, and both are complete afterwards. `endless`: fields that prevent an end."""
    endless = {"max_tokens": tokens, "extra_body": endless}
    attempts = range(5)  # on a busy machine an answer may be over before the engine is halted: that attempt shows nothing
    assert any(_keeps_requests_while_it_is_halted(server, halt, go_on, endless) for _ in attempts), "no answer was halted"
    line = max(server.captured()[-2:], key=lambda line: len(line["completion_ids"]))
    assert len(line["completion_ids"]) == len(line["logprobs"]) == tokens


def _keeps_requests_while_it_is_halted(server: Server, halt: str, go_on: str, endless: dict[str, Any]) -> bool:
    """Whether the running answer was still running when the engine was halted."""
    pieces, begun = list[str](), threading.Event()

    def listen() -> int:
        for chunk in server.say("hello", stream=True, **endless):
            pieces.extend(choice.delta.content or "" for choice in chunk.choices)
            begun.set()
        return len(pieces)

    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(listen)
        assert begun.wait(60)
        assert "the engine is" in control(server, halt).json()["waiting_for"]
        waiting = pool.submit(server.say, "new", max_tokens=4)
        try:
            so_far = -1
            while so_far != len(pieces):  # what was sampled before the pause may still be on its way
                so_far = len(pieces)
                time.sleep(0.5)
            was_running = not running.done()
            assert not waiting.done()
            assert httpx.get(f"{server.url.removesuffix('/v1')}/health/ready").status_code == 503
        finally:  # a server that stays halted would hold up every test after this one
            assert control(server, go_on).json()["waiting_for"] is None
        assert waiting.result(120).choices
        assert running.result(120) > so_far or not was_running
    return was_running


def unloads_a_version_that_is_not_in_use(server: Server, version: int) -> None:
    assert server.say("hello", model=f"tiny@{version}").choices
    until(lambda: control(server, "unload", version=version).json()["unloaded"])
    assert server.say("hello", model=f"tiny@{version}").choices
