"""A real vLLM server as a child: its samples are captured exactly, a client sees its own output, and versions swap.

All of it in one file, because the processes of the tests share out files, and a second server would take a minute to start."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import orjson
import psutil
import pytest
import torch
from contract import (
    keeps_requests_while_it_is_halted,
    refuses_ids_that_cannot_be_scored,
    scores_given_ids_by_the_version_that_is_named,
    unloads_a_version_that_is_not_in_use,
)
from masked import masked_logprobs
from transformers import AutoTokenizer
from vllm_served import (
    EXACT,
    NEEDS_VLLM,
    STARTS_S,
    SWAPS_S,
    adapted,
    assert_exact,
    assert_logprobs,
    go_live,
    last,
    publish,
    refused,
)

from clawctl.cut_calls import CUT_CALL
from clawctl.engines.vllm.child import SERVER
from clawctl.run.allowed_tokens import unpack
from clawctl.run.keys import add_key
from clawctl.run.policies import begin_policy, move_live
from tests.named_models import TEXT_MODEL
from tests.serve.served import Server, perturbed, until

pytestmark = NEEDS_VLLM
LONG = 3000  # tokens of an answer that nothing but its client ends


def test_ids_and_logprobs_are_those_that_entered_and_left_the_engine(vllm: Server, base: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TEXT_MODEL)
    answer = vllm.say("how many apples?", temperature=0.7, max_tokens=24)
    line = last(vllm)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "how many apples?"}], add_generation_prompt=True)
    assert line["prompt_ids"] == list(prompt["input_ids"] if hasattr(prompt, "keys") else prompt)
    shown = tokenizer.decode(line["completion_ids"], skip_special_tokens=True)
    assert answer.choices[0].message.content == shown
    assert answer.usage.completion_tokens == len(line["completion_ids"])
    assert_exact(base, line)
    text = "".join(
        chunk.choices[0].delta.content or ""
        for chunk in vllm.say("how many pears?", max_tokens=24, stream=True)
    )  # fmt: skip
    assert text == last(vllm)["response"]["content"]
    assert_exact(base, last(vllm))


def test_a_plain_completion_enters_as_it_is_and_its_turn_is_exact(vllm: Server, base: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TEXT_MODEL)
    prompt = "<|im_start|>user\nhow many apples?<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.encode(prompt)
    for given in (prompt, ids):
        completion = vllm.client.completions.create(
            model="tiny", prompt=given, max_tokens=12, logprobs=1, extra_body={"return_token_ids": True}
        )
        line, choice = last(vllm), completion.choices[0]
        assert (choice.prompt_token_ids, choice.token_ids) == (line["prompt_ids"], line["completion_ids"])
        assert line["prompt_ids"] == ids
        assert line["messages"] == [{"role": "user", "content": prompt, "plain": True}]
        assert tokenizer.decode(line["completion_ids"], skip_special_tokens=True) == choice.text == line["response"]["content"]
        assert "".join(choice.logprobs.tokens).startswith(choice.text)
        assert_exact(base, line)
    streamed = vllm.client.completions.create(model="tiny", prompt=[prompt, "one two"], max_tokens=6, stream=True, echo=True)
    texts = {0: "", 1: ""}
    for chunk in streamed:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts[0].startswith(prompt)
    assert texts[1].startswith("one two")


def test_the_client_receives_only_requested_fields(vllm: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": True}
    text = httpx.post(vllm.url + "/chat/completions", json=body, headers={"authorization": "Bearer key"}, timeout=60).text
    assert "token_ids" not in text
    assert "logprobs" not in text
    assert "usage" not in text


def test_streams_have_no_connections_of_their_own(vllm: Server) -> None:
    serve = psutil.Process(vllm.process.pid)
    engine = next(child for child in serve.children(recursive=True) if child.cmdline()[1:3] == ["-m", SERVER])
    port = int(engine.cmdline()[engine.cmdline().index("--port") + 1])
    vllm.say("hi", max_tokens=1)
    before = _connections(serve, port)
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            next(iter(stack.enter_context(vllm.say("how many apples?", max_tokens=400, stream=True))))
        assert _connections(serve, port) <= before


def _connections(process: psutil.Process, port: int) -> int:
    return sum(bool(connection.raddr) and connection.raddr.port == port for connection in process.net_connections("tcp"))


def test_turns_with_altered_sampling_are_kept_untrained_with_the_reason(vllm: Server) -> None:
    vllm.say("hi", temperature=0)
    assert last(vllm)["untrainable_reason"] == "greedy"
    vllm.say("hi", presence_penalty=1.0)
    assert last(vllm)["untrainable_reason"] == "presence_penalty"
    vllm.say("hi", seed=4)
    assert last(vllm)["untrainable_reason"] is None


def test_an_answer_continues_a_message_and_shows_no_call_where_none_is_allowed(vllm: Server, base: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TEXT_MODEL)
    messages: Any = [{"role": "user", "content": "how many apples?"}, {"role": "assistant", "content": "There are "}]
    body = {"model": "m", "max_tokens": 12, "messages": messages}
    assert httpx.post(vllm.url + "/messages", json=body, headers={"x-api-key": "key"}, timeout=60).status_code == 200
    line = last(vllm)
    prompt = "<|im_start|>user\nhow many apples?<|im_end|>\n<|im_start|>assistant\nThere are "
    assert line["prompt_ids"] == tokenizer(prompt, add_special_tokens=False)["input_ids"]
    assert_exact(base, line)
    tool: Any = {"type": "function", "function": {"name": "submit", "parameters": {"type": "object", "properties": {}}}}
    answer = vllm.say("What is 3 + 4? Submit it.", tools=[tool], tool_choice="none", max_tokens=48)
    assert "<tool_call>" not in answer.choices[0].message.content
    assert "submit" not in tokenizer.decode(last(vllm)["prompt_ids"])
    assert_exact(base, last(vllm))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_a_reformatted_answer_enters_the_engine_as_it_was_sampled(vllm: Server, base: Any, dialect: str, stream: bool) -> None:
    path, name, limit = {
        "chat": ("/chat/completions", "messages", "max_completion_tokens"),
        "responses": ("/responses", "input", "max_output_tokens"),
        "messages": ("/messages", "messages", "max_tokens"),
    }[dialect]
    headers = {"authorization": "Bearer key"}
    for number in range(20):  # until the model samples plain words: a tool call, or words with spaces around them, is another case
        talk = [{"role": "user", "content": f"{dialect} {number}: how many apples?"}]
        httpx.post(vllm.url + path, json={"model": "tiny", name: talk, limit: 16}, headers=headers, timeout=60).raise_for_status()
        first = last(vllm)
        assert (first["spliced"], first["unspliced"]) == (0, None)
        said = first["response"]["content"]
        if said and said == said.strip() and "<" not in said:
            break
    talk += [{"role": "assistant", "content": f" {first['response']['content']} \n"}, {"role": "user", "content": "and pears?"}]
    body = {"model": "tiny", name: talk, limit: 16, "stream": stream, "temperature": 0.7}
    answer = httpx.post(vllm.url + path, json=body, headers=headers, timeout=60)
    second, through = last(vllm), first["prompt_ids"] + first["completion_ids"]
    assert (answer.status_code, second["spliced"], second["unspliced"]) == (200, 1, None)
    assert second["prompt_ids"][: len(through)] == through
    assert stream or orjson.dumps(second["response"]["content"]).decode() in answer.text
    assert_exact(base, first)
    assert_exact(base, second)


def test_the_engines_own_refusal_has_its_status_and_reason(vllm: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hi " * 5000}], "max_tokens": 4}
    answer = httpx.post(vllm.url + "/chat/completions", json=body, headers={"authorization": "Bearer key"}, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_a_disconnected_client_is_captured_with_the_sampled_tokens(vllm: Server, base: Any) -> None:
    with vllm.say("hello", stream=True, max_tokens=3000, temperature=1.5, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    until(lambda: vllm.health()["requests"]["running"] == 0)
    line = last(vllm)
    assert (line["status"], line["finish_reason"]) == ("cancelled", None)
    assert 0 <= len(line["completion_ids"] or []) < 3000


def test_an_abandoned_whole_answer_leaves_the_sampled_tokens(vllm: Server, base: Any) -> None:
    before = len(vllm.captured())
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3000, "temperature": 1.5, "ignore_eos": True}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            vllm.url + "/chat/completions", json=body, headers={"authorization": "Bearer key"}, timeout=httpx.Timeout(60, read=4)
        )
    until(lambda: len(vllm.captured()) > before)
    line = last(vllm)
    assert (line["status"], line["finish_reason"], line["policy_version"]) == ("cancelled", None, 0)
    assert 0 < line["ttft_s"] < line["finished_at"] - line["created_at"]
    assert 0 < len(line["completion_ids"]) < 3000
    assert_exact(base, {**line, "untrainable_reason": None})  # it was asked to go on past the end


WEATHER = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"logprobs": True, "top_logprobs": 2},
        {"n": 2, "temperature": 1.0, "top_k": 1},
        {"stop": ["a"]},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"tools": [TOOL]},
    ],
    ids=["plain", "logprobs", "n", "stop", "thinking", "tool"],
)
def test_the_client_receives_the_same_as_from_the_engine_itself(vllm: Server, fields: dict[str, Any]) -> None:
    """The greedy answer, straight and through clawctl, which puts it together from a stream."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "how many apples?"}],
        "max_tokens": 40,
        "temperature": 0,
        **fields,
    }
    url, key = straight_to_the_engine(vllm)
    answers = []
    for address, owner in ((url, key), (url, key), (vllm.url, "key")):  # the first one fills the cache
        answer = httpx.post(address + "/chat/completions", json=body, headers={"authorization": f"Bearer {owner}"}, timeout=120)
        assert answer.status_code == 200, answer.text
        answers.append(content_of(answer.json()))
    assert answers[2] == answers[1]


FORM = {"type": "json_schema", "json_schema": {"name": "place", "schema": WEATHER, "strict": True}}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": FORM},
        {"response_format": FORM, "n": 2, "stream": True, "temperature": 0.7},
        {"response_format": {"type": "json_object"}},
        {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
    ],
    ids=["schema", "stream", "object", "required", "named"],
)
def test_an_answer_in_a_requested_form_is_exact_and_trainable(vllm: Server, base: Any, fields: dict[str, Any]) -> None:
    """vLLM's logprobs are those of the distribution over the tokens that clawctl's grammar allows."""
    before = len(vllm.captured())
    body = {"model": "tiny", "messages": [{"role": "user", "content": "how many apples?"}], "max_tokens": 40, **fields}
    answer = httpx.post(vllm.url + "/chat/completions", json=body, headers={"authorization": "Bearer key"}, timeout=300)
    assert answer.status_code == 200, answer.text
    lines = vllm.captured()[before:]
    assert len(lines) == fields.get("n", 1)
    for line in lines:
        assert line["untrainable_reason"] in (None, CUT_CALL)
        assert unpack(line["allowed"]).admits(line["completion_ids"])
        assert line["logprobs"] == pytest.approx(masked_logprobs(base, line), abs=EXACT)
        if "tools" in fields:
            (call,) = line["response"]["tool_calls"]
            assert orjson.loads(call["function"]["arguments"])["city"] in ("Rome", "Oslo")
        elif fields["response_format"] is FORM:
            assert orjson.loads(line["response"]["content"])["city"] in ("Rome", "Oslo")


def test_a_form_that_cannot_be_enforced_is_refused_and_strict_tools_are_not(vllm: Server, base: Any) -> None:
    many = {"name": "x", "schema": {"type": "array", "items": WEATHER, "minItems": 3, "maxItems": 100_000}}
    with pytest.raises(openai.BadRequestError, match="'response_format' cannot be enforced"):
        vllm.say("hi", response_format={"type": "json_schema", "json_schema": many}, max_tokens=4)
    strict: Any = {"type": "function", "function": {**TOOL["function"], "strict": True}}  # type: ignore[dict-item]
    vllm.say("hi", tools=[strict], max_tokens=8)
    assert_exact(base, last(vllm))
    vllm.say("hi", extra_body={"structured_outputs": {"choice": ["yes", "no"]}}, max_tokens=8)
    assert (last(vllm)["untrainable_reason"], last(vllm)["allowed"]) == ("structured output", None)


def straight_to_the_engine(server: Server) -> tuple[str, str]:
    """Bypasses clawctl, with the key that only the two processes have."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    engine = next(child for child in children if "--port" in child.cmdline() and "VLLM_API_KEY" in child.environ())
    command = engine.cmdline()
    return f"http://127.0.0.1:{command[command.index('--port') + 1]}/v1", engine.environ()["VLLM_API_KEY"]


OWN_NAMES = {"reasoning": "reasoning_content"}  # docs/clients.md: one name for what servers call by two


def content_of(content: Any) -> Any:
    """Without names, times and empty fields, and with the arguments of calls as values, if they are complete."""
    if isinstance(content, list):
        return [content_of(part) for part in content]
    if not isinstance(content, dict):
        return content
    kept = {OWN_NAMES.get(k, k): content_of(v) for k, v in content.items() if k not in ("id", "created") and v not in (None, [])}
    with contextlib.suppress(orjson.JSONDecodeError):
        kept["arguments"] = orjson.loads(kept.get("arguments", ""))
    return kept


def asked_without_key(port: int) -> int | None:
    """The status; None if the port does not serve HTTP, such as those between the engine's processes."""
    try:
        return httpx.post(f"http://127.0.0.1:{port}/collective_rpc", json={"method": "sleep"}, timeout=5).status_code
    except httpx.HTTPError:
        return None


def test_the_engines_own_doors_are_shut(vllm: Server) -> None:
    """Also from this machine, without the key that only the two processes have."""
    child = psutil.Process(vllm.process.pid).children(recursive=True)
    ports = {c.laddr.port for p in child for c in p.net_connections("tcp") if c.status == "LISTEN" and c.laddr.ip == "127.0.0.1"}
    with ThreadPoolExecutor(len(ports)) as pool:
        statuses = [status for status in pool.map(asked_without_key, ports) if status is not None]
    assert statuses == [401]


def test_it_scores_given_ids_by_the_version_that_is_named(vllm: Server, base: Any) -> None:
    model = adapted(21)
    publish(vllm, 21, "adapter", model)
    named = {"tiny@0": base, "tiny@21": model}
    scores_given_ids_by_the_version_that_is_named(vllm, named, {"tiny@0": 0, "tiny@21": 21})
    refuses_ids_that_cannot_be_scored(vllm, 4096)


@pytest.mark.parametrize(("halt", "go_on"), [("pause", "resume"), ("sleep", "wake")])
def test_it_keeps_requests_while_it_is_halted(vllm: Server, halt: str, go_on: str) -> None:
    keeps_requests_while_it_is_halted(vllm, halt, go_on, {"ignore_eos": True}, tokens=250)  # of vLLM one takes longer


def test_it_unloads_a_version_that_is_not_in_use(vllm: Server) -> None:
    publish(vllm, 22, "adapter", adapted(22))
    unloads_a_version_that_is_not_in_use(vllm, 22)


# ---- versions -----------------------------------------------------------------------------------------------------------------


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


def test_two_people_share_the_engine_and_each_is_answered_by_an_adapter_of_their_own(vllm: Server, base: Any) -> None:
    models: dict[str, Any] = {"default": base}
    clients = {"default": vllm.client}
    for seed, name in enumerate(("anna", "bert"), 31):
        key, models[name] = add_key(vllm.run, name, begin_policy(vllm.run, name)), adapted(seed)
        publish(vllm, 1, "adapter", models[name], name=name)
        move_live(vllm.run.of(name), 1)
        clients[name] = openai.OpenAI(base_url=vllm.url, api_key=key, max_retries=0)
        opens = {"authorization": f"Bearer {key}"}
        until(lambda opens=opens: httpx.get(f"{vllm.url}/models", headers=opens).status_code == 200)

    def ask(name: str, model: str = "tiny") -> Any:
        messages: Any = [{"role": "user", "content": "how many apples?"}]
        ignoring = {"ignore_eos": True}
        return clients[name].chat.completions.create(model=model, messages=messages, max_tokens=40, extra_body=ignoring)

    for name in ("anna", "bert"):
        ask(name)  # loads the adapter
    before = len(vllm.captured())
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(ask, [*clients, *clients]))
    lines = vllm.captured()[before:]
    assert sorted((line["policy_name"], line["policy_version"]) for line in lines) == sorted(
        [("anna", 1), ("bert", 1), ("default", 0)] * 2
    )
    for line in lines:
        assert_logprobs(models[line["policy_name"]], line)
    anna, bert = ([line for line in lines if line["policy_name"] == name] for name in ("anna", "bert"))
    assert any(a["created_at"] < b["finished_at"] and b["created_at"] < a["finished_at"] for a in anna for b in bert)  # together
    with pytest.raises(openai.NotFoundError):
        ask("bert", "tiny@anna@1")


@contextlib.contextmanager
def talking(server: Server) -> Iterator[None]:
    """While an answer is being given, which the client gives up at the end."""
    begun, enough, before = threading.Event(), threading.Event(), len(server.captured())

    def listen() -> None:
        with server.say("count", max_tokens=LONG, extra_body={"ignore_eos": True}, stream=True) as answer:
            for _ in answer:
                begun.set()
                if enough.is_set():
                    return
        raise AssertionError("the answer was over before the end")

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(listen)
        try:
            until(lambda: answer.done() or begun.is_set(), SWAPS_S)
            yield
        finally:
            enough.set()
            answer.result()
    until(lambda: any(line["status"] == "cancelled" for line in server.captured()[before:]))


def test_the_base_model_beside_an_adapter_is_the_base_model(vllm: Server, base: Any) -> None:
    models, before = {0: base, 4: adapted(4), 5: adapted(5)}, len(vllm.captured())
    for version in (4, 5):  # of the two slots one holds the last: vLLM's own kernel for the CPU would give it to the base as well
        publish(vllm, version, "adapter", models[version])
        go_live(vllm, version)
        with talking(vllm):
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
    with talking(vllm):
        go_live(vllm, 11)
        vllm.say("how many apples?", max_tokens=24)  # meanwhile the other answer goes on with the new weights
    whole, crossed = sorted(vllm.captured()[before:], key=lambda line: bool(line["status"] == "cancelled"))
    assert_exact(models[11], whole)
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
    engines = [child for child in psutil.Process(vllm.process.pid).children(recursive=True) if "vllm" in " ".join(child.cmdline())]
    os.kill(engines[-1].pid, signal.SIGKILL)
    until(lambda: not vllm.health()["ready"])
    until(lambda: vllm.health()["ready"], STARTS_S)
    assert vllm.health()["live"] == 11
    vllm.say("how many apples?")
    assert_exact(perturbed(TEXT_MODEL, 11, 0.01).eval(), last(vllm))
