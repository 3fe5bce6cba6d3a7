"""Tokens to text to events: no shown text is retracted, and none is lost."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from clawctl.engines.requests import CallDelta, CallStart, Event, ReasoningDelta, TextDelta
from clawctl.serve.text import Detokenizer, Parser, StopCutter, joined


@pytest.fixture(scope="module")
def tokenizer(model_path: Any) -> Any:
    return AutoTokenizer.from_pretrained(model_path)


def parse(pieces: list[str], thinking: bool = False, tools: bool = True) -> list[Event]:
    parser = Parser(thinking, tools)
    return joined([event for piece in pieces for event in parser.feed(piece)] + parser.end())


ANSWER = '<think>\nhm, 2 < 3\n</think>\n\nI look. \n<tool_call>\n{"name": "look", "arguments": {"at": "<x>"}}\n</tool_call>\n'


@given(st.lists(st.integers(0, len(ANSWER)), max_size=12))
def test_events_do_not_depend_on_how_the_text_is_cut(cuts: list[int]) -> None:
    borders = [0, *sorted(cuts), len(ANSWER)]
    pieces = [ANSWER[a:b] for a, b in pairwise(borders)]
    assert parse(pieces) == [ReasoningDelta("hm, 2 < 3"), TextDelta("I look."), CallStart("look"), CallDelta('{"at": "<x>"}')]


def test_without_tools_a_tool_call_is_text() -> None:
    assert parse(["a <tool_call>{}</tool_call>"], tools=False) == [TextDelta("a <tool_call>{}</tool_call>")]


def test_a_malformed_tool_call_is_shown_as_it_was_written() -> None:
    assert parse(["<tool_call>{oops</tool_call>"]) == [TextDelta("<tool_call>{oops</tool_call>")]
    assert parse(["<tool_call>{unfinished"]) == [TextDelta("<tool_call>{unfinished")]
    nameless = '<tool_call>{"arguments": {}}</tool_call>'
    assert parse(list(nameless)) == [TextDelta(nameless)]


def test_arguments_are_shown_as_they_come_and_end_where_their_object_ends() -> None:
    parser = Parser(thinking=False, tools=True)
    assert parser.feed('<tool_call>{"name": "sa') == []
    assert parser.feed('y", "arguments": ') == []  # they might be no object
    assert parser.feed('{"a": "}\\"') == [CallStart("say"), CallDelta('{"a": "}\\"')]
    assert parser.feed('{", "b": {}') == [CallDelta('{", "b": {}')]
    assert parser.feed("}}\n</tool_call>") == [CallDelta("}")]
    assert parser.end() == []


def test_a_truncated_call_keeps_its_text() -> None:
    assert parse(['<tool_call>{"name": "say", "arguments": {"a": 1</to']) == [CallStart("say"), CallDelta('{"a": 1</to')]


def test_a_call_written_in_another_order_is_a_call() -> None:
    other = '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>'
    assert parse(list(other)) == [CallStart("f"), CallDelta('{"a":1}')]
    text = '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>'
    assert parse(list(text)) == [CallStart("f"), CallDelta('{"a": 1}')]


def test_parallel_tool_calls_are_separate() -> None:
    two = '<tool_call>{"name":"a","arguments":{}}</tool_call>\n<tool_call>{"name":"b","arguments":{}}</tool_call>'
    assert parse(list(two)) == [CallStart("a"), CallDelta("{}"), CallStart("b"), CallDelta("{}")]


def test_reasoning_begun_in_the_prompt_ends_in_the_answer() -> None:
    assert parse(["so it", " is\n</thi", "nk>\n\nYes"], thinking=True) == [ReasoningDelta("so it is"), TextDelta("Yes")]


def test_text_that_resembles_a_marker_is_shown() -> None:
    assert parse(["1 <", " 2 and <tool", "box>"]) == [TextDelta("1 < 2 and <toolbox>")]
    assert parse(["<thin", "g>"]) == [TextDelta("<thing>")]


def test_trailing_blanks_of_an_answer_without_a_call_are_kept() -> None:
    assert parse(["done.", " \n"]) == [TextDelta("done. \n")]


@given(st.text(alphabet="abEND ", max_size=30), st.integers(1, 5))
def test_a_stop_string_cuts_where_it_begins_however_it_is_spread(text: str, size: int) -> None:
    cutter = StopCutter(["END", "bb"])
    shown = "".join(cutter.feed(text[i : i + size]) for i in range(0, len(text), size)) + cutter.end()
    ends = [at for stop in ("END", "bb") if (at := text.find(stop)) >= 0]
    assert shown == text[: min(ends, default=len(text))]
    assert (cutter.hit is not None) == bool(ends)


@settings(max_examples=30, deadline=None)
@given(text=st.text(max_size=40))
def test_a_character_is_never_split(tokenizer: Any, text: str) -> None:
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.feed(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    assert "".join(pieces) + detokenizer.end() == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


def test_bytes_that_are_no_text_come_out_at_the_end(tokenizer: Any) -> None:
    detokenizer = Detokenizer(tokenizer)
    half = tokenizer("é", add_special_tokens=False)["input_ids"][:1]
    assert [detokenizer.feed(token) for token in half] == [""]
    assert detokenizer.end() == "\ufffd"


def test_end_tokens_are_never_text(tokenizer: Any) -> None:
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.feed(tokenizer.eos_token_id) == ""
    assert detokenizer.is_hidden(tokenizer.eos_token_id)
