"""An external server that restarts loses its versions. They are loaded again, and no answer gets the tag of another version."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from vllm_stub import StandIn, ids

from clawctl.run.policies import move_live, publish_policy
from clawctl.run.rows import Policy
from tests.serve.served import Server
from tests.waiting import until

CANARY = {"prompt_ids": [[1, 2]], "logprobs": [[None, -1.0]]}


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    server = StandIn(0)
    yield server
    server.kill()


@pytest.mark.parametrize("kind", ["adapter", "full"])
def test_a_server_that_restarts_gets_the_live_version_again(
    tmp_path: Path, model_path: Path, stand_in: StandIn, kind: Literal["adapter", "full"]
) -> None:
    upstream = {"url": stand_in.url, "kind": "vllm"}
    sections: dict[str, Any] = {"train": {"lora": {}}} if kind == "adapter" else {}
    with Server(tmp_path / "run", model_path, upstream=upstream, sections=sections) as server:
        write = partial(shutil.copytree, model_path, dirs_exist_ok=True) if kind == "full" else lambda folder: None
        policy = Policy(1, 0, 1, None, kind, "m", [], CANARY, {}, 0.0)
        publish_policy(server.run, policy, write)
        move_live(server.run, 1)
        until(lambda: server.health()["live"] == 1)
        assert [int(token) for token in server.say("hi").choices[0].message.content.split()] == ids(0, 1)
        if kind == "adapter":
            until(lambda: "tiny@1" in stand_in.set()["listed"])  # what was never listed cannot be missed
        stand_in.kill()
        stand_in.start()
        lost = "tiny@1" if kind == "adapter" else "the weights of version 1"
        until(lambda: f"has restarted and lost {lost}" in server.log.read_text())
        assert [int(token) for token in server.say("hi").choices[0].message.content.split()] == ids(0, 1)
        assert server.health()["live"] == 1
        assert {line["policy_version"] for line in server.captured() if line["status"] == "ok"} == {1}
        assert server.stop() == 0, server.log.read_text()
