"""Which answers contain a truncated tool call, and which only resemble one."""

import re
from typing import Any

import pytest

from clawctl.cut_calls import CUT_CALL, has_cut_call
from tests.collect.made_exchanges import answer, asked, tool, user
from tests.collect.stitching import stitch

TOOLS = [{"type": "function", "function": {"name": "look"}}]
OPEN, CLOSED = '<tool_call>\n{"name": "look", "arguments": {"a"', '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


def call(arguments: str, text: str | None = None) -> dict[str, Any]:
    return answer(text, ("id1", "look", arguments))


def is_cut(response: dict[str, Any] | None, finish: str | None, sampled: str | None = None, tools: Any = TOOLS) -> bool:
    """`sampled`: the text of the ids; each mark is one id, and each character."""
    tokens = re.findall(r"</?\|?\w+\|?>|.", sampled or "", re.DOTALL)
    ids = None if sampled is None else range(len(tokens))
    return has_cut_call(tools, response, finish, ids, lambda ids: "".join(tokens[i] for i in ids))


@pytest.mark.parametrize("finish", ["length", "abort", "max_tokens", "content_filter"])
@pytest.mark.parametrize(
    "response",
    [
        call('{"a"'),
        call("{}"),  # it parses by luck
        answer("first", ("id1", "look", "{}"), ("id2", "look", "")),
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
        answer(OPEN),  # shown as text: its name or its arguments had not come
        answer("I look. <tool_c"),
        answer(CLOSED + OPEN),
        answer("[TOOL_CALLS]look"),
        answer("<code>\nlook("),
        {"role": "assistant", "content": "", "reasoning_content": "hm " + OPEN},
        {"role": "assistant", "content": [{"type": "text", "text": OPEN}]},
    ],
)
def test_an_answer_that_did_not_come_to_its_end_has_a_cut_call_if_there_is_any_sign_of_one(
    response: dict[str, Any], finish: str
) -> None:
    assert is_cut(response, finish)
    assert is_cut(response, finish, tools=None)  # the client's own protocol offers them


def test_a_text_that_hit_its_limit_has_none_if_nothing_was_held_back_behind_it() -> None:
    assert not is_cut(answer("It is a long"), "length")
    assert not is_cut(answer("It is a long"), "length", "<think>\n\n</think>\n\nIt is a long")
    assert not is_cut({**answer("So"), "reasoning_content": "hm"}, "length", "<think>hm</think>So")
    assert is_cut(answer("It is"), "length", "It is <|call|>look"), "what the engine held back may be a call"
    assert not is_cut(answer("It is"), "length", "It is <|call|>look", tools=None)
    assert is_cut(answer("It is"), "length", "It is <tool_ca")
    assert is_cut(answer(""), "length", "x"), "nothing was shown"
    assert not is_cut(answer("It is"), "length", "It is<|im_end|>")
    assert not is_cut(answer("It is"), "length", "qwxz"), "the ids are of another tokenizer, and show no mark"
    assert not is_cut(answer("It is"), "length", ""), "and these nobody can read"


def test_a_stop_string_within_a_call_cuts_it_also_where_the_rest_parses() -> None:
    assert is_cut(call("{}"), "tool_calls", '<tool_call>\n{"name": "look", "arguments": {}')
    assert is_cut(answer("<tool_call>"), "stop", "<tool_call>\n")
    assert is_cut(call('{"a": "x'), "tool_calls"), "captures without ids"
    assert not is_cut(call("{}"), "tool_calls", CLOSED + "\nObservation:")
    assert not is_cut(call("{}"), "tool_calls", CLOSED)
    assert not is_cut(answer("It is so."), "stop", "It is so.\n\nUser:")


def test_a_call_that_the_policy_ended_itself_is_its_own_mistake() -> None:
    for end in ("<|im_end|>", "</s>", "<|eot_id|>"):
        assert not is_cut(call('{"a"'), "tool_calls", OPEN + end)
        assert not is_cut(call("{}"), "tool_calls", CLOSED + end)
    assert not is_cut(call("not JSON at all"), "tool_calls"), "free text of a custom tool"
    assert not is_cut(call('{"a": 1'[:-1] + "1}"), "tool_calls")


@pytest.mark.parametrize("finish", ["length", None])
def test_collect_gives_the_reason_also_to_captures_of_older_servers_and_to_rated_turns(finish: str | None) -> None:
    first = asked([user("look")], call("{}"), finish_reason=finish, tools=TOOLS)
    failed = tool("id1", "failed to parse function arguments")
    after = asked([user("look"), call("{}"), failed], answer("sorry"), tools=TOOLS, feedback=-1.0)
    row = stitch(first, after)[first.exchange_id]
    assert (row.next_state, row.feedback, row.trainable, row.untrainable_reason) == ([failed], -1.0, False, CUT_CALL)


def test_only_reasons_of_turns_that_are_never_trained_take_precedence() -> None:
    def reason_of(**changes: object) -> str | None:
        only = asked([user("look")], call("{}"), finish_reason="length", tools=TOOLS, **changes)
        return stitch(only)[only.exchange_id].untrainable_reason

    assert reason_of() == reason_of(untrainable_reason="greedy") == reason_of(prompt_ids=None) == CUT_CALL
    assert reason_of(turn_type="side") == "side turn"
    assert reason_of(status="cancelled") == "cancelled"
