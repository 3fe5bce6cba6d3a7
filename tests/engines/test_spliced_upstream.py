"""At an external vLLM, a prompt is sent as ids exactly if answers are spliced as they were sampled."""

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from transformers import AutoTokenizer

from clawctl.engines.requests import EarlierAnswer, GenerationRequest
from clawctl.engines.upstream.bodies import CallPlan, as_completion
from clawctl.engines.upstream.splicer import RENDERED_DIFFERENTLY, Splicer
from clawctl.http_client import Client
from clawctl.serve.answer_decoder import why_undecodable
from clawctl.serve.dialects import chat
from clawctl.serve.prompt import UNCERTAIN, render
from clawctl.serve.recent_answers import prompt_digest
from tests.serve.served import SPECIAL, Server
from tests.stub_http import StubHandler, StubServer, running

CALLS = "{{ call.function | tojson }}", "{{ '<tool_call>\\n' + call.function | tojson + '\\n</tool_call>' }}"
LOOK = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}
SAID = '<think>\nhm\n</think>\n\nLet me  see. <tool_call>\n{"name":"look","arguments":{"at":"x"}}\n</tool_call>'
END = SPECIAL.index("<|im_end|>")


class Fake(StubServer):
    """Returns ids like vLLM 0.32; every answer is SAID, and a chat's is parsed as vLLM parses it."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(Handler)
        self.tokenizer, self.otherwise = tokenizer, False
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def rendered(self, body: dict[str, Any]) -> list[int]:
        request = {"messages": body["messages"], "tools": body.get("tools"), **(body.get("chat_template_kwargs") or {})}
        ids = render(self.tokenizer, chat.read({"model": "m", **request}, "m")).ids
        return [*ids, 1] if self.otherwise else ids

    def sampled(self) -> list[int]:
        pieces = (SAID[i : i + 9] for i in range(0, len(SAID), 9))  # cut as no tokenizer would
        return [token for piece in pieces for token in self.tokenizer(piece)["input_ids"]] + [END]


class Handler(StubHandler):
    server: Fake

    def do_GET(self) -> None:
        self.answer({"data": [{"id": "m", "max_model_len": 4096}]})

    def do_POST(self) -> None:
        body = self.sent()
        if not body or self.path not in ("/tokenize", "/v1/completions", "/v1/chat/completions"):
            self.send_error(404)
            return
        self.server.asked.append((self.path, body))
        if self.path == "/tokenize":
            self.answer({"tokens": self.server.rendered(body)})
        else:
            reply = self.completion(body) if self.path == "/v1/completions" else self.chat(body)
            self.stream(reply) if body.get("stream") else self.answer(reply)

    def completion(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = self.server.sampled()
        tops = [{f"token_id:{token}": -0.5, "token_id:3": -2.0, "token_id:4": -1.0} for token in ids]
        logprobs = {"tokens": [f"token_id:{token}" for token in ids], "token_logprobs": [-0.5] * len(ids), "top_logprobs": tops}
        choice = {"index": 0, "text": "of no use", "logprobs": logprobs, "finish_reason": "stop", "stop_reason": None}
        return {"choices": [choice | {"token_ids": ids, "prompt_token_ids": body["prompt"]}]}

    def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = self.server.sampled()
        call = {"id": "theirs", "type": "function", "function": {"name": "look", "arguments": '{"at":"x"}'}}
        message = {"role": "assistant", "content": "Let me  see.", "reasoning": "hm", "tool_calls": [{"index": 0, **call}]}
        entry = {"token": "x", "logprob": -0.5, "top_logprobs": [{"token": "x", "logprob": -body["temperature"]}]}
        choice = {"index": 0, "message": message, "logprobs": {"content": [entry] * len(ids)}, "finish_reason": "tool_calls"}
        return {"choices": [choice | {"token_ids": ids}], "prompt_token_ids": self.server.rendered(body)}

    def stream(self, reply: dict[str, Any]) -> None:
        """Five ids per chunk; the content of a chat comes with the first."""
        choice, prompt = reply["choices"][0], reply.get("prompt_token_ids")
        ids, logprobs = choice.pop("token_ids"), choice.pop("logprobs")
        finish, message = choice.pop("finish_reason"), choice.pop("message", {})
        data = b""
        for i in range(0, len(ids), 5):
            some = {"token_ids": ids[i : i + 5], "logprobs": {name: values[i : i + 5] for name, values in logprobs.items()}}
            head = {"delta": {} if i else message, "prompt_token_ids": None if i else choice.get("prompt_token_ids")}
            chunk = {"choices": [choice | head | some | {"finish_reason": finish if i + 5 >= len(ids) else None}]}
            data += b"data: " + orjson.dumps(chunk if i else chunk | {"prompt_token_ids": prompt}) + b"\n\n"
        self.answer(data + b"data: [DONE]\n\n")


@pytest.fixture(scope="module")
def family(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, with tool calls as Qwen and Hermes write them."""
    folder = tmp_path_factory.mktemp("family") / "model"
    shutil.copytree(model_path, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert CALLS[0] in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(*CALLS)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(family: Path) -> Any:
    return AutoTokenizer.from_pretrained(family)


@pytest.fixture(scope="module")
def fake(tokenizer: Any) -> Iterator[Fake]:
    with running(Fake(tokenizer)) as server:
        yield server


@pytest.fixture(scope="module")
def through(fake: Fake, family: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    upstream = {"url": fake.url, "kind": "vllm"}
    with Server(tmp_path_factory.mktemp("through") / "run", family, upstream=upstream, splice=True) as running:
        yield running
        assert running.stop() == 0, running.log.read_text()


# ---- through HTTP, in every dialect ----------------------------------------------------------------------------------------


def post(server: Server, path: str, body: dict[str, Any]) -> Any:
    """The whole answer, or the events of a stream."""
    answer = httpx.post(server.url + path, json={"model": "tiny", **body}, headers={"authorization": "Bearer key"}, timeout=60)
    assert answer.status_code == 200, answer.text
    if not body.get("stream"):
        return answer.json()
    return [
        orjson.loads(line[5:]) for line in answer.text.splitlines() if line.startswith("data:") and line[5:].strip() != "[DONE]"
    ]


def in_chat(call: str) -> list[dict[str, Any]]:
    function = {"name": "look", "arguments": '{ "at": "x" }'}
    answer = {
        "role": "assistant",
        "content": "Let me  see.",
        "tool_calls": [{"id": call, "type": "function", "function": function}],
    }
    return [answer, {"role": "tool", "tool_call_id": call, "content": "a lot"}]


def in_responses(call: str) -> list[dict[str, Any]]:
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me  see."}]}
    item = {"type": "function_call", "call_id": call, "name": "look", "arguments": '{ "at": "x" }'}
    return [said, item, {"type": "function_call_output", "call_id": call, "output": "a lot"}]


def in_messages(call: str) -> list[dict[str, Any]]:
    blocks = [{"type": "text", "text": "Let me  see."}, {"type": "tool_use", "id": call, "name": "look", "input": {"at": "x"}}]
    result = {"type": "tool_result", "tool_use_id": call, "content": "a lot"}
    return [{"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]


FUNCTION = LOOK["function"]
FLAT = {"name": "look", "description": "Looks."}  # type: ignore[index]
DIALECTS = {
    "chat": ("/chat/completions", "messages", {"tools": [LOOK]}, in_chat),
    "responses": ("/responses", "input", {"tools": [{**FLAT, "type": "function", "parameters": {"type": "object"}}]}, in_responses),
    "messages": ("/messages", "messages", {"max_tokens": 99, "tools": [{**FLAT, "input_schema": {"type": "object"}}]}, in_messages),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_second_turn_goes_as_ids_and_its_answer_is_read_as_the_first(
    through: Server, fake: Fake, dialect: str, stream: bool
) -> None:
    path, name, settings, came_back = DIALECTS[dialect]
    hello = {"role": "user", "content": f"hello {dialect}"}
    post(through, path, {name: [hello], **settings})
    first = through.captured()[-1]
    call = first["response"]["tool_calls"][0]["id"]
    del fake.asked[:]
    post(through, path, {name: [hello, *came_back(call)], **settings, "stream": stream})
    assert [path for path, _ in fake.asked] == ["/tokenize", "/v1/completions"]
    second = through.captured()[-1]
    assert (second["spliced"], second["unspliced"], second["untrainable_reason"]) == (1, None, None)
    prefix = first["prompt_ids"] + first["completion_ids"]
    assert fake.asked[1][1]["prompt"] == second["prompt_ids"]
    assert second["prompt_ids"][: len(prefix)] == prefix
    assert second["completion_ids"] == first["completion_ids"]
    assert second["logprobs"] == [-0.5] * len(second["completion_ids"])
    assert second["finish_reason"] == first["finish_reason"] == "tool_calls"
    answers = [{key: line["response"].get(key) for key in ("content", "reasoning_content")} for line in (first, second)]
    assert answers[0] == answers[1]
    assert [call["function"] for call in second["response"]["tool_calls"]] == [{"name": "look", "arguments": '{"at":"x"}'}]


def test_likeliest_tokens_are_returned_as_in_a_chat(through: Server, fake: Fake) -> None:
    hello = {"role": "user", "content": "hello tops"}
    post(through, "/chat/completions", {"messages": [hello], "tools": [LOOK]})
    call = through.captured()[-1]["response"]["tool_calls"][0]["id"]
    body = {"messages": [hello, *in_chat(call)], "tools": [LOOK], "logprobs": True, "top_logprobs": 2, "n": 2}
    answer = post(through, "/chat/completions", body)
    entries = answer["choices"][1]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == SAID
    assert [top["logprob"] for top in entries[0]["top_logprobs"]] == [-0.5, -1.0]
    assert entries[0]["top_logprobs"][0]["token"] == entries[0]["token"]


def test_strict_tools_are_sent_as_others_because_an_upstream_would_mask_their_calls(through: Server, fake: Fake) -> None:
    strict = {"type": "function", "function": {**LOOK["function"], "strict": True}}
    hello = {"role": "user", "content": "hello strict"}
    body = {"messages": [hello], "tools": [LOOK, strict], "tool_choice": "auto"}
    answer = httpx.post(f"{through.url}/chat/completions", json=body, headers={"x-api-key": "key"}, timeout=60)
    line = through.captured()[-1]
    assert fake.asked[-1][1]["tools"] == [LOOK, LOOK]
    assert line["untrainable_reason"] is None
    assert (line["tools"], line["adapted"]) == ([LOOK, strict], "tools[].strict ignored")
    assert answer.headers["x-clawctl-ignored"] == "tools[].strict"

    call = line["response"]["tool_calls"][0]["id"]
    post(through, "/chat/completions", {**body, "messages": [hello, *in_chat(call)]})
    assert fake.asked[-1][0] == "/v1/completions"  # spliced, over the prompt of tools that are not strict
    assert (through.captured()[-1]["spliced"], through.captured()[-1]["untrainable_reason"]) == (1, None)


def test_a_forced_call_of_a_strict_tool_is_passed_on_and_not_trained(through: Server, fake: Fake) -> None:
    strict = {"type": "function", "function": {**LOOK["function"], "strict": True}}
    body = {"messages": [{"role": "user", "content": "hello forced"}], "tools": [strict], "tool_choice": "required"}
    post(through, "/chat/completions", body)
    assert fake.asked[-1][1]["tools"] == [strict]
    assert (through.captured()[-1]["untrainable_reason"], through.captured()[-1]["adapted"]) == ("forced tool choice", None)


# ---- when not --------------------------------------------------------------------------------------------------------------


def asking(tokenizer: Any, sampled: str = SAID, **body: Any) -> GenerationRequest:
    """A second turn after a stored first one."""
    hello = {"role": "user", "content": "hello"}
    before = render(tokenizer, chat.read({"messages": [hello], "tools": [LOOK]}, "m")).ids
    ids = [*tokenizer(sampled, add_special_tokens=False)["input_ids"], END]
    ask = chat.read({"messages": [hello, *in_chat("a"), {"role": "user", "content": "so?"}], "tools": [LOOK], **body}, "m")
    return replace(ask, answers={1: [EarlierAnswer(tuple(ids), prompt_digest(before))]})


def plan_of(tokenizer: Any, fake: Fake | str, ask: GenerationRequest) -> CallPlan:
    """`fake`: an engine, or the URL of one."""

    async def main() -> CallPlan:
        async with Client(fake if isinstance(fake, str) else fake.url, None) as client:
            return await Splicer(tokenizer, client).plan(ask, "m")

    return asyncio.run(main())


def test_an_ask_without_known_answers_or_whose_prompt_would_be_the_same_goes_as_it_is(tokenizer: Any, fake: Fake) -> None:
    hello = {"role": "user", "content": "hello"}
    ask = chat.read({"messages": [hello, {"role": "assistant", "content": "thanks"}, hello]}, "m")
    ids = (*tokenizer("thanks", add_special_tokens=False)["input_ids"], END)
    del fake.asked[:]
    assert plan_of(tokenizer, fake, ask) == CallPlan(spliced=0)
    assert plan_of(tokenizer, fake, replace(ask, answers={1: [EarlierAnswer(ids, b"")]})) == CallPlan(spliced=0)
    assert fake.asked == []
    assert plan_of(tokenizer, fake, replace(ask, answers={1: [EarlierAnswer((*ids[:-1], 50, END), b"")]})).spliced == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [({"tool_choice": "required"}, "forced tool choice"), ({"response_format": {"type": "json_object"}}, "structured output")],
)
def test_requests_that_need_the_engines_own_parsers_are_sent_unchanged(
    tokenizer: Any, fake: Fake, body: dict[str, Any], reason: str | None
) -> None:
    assert plan_of(tokenizer, fake, asking(tokenizer, **body)) == CallPlan(spliced=0, unspliced=reason)


def test_an_engine_with_a_different_or_unknown_rendering_gets_messages(tokenizer: Any, fake: Fake) -> None:
    fake.otherwise = True
    try:
        assert plan_of(tokenizer, fake, asking(tokenizer)) == CallPlan(spliced=0, unspliced=RENDERED_DIFFERENTLY)
    finally:
        fake.otherwise = False
    assert plan_of(tokenizer, "http://127.0.0.1:9", asking(tokenizer)) == CallPlan(spliced=0, unspliced=RENDERED_DIFFERENTLY)


def test_an_unsupported_model_family_gets_messages_and_the_turn_has_the_reason(tokenizer: Any, fake: Fake, family: Path) -> None:
    other = AutoTokenizer.from_pretrained(family)
    other.chat_template = other.chat_template.replace("<tool_call>", "[CALL]").replace("</tool_call>", "[/CALL]")
    plan = plan_of(other, fake, asking(other))
    assert (plan.prompt, plan.spliced, plan.unspliced) == (None, 0, why_undecodable(other.chat_template, True))
    assert why_undecodable("<|im_start|> <tool_call> <function=", True)
    assert why_undecodable("<|start|>assistant<|channel|>", False)
    assert why_undecodable("<|im_start|>", False) is None


def test_a_turn_with_uncertain_positions_or_images_has_the_reason(tokenizer: Any, fake: Fake, family: Path) -> None:
    other = AutoTokenizer.from_pretrained(family)
    other.chat_template = other.chat_template.replace("(m.content or '')", "(m.content or '')|length|string")
    assert plan_of(other, fake, asking(other)).unspliced == UNCERTAIN
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    ask = asking(tokenizer)
    seen = replace(ask, messages=[{"role": "user", "content": [image]}, *ask.messages[1:]])
    assert "images" in (plan_of(tokenizer, fake, seen).unspliced or "")


def test_a_completion_requests_the_same_as_its_chat() -> None:
    request = {
        "model": "m",
        "temperature": 0.5,
        "seed": 3,
        "stop": ["x"],
        "top_logprobs": 2,
        "return_token_ids": True,
        "stream": True,
    }
    only_a_chats = {"messages": [], "tools": [LOOK], "tool_choice": "auto", "parallel_tool_calls": False, "reasoning_effort": "low"}
    body = as_completion({**request, **only_a_chats, "logprobs": True, "max_tokens": None}, [1, 2])
    ours = {"prompt": [1, 2], "logprobs": 2, "return_tokens_as_token_ids": True, "max_tokens": None}
    assert body == {name: value for name, value in request.items() if name != "top_logprobs"} | ours
