"""Keys with a policy of their own: which version answers, what is captured, and what another key can reach."""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from openai import APIError, NotFoundError, OpenAI
from peft import LoraConfig, get_peft_model
from served import Server, logprobs_of
from transformers import AutoModelForCausalLM

from clawctl.run.capabilities import episode_secret, issue
from clawctl.run.directory import RunDir, open_run
from clawctl.run.episodes import EpisodeSpec
from clawctl.run.keys import add_key, remove_key
from clawctl.run.policies import begin_policy, live_version, move_live, publish_policy
from clawctl.run.rows import Policy
from tests.waiting import until

SECTIONS = {"policies": {"per": "user", "loaded": 2}, "train": {"lora": {"rank": 4}}}
IDS = [[3, 4, 5, 6], [7, 8, 9]]
SCORED = [3, 17, 42, 99, 5, 6, 7]


def adapted(model_path: Path, seed: int) -> Any:
    torch.manual_seed(seed)
    base = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "up_proj", "down_proj"], init_lora_weights=False)
    return get_peft_model(base, config).eval()


def publish(run: RunDir, model_path: Path, version: int, model: Any, canary_of: Any = None) -> None:
    source = model if canary_of is None else canary_of
    canary = {"prompt_ids": IDS, "logprobs": [[None, *logprobs_of(source, ids[:1], ids[1:])] for ids in IDS]}
    policy = Policy(version, version - 1, version, "combine", "adapter", str(model_path), [], canary, {}, float(version))
    publish_policy(run, policy, model.save_pretrained)


class Asked:
    """A server with the keys anna and bert, which have policies of their own, carl, which has none, and door, which names users."""

    def __init__(self, server: Server, keys: dict[str, str]) -> None:
        self.server, self.run, self.keys = server, server.run, keys

    def answer(self, key: str, model: str = "tiny", **settings: Any) -> dict[str, Any]:
        """What is captured of an answer."""
        client = OpenAI(base_url=self.server.url, api_key=self.keys[key], max_retries=0)
        seen = len(self.server.captured())
        client.chat.completions.create(messages=[{"role": "user", "content": "hello"}], model=model, max_tokens=8, **settings)
        until(lambda: len(self.server.captured()) > seen)
        return self.server.captured()[-1]

    def score(self, model: str) -> list[float]:
        response = httpx.post(
            f"{self.server.url}/score", json={"model": model, "ids": SCORED}, headers={"authorization": "Bearer key"}, timeout=60
        )
        assert response.status_code == 200, response.text
        scored: list[float] = response.json()["logprobs"]
        return scored


@pytest.fixture(scope="module")
def models(model_path: Path) -> list[Any]:
    return [adapted(model_path, seed) for seed in range(3)]


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory, model_path: Path, models: list[Any]) -> Iterator[Asked]:
    """The shared policy is live at version 1, which anna and bert begin from."""
    folder = tmp_path_factory.mktemp("people") / "run"
    with Server(folder, model_path, sections=SECTIONS) as server:
        run = server.run
        publish(run, model_path, 1, models[0])
        move_live(run, 1)
        until(lambda: server.health()["live"] == 1)
        keys = {name: add_key(run, name, begin_policy(run, name)) for name in ("anna", "bert")}
        keys |= {"carl": add_key(run, "carl"), "door": add_key(run, "door", names_users=True)}
        opens = {"authorization": f"Bearer {keys['carl']}"}
        until(lambda: httpx.get(f"{server.url}/models", headers=opens).status_code == 200)
        yield Asked(server, keys)
        assert server.stop() == 0, server.log.read_text()


def test_a_policy_of_its_own_begins_with_the_shared_weights(people: Asked) -> None:
    line = people.answer("anna")
    assert (line["policy_name"], line["policy_version"], line["policy_version_end"]) == ("anna", 0, 0)
    assert people.score("tiny@anna@0") == people.score("tiny@1")
    line = people.answer("carl")
    assert (line["policy_name"], line["policy_version"]) == ("default", 1)


def test_what_anna_learns_changes_no_bit_of_anybody_elses_logprobs(people: Asked, model_path: Path, models: list[Any]) -> None:
    anna, before = people.run.of("anna"), {name: people.score(name) for name in ("tiny", "tiny@0", "tiny@bert@0", "tiny@anna@0")}
    publish(anna, model_path, 1, models[1])
    move_live(anna, 1, by="train")
    line = people.answer("anna")
    assert (line["policy_name"], line["policy_version"]) == ("anna", 1)
    assert line["logprobs"] == pytest.approx(logprobs_of(models[1], line["prompt_ids"], line["completion_ids"]), abs=1e-3)
    assert people.score("tiny@anna@1") == pytest.approx(logprobs_of(models[1], SCORED[:1], SCORED[1:]), abs=1e-4)
    assert people.score("tiny@anna@1") != before["tiny@anna@0"]
    assert {name: people.score(name) for name in before} == before
    assert people.answer("bert")["policy_name"] == "bert"
    assert people.answer("carl")["policy_version"] == 1


def test_no_other_key_can_name_a_version_of_annas(people: Asked) -> None:
    with pytest.raises(NotFoundError):
        people.answer("bert", "tiny@anna@0")
    client = OpenAI(base_url=people.server.url, api_key=people.keys["anna"], max_retries=0)
    ask = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    assert client.chat.completions.create(model="tiny@anna@0", **ask).choices  # type: ignore[call-overload]


def test_a_version_that_fails_its_canary_does_not_answer(people: Asked, model_path: Path, models: list[Any]) -> None:
    bert = people.run.of("bert")
    people.answer("bert")
    publish(bert, model_path, 1, models[1], canary_of=models[2])
    move_live(bert, 1, by="train")
    line = people.answer("bert")
    assert (line["policy_name"], line["policy_version"]) == ("bert", 0)
    assert live_version(bert) == 0
    assert "its canary differs by" in people.server.health()["policies"]["bert"]["problem"]
    assert people.answer("carl")["status"] == "ok"


def test_where_a_policy_of_its_own_cannot_answer_the_shared_one_learns_nothing(people: Asked) -> None:
    people.keys["dora"] = add_key(people.run, "dora", begin_policy(people.run, "dora"))
    opens = {"authorization": f"Bearer {people.keys['dora']}"}
    until(lambda: httpx.get(f"{people.server.url}/models", headers=opens).status_code == 200)
    shutil.rmtree(people.run.of("dora").policies)
    line = people.answer("dora")
    assert (line["policy_name"], line["untrainable_reason"]) == ("default", "answered by the shared policy")
    assert people.answer("carl")["untrainable_reason"] is None
    spec = EpisodeSpec(
        "e1-0", 0.0, "e1", "practice", "1", "t", "h", "train", 0, 0, "g", 0, 1, 0, time.time() + 600, {}, "w", "dora"
    )
    address = f"{people.server.url.removesuffix('/v1')}/e/{issue(episode_secret(people.run), spec)}/v1/chat/completions"
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    assert httpx.post(address, json=body, timeout=60).status_code == 200
    remove_key(people.run, "dora")
    until(lambda: httpx.get(f"{people.server.url}/models", headers=opens).status_code == 401)
    assert httpx.post(address, json={**body, "max_tokens": 3}, timeout=60).status_code == 401


@pytest.mark.parametrize("way", [{"extra_headers": {"X-User": "anna"}}, {"user": "anna"}], ids=["header", "body"])
def test_a_key_that_names_users_is_answered_by_the_named_ones_policy_and_its_turn_is_theirs(
    people: Asked, way: dict[str, Any]
) -> None:
    line = people.answer("door", **way)
    assert (line["key"], line["policy_name"]) == ("anna", "anna")
    line = people.answer("carl", **way)  # this key may not
    assert (line["key"], line["policy_name"]) == ("carl", "default")


@pytest.mark.parametrize("named", ["nobody", "default", "", "door"])
def test_a_name_without_a_key_counts_as_the_key_that_was_sent(people: Asked, named: str) -> None:
    line = people.answer("door", extra_headers={"X-User": named})
    assert (line["key"], line["policy_name"]) == ("door", "default")


def test_a_named_user_reads_and_names_what_their_own_key_would(people: Asked) -> None:
    def notes(key: str, **headers: str) -> list[Any]:
        headers |= {"authorization": f"Bearer {people.keys[key]}"}
        data: list[Any] = httpx.get(f"{people.server.url}/notes", headers=headers).json()["data"]
        return data

    client = OpenAI(base_url=people.server.url, api_key=people.keys["anna"], max_retries=0)
    client.post("/notes", body={"text": "Answer in one sentence."}, cast_to=object)
    assert notes("door", **{"X-User": "anna"}) == notes("anna") != []
    assert notes("door") == notes("carl", **{"X-User": "anna"}) == []
    with pytest.raises(NotFoundError):
        people.answer("door", "tiny@anna@0", user="bert")
    with pytest.raises(NotFoundError):
        people.answer("door", "tiny@anna@0")


def test_a_request_for_a_named_user_ends_when_either_key_is_removed(people: Asked) -> None:
    for name in ("dora", "emil"):
        add_key(people.run, name)
    client = OpenAI(base_url=people.server.url, api_key=add_key(people.run, "gate", names_users=True), max_retries=0)
    opens = {"authorization": f"Bearer {client.api_key}"}
    until(lambda: httpx.get(f"{people.server.url}/models", headers=opens).status_code == 200)
    for user, removed in (("dora", "dora"), ("emil", "gate")):
        stream = client.chat.completions.create(
            messages=[{"role": "user", "content": "hello"}], model="tiny", max_tokens=3000, stream=True, user=user,
            logit_bias={"2": -100},  # no answer ends by itself
        )  # fmt: skip
        next(iter(stream))
        remove_key(people.run, removed)
        with pytest.raises(APIError, match="removed or replaced"):
            list(stream)
        assert next(line["key"] for line in reversed(people.server.captured()) if line["status"] == "cancelled") == user


def test_a_key_is_shown_its_own_requests_and_policy_and_the_runs_own_key_those_of_everybody(people: Asked) -> None:
    root = people.server.url.removesuffix("/v1")
    for name in ("anna", "bert"):
        people.answer(name)
    shown = {}
    for key in (people.keys["anna"], "key"):
        opens = {"authorization": f"Bearer {key}"}
        health = httpx.get(f"{root}/health", headers=opens).json()
        metrics = httpx.get(f"{root}/metrics", headers=opens).text
        shown[key] = set(health["policies"]), set(re.findall(r'key="(\w+)"', metrics)) & {"anna", "bert", "carl"}
    assert shown[people.keys["anna"]] == ({"anna"}, {"anna"})
    policies, keys = shown["key"]
    assert policies >= {"anna", "bert"}
    assert keys == {"anna", "bert", "carl"}


def test_a_new_key_of_a_removed_name_reads_nothing_that_the_server_holds_in_memory(people: Asked) -> None:
    def opened(key: str, method: str = "GET", path: str = "/models", **body: Any) -> httpx.Response:
        return httpx.request(
            method, people.server.url + path, json=body or None, headers={"authorization": f"Bearer {key}"}, timeout=60
        )

    first = add_key(people.run, "fred")
    until(lambda: opened(first).status_code == 200)
    ask = {"model": "tiny", "input": "hello", "max_output_tokens": 4}
    name = opened(first, "POST", "/responses", **ask).json()["id"]
    assert opened(first, path=f"/responses/{name}").status_code == 200
    remove_key(people.run, "fred")
    second = add_key(people.run, "fred")
    until(lambda: opened(second).status_code == 200)
    assert opened(second, path=f"/responses/{name}").status_code == 404
    assert opened(second, "POST", "/responses", **ask, previous_response_id=name).status_code == 400


def test_with_one_policy_for_all_a_key_of_its_own_changes_nothing(tmp_path: Path, model_path: Path) -> None:
    run = open_run(tmp_path / "run")
    key, door = add_key(run, "anna", begin_policy(run, "anna")), add_key(run, "door", names_users=True)
    with Server(run.root, model_path) as server:
        people = Asked(server, {"anna": key, "door": door})
        line = people.answer("anna")
        assert (line["policy_name"], line["policy_version"]) == ("default", 0)
        assert people.answer("door", user="anna")["key"] == "door"
