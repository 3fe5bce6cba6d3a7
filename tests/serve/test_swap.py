"""LIVE moves: requests continue, version tags are right, and a broken version does not go live."""

import threading
import time
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import torch
from served import Server, logprobs_of, perturbed
from transformers import AutoModelForCausalLM

from clawctl.run.policies import move_live, publish_policy
from clawctl.run.rows import Policy
from tests.waiting import until

CANARY_IDS = [[3, 4, 5, 6], [7, 8, 9]]


def publish(server: Server, model_path: Path, version: int, canary_of: int | None = None) -> Any:
    """Publish `version`; its canary is that of the weights with seed `canary_of`."""
    model = perturbed(model_path, version)
    canary = None
    if canary_of is not None:
        source = perturbed(model_path, canary_of)
        logprobs = [[0.0, *logprobs_of(source, ids[:1], ids[1:])] for ids in CANARY_IDS]
        canary = {"prompt_ids": CANARY_IDS, "logprobs": logprobs}
    policy = Policy(version, version - 1, version, "combine", "full", str(model_path), [], canary, {}, 0.0)
    publish_policy(server.run, policy, model.save_pretrained)
    return model


def live(server: Server) -> int:
    return int(server.health()["live"])


def test_swaps_under_load_fail_no_request_and_every_tag_is_true(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path) as server:
        models = {0: AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)}
        stop, failures = threading.Event(), []

        def talk() -> None:
            while not stop.is_set():
                try:
                    server.say("hello", max_tokens=24)
                except Exception as error:  # noqa: BLE001 - whatever it is, it is a failed request
                    failures.append(error)

        talkers = [threading.Thread(target=talk) for _ in range(4)]
        for talker in talkers:
            talker.start()
        try:
            for version in (1, 2):
                models[version] = publish(server, model_path, version, canary_of=version)
                move_live(server.run, version)
                until(lambda version=version: live(server) == version)
                seen = len(server.captured())
                until(lambda seen=seen: len(server.captured()) > seen + 8)
            move_live(server.run, 0)  # a rollback
            until(lambda: live(server) == 0)
        finally:
            stop.set()
            for talker in talkers:
                talker.join()
        server.say("hello")
        health = server.health()
        assert server.stop() == 0, server.log.read_text()
        assert not failures
        assert [swap["version"] for swap in health["swaps"]] == [1, 2, 0]
        assert health["requests"]["failed"] == health["capture"]["lost"] == 0
        assert max(swap["pause_ms"] for swap in health["swaps"]) < 1000
        lines = server.captured()
        assert {line["policy_version"] for line in lines} == {0, 1, 2}
        for line in lines:
            if line["policy_version"] == line["policy_version_end"]:
                expected = logprobs_of(models[line["policy_version"]].eval(), line["prompt_ids"], line["completion_ids"])
                assert line["logprobs"] == pytest.approx(expected, abs=1e-3)


def test_a_broken_version_does_not_go_live(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path) as server:
        publish(server, model_path, 1, canary_of=5)  # the trainer computed something else
        move_live(server.run, 1)
        until(lambda: server.health()["last_swap_error"])
        health = server.health()
        assert health["last_swap_error"].startswith("version 1 does not go live: its canary differs by ")
        assert (health["status"], health["live"], health["ready"]) == ("degraded", 0, True)
        publish(server, model_path, 2)
        (server.run.version_folder(2) / "model.safetensors").write_bytes(b"torn")
        move_live(server.run, 2)
        until(lambda: "version 2" in server.health()["last_swap_error"])
        odd = perturbed(model_path, 4)
        odd.model.layers[1].mlp.up_proj.weight.data[3, 5] = float("nan")
        publish_policy(server.run, Policy(4, 0, 4, "combine", "full", str(model_path), [], None, {}, 0.0), odd.save_pretrained)
        move_live(server.run, 4)
        until(lambda: "up_proj.weight contains infinite values or NaN" in server.health()["last_swap_error"])
        (server.run.policies / "LIVE").write_text("nonsense")
        until(lambda: "LIVE is not a number" in server.health()["last_swap_error"])
        (server.run.policies / "LIVE").write_text("9")
        until(lambda: "version 9" in server.health()["last_swap_error"])
        assert server.say("hello").choices
        assert live(server) == 0
        publish(server, model_path, 3, canary_of=3)
        move_live(server.run, 3)
        until(lambda: live(server) == 3)
        assert server.health()["last_swap_error"] is None
        answer = httpx.post(
            server.url + "/chat/completions",
            json={"model": "tiny@0", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "logprobs": True},
            headers={"Authorization": "Bearer key"},
            timeout=60,
        ).json()  # version 0 still answers by its name
        assert answer["model"] == "tiny@0"
        assert server.stop() == 0, server.log.read_text()
        assert b"hello" not in server.log.read_bytes()  # no words of a conversation in the log
        assert orjson.loads((server.run.root / "serve.json").read_bytes())["url"] == server.url


def test_a_pinned_server_does_not_follow_live(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path, arguments=["--pin", "0"]) as server:
        (server.run.policies / "LIVE").write_text("1\n")
        time.sleep(1.5)
        assert server.health()["live"] == 0
        assert server.health()["last_swap_error"] is None
