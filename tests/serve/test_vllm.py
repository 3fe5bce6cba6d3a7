"""A real vLLM server as our child: what it samples is captured exactly, it swaps adapters and weights, and it comes back."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil
import pytest
import torch
from peft import LoraConfig, get_peft_model
from served import Server, logprobs_of, perturbed, until
from transformers import AutoModelForCausalLM, AutoTokenizer

from clawctl.config import DEMO_MODEL
from clawctl.policies import move_live, policy_folder, publish_policy
from clawctl.types import Policy

PYTHON = os.environ.get("CLAWCTL_VLLM_PYTHON", sys.executable)
STARTS_S = 900.0  # two cores, shared with other tests
SWAPS_S = 300.0
CANARY_IDS = [[3, 4, 5, 6], [7, 8, 9]]
CROSSING = 2000  # tokens of an answer that is still being given when other weights come
BESIDE = 400  # and of one that runs beside another
EXACT = 1e-4  # of a logprob: rounding of float32 in another order


def has_vllm() -> bool:
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    return subprocess.run([PYTHON, "-c", find], check=False).returncode == 0


pytestmark = [
    pytest.mark.skipif(not has_vllm(), reason=f"vLLM is not installed for {PYTHON}; CLAWCTL_VLLM_PYTHON names another Python"),
    pytest.mark.timeout(2 * STARTS_S),
]


def engine(*arguments: str) -> dict[str, Any]:
    return {"engine": "vllm", "engine_python": PYTHON, "engine_args": ["--max-model-len", "4096", "--enforce-eager", *arguments]}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    lora = engine("--enable-lora", "--max-lora-rank", "16", "--max-loras", "2", "--max-cpu-loras", "6")
    with Server(tmp_path_factory.mktemp("vllm") / "run", DEMO_MODEL, patience_s=STARTS_S, splice=True, **lora) as running:
        yield running
        assert running.stop() == 0, running.log.read_text()


@pytest.fixture(scope="module")
def base() -> Any:
    return AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32).eval()


def last(server: Server) -> dict[str, Any]:
    return server.captured()[-1]


def assert_exact(model: Any, line: dict[str, Any]) -> None:
    assert line["untrainable_reason"] is None
    assert_logprobs(model, line)


def assert_logprobs(model: Any, line: dict[str, Any]) -> None:
    expected = logprobs_of(model, line["prompt_ids"], line["completion_ids"], line["temperature"])
    assert line["logprobs"] == pytest.approx(expected, abs=EXACT)


def publish(server: Server, version: int, kind: str, model: Any, canary_of: Any = None) -> None:
    """Publish `version`; its canary is that of `canary_of`, by default its own."""
    logprobs = [[0.0, *logprobs_of(canary_of or model, ids[:1], ids[1:])] for ids in CANARY_IDS]
    canary = {"prompt_ids": CANARY_IDS, "logprobs": logprobs}
    policy = Policy(version, 0, version, "combine", kind, str(DEMO_MODEL), [], canary, {}, 0.0)
    publish_policy(server.run, policy, model.save_pretrained)


def go_live(server: Server, version: int) -> None:
    """Returns when it is live; a refusal is told at once instead of waited for."""
    move_live(server.run, version)

    def settled() -> bool:
        health = server.health()
        refused = health["last_swap_error"] or ""
        assert not refused.startswith(f"version {version} "), refused
        return bool(health["live"] == version)

    until(settled, SWAPS_S)


def refused(server: Server, version: int) -> str:
    """Why it did not go live."""
    move_live(server.run, version)
    until(lambda: f"version {version} " in (server.health()["last_swap_error"] or ""), SWAPS_S)
    return str(server.health()["last_swap_error"])


def adapted(seed: int) -> Any:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32)
    config = LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    return get_peft_model(model, config).eval()


def test_ids_and_logprobs_are_those_that_entered_and_left_the_engine(served: Server, base: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL)
    answer = served.say("how many apples?", temperature=0.7, max_tokens=24)
    line = last(served)
    asked = tokenizer.apply_chat_template([{"role": "user", "content": "how many apples?"}], add_generation_prompt=True)
    assert line["prompt_ids"] == list(asked["input_ids"] if hasattr(asked, "keys") else asked)
    shown = tokenizer.decode(line["completion_ids"], skip_special_tokens=True)
    assert answer.choices[0].message.content == shown
    assert answer.usage.completion_tokens == len(line["completion_ids"])
    assert_exact(base, line)
    text = "".join(
        chunk.choices[0].delta.content or ""
        for chunk in served.say("how many pears?", max_tokens=24, stream=True)
    )  # fmt: skip
    assert text == last(served)["response"]["content"]
    assert_exact(base, last(served))


def test_the_client_sees_nothing_that_it_did_not_ask_for(served: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": True}
    text = httpx.post(served.url + "/chat/completions", json=body, headers={"authorization": "Bearer key"}, timeout=60).text
    assert "token_ids" not in text
    assert "logprobs" not in text
    assert "usage" not in text


def test_what_alters_the_sampling_is_kept_untrained_with_the_reason(served: Server) -> None:
    served.say("hi", temperature=0)
    assert last(served)["untrainable_reason"] == "greedy"
    served.say("hi", presence_penalty=1.0)
    assert last(served)["untrainable_reason"] == "presence_penalty"
    served.say("hi", seed=4)
    assert last(served)["untrainable_reason"] is None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_what_a_client_wrote_anew_enters_the_engine_as_it_was_sampled(
    served: Server, base: Any, dialect: str, stream: bool
) -> None:
    path, name, limit = {
        "chat": ("/chat/completions", "messages", "max_completion_tokens"),
        "responses": ("/responses", "input", "max_output_tokens"),
        "messages": ("/messages", "messages", "max_tokens"),
    }[dialect]
    talk = [{"role": "user", "content": f"{dialect}: how many apples?"}]
    headers = {"authorization": "Bearer key"}
    httpx.post(served.url + path, json={"model": "tiny", name: talk, limit: 16}, headers=headers, timeout=60).raise_for_status()
    first = last(served)
    assert (first["spliced"], first["unspliced"]) == (0, None)
    talk += [{"role": "assistant", "content": f" {first['response']['content']} \n"}, {"role": "user", "content": "and pears?"}]
    body = {"model": "tiny", name: talk, limit: 16, "stream": stream, "temperature": 0.7}
    answer = httpx.post(served.url + path, json=body, headers=headers, timeout=60)
    second, through = last(served), first["prompt_ids"] + first["completion_ids"]
    assert (answer.status_code, second["spliced"], second["unspliced"]) == (200, 1, None)
    assert second["prompt_ids"][: len(through)] == through
    assert stream or orjson.dumps(second["response"]["content"]).decode() in answer.text
    assert_exact(base, first)
    assert_exact(base, second)


def test_the_engines_own_refusal_has_its_status_and_reason(served: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 100_000}
    answer = httpx.post(served.url + "/chat/completions", json=body, headers={"authorization": "Bearer key"}, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_a_client_that_goes_away_is_captured_with_what_was_sampled(served: Server, base: Any) -> None:
    with served.say("hello", stream=True, max_tokens=3000, temperature=1.5, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    until(lambda: served.health()["requests"]["running"] == 0)
    line = last(served)
    assert (line["status"], line["finish_reason"]) == ("cancelled", None)
    assert 0 <= len(line["completion_ids"] or []) < 3000


def test_a_whole_answer_that_nobody_waits_for_leaves_what_was_sampled(served: Server, base: Any) -> None:
    before = len(served.captured())
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3000, "temperature": 1.5, "ignore_eos": True}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            served.url + "/chat/completions",
            json=body,
            headers={"authorization": "Bearer key"},
            timeout=httpx.Timeout(60, read=4),
        )
    until(lambda: len(served.captured()) > before)
    line = last(served)
    assert (line["status"], line["finish_reason"], line["policy_version"]) == ("cancelled", None, 0)
    assert 0 < line["ttft_s"] < line["finished_at"] - line["created_at"]
    assert 0 < len(line["completion_ids"]) < 3000
    assert_exact(base, {**line, "untrainable_reason": None})  # it was asked to go on past the end


WEATHER = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"logprobs": True, "top_logprobs": 2},
        {"n": 2, "temperature": 1.0, "top_k": 1},
        {"stop": ["a"]},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": WEATHER}}},
        {"tools": [TOOL]},
    ],
    ids=["plain", "logprobs", "n", "stop", "thinking", "schema", "tool"],
)
def test_the_client_sees_what_the_engine_itself_would_have_told(served: Server, asked: dict[str, Any]) -> None:
    """The greedy answer, straight and through clawctl, which puts it together from a stream."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "how many apples?"}],
        "max_tokens": 40,
        "temperature": 0,
        **asked,
    }
    url, key = straight_to_the_engine(served)
    answers = []
    for address, owner in ((url, key), (url, key), (served.url, "key")):  # the first one fills the cache
        answer = httpx.post(address + "/chat/completions", json=body, headers={"authorization": f"Bearer {owner}"}, timeout=120)
        assert answer.status_code == 200, answer.text
        answers.append(content_of(answer.json()))
    assert answers[2] == answers[1]


def straight_to_the_engine(server: Server) -> tuple[str, str]:
    """Past clawctl, with the key that only the two know."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    engine = next(child for child in children if "--port" in child.cmdline() and "VLLM_API_KEY" in child.environ())
    command = engine.cmdline()
    return f"http://127.0.0.1:{command[command.index('--port') + 1]}/v1", engine.environ()["VLLM_API_KEY"]


OWN_NAMES = {"reasoning": "reasoning_content"}  # docs/clients.md: one name for what servers call by two


def content_of(told: Any) -> Any:
    """Without names and times, without what says nothing, and with the arguments of calls as values, if they are complete."""
    if isinstance(told, list):
        return [content_of(each) for each in told]
    if not isinstance(told, dict):
        return told
    kept = {OWN_NAMES.get(k, k): content_of(v) for k, v in told.items() if k not in ("id", "created") and v not in (None, [])}
    with contextlib.suppress(orjson.JSONDecodeError):
        kept["arguments"] = orjson.loads(kept.get("arguments", ""))
    return kept


def asked_without_key(port: int) -> int | None:
    """The status; None where nobody speaks HTTP: the engine's processes talk to one another there."""
    try:
        return httpx.post(f"http://127.0.0.1:{port}/collective_rpc", json={"method": "sleep"}, timeout=5).status_code
    except httpx.HTTPError:
        return None


def test_the_engines_own_doors_are_shut(served: Server) -> None:
    """Even from this machine, without the key that only the two processes know."""
    child = psutil.Process(served.process.pid).children(recursive=True)
    ports = {c.laddr.port for p in child for c in p.net_connections("tcp") if c.status == "LISTEN" and c.laddr.ip == "127.0.0.1"}
    with ThreadPoolExecutor(len(ports)) as pool:
        told = [status for status in pool.map(asked_without_key, ports) if status is not None]
    assert told == [401]


def test_adapters_swap_under_load_and_every_tag_is_true(served: Server, base: Any) -> None:
    models, stop, failures = {0: base, 1: adapted(1), 2: adapted(2)}, threading.Event(), []

    def talk() -> None:
        while not stop.is_set():
            try:
                served.say("how many apples?", max_tokens=24)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is a failed request
                failures.append(error)

    before = len(served.captured())
    talkers = [threading.Thread(target=talk) for _ in range(2)]
    for talker in talkers:
        talker.start()
    try:
        for version in (1, 2):
            publish(served, version, "adapter", models[version])
            go_live(served, version)
            seen = len(served.captured())
            until(lambda seen=seen: len(served.captured()) > seen + 3)
        publish(served, 3, "adapter", adapted(3), canary_of=models[1])  # the trainer computed something else
        assert "its canary is off by" in refused(served, 3)
        assert served.health()["live"] == 2
        assert served.say("hi", model="tiny@1").model == "tiny@1"
        go_live(served, 0)
    finally:
        stop.set()
        for talker in talkers:
            talker.join()
    assert not failures
    lines = [line for line in served.captured()[before:] if line["model"] == "tiny"]
    assert {line["policy_version"] for line in lines} == {0, 1, 2}
    for line in lines:
        assert line["policy_version"] == line["policy_version_end"]  # who runs stays on the old one
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


def test_the_base_model_beside_an_adapter_is_the_base_model(served: Server, base: Any) -> None:
    models, before = {0: base, 4: adapted(4), 5: adapted(5)}, len(served.captured())
    for version in (4, 5):  # of the two slots one holds the last: vLLM's own kernel for the CPU would give it to the base as well
        publish(served, version, "adapter", models[version])
        go_live(served, version)
        with talking(served, BESIDE):
            go_live(served, 0)
            served.say("how many apples?", max_tokens=24)
    lines = served.captured()[before:]
    assert sorted(line["policy_version"] for line in lines) == [0, 0, 4, 5]
    for line in lines:
        assert_logprobs(models[line["policy_version"]], line)


def test_full_weights_swap_under_running_requests_and_bad_ones_are_taken_back(served: Server, base: Any) -> None:
    models = {0: base, 11: perturbed(DEMO_MODEL, 11, 0.01).eval(), 13: perturbed(DEMO_MODEL, 13, 0.01).eval()}
    publish(served, 11, "full", models[11])
    before = len(served.captured())
    with talking(served, CROSSING):
        go_live(served, 11)
    served.say("how many apples?")
    assert_exact(models[11], last(served))
    crossed = next(line for line in served.captured()[before:] if len(line["completion_ids"]) == CROSSING)
    assert (crossed["policy_version"], crossed["policy_version_end"]) == (0, 11)
    publish(served, 13, "full", models[13], canary_of=base)
    assert "its canary is off by" in refused(served, 13)
    publish(served, 14, "full", models[13])
    (policy_folder(served.run, 14) / "model.safetensors").write_bytes(b"torn")
    assert "damaged" in refused(served, 14)
    assert served.health()["live"] == 11
    served.say("how many apples?")
    assert_exact(models[11], last(served))
    with pytest.raises(Exception, match="serves one version at a time"):
        served.say("hi", model="tiny@0")
    go_live(served, 0)


def test_a_killed_engine_is_started_again_and_catches_up(served: Server, base: Any) -> None:
    go_live(served, 11)
    engines = [each for each in psutil.Process(served.process.pid).children(recursive=True) if "vllm" in " ".join(each.cmdline())]
    os.kill(engines[-1].pid, signal.SIGKILL)
    until(lambda: not served.health()["ready"])
    until(lambda: served.health()["ready"], STARTS_S)
    assert served.health()["live"] == 11
    served.say("how many apples?")
    assert_exact(perturbed(DEMO_MODEL, 11, 0.01).eval(), last(served))


def test_nothing_is_left_when_serve_is_killed(tmp_path: Path) -> None:
    """Not even while the engine starts: that is when it is easiest to lose."""
    server = Server.starting(tmp_path / "run", DEMO_MODEL, **engine())
    process = psutil.Process(server.pid)
    until(lambda: any("vllm" in " ".join(child.cmdline()) for child in process.children(recursive=True)))
    children = process.children(recursive=True)
    server.kill()
    server.wait()
    _, alive = psutil.wait_procs(children, 60)
    assert not alive


def test_an_argument_that_vllm_does_not_know_is_said_with_exit_code_2(tmp_path: Path) -> None:
    server = Server.starting(tmp_path / "run", DEMO_MODEL, **engine("--no-such-thing"))
    assert server.wait(STARTS_S) == 2
    said = (tmp_path / "run.log").read_text()
    assert "unrecognized arguments: --no-such-thing" in said
    assert "serve.engine_args" in said
