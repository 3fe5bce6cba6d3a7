"""A real vLLM server as a child: it swaps adapters and weights, every version tag is right, and it is restarted."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import psutil
import pytest
import torch
from vllm_served import NEEDS_VLLM, STARTS_S, SWAPS_S, adapted, assert_exact, assert_logprobs, go_live, last, publish, refused

from tests.named_models import TEXT_MODEL
from tests.serve.served import Server, perturbed, until

pytestmark = NEEDS_VLLM
CROSSING = 2500  # tokens of an answer that is still being given when other weights come
BESIDE = 400  # and of one that runs together with another


def test_adapters_swap_under_load_and_every_tag_is_true(vllm: Server, base: Any) -> None:
    models, stop, failures = {0: base, 1: adapted(1), 2: adapted(2)}, threading.Event(), []

    def talk() -> None:
        while not stop.is_set():
            try:
                vllm.say("how many apples?", max_tokens=24)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is a failed request
                failures.append(error)

    before = len(vllm.captured())
    talkers = [threading.Thread(target=talk) for _ in range(2)]
    for talker in talkers:
        talker.start()
    try:
        for version in (1, 2):
            publish(vllm, version, "adapter", models[version])
            go_live(vllm, version)
            seen = len(vllm.captured())
            until(lambda seen=seen: len(vllm.captured()) > seen + 3)
        publish(vllm, 3, "adapter", adapted(3), canary_of=models[1])  # the trainer computed something else
        assert "its canary differs by" in refused(vllm, 3)
        with pytest.raises(openai.NotFoundError, match="the engine's results differ from the trainer's"):
            vllm.say("hi", model="tiny@3")
        assert vllm.health()["live"] == 2
        assert vllm.say("hi", model="tiny@1").model == "tiny@1"
        go_live(vllm, 0)
    finally:
        stop.set()
        for talker in talkers:
            talker.join()
    assert not failures
    lines = [line for line in vllm.captured()[before:] if line["model"] == "tiny"]
    assert {line["policy_version"] for line in lines} == {0, 1, 2}
    for line in lines:
        assert line["policy_version"] == line["policy_version_end"]  # running requests stay on the old one
        assert_exact(models[line["policy_version"]], line)


@contextlib.contextmanager
def talking(server: Server, tokens: int) -> Iterator[None]:
    """While a long answer is being given: from its first word on, to its end."""
    begun = threading.Event()

    def listen() -> None:
        for _ in server.say("count", max_tokens=tokens, extra_body={"ignore_eos": True}, stream=True):
            begun.set()

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(listen)
        until(lambda: answer.done() or begun.is_set(), SWAPS_S)
        assert not answer.done(), answer.result()
        yield
        answer.result()


def test_the_base_model_beside_an_adapter_is_the_base_model(vllm: Server, base: Any) -> None:
    models, before = {0: base, 4: adapted(4), 5: adapted(5)}, len(vllm.captured())
    for version in (4, 5):  # of the two slots one holds the last: vLLM's own kernel for the CPU would give it to the base as well
        publish(vllm, version, "adapter", models[version])
        go_live(vllm, version)
        with talking(vllm, BESIDE):
            go_live(vllm, 0)
            vllm.say("how many apples?", max_tokens=24)
    lines = vllm.captured()[before:]
    assert sorted(line["policy_version"] for line in lines) == [0, 0, 4, 5]
    for line in lines:
        assert_logprobs(models[line["policy_version"]], line)


def test_full_weights_swap_under_running_requests_and_bad_ones_are_taken_back(vllm: Server, base: Any) -> None:
    models = {0: base, 11: perturbed(TEXT_MODEL, 11, 0.01).eval(), 13: perturbed(TEXT_MODEL, 13, 0.01).eval()}
    publish(vllm, 11, "full", models[11])
    before = len(vllm.captured())
    with talking(vllm, CROSSING):
        go_live(vllm, 11)
    vllm.say("how many apples?")
    assert_exact(models[11], last(vllm))
    crossed = next(line for line in vllm.captured()[before:] if len(line["completion_ids"]) == CROSSING)
    assert (crossed["policy_version"], crossed["policy_version_end"]) == (0, 11)
    publish(vllm, 13, "full", models[13], canary_of=base)
    assert "its canary differs by" in refused(vllm, 13)
    publish(vllm, 14, "full", models[13])
    (vllm.run.version_folder(14) / "model.safetensors").write_bytes(b"torn")
    assert "damaged" in refused(vllm, 14)
    models[13].model.layers[0].odd = torch.nn.Linear(3, 3)  # only the engine finds out, with some of the weights read
    publish(vllm, 15, "full", models[13])
    assert "the engine refuses" in refused(vllm, 15)
    assert vllm.health()["live"] == 11
    vllm.say("how many apples?")
    assert_exact(models[11], last(vllm))
    with pytest.raises(Exception, match="serves one version at a time"):
        vllm.say("hi", model="tiny@0")
    go_live(vllm, 0)


def test_a_killed_engine_is_started_again_and_catches_up(vllm: Server, base: Any) -> None:
    go_live(vllm, 11)
    engines = [each for each in psutil.Process(vllm.process.pid).children(recursive=True) if "vllm" in " ".join(each.cmdline())]
    os.kill(engines[-1].pid, signal.SIGKILL)
    until(lambda: not vllm.health()["ready"])
    until(lambda: vllm.health()["ready"], STARTS_S)
    assert vllm.health()["live"] == 11
    vllm.say("how many apples?")
    assert_exact(perturbed(TEXT_MODEL, 11, 0.01).eval(), last(vllm))
