"""The official SDKs and LangChain against real servers: the embedded engine, and a rehearsed upstream that calls tools."""

import http.client
from typing import Any, Literal

import anthropic
import httpx
import openai
import pydantic
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from served import Server

from clawctl.collect.sessions import Sessions
from clawctl.run.rows import Exchange, Turn
from tests.extension import needs

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
ORDER = 'How is it there? [[think]] [[tool:look {"city": "Paris"}]] [[tool:look { "city":  "Rome"}]]'
SAID = "It says: sunny / rainy"


@pytest.fixture(params=["embedded", "rehearsed"])
def either(request: pytest.FixtureRequest) -> Server:
    served: Server = request.getfixturevalue("server" if request.param == "embedded" else "rehearsed")
    return served


def claude(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url.removesuffix("/v1"), api_key="key", max_retries=0)


def rows_since(server: Server, before: int) -> list[Turn]:
    """The turns that collect makes of what was captured since."""
    sessions = Sessions(3600.0)
    for line in server.captured()[before:]:
        sessions.add(Exchange(**line))
    sessions.tick(1e12)
    return sorted(sessions.pop_rows(), key=lambda row: row.created_at)


def assert_one_trainable_session(rows: list[Turn], length: int) -> None:
    assert len(rows) == length
    assert len({row.session_id for row in rows}) == 1
    assert [row.parent_turn_id for row in rows] == [None, *(row.turn_id for row in rows[:-1])]
    assert [row.untrainable_reason for row in rows] == [None] * (length - 1) + ["no next state"]


# ---- words ---------------------------------------------------------------------------------------------------------------------


def test_openai_responses_streamed_and_not(either: Server) -> None:
    whole = either.client.responses.create(model="tiny", input="hello", max_output_tokens=12)
    assert whole.status in ("completed", "incomplete")
    assert whole.usage is not None
    assert whole.usage.output_tokens <= 12
    text = ""
    with either.client.responses.stream(model="tiny", input="hello", max_output_tokens=12) as stream:
        for event in stream:
            text += event.delta if event.type == "response.output_text.delta" else ""
            last = event.type
        final = stream.get_final_response() if last == "response.completed" else None
    assert last in ("response.completed", "response.incomplete")
    line = either.captured()[-1]
    assert line["response"]["content"] == text
    assert (line["api"], line["messages"]) == ("responses", [{"role": "user", "content": "hello"}])
    if final is not None:
        assert final.output_text == text
        assert final.id == "resp" + line["exchange_id"]


@needs("secrets")
def test_anthropic_messages_streamed_and_not(either: Server) -> None:
    client, hello = claude(either), [{"role": "user", "content": "hello"}]
    whole = client.messages.create(model="tiny", max_tokens=12, messages=hello, system="be nice")
    assert whole.stop_reason in ("end_turn", "max_tokens")
    assert 0 < whole.usage.output_tokens <= 12
    with client.messages.stream(model="tiny", max_tokens=12, messages=hello, system="be nice") as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    line = either.captured()[-1]
    assert (line["api"], line["response"]["content"]) == ("messages", text)
    assert final.id == "msg" + line["exchange_id"]
    assert final.usage.output_tokens == len(line["completion_ids"])
    counted = client.messages.count_tokens(model="tiny", messages=hello, system="be nice").input_tokens
    assert counted == len(line["prompt_ids"])
    assert whole._request_id
    client.close()


def test_a_response_can_be_continued_fetched_and_forgotten(either: Server) -> None:
    before, talk = len(either.captured()), either.client.responses
    first = talk.create(model="tiny", input="hello", instructions="be nice", max_output_tokens=8)
    second = talk.create(model="tiny", input="and?", previous_response_id=first.id, max_output_tokens=8)
    lines = either.captured()[before:]
    answer = lines[0]["response"] | {"handle": lines[0]["exchange_id"]}
    assert lines[1]["messages"] == [{"role": "user", "content": "hello"}, answer, {"role": "user", "content": "and?"}]
    assert lines[1]["hints"]["parent"] == lines[0]["exchange_id"]
    assert_one_trainable_session(rows_since(either, before), 2)
    assert talk.retrieve(first.id).output_text == first.output_text
    talk.delete(first.id)
    for call in (talk.retrieve, talk.delete):
        with pytest.raises(openai.NotFoundError):
            call(first.id)
    with pytest.raises(openai.BadRequestError, match="not found"):
        talk.create(model="tiny", input="and?", previous_response_id=first.id)
    unkept = talk.create(model="tiny", input="hello", store=False, max_output_tokens=8)
    with pytest.raises(openai.BadRequestError, match="not found"):
        talk.create(model="tiny", input="and?", previous_response_id=unkept.id)
    assert talk.create(model="tiny", input="so?", previous_response_id=second.id, max_output_tokens=8).id


def test_an_item_that_we_gave_can_be_named_instead_of_sent(either: Server) -> None:
    before, talk = len(either.captured()), either.client.responses
    first = talk.create(model="tiny", input="hello", max_output_tokens=8)
    items: Any = [{"role": "user", "content": "hello"}, {"role": "user", "content": "and?"}]
    for name in (first.output[-1].id, "msg_" + 24 * "0" + "0"):
        items.insert(1, {"type": "item_reference", "id": name})
    talk.create(model="tiny", input=items, max_output_tokens=8)
    lines = either.captured()[before:]
    answer = lines[0]["response"] | {"handle": lines[0]["exchange_id"]}
    assert lines[1]["messages"] == [{"role": "user", "content": "hello"}, answer, {"role": "user", "content": "and?"}]
    talk.delete(first.id)
    with pytest.raises(openai.BadRequestError, match="input"):
        talk.create(model="tiny", input=[{"type": "item_reference", "id": first.output[-1].id}])


def test_the_embedded_engine_refuses_parameters_that_it_cannot_enforce(server: Server) -> None:
    tool: Any = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
    for name, value in (("min_tokens", 4), ("guided_regex", "a+"), ("stop_token_ids", [3])):
        with pytest.raises(openai.BadRequestError, match=rf"the embedded engine does not support '{name}'.*vllm"):
            server.say("hello", extra_body={name: value})
    settings: Any = {"model": "tiny", "max_tokens": 8, "messages": [{"role": "user", "content": "x"}]}
    wanted = {"output_config": {"format": {"type": "json_schema", "schema": {"enum": []}}}}
    with pytest.raises(anthropic.BadRequestError, match=r"'output_config\.format'"):  # each API's own name for it
        claude(server).messages.create(**settings, extra_body=wanted)
    assert server.say("hello", tools=[tool], tool_choice="none").choices
    assert server.say("hello", response_format={"type": "text"}).choices


def test_errors_are_the_sdks_own(either: Server) -> None:
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=either.url.removesuffix("/v1"), api_key="wrong", max_retries=0).messages.count_tokens(
            model="tiny", messages=[{"role": "user", "content": "x"}]
        )
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        claude(either).messages.create(model="tiny", max_tokens=0, messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.BadRequestError, match="input"):
        either.client.responses.create(model="tiny", input=3)


# ---- tools: each conversation is one trainable session ---------------------------------------------------------------------------


def test_openai_chat_calls_tools(rehearsed: Server) -> None:
    before, messages = len(rehearsed.captured()), [{"role": "user", "content": ORDER}]
    tools: Any = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    create: Any = rehearsed.client.chat.completions.create
    first = create(model="m", messages=messages, tools=tools).choices[0]
    assert first.finish_reason == "tool_calls"
    assert first.message.reasoning_content == "I think about it."
    messages.append(first.message)
    for call, weather in zip(first.message.tool_calls, ("sunny", "rainy"), strict=True):
        messages.append({"role": "tool", "tool_call_id": call.id, "content": weather})
    with rehearsed.client.chat.completions.stream(model="m", messages=messages, tools=tools) as stream:
        second = stream.get_final_completion().choices[0]
    assert second.message.content == SAID
    messages += [{"role": "assistant", "content": SAID}, {"role": "user", "content": "Thanks [[say:Bye]]"}]
    assert create(model="m", messages=messages, tools=tools).choices[0].message.content == "Bye"
    assert_one_trainable_session(rows_since(rehearsed, before), 3)


def test_openai_responses_calls_tools(rehearsed: Server) -> None:
    before, tools = len(rehearsed.captured()), [{"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}]
    items: list[Any] = [{"role": "user", "content": ORDER}]
    with rehearsed.client.responses.stream(model="m", input=items, tools=tools) as stream:
        first = stream.get_final_response()
    calls = [item for item in first.output if item.type == "function_call"]
    assert [call.arguments for call in calls] == ['{"city": "Paris"}', '{ "city":  "Rome"}']
    items += [item.model_dump(exclude_none=True) for item in first.output]
    items += [
        {"type": "function_call_output", "call_id": call.call_id, "output": weather}
        for call, weather in zip(calls, ("sunny", "rainy"), strict=True)
    ]
    second: Any = rehearsed.client.responses.create(model="m", input=items, tools=tools)
    assert second.output_text == SAID
    last: Any = rehearsed.client.responses.create(
        model="m", input="Thanks [[say:Bye]]", previous_response_id=second.id, tools=tools
    )  # fmt: skip
    assert last.output_text == "Bye"
    bare: Any = rehearsed.client.responses.create(model="m", input="So? [[say:So]]", previous_response_id=last.id, temperature=0.5)
    assert bare.output_text == "So"  # without the tools, and with another temperature
    assert_one_trainable_session(rows_since(rehearsed, before), 4)


def test_anthropic_messages_calls_tools(rehearsed: Server) -> None:
    before, client = len(rehearsed.captured()), claude(rehearsed)
    tools: Any = [{"name": "look", "input_schema": SCHEMA}]
    messages: list[Any] = [{"role": "user", "content": ORDER}]
    with client.messages.stream(model="m", max_tokens=99, messages=messages, tools=tools) as stream:
        first = stream.get_final_message()
    assert first.stop_reason == "tool_use"
    uses = [block for block in first.content if block.type == "tool_use"]
    assert [use.input for use in uses] == [{"city": "Paris"}, {"city": "Rome"}]
    results = [
        {"type": "tool_result", "tool_use_id": use.id, "content": weather}
        for use, weather in zip(uses, ("sunny", "rainy"), strict=True)
    ]
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    second: Any = client.messages.create(model="m", max_tokens=99, messages=messages, tools=tools)
    assert second.content[0].text == SAID
    messages += [{"role": "assistant", "content": second.content}, {"role": "user", "content": "Thanks [[say:Bye]]"}]
    assert client.messages.create(model="m", max_tokens=99, messages=messages, tools=tools).content[0].text == "Bye"
    assert_one_trainable_session(rows_since(rehearsed, before), 3)
    client.close()


@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
def test_langchain_calls_tools(rehearsed: Server, responses: bool) -> None:
    before, tool = len(rehearsed.captured()), {"name": "look", "description": "looks", "parameters": SCHEMA}
    chat = ChatOpenAI(model="m", base_url=rehearsed.url, api_key="key", max_retries=0, use_responses_api=responses)
    model = chat.bind_tools([{"type": "function", "function": tool}])
    messages: list[BaseMessage] = [HumanMessage(ORDER)]
    first = model.invoke(messages)
    assert isinstance(first, AIMessage)
    assert [call["args"] for call in first.tool_calls] == [{"city": "Paris"}, {"city": "Rome"}]
    messages.append(first)
    for call, weather in zip(first.tool_calls, ("sunny", "rainy"), strict=True):
        messages.append(ToolMessage(weather, tool_call_id=call["id"]))
    second, *more = model.stream(messages)
    for chunk in more:
        second += chunk
    assert second.text == SAID
    messages += [second, HumanMessage("Thanks [[say:Bye]]")]
    assert model.invoke(messages).text == "Bye"
    assert_one_trainable_session(rows_since(rehearsed, before), 3)


# ---- helpers of the SDKs -------------------------------------------------------------------------------------------------------


class City(pydantic.BaseModel):
    city: Literal["Paris", "Rome"]


def test_helpers_of_openais_sdk(server: Server) -> None:
    client, said = server.client, [{"role": "user", "content": "a city"}]
    assert client.chat.completions.parse(model="tiny", messages=said, response_format=City).choices[0].message.parsed is not None
    assert client.responses.parse(model="tiny", input="a city", text_format=City).output_parsed is not None
    raw = client.responses.with_raw_response.create(model="tiny", input="hello", max_output_tokens=4)
    assert raw.headers["x-request-id"]
    with client.chat.completions.with_streaming_response.create(model="tiny", messages=said, max_tokens=4) as response:
        assert list(response.iter_lines())
    with client.chat.completions.stream(model="tiny", messages=said, max_tokens=4) as stream:
        assert [event.type for event in stream][-1] in ("content.done", "chunk", "tool_calls.function.arguments.done")
    single = client.responses.input_tokens.count(model="tiny", input="hello")
    more = client.responses.input_tokens.count(model="tiny", input="hello", instructions="Be short.")
    after = client.responses.input_tokens.count(model="tiny", input="hello", previous_response_id=raw.parse().id)
    assert 0 < single.input_tokens < min(more.input_tokens, after.input_tokens)
    upgrade: Any = {"headers": {"upgrade": "websocket", "connection": "upgrade"}}
    for refused in (
        lambda: client.responses.compact(model="tiny", input=said),
        lambda: list(client.responses.retrieve(raw.parse().id, stream=True)),
        lambda: client.get("/responses", cast_to=httpx.Response, options=upgrade),
    ):
        with pytest.raises(openai.APIStatusError, match=r"summary|leave out|WebSockets") as caught:
            refused()
        assert caught.value.status_code in (400, 404)


def test_helpers_of_anthropics_sdk(server: Server, rehearsed: Server) -> None:
    client, said = claude(server), [{"role": "user", "content": "a city"}]
    assert client.messages.parse(model="tiny", max_tokens=40, messages=said, output_format=City).parsed_output is not None
    assert client.beta.messages.parse(model="tiny", max_tokens=40, messages=said, output_format=City).parsed_output is not None
    assert client.messages.with_raw_response.create(model="tiny", max_tokens=4, messages=said).headers["request-id"]
    with client.beta.messages.stream(model="tiny", max_tokens=4, messages=said) as stream:
        assert stream.get_final_message().stop_reason
    assert client.beta.messages.count_tokens(model="tiny", messages=said).input_tokens > 0

    @anthropic.beta_tool
    def look(city: str) -> str:
        """Look at a city.

        Args:
            city: its name
        """
        return f"sunny in {city}"

    before = len(rehearsed.captured())
    ordered = [{"role": "user", "content": ORDER}]
    for stream in (False, True):
        runner = claude(rehearsed).beta.messages.tool_runner(
            model="tiny", max_tokens=100, tools=[look], messages=ordered, stream=stream, max_iterations=2
        )
        turns = [turn.get_final_message() if stream else turn for turn in runner]
        assert [turn.stop_reason for turn in turns] == ["tool_use", "end_turn"]
    assert len(rows_since(rehearsed, before)) == 4


def test_a_forced_call_that_was_cut_shows_no_markup(server: Server) -> None:
    tool = {"type": "function", "function": {"name": "look_at_the_weather_in", "parameters": SCHEMA}}
    for length in range(1, 9):
        settings: dict[str, Any] = {"tools": [tool], "tool_choice": "required", "max_tokens": length}
        message = server.say("Paris?", **settings).choices[0].message
        assert "<tool" not in (message.content or "")
        with server.say("Paris?", stream=True, **settings) as stream:
            assert "<tool" not in "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_each_chunk_has_the_usage_so_far_if_the_client_asks_for_it(server: Server) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(server.say("hello", stream=True, max_tokens=6, stream_options=options))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    plain = server.client.completions.create(model="tiny", prompt="hello", stream=True, max_tokens=6, stream_options=options)
    assert all(chunk.usage is not None for chunk in plain)


def test_a_body_may_begin_with_a_byte_order_mark_and_one_that_is_too_large_is_refused_before_the_connection_ends(
    server: Server,
) -> None:
    headers = {"authorization": "Bearer key", "content-type": "application/json"}
    body = b'\xef\xbb\xbf{"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}'
    assert httpx.post(f"{server.url}/chat/completions", content=body, headers=headers, timeout=60).status_code == 200
    for _ in range(10):
        connection = http.client.HTTPConnection(server.url.split("/")[2], timeout=60)  # it sends the whole body before it reads
        connection.request("POST", "/v1/chat/completions", b'{"model": "' + b"x" * (60 << 20) + b'"}', headers)
        assert connection.getresponse().status == 413
        connection.close()
