"""How long an answer may be where its client names no limit, and what becomes of a tool call that a limit cuts."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import orjson
import pytest
from asking import body, post
from served import Server
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from test_sdks import rows_since
from transformers import AutoTokenizer

from clawctl.cut_calls import CUT_CALL
from clawctl.serve.dialects import Ask, chat
from clawctl.serve.reading import Reading
from scripts.asgi import serving
from scripts.rehearsal import Rehearsal
from tests.waiting import until

LOOK = {"name": "look", "parameters": {"type": "object", "properties": {}}}
AS_CHAT = {"type": "function", "function": LOOK}
LUCKY = '[[tool:look {"city": "Paris"} ]]'  # a token of blanks comes after what is a whole object


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[Server]:
    """An engine whose cache holds 512 tokens, of all running requests together."""
    with Server(tmp_path_factory.mktemp("small") / "run", model_path, kv_cache_tokens=512) as server:
        yield server
        assert server.stop() == 0, server.log.read_text()


# ---- without a limit -------------------------------------------------------------------------------------------------------


def test_without_a_limit_an_answer_may_take_what_the_context_has_left(small: Server) -> None:
    never_ends = {"2": -100}  # the id of the end token
    for limit in ({}, {"max_tokens": 100_000}):  # a client's own limit is cut to that
        answer = post(small, orjson.dumps({**asked(), "logit_bias": never_ends, **limit})).json()
        assert (answer["choices"][0]["finish_reason"], answer["usage"]["total_tokens"]) == ("length", 512)


def test_answers_without_end_that_fill_the_cache_together_all_come_to_an_end_and_leave_room_for_others(small: Server) -> None:
    async def main() -> list[httpx.Response]:
        async with httpx.AsyncClient(headers={"x-api-key": "key"}, timeout=120) as client:
            endless = {**asked(), "logit_bias": {"2": -100}}
            return list(await asyncio.gather(*(client.post(f"{small.url}/chat/completions", json=endless) for _ in range(3))))

    answers = asyncio.run(main())
    assert [answer.json()["usage"]["total_tokens"] for answer in answers] == [512] * 3
    assert post(small, body()).status_code == 200


def test_a_client_that_leaves_ends_an_answer_without_end(small: Server) -> None:
    before = len(small.captured())
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{small.url}/chat/completions", json={**asked(), "logit_bias": {"2": -100}}, headers={"x-api-key": "key"}, timeout=0.2
        )
    until(lambda: len(small.captured()) > before)
    line = small.captured()[-1]
    assert line["status"] == "cancelled" or len(line["completion_ids"]) < 600
    until(lambda: small.health()["requests"]["running"] == 0)


def test_the_recipes_limit_holds_where_the_client_names_none(tmp_path: Path, model_path: Path) -> None:
    with (
        serving(Rehearsal().app()) as url,
        Server(tmp_path / "run", model_path, upstream={"url": url, "kind": "vllm"}, max_tokens=3) as server,
    ):
        said = server.client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "[[say:a b c d e]]"}])
        assert (said.choices[0].message.content, said.choices[0].finish_reason) == ("a b c", "length")
        longer = server.say("[[say:a b c d e]]", max_tokens=4)
        assert longer.choices[0].message.content == "a b c d", "a client's own limit is the client's"


def test_an_upstream_is_asked_for_no_limit_and_one_that_needs_it_is_told_of(tmp_path: Path, model_path: Path) -> None:
    asked_for: list[dict[str, Any]] = []

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "theirs", "object": "model"}]})

    async def strict(request: Request) -> Response:
        asked_for.append(await request.json())
        return JSONResponse({"error": {"message": "max_tokens: Field required"}}, 400)

    app = Starlette(routes=[Route("/v1/models", models), Route("/v1/chat/completions", strict, methods=["POST"])])
    with serving(app) as url, Server(tmp_path / "run", model_path, upstream={"url": url}) as server:
        refused = post(server, orjson.dumps(asked()))
        assert refused.status_code == 400
        assert "serve.max_tokens" in refused.json()["error"]["message"]
        assert "max_tokens" not in asked_for[-1]
        assert "serve.max_tokens" not in post(server, body()).json()["error"]["message"]


def asked(**settings: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hello"}], **settings}


# ---- cut calls -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 3])  # its name, a half of its arguments, all of them by luck
def test_a_call_that_its_limit_cuts_is_not_trained_in_any_dialect(rehearsed: Server, tokens: int, stream: bool) -> None:
    before = len(rehearsed.captured())
    claude = anthropic.Anthropic(base_url=rehearsed.url.removesuffix("/v1"), api_key="key", max_retries=0)
    said = [{"role": "user", "content": LUCKY}]
    common = {"model": "tiny", "stream": stream}
    answers: list[Any] = [
        rehearsed.client.chat.completions.create(messages=said, max_tokens=tokens, tools=[AS_CHAT], **common),
        rehearsed.client.responses.create(input=LUCKY, max_output_tokens=tokens, tools=[{"type": "function", **LOOK}], **common),
        claude.messages.create(
            messages=said, max_tokens=tokens, tools=[{"name": "look", "input_schema": LOOK["parameters"]}], **common
        ),
    ]
    for answer in answers if stream else ():
        for _ in answer:
            pass
    until(lambda: len(rehearsed.captured()) == before + 3)
    assert [row.untrainable_reason for row in rows_since(rehearsed, before)] == [CUT_CALL] * 3


def test_what_follows_a_cut_call_and_a_text_that_was_cut_are_trained(rehearsed: Server) -> None:
    before = len(rehearsed.captured())
    talk: list[Any] = [{"role": "user", "content": LUCKY}]
    chat_with = rehearsed.client.chat.completions.create
    first = chat_with(model="tiny", messages=talk, tools=[AS_CHAT], max_tokens=2).choices[0].message
    talk.append(first.model_dump(exclude_none=True))
    talk.append({"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "failed to parse [[say:I try again now]]"})
    second = chat_with(model="tiny", messages=talk, tools=[AS_CHAT], max_tokens=2).choices[0]
    assert second.finish_reason == "length"
    talk += [second.message.model_dump(exclude_none=True), {"role": "user", "content": "go on"}]
    chat_with(model="tiny", messages=talk, tools=[AS_CHAT])
    assert [row.untrainable_reason for row in rows_since(rehearsed, before)] == [CUT_CALL, None, "no next state"]


CALL = '<tool_call>\n{"name": "look", "arguments": {}}'


@pytest.mark.parametrize(
    ("sampled", "stop", "cut"),
    [
        (CALL, [], True),
        ("hm <tool_c", [], True),
        (CALL + "\n</tool_call>", [], False),
        (CALL + "\n</tool_call>\nObservation:", ["Observation:"], False),
        (CALL, ["\n{"], True),
        ("It is so. User:", ["User:"], False),
    ],
)
def test_the_embedded_engine_knows_where_an_answer_ended(model_path: Path, sampled: str, stop: list[str], cut: bool) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    ask: Ask = chat.read({**asked(stop=stop), "tools": [AS_CHAT]}, "tiny")
    reading = Reading(tokenizer, ask, False)
    for token in tokenizer.encode(sampled, add_special_tokens=False):
        reading.take(token, -0.5)
        if reading.hit:
            break
    reading.end()
    assert reading.ended_in_call == cut
