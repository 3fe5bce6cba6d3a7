"""Structured answers have the requested form and exact logprobs, and no schema harms the server."""

import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import orjson
import pytest
import torch
from masked import masked_logprobs
from transformers import AutoModelForCausalLM, AutoTokenizer

from clawctl.engines import CannotFollow
from clawctl.engines.structured.grammars import Grammars
from clawctl.run.allowed_tokens import Allowed, unpack
from clawctl.serve.dialects import chat, messages
from clawctl.serve.structured import specification
from tests.named_models import TEXT_MODEL
from tests.serve.served import Server

CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"enum": ["Bonn", "Oslo"]}, "warm": {"type": "boolean"}},
                        "required": ["city", "warm"], "additionalProperties": False}  # fmt: skip
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
CLOCK: Any = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
EOS, THINK, END_THINK = 1017, 1018, 1019  # of the tiny model
VOCABULARY = 1024


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(TEXT_MODEL)


@pytest.fixture(scope="module")
def grammars(tokenizer: Any) -> Iterator[Grammars]:
    made = Grammars(tokenizer, VOCABULARY, [EOS])
    yield made
    made.stop()


def wanted(**changes: Any) -> dict[str, Any]:
    plain = {"calls": [], "max_calls": 32, "json": None, "strict": True, "reasoning": "none", "think": "<think>",
             "end_think": "</think>", "begin": "<tool_call>", "end": "</tool_call>", "begun": ""}  # fmt: skip
    return {**plain, **changes}


def drawn(
    grammars: Grammars, specification: dict[str, Any], seed: int = 0, max_tokens: int = 80, first: tuple[int, ...] = ()
) -> Any:
    """Ids that a model without opinions draws, and the sets that they were drawn from."""
    grammar, choose, ids = grammars.open(json.dumps(specification).encode()), random.Random(seed), list[int]()
    try:
        while len(ids) < max_tokens and ids[-1:] != [EOS]:
            allowed = np.flatnonzero(np.unpackbits(grammar.mask(), bitorder="little"))
            ids.append(first[len(ids)] if len(ids) < len(first) else choose.choice(allowed.tolist()))
            grammar.advance(ids[-1], ids[-1] == EOS)
        return ids, Allowed(VOCABULARY, tuple(grammar.which), tuple(grammar.sets))
    finally:
        grammar.close()


@pytest.mark.parametrize("seed", range(4))
def test_every_drawn_answer_has_the_form(grammars: Grammars, tokenizer: Any, seed: int) -> None:
    call = {"name": 'say "hi"', "schema": CITY, "strict": False}
    ids, sets = drawn(grammars, wanted(calls=[call], max_calls=1), seed)
    text = tokenizer.decode(ids)
    assert ids[-1] == EOS
    parsed = json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call><|im_end|>"))
    assert parsed["name"] == 'say "hi"'
    assert parsed["arguments"]["city"] in ("Bonn", "Oslo")
    assert isinstance(parsed["arguments"]["warm"], bool)
    assert sets.admits(ids)
    ids, _ = drawn(grammars, wanted(json=CITY), seed)
    assert json.loads(tokenizer.decode(ids[:-1])).keys() == {"city", "warm"}


def test_reasoning_before_the_answer_is_free_but_does_not_end_it(grammars: Grammars, tokenizer: Any) -> None:
    begun, sets = drawn(grammars, wanted(json=CITY, reasoning="begun"), first=(300, 301, END_THINK))
    for index in sets.which[:3]:
        free = np.unpackbits(np.frombuffer(sets.sets[index], np.uint8), bitorder="little")
        assert free.sum() > 900
        assert not free[EOS]
    assert json.loads(tokenizer.decode(begun[3:-1])).keys() == {"city", "warm"}
    chosen, sets = drawn(grammars, wanted(json=CITY, reasoning="possible"), first=(THINK, 300, END_THINK))
    assert len(sets.sets[sets.which[0]].replace(b"\0", b"")) < 10  # the beginning of the form, or of reasoning
    assert json.loads(tokenizer.decode(chosen[3:-1])).keys() == {"city", "warm"}
    assert sets.admits(chosen)
    never, _ = drawn(grammars, wanted(json=CITY), max_tokens=1)
    assert never[0] not in (THINK, END_THINK)


@pytest.mark.parametrize(
    ("switches", "settings", "may_think"),
    [(frozenset(), {}, False), (None, {}, True), (frozenset({"enable_thinking"}), {}, True),
     (frozenset({"enable_thinking"}), {"enable_thinking": False}, False)],
)  # fmt: skip
def test_a_structured_answer_reasons_first_only_where_the_template_can_switch_it(tokenizer, switches, settings, may_think) -> None:
    """The tiny model's template only shows reasoning of earlier answers. Its answers were reasoning without an end, and empty."""
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    body = {"messages": [{"role": "user", "content": "hi"}], "response_format": form, "chat_template_kwargs": settings}
    specified = orjson.loads(specification(chat.read(body, "crafts"), tokenizer, False, switches))
    assert (specified["reasoning"] == "possible") is may_think


@pytest.mark.parametrize("begun", ['{"city":', '{"city": "Os', "{", '{"city": "Bonn", "warm": true}'])
def test_a_message_that_the_answer_continues_is_the_beginning_of_its_form(grammars: Grammars, tokenizer: Any, begun: str) -> None:
    ids, _ = drawn(grammars, wanted(json=CITY, begun=begun))
    assert json.loads(begun + tokenizer.decode(ids[:-1])).keys() == {"city", "warm"}
    with pytest.raises(CannotFollow, match="does not begin in this form"):
        grammars.open(json.dumps(wanted(json=CITY, begun="Here it is: " + begun)).encode())


def test_the_prefill_of_a_structured_answer_is_not_repeated(tokenizer: Any) -> None:
    form = {"type": "json_schema", "schema": CITY}
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": '{"city":'}]
    ask = messages.read({"messages": said, "max_tokens": 9, "output_config": {"format": form}}, "crafts")
    specified = orjson.loads(specification(ask, tokenizer, False, None))
    assert (specified["begun"], specified["reasoning"]) == ('{"city":', "none")


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"anyOf": [schema, {"type": "array", "items": schema}]}
    return schema


HOSTILE: dict[str, Any] = {
    "patterns that are all to hold": {"allOf": [{"type": "string", "pattern": f".*{i}.*"} for i in range(100)]},
    "choices that double": nested(16),
    "many optional properties": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(5000)}},
    "many items": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}, "maxItems": 100_000,
                   "minItems": 3},
    "a file elsewhere": {"$ref": "file:///etc/passwd"},
    "a page elsewhere": {"$ref": "http://127.0.0.1:1/x.json"},
    "nothing": False,
    "a loop": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "depth": json.loads('{"type": "array", "items": ' * 400 + "true" + "}" * 400),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_refused_and_the_next_one_is_followed(grammars: Grammars, name: str) -> None:
    with pytest.raises(CannotFollow) as refused:
        drawn(grammars, wanted(json=HOSTILE[name]))
    assert 0 < len(str(refused.value)) < 300
    assert "%llguidance" not in str(refused.value)
    assert drawn(grammars, wanted(json=CITY))[0][-1] == EOS


def test_unsupported_schemas_are_refused_if_strict_and_accept_any_object_for_a_tool(grammars: Grammars) -> None:
    odd = {"type": "object", "patternProperties": {"^a*$": {}, "^(a|b)*$": {}}}
    with pytest.raises(CannotFollow, match="tool 'odd'"):
        drawn(grammars, wanted(calls=[{"name": "odd", "schema": odd, "strict": True}]))
    assert drawn(grammars, wanted(calls=[{"name": "odd", "schema": odd, "strict": False}]), max_tokens=12)
    with pytest.raises(CannotFollow, match="not"):
        drawn(grammars, wanted(json={"not": {"type": "string"}}))


def test_sets_come_back_as_they_were_packed_and_broken_ones_are_refused() -> None:
    full, single = b"\xff" * 4, b"\x02\x00\x00\x00"
    allowed = Allowed(30, (0, -1, 1, 0), (full, single))
    packed = allowed.packed()
    assert packed is not None
    assert unpack(packed) == allowed
    assert allowed.admits([29, 5, 1, 0])
    assert not allowed.admits([29, 5, 2, 0])
    assert not allowed.admits([29, 5, 1])
    for broken in ("", "!", packed[:-8], packed[:6] + "zz" + packed[8:], packed[8:]):
        with pytest.raises(ValueError, match=r"."):
            unpack(broken)


def test_a_turns_sets_take_little_room_in_a_large_vocabulary() -> None:
    bits = np.random.default_rng(0).random(150_000) < 0.9
    sets = list[bytes]()
    for i in range(40):
        bits[i] ^= True
        sets.append(np.packbits(np.append(bits, np.zeros(16, bool)), bitorder="little").tobytes())
    packed = Allowed(150_000, tuple(range(40)) * 50, tuple(sets)).packed()
    assert packed is not None
    assert len(packed) < 100_000


# ---- through the server ------------------------------------------------------------------------------------------------------


def line_of(server: Server, answer_id: str) -> dict[str, Any]:
    return next(line for line in server.captured() if answer_id.endswith(line["exchange_id"]))


def test_a_forced_call_comes_and_its_turn_is_exact_and_trainable(server: Server, model_path: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    named = {"type": "function", "function": {"name": "weather"}}
    for choice in ("required", named):
        answer = server.say(
            "hello", tools=[WEATHER, CLOCK], tool_choice=choice, parallel_tool_calls=False, max_tokens=150, temperature=0.8
        )
        assert answer.choices[0].finish_reason == "tool_calls"
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.name in ("weather", "clock")
        assert choice == "required" or call.function.name == "weather"
        assert json.loads(call.function.arguments).keys() == ({"city", "warm"} if call.function.name == "weather" else set())
        line = line_of(server, answer.id)
        assert line["untrainable_reason"] is None
        assert unpack(line["allowed"]).admits(line["completion_ids"])
        assert line["logprobs"] == pytest.approx(masked_logprobs(model, line), abs=1e-4)


def test_each_api_gets_the_json_that_it_requests(server: Server) -> None:
    schema = {"name": "x", "schema": CITY, "strict": True}
    chat = server.say("hello", response_format={"type": "json_schema", "json_schema": schema}, max_tokens=90)
    responses = server.client.responses.create(
        model="tiny",
        input="hello",
        max_output_tokens=90,
        text={"format": {"type": "json_schema", **schema}},  # type: ignore[typeddict-item]
    )
    request = {"model": "tiny", "max_tokens": 90, "messages": [{"role": "user", "content": "hi"}]}
    url, key = server.url + "/messages", {"x-api-key": "key"}
    formed = httpx.post(
        url, headers=key, json={**request, "output_config": {"format": {"type": "json_schema", "schema": CITY}}}, timeout=60
    )
    for text in (chat.choices[0].message.content, responses.output_text, formed.json()["content"][0]["text"]):
        assert json.loads(text).keys() == {"city", "warm"}
    tools, forced = [{"name": "weather", "input_schema": CITY}], {"type": "any", "disable_parallel_tool_use": True}
    called = httpx.post(
        url, headers=key, json={**request, "tools": tools, "tool_choice": forced, "max_tokens": 200}, timeout=60
    ).json()
    assert called["stop_reason"] == "tool_use"
    assert called["content"][0]["input"].keys() == {"city", "warm"}


def test_choices_streams_and_free_answers_run_beside_one_another(server: Server) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}
    several = server.say("hello", response_format=form, max_tokens=90, n=3, seed=1)
    assert all(json.loads(choice.message.content) for choice in several.choices)
    streamed = "".join(c.choices[0].delta.content or "" for c in server.say("hi", response_format=form, max_tokens=90, stream=True))
    assert json.loads(streamed).keys() == {"city", "warm"}
    assert line_of(server, server.say("hello", max_tokens=8).id)["allowed"] is None


def test_unenforceable_parameters_are_refused_by_the_apis_name(server: Server) -> None:
    wrong = {"type": "json_schema", "name": "x", "schema": HOSTILE["many items"]}
    with pytest.raises(openai.BadRequestError, match=r"'text\.format' cannot be enforced"):
        server.client.responses.create(model="tiny", input="hello", text={"format": wrong})  # type: ignore[typeddict-item]
    with pytest.raises(openai.BadRequestError, match=r"response_format\.type"):
        server.say("hello", response_format={"type": "yaml"})
    with pytest.raises(openai.BadRequestError, match="offer a function"):
        server.say("hello", tool_choice="required")
    with pytest.raises(openai.BadRequestError, match="'n' may be at most"):
        server.say("hello", response_format={"type": "json_object"}, n=20)
