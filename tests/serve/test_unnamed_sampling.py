"""The sampling of requests that name none: one way for all APIs, and the capture and /health say where it comes from."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from asking import post
from served import Server

from tests.serve.served import logprobs_of

MESSAGES = [{"role": "user", "content": "hello"}]
APIS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/chat/completions", {"messages": MESSAGES, "max_tokens": 4}),
    "completions": ("/completions", {"prompt": "hello", "max_tokens": 4}),
    "responses": ("/responses", {"input": "hello", "max_output_tokens": 4}),
    "messages": ("/messages", {"messages": MESSAGES, "max_tokens": 4}),
}
OWN = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20}


@pytest.fixture(scope="module")
def cool_path(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with sampling of its own."""
    folder = tmp_path_factory.mktemp("cool") / "model"
    shutil.copytree(model_path, folder)
    file = folder / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **OWN}))
    return folder


@pytest.fixture(scope="module")
def cool(cool_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(
        tmp_path_factory.mktemp("served") / "run", cool_path, sampling={"per_client": {"warm-": {"temperature": {"at_least": 0.8}}}}
    ) as server:
        yield server


def captured(server: Server, api: str, **settings: Any) -> dict[str, Any]:
    path, body = APIS[api]
    answer = post(server, orjson.dumps({**body, **settings}), path=path)
    assert answer.status_code == 200, answer.text
    return server.captured()[-1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
def test_a_request_without_a_temperature_follows_the_model_in_every_api(cool: Server, api: str, stream: bool) -> None:
    line = captured(cool, api, stream=stream)
    assert line["api"] == api
    assert (line["temperature"], line["top_p"], line["top_k"], line["untrainable_reason"]) == (0.6, 1.0, 0, None)
    assert line["sampling_from"] == {"temperature": "model", "top_p": "default", "top_k": "default"}
    assert line["asked"] is None


@pytest.mark.parametrize("api", APIS)
def test_what_a_request_names_stays_its_own(cool: Server, api: str) -> None:
    line = captured(cool, api, temperature=0.9, top_p=0.5)
    assert (line["temperature"], line["top_p"]) == (0.9, 0.5)
    assert line["sampling_from"] == {"temperature": "request", "top_p": "request", "top_k": "default"}


def test_the_logprobs_are_those_at_the_temperature_that_the_model_names(cool: Server, cool_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    line = captured(cool, "chat")
    model = AutoModelForCausalLM.from_pretrained(cool_path, dtype=torch.float32)
    assert line["logprobs"] == pytest.approx(logprobs_of(model, line["prompt_ids"], line["completion_ids"], 0.6), abs=1e-3)


def test_health_and_the_log_name_the_defaults_and_what_of_the_model_is_left_out(cool: Server) -> None:
    assert cool.health()["default_sampling"] == {
        "temperature": {"value": 0.6, "from": "model"},
        "top_p": {"value": 1.0, "from": "default"},
        "top_k": {"value": 0, "from": "default"},
        "left_out": {"top_p": 0.9, "top_k": 20},
    }
    assert cool.log.read_text().count("the model's own top_p 0.9, top_k 20 are left out") == 1


def test_a_rule_raises_the_models_temperature_as_it_raises_a_clients(cool: Server) -> None:
    path, body = APIS["chat"]
    answer = post(cool, orjson.dumps(body), path=path, **{"User-Agent": "warm-1"})
    assert answer.headers["x-clawctl-sampling"] == "temperature 0.8 instead of the default"
    line = cool.captured()[-1]
    assert (line["temperature"], line["sampling_from"]["temperature"]) == (0.8, "recipe")


def test_an_answer_of_responses_repeats_the_temperature_that_was_used(cool: Server) -> None:
    path, body = APIS["responses"]
    assert post(cool, orjson.dumps(body), path=path).json()["temperature"] == 0.6


def test_the_recipe_outranks_the_model(cool_path: Path, tmp_path: Path) -> None:
    with Server(tmp_path / "run", cool_path, temperature=0.7) as server:
        line = captured(server, "chat")
        assert (line["temperature"], line["sampling_from"]["temperature"]) == (0.7, "recipe")
        assert server.health()["default_sampling"]["temperature"] == {"value": 0.7, "from": "recipe"}


def test_an_upstream_is_sent_every_value_so_that_its_own_defaults_do_not_act(cool_path: Path, cool: Server, tmp_path: Path) -> None:
    upstream = {"url": cool.url, "kind": "openai", "api_key": "key"}
    with Server(tmp_path / "run", cool_path, upstream=upstream, temperature=0.9) as through:
        line = captured(through, "chat")
        assert (line["temperature"], line["sampling_from"]["temperature"]) == (0.9, "recipe")
        behind = cool.captured()[-1]
        assert (behind["temperature"], behind["top_p"]) == (0.9, 1.0)
        assert behind["sampling_from"] == {"temperature": "request", "top_p": "request", "top_k": "default"}
