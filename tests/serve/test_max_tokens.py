"""The length of an answer without a client's limit, and tool calls that a limit cuts."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import orjson
import pytest
from asking import post
from served import Server
from test_sdks import rows_since
from transformers import AutoTokenizer

from clawctl.config import PrivacyConfig
from clawctl.cut_calls import CUT_CALL
from clawctl.engines import Sampled
from clawctl.engines.requests import CallDelta, CallStart, Event, GenerationRequest, Shown
from clawctl.serve.answer import Answer, new_handle
from clawctl.serve.answer_decoder import AnswerDecoder
from clawctl.serve.capture import Capture
from clawctl.serve.dialects import chat
from tests.waiting import until

LOOK = {"name": "look", "parameters": {"type": "object", "properties": {}}}
AS_CHAT = {"type": "function", "function": LOOK}
LUCKY = '[[tool:look {"city": "Paris"} ]]'  # a token of blanks follows a complete object


# ---- without a limit -------------------------------------------------------------------------------------------------------


NEVER_ENDS = {"2": -100}  # the id of the end token
CONTEXT = 4096  # tokens; the cache of the engine holds two of them


def nearly_full(word: str) -> dict[str, Any]:
    """A conversation that leaves a hundred tokens or two."""
    return {"messages": [{"role": "user", "content": word + " hello" * 1985}], "logit_bias": NEVER_ENDS}


def test_without_a_limit_an_answer_may_use_the_rest_of_the_context(server: Server) -> None:
    for limit in ({}, {"max_tokens": 100_000}):  # a client's own limit is cut to that
        answer = post(server, orjson.dumps({**nearly_full("one"), **limit})).json()
        assert (answer["choices"][0]["finish_reason"], answer["usage"]["total_tokens"]) == ("length", CONTEXT)
        assert 10 < answer["usage"]["completion_tokens"] < 1000


def test_answers_without_end_that_overfill_the_cache_together_all_come_to_an_end(server: Server) -> None:
    async def main() -> list[httpx.Response]:
        async with httpx.AsyncClient(headers={"x-api-key": "key"}, timeout=120) as client:
            asks = (client.post(f"{server.url}/chat/completions", json=nearly_full(word)) for word in ("two", "three", "four"))
            return list(await asyncio.gather(*asks))

    answers = asyncio.run(main())
    assert [answer.json()["usage"]["total_tokens"] for answer in answers] == [CONTEXT] * 3


def test_a_client_that_leaves_ends_an_answer_without_end(server: Server) -> None:
    before, endless = len(server.captured()), {**asked(), "logit_bias": NEVER_ENDS}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/chat/completions", json=endless, headers={"x-api-key": "key"}, timeout=0.3)
    until(lambda: len(server.captured()) > before)
    line = server.captured()[-1]
    assert (line["status"], len(line["completion_ids"]) < CONTEXT - 100) == ("cancelled", True)


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


def test_turns_after_a_cut_call_and_cut_texts_are_trained(rehearsed: Server) -> None:
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
def test_the_embedded_engine_records_where_an_answer_ended(model_path: Path, sampled: str, stop: list[str], cut: bool) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    ask: GenerationRequest = chat.read({**asked(stop=stop), "tools": [AS_CHAT]}, "tiny")
    reading = AnswerDecoder(tokenizer, ask, False)
    for token in tokenizer.encode(sampled, add_special_tokens=False):
        reading.add(token, -0.5)
        if reading.hit:
            break
    reading.end()
    assert reading.ended_in_call == cut


def test_an_upstream_without_plain_completions_is_named(rehearsed: Server) -> None:
    answer = post(rehearsed, b'{"prompt": "hi"}', path="/completions")
    assert (answer.status_code, "/v1/completions" in answer.json()["error"]["message"]) == (501, True)


class TextDelta:
    """A reply that an engine has parsed itself."""

    def __init__(self, sampled: Sampled, *events: Event) -> None:
        self.sampled, self._events = sampled, list(events)

    async def __aiter__(self) -> AsyncIterator[Shown]:
        yield Shown(self._events, [])

    def cancel(self) -> None: ...


@pytest.mark.parametrize(
    ("finish", "stop", "arguments", "reason"),
    [
        ("tool_calls", None, "{}", None),
        ("tool_calls", "\n", "{}", CUT_CALL),  # the stop string may be in the call: the engine does not report it
        ("tool_calls", None, '{"a', CUT_CALL),
        ("length", None, "{}", CUT_CALL),
        (None, None, "{}", CUT_CALL),  # the stream ended in order, without an end of the answer
    ],
)
def test_answers_parsed_by_the_engine_are_captured_with_the_reason(
    tmp_path: Path, finish: str | None, stop: str | None, arguments: str, reason: str | None
) -> None:
    async def main() -> None:
        ask = chat.read({**asked(), "tools": [AS_CHAT]}, "tiny")
        sampled = Sampled(1.0, 1.0, 0, [1], [2], [-0.5], 0, 0, finish_reason=finish, stop_sequence=stop)
        capture, handle = Capture(tmp_path, PrivacyConfig()), new_handle()
        reply = TextDelta(sampled, CallStart("look"), CallDelta(arguments))
        answer = Answer([ask], chat.Chat(ask, handle), handle, 0.0, {}, capture)
        answer.begin([reply])
        async for _ in answer.pieces():
            pass
        capture.close()

    asyncio.run(main())
    (line,) = next(tmp_path.glob("*.jsonl")).read_bytes().splitlines()
    assert orjson.loads(line)["untrainable_reason"] == reason
