"""Which request continues which turn, worked by hand."""

import unicodedata
from typing import Literal

import pytest
from made_exchanges import answer, asked, new_id, system, tool, user
from stitching import HOUR, LATER, stitch

from clawctl.collect.sessions import Sessions


def test_the_reply_of_the_user_is_the_next_state_without_any_header() -> None:
    first = asked([user("2+2?")], answer("4"))
    second = asked([user("2+2?"), answer("4"), user("thanks")], answer("welcome"))
    third = asked([*second.messages, answer("welcome"), user("bye")], answer("bye"))
    fourth = asked([*third.messages, answer("bye"), user("you there?")], answer("yes"))
    assert stitch(first, second, third, end=False) == {}  # the client itself may have asked, and asked again
    rows = stitch(first, second, third, fourth, end=False)
    assert list(rows) == [first.exchange_id]
    turn = rows[first.exchange_id]
    assert (turn.next_state, turn.trainable, turn.turn_index, turn.parent_turn_id) == ([user("thanks")], True, 0, None)
    assert turn.session_id == f"s{first.exchange_id}"
    last = stitch(first, second)[second.exchange_id]
    assert (last.session_id, last.turn_index, last.parent_turn_id) == (turn.session_id, 1, first.exchange_id)
    assert (last.next_state, last.trainable, last.untrainable_reason) == (None, False, "no next state")


def test_a_session_header_names_the_session() -> None:
    first = asked([user("2+2?")], answer("4"), session_id="s1", turn_type="main", task_id="sum")
    second = asked([user("2+2?"), answer("4"), user("thanks")], answer("welcome"), session_id="s1")
    rows = stitch(first, second)
    assert {row.session_id for row in rows.values()} == {"s1"}
    assert rows[second.exchange_id].parent_turn_id == first.exchange_id
    assert rows[first.exchange_id].task_id == "sum"


def test_two_users_with_the_same_session_header_never_share_a_session() -> None:
    first = asked([user("hi")], answer("hello"), key="anna", session_id="s1")
    second = asked([user("hi"), answer("hello"), user("more")], answer("no"), key="ben", session_id="s1")
    rows = stitch(first, second)
    assert rows[second.exchange_id].parent_turn_id is None
    assert (rows[first.exchange_id].session_id, rows[second.exchange_id].session_id) == ("anna/s1", "ben/s1")


def test_identical_conversations_of_two_users_never_mix() -> None:
    opening = {key: asked([user("hi")], answer("hello"), key=key) for key in ("anna", "ben")}
    going_on = {key: asked([user("hi"), answer("hello"), user(key)], answer("ok"), key=key) for key in ("ben", "anna")}
    rows = stitch(*opening.values(), *going_on.values())
    for key in ("anna", "ben"):
        assert rows[opening[key].exchange_id].next_state == [user(key)]
        assert rows[going_on[key].exchange_id].parent_turn_id == opening[key].exchange_id


def test_all_parallel_tool_results_are_the_next_state_in_any_order() -> None:
    turn_id = new_id()
    calls = [(f"call{turn_id}{i}", "read", f'{{"path": "{i}"}}') for i in range(3)]
    first = asked([user("read three")], answer(None, *calls), exchange_id=turn_id)
    results = [tool(calls[i][0], f"text {i}") for i in (2, 0, 1)]
    second = asked([user("read three"), answer(None, *calls), *results], answer("done"))
    rows = stitch(first, second)
    assert rows[turn_id].next_state == results
    third = asked([user("read three"), answer(None, *calls), *sorted(results, key=str), answer("done"), user("ty")], answer("bye"))
    assert stitch(first, second, third)[second.exchange_id].next_state == [user("ty")]


def test_a_handle_that_comes_back_names_the_parent_even_if_everything_else_was_rewritten() -> None:
    turn_id = new_id()
    first = asked([user("hi"), user("list")], answer("I look.", (f"call{turn_id}0", "ls", "{}")), exchange_id=turn_id)
    echoed = answer("", (f"call_{turn_id[:5]}-{turn_id[5:]}0", "other", '{"x": 1}'))
    second = asked([user("summary of it all"), echoed, tool("call0", "a b")], answer("done"))
    rows = stitch(first, second)
    assert rows[second.exchange_id].parent_turn_id == turn_id
    assert rows[turn_id].next_state == [tool("call0", "a b")]


def test_an_echoed_handle_without_a_call_names_the_parent() -> None:
    first = asked([user("hi")], answer("hello"))
    echoed = answer("hello, said otherwise") | {"handle": first.exchange_id}
    second = asked([user("summary of it all"), echoed, user("bye")], answer("bye"))
    assert stitch(first, second)[second.exchange_id].parent_turn_id == first.exchange_id


def test_a_handle_of_another_user_is_ignored() -> None:
    turn_id = new_id()
    call = (f"call{turn_id}0", "ls", "{}")
    first = asked([user("list")], answer(None, call), exchange_id=turn_id, key="anna")
    second = asked([user("mine"), answer(None, call), tool(call[0], "a")], answer("done"), key="ben")
    rows = stitch(first, second)
    assert rows[second.exchange_id].parent_turn_id is None
    assert rows[turn_id].next_state is None


def test_serialisations_of_one_conversation_are_one_conversation() -> None:
    call = ("call_1", "exec", '{ "command" : "echo caf\\u00e9", "yieldMs": 5000.0 }')
    first = asked([{"role": "developer", "content": "be kind"}, user(" run it ")], answer("<think>hm</think>\n\nI run it.", call))
    echoed = answer("I run it.", ("call1", "exec", '{"yieldMs":5000,"command":"echo café"}'))
    echoed |= {"reasoning_content": "hm", "provider_specific_fields": {"refusal": None}}
    parts = {"role": "user", "content": [{"type": "text", "text": "run it", "cache_control": {"type": "ephemeral"}}]}
    second = asked([system("be kind"), parts, echoed, tool("call1", "café")], answer("done"))
    rows = stitch(first, second)
    assert rows[first.exchange_id].next_state == [tool("call1", "café")]


@pytest.mark.parametrize(("sent", "sent_back"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_a_client_that_composes_letters_otherwise_is_one_conversation(
    sent: Literal["NFC", "NFD"], sent_back: Literal["NFC", "NFD"]
) -> None:
    texts = ("où?", "à Orléans", '{"ville":"Évry"}')
    captured, shown = ([unicodedata.normalize(form, text) for text in texts] for form in (sent, sent_back))
    first = asked([user(captured[0])], answer(captured[1], ("call_1", "look", captured[2])))
    second = asked([user(shown[0]), answer(shown[1], ("x1", "look", shown[2])), tool("x1", "oui")], answer("oui"))
    assert stitch(first, second)[first.exchange_id].next_state == [tool("x1", "oui")]


def test_a_retry_is_a_sibling_and_never_feedback() -> None:
    opening = asked([user("2+2?")], answer("4"))
    asks = [user("2+2?"), answer("4"), user("3+3?")]
    first_try, second_try = asked(asks, answer("7")), asked(asks, answer("6"))
    end = asked([*asks, answer("6"), user("right")], answer("!"))
    rows = stitch(opening, first_try, second_try, end)
    assert rows[first_try.exchange_id].parent_turn_id == rows[second_try.exchange_id].parent_turn_id == opening.exchange_id
    assert rows[opening.exchange_id].next_state == [user("3+3?")]
    assert (rows[first_try.exchange_id].next_state, rows[first_try.exchange_id].untrainable_reason) == (None, "regenerated")
    assert rows[second_try.exchange_id].next_state == [user("right")]
    assert rows[second_try.exchange_id].trainable


def test_a_retry_of_an_opening_is_no_next_state_of_it() -> None:
    first, again = asked([user("2+2?")], answer("5")), asked([user("2+2?")], answer("4"))
    rows = stitch(first, again)
    assert [rows[e.exchange_id].untrainable_reason for e in (first, again)] == ["regenerated", "no next state"]
    assert rows[again.exchange_id].parent_turn_id is None


def test_a_retry_whose_answers_are_the_same_keeps_the_parent_of_the_first_try() -> None:
    same = [asked([user("hi")], answer("hello")) for _ in range(2)]
    asks = [user("hi"), answer("hello"), user("go on")]
    tries = [asked(asks, answer(text)) for text in ("one", "two")]
    rows = stitch(*same, *tries)
    assert len({rows[e.exchange_id].parent_turn_id for e in tries}) == 1
    assert sum(row.next_state is not None for row in rows.values()) == 1


def test_a_user_message_repeated_after_the_answer_is_feedback() -> None:
    first = asked([user("2+2?")], answer("5"))
    second = asked([user("2+2?"), answer("5"), user("2+2?")], answer("4"))
    assert stitch(first, second)[first.exchange_id].next_state == [user("2+2?")]


def test_of_two_continuations_the_one_that_is_continued_is_the_next_state_and_both_are_branches() -> None:
    first = asked([user("story")], answer("Once"))
    longer = asked([user("story"), answer("Once"), user("go on")], answer("upon"))
    shorter = asked([user("story"), answer("Once"), user("shorter")], answer("The end"))
    for continued, text in ((longer, "go on"), (shorter, "shorter")):
        rows = stitch(first, longer, shorter, asked([*continued.messages, continued.response, user("ty")], answer("welcome")))
        assert rows[first.exchange_id].next_state == [user(text)]
        assert [rows[e.exchange_id].parent_turn_id for e in (longer, shorter)] == [first.exchange_id] * 2
        assert [rows[e.exchange_id].kind for e in (longer, shorter)] == ["main", "main"]
    assert stitch(first, longer, shorter)[first.exchange_id].next_state == [user("shorter")]


def test_the_same_session_header_without_a_known_parent_is_a_tree_of_its_own() -> None:
    first = asked([user("long talk")], answer("yes"), session_id="s1")
    compacted = asked([user("Summary: a long talk."), user("go on")], answer("so"), session_id="s1")
    rows = stitch(first, compacted)
    assert rows[first.exchange_id].next_state is None
    assert (rows[compacted.exchange_id].parent_turn_id, rows[compacted.exchange_id].turn_index) == (None, 0)
    assert rows[compacted.exchange_id].session_id == "s1"


def test_an_answer_repeated_word_for_word_in_two_conversations_keeps_them_apart() -> None:
    first, second = asked([user("is it wet?")], answer("yes")), asked([user("is it cold?")], answer("yes"))
    after_one = asked([user("is it wet?"), answer("yes"), user("how wet?")], answer("very"))
    rows = stitch(first, second, after_one)
    assert rows[first.exchange_id].next_state == [user("how wet?")]
    assert rows[second.exchange_id].next_state is None


def test_two_conversations_of_one_key_that_are_the_same_so_far_each_get_their_own_continuation() -> None:
    openings = [asked([user("hi")], answer("hello")) for _ in range(2)]
    replies = [asked([user("hi"), answer("hello"), user(text)], answer("ok")) for text in ("a", "b")]
    rows = stitch(*openings, *replies)
    assert sorted(str(rows[e.exchange_id].next_state) for e in openings) == sorted(str([user(t)]) for t in ("a", "b"))


def test_two_session_headers_keep_the_same_conversation_apart() -> None:
    openings = [asked([user("hi")], answer("hello"), session_id=s) for s in ("s1", "s2")]
    reply = asked([user("hi"), answer("hello"), user("a")], answer("ok"), session_id="s1")
    rows = stitch(*openings, reply)
    assert rows[openings[0].exchange_id].next_state == [user("a")]
    assert rows[openings[1].exchange_id].next_state is None


def test_a_system_prompt_that_changes_each_turn_is_stitched_by_the_conversation_behind_it() -> None:
    first = asked([system("It is 10:00."), user("hi")], answer("hello"))
    second = asked([system("It is 10:01."), user("hi"), answer("hello"), user("bye")], answer("bye"))
    rows = stitch(first, second)
    assert rows[first.exchange_id].next_state == [user("bye")]
    assert rows[second.exchange_id].parent_turn_id == first.exchange_id


def test_of_two_agents_with_the_same_words_the_one_with_the_same_system_prompt_is_the_parent() -> None:
    cook, tailor = (asked([system(role), user("hi")], answer("hello")) for role in ("cook", "tailor"))
    second = asked([system("cook"), user("hi"), answer("hello"), user("soup")], answer("ok"))
    assert stitch(cook, tailor, second)[second.exchange_id].parent_turn_id == cook.exchange_id


def test_a_transient_user_message_that_moves_to_the_end_is_neither_a_break_nor_feedback() -> None:
    carrier = user("[context] nothing runs")
    first = asked([user("hi"), carrier], answer("hello"))
    second = asked([user("hi"), answer("hello"), user("list"), carrier], answer("I list."))
    third = asked(
        [user("hi"), answer("hello"), user("list"), answer("I list."), user("ty"), user("[context] one runs")], answer(".")
    )
    rows = stitch(first, second, third)
    assert rows[first.exchange_id].next_state == [user("list")]
    assert rows[second.exchange_id].next_state == [user("ty"), user("[context] one runs")]
    assert rows[third.exchange_id].turn_index == 2


def test_a_known_carrier_is_left_out_of_the_next_state_even_if_it_changed() -> None:
    def carrier(text: str) -> dict:
        return user(f"<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\n{text}\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>")

    first = asked([user("hi"), carrier("none")], answer("hello"))
    second = asked([user("hi"), answer("hello"), user("list"), carrier("one")], answer("I list."))
    assert stitch(first, second)[first.exchange_id].next_state == [user("list")]


def test_more_than_two_missing_messages_or_a_missing_answer_break_the_link() -> None:
    first = asked([user("a"), user("b"), user("c"), user("d")], answer("yes"))
    second = asked([user("a"), answer("yes"), user("e")], answer("."))
    assert stitch(first, second)[second.exchange_id].parent_turn_id is None
    first = asked([user("a"), answer("b"), user("c")], answer("yes"))
    second = asked([user("a"), user("c"), answer("yes"), user("e")], answer("."))
    assert stitch(first, second)[second.exchange_id].parent_turn_id is None


def test_a_reply_that_the_client_took_out_of_its_history_is_a_dead_end() -> None:
    turn_id = new_id()
    call = (f"call{turn_id}0", "bash", '{"command": "ls"}')
    first = asked([user("solve")], answer(None, call), exchange_id=turn_id)
    talk = asked([user("solve"), answer(None, call), tool(call[0], "a")], answer("I think so."))
    scolded = asked(
        [user("solve"), answer(None, call), tool(call[0], "a"), user("No tool call!")], answer(None, ("c9", "bash", "{}"))
    )
    rows = stitch(first, talk, scolded)
    assert rows[turn_id].next_state == [tool(call[0], "a")]
    assert [rows[e.exchange_id].parent_turn_id for e in (talk, scolded)] == [turn_id] * 2
    assert rows[talk.exchange_id].untrainable_reason == "no next state"


def test_a_request_that_adds_nothing_after_the_answer_is_no_feedback() -> None:
    first = asked([user("story")], answer("Once"))
    on = asked([user("story"), answer("Once")], answer("upon"))
    assert stitch(first, on)[first.exchange_id].next_state is None


def test_a_captured_line_that_stands_twice_is_one_turn_also_after_its_session_ended() -> None:
    sessions, line = Sessions(HOUR), asked([user("hi")], answer("hello"))
    sessions.add(line)
    sessions.tick(LATER)
    sessions.add(line)
    sessions.tick(2 * LATER)
    assert [row.turn_id for row in sessions.pop_rows()] == [line.exchange_id]


def test_a_request_that_names_the_response_it_continues_settles_its_next_state_whatever_it_lacks() -> None:
    """openai-py sends `previous_response_id` without the tools of the turn before."""
    offered = [{"type": "function", "function": {"name": "look"}}]
    first = asked([system("Help."), user("hi")], answer("hello"), tools=offered)
    messages = [system("Help."), user("hi"), answer("hello"), user("and now?")]
    second = asked(messages, answer("now"), hints={"continues": first.exchange_id})
    rows = stitch(first, second)
    assert rows[first.exchange_id].next_state == [user("and now?")]
    assert (rows[second.exchange_id].kind, rows[second.exchange_id].parent_turn_id) == ("main", first.exchange_id)


def test_answers_that_a_client_writes_behind_the_response_that_it_names_do_not_change_the_parent() -> None:
    """`previous_response_id` with an example of an answer in `input`: an earlier turn has that answer."""
    talk = [user("Are you ready?"), answer("Ok."), user("hi"), answer("hello")]
    other, first = asked(talk[:1], talk[1], session_id="s"), asked(talk[:3], talk[3], session_id="s")
    shown = [*talk[:3], {**talk[3], "handle": first.exchange_id}, user("Say ok."), answer("Ok."), user("and now?")]
    second = asked(shown, answer("now"), session_id="s", continues=first.exchange_id)
    rows = stitch(other, first, second)
    assert rows[second.exchange_id].parent_turn_id == first.exchange_id
    assert rows[first.exchange_id].next_state == [user("Say ok.")]
