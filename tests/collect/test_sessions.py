"""Which request answers which turn, worked by hand."""

from made_exchanges import answer, asked, new_id, system, tool, user

from clawctl.collect.sessions import Sessions
from clawctl.types import Exchange, Turn

HOUR = 3600.0
LATER = 1e9


def stitch(*exchanges: Exchange, end: bool = True) -> dict[str, Turn]:
    """All rows of these exchanges by turn id; with `end` also those that only the timeout closes."""
    sessions = Sessions(HOUR)
    for exchange in exchanges:
        sessions.add(exchange)
    if end:
        sessions.tick(LATER)
    rows = sessions.take_rows()
    assert len(rows) == len({row.turn_id for row in rows})
    return {row.turn_id: row for row in rows}


def test_the_reply_of_the_user_is_the_next_state_without_any_header() -> None:
    first = asked([user("2+2?")], answer("4"))
    second = asked([user("2+2?"), answer("4"), user("thanks")], answer("welcome"))
    rows = stitch(first, second, end=False)
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


def test_a_handle_in_what_a_client_echoes_without_a_call_names_the_parent() -> None:
    first = asked([user("hi")], answer("hello"))
    echoed = answer("hello, said otherwise") | {"handle": first.exchange_id}
    second = asked([user("summary of it all"), echoed, user("bye")], answer("bye"))
    assert stitch(first, second)[second.exchange_id].parent_turn_id == first.exchange_id


def test_a_handle_of_another_user_is_not_believed() -> None:
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


def test_a_user_who_says_the_same_again_after_the_answer_gives_feedback() -> None:
    first = asked([user("2+2?")], answer("5"))
    second = asked([user("2+2?"), answer("5"), user("2+2?")], answer("4"))
    assert stitch(first, second)[first.exchange_id].next_state == [user("2+2?")]


def test_of_two_continuations_the_first_is_the_next_state_and_both_are_branches() -> None:
    first = asked([user("story")], answer("Once"))
    one = asked([user("story"), answer("Once"), user("go on")], answer("upon"))
    two = asked([user("story"), answer("Once"), user("shorter")], answer("The end"))
    rows = stitch(first, one, two)
    assert rows[first.exchange_id].next_state == [user("go on")]
    assert [rows[e.exchange_id].parent_turn_id for e in (one, two)] == [first.exchange_id] * 2


def test_the_same_session_header_without_a_known_parent_is_a_tree_of_its_own() -> None:
    first = asked([user("long talk")], answer("yes"), session_id="s1")
    compacted = asked([user("Summary: a long talk."), user("go on")], answer("so"), session_id="s1")
    rows = stitch(first, compacted)
    assert rows[first.exchange_id].next_state is None
    assert (rows[compacted.exchange_id].parent_turn_id, rows[compacted.exchange_id].turn_index) == (None, 0)
    assert rows[compacted.exchange_id].session_id == "s1"


def test_an_answer_repeated_word_for_word_in_two_conversations_keeps_them_apart() -> None:
    one, two = asked([user("is it wet?")], answer("yes")), asked([user("is it cold?")], answer("yes"))
    after_one = asked([user("is it wet?"), answer("yes"), user("how wet?")], answer("very"))
    rows = stitch(one, two, after_one)
    assert rows[one.exchange_id].next_state == [user("how wet?")]
    assert rows[two.exchange_id].next_state is None


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


def test_a_request_that_adds_nothing_after_the_answer_tells_nothing_about_it() -> None:
    first = asked([user("story")], answer("Once"))
    on = asked([user("story"), answer("Once")], answer("upon"))
    assert stitch(first, on)[first.exchange_id].next_state is None


def test_side_turns_close_at_once_and_are_no_ones_next_state() -> None:
    first = asked([user("hi")], answer("hello"))
    beat = asked([user("hi"), answer("hello"), user("still there?")], answer("HEARTBEAT_OK"), turn_type="heartbeat")
    flush = asked([user("hi"), answer("hello"), user("[Sat 07:15 UTC] Pre-compaction memory flush. Store it.")], answer("ok"))
    title = asked([system("Generate a concise session title (3-6 words)."), user("hi")], answer("Greeting"))
    rows = stitch(first, beat, flush, title, end=False)
    assert {rows[e.exchange_id].untrainable_reason for e in (beat, flush, title)} == {"side turn"}
    assert {rows[e.exchange_id].kind for e in (beat, flush, title)} == {"side"}
    assert first.exchange_id not in rows
    said = asked([user("hi"), answer("hello"), user("bye")], answer("bye"))
    assert stitch(first, beat, flush, said)[first.exchange_id].next_state == [user("bye")]


def test_a_client_that_says_main_is_believed_over_the_rules() -> None:
    turn = asked([system("Generate a concise session title"), user("hi")], answer("Greeting"), turn_type="main")
    assert stitch(turn)[turn.exchange_id].kind == "main"


def test_session_done_closes_the_session_at_once() -> None:
    first = asked([user("hi")], answer("hello"), session_id="s1")
    other = asked([user("aside")], answer("yes"), session_id="s1")
    last = asked([user("hi"), answer("hello"), user("bye")], answer("bye"), session_id="s1", session_done=True)
    rows = stitch(first, other, last, end=False)
    assert rows[first.exchange_id].next_state == [user("bye")]
    assert [rows[e.exchange_id].untrainable_reason for e in (other, last)] == ["no next state"] * 2
    late = asked([user("hi"), answer("hello"), user("bye"), answer("bye"), user("one more")], answer("."), session_id="s1")
    assert stitch(first, last, late)[late.exchange_id].parent_turn_id is None


def test_a_turn_without_a_request_for_the_timeout_closes_and_later_ones_begin_anew() -> None:
    first = asked([user("hi")], answer("hello"), at=100.0)
    sessions = Sessions(HOUR)
    sessions.add(first)
    sessions.tick(100.5 + HOUR)
    assert sessions.take_rows() == []
    sessions.tick(100.6 + HOUR)
    assert [row.untrainable_reason for row in sessions.take_rows()] == ["no next state"]
    late = asked([user("hi"), answer("hello"), user("bye")], answer("bye"), at=200.0 + HOUR)
    sessions.add(late)
    sessions.tick(LATER)
    assert [row.parent_turn_id for row in sessions.take_rows()] == [None]


def test_what_was_over_by_the_clock_of_the_exchanges_is_over_although_nobody_ticked() -> None:
    first = asked([user("hi")], answer("hello"), at=100.0)
    late = asked([user("hi"), answer("hello"), user("bye")], answer("bye"), at=200.0 + HOUR)
    assert stitch(first, late)[late.exchange_id].parent_turn_id is None


def test_an_error_closes_at_once_but_its_request_still_tells_about_the_turn_before() -> None:
    first = asked([user("hi")], answer("hello"))
    failed = asked([user("hi"), answer("hello"), user("bye")], None, status="error", completion_ids=None, logprobs=None)
    again = asked([user("hi"), answer("hello"), user("bye")], answer("bye"))
    rows = stitch(first, failed, again)
    assert rows[failed.exchange_id].untrainable_reason == "error"
    assert rows[first.exchange_id].next_state == [user("bye")]
    assert rows[again.exchange_id].parent_turn_id == first.exchange_id


def test_every_untrainable_turn_says_why_and_a_truncated_one_with_a_next_state_is_trained() -> None:
    def reason_of(**changes: object) -> str | None:
        first = asked([user("hi")], answer("hello"), **changes)
        return stitch(first, asked([user("hi"), answer("hello"), user("bye")], answer(".")))[first.exchange_id].untrainable_reason

    assert reason_of() is None
    assert reason_of(finish_reason="length") is None
    assert reason_of(status="cancelled") == "cancelled"
    assert reason_of(untrainable_reason="greedy") == "greedy"
    assert reason_of(prompt_ids=None) == "no token ids"
    assert reason_of(logprobs=None) == "no token ids"
    assert reason_of(completion_ids=[], logprobs=[]) == "no token ids"
    assert reason_of(policy_version=None) == "no policy version"


def test_a_child_read_before_its_parent_waits_to_be_sure() -> None:
    first = asked([user("hi")], answer("hello"))
    second = asked([user("hi"), answer("hello"), user("bye")], answer("bye"))
    sessions = Sessions(HOUR)
    sessions.add(second, sure=False, writer="a")
    sessions.add(first, sure=False, writer="b")
    assert [arrived.exchange for arrived in sessions.unsure] == [second]
    sessions.unsure.take()
    sessions.add(second)
    assert [row.next_state for row in sessions.take_rows()] == [[user("bye")]]


def test_memory_of_ended_trees_is_given_back() -> None:
    sessions = Sessions(HOUR)
    for number in range(50):
        sessions.add(asked([user(f"hi {number}")], answer("hello")))
    sessions.tick(LATER)
    left = [vars(sessions._index)[name] for name in vars(sessions._index)] + [sessions._trees, sessions._of_session]
    assert [len(kept) for kept in left] == [0] * len(left)


def test_a_turn_that_was_published_before_a_restart_is_linked_but_not_published_again() -> None:
    first = asked([user("hi")], answer("hello"))
    second = asked([user("hi"), answer("hello"), user("bye")], answer("bye"))
    sessions = Sessions(HOUR, {first.exchange_id: None})
    for exchange in (first, second):
        sessions.add(exchange)
    sessions.tick(LATER)
    rows = sessions.take_rows()
    assert [(row.turn_id, row.parent_turn_id) for row in rows] == [(second.exchange_id, first.exchange_id)]


def test_the_end_of_a_session_does_not_overtake_a_turn_that_waits() -> None:
    """Its history was edited: read in one go with the end of its session, it still belongs to it."""
    first = asked([user("hi")], answer("hello"), session_id="s1")
    edited = asked([user("summary"), user("hi"), answer("hello"), user("and?")], answer("so"), session_id="s1")
    stranger = asked([user("elsewhere"), answer("well"), user("hm")], answer("."), session_id="s1")
    done = asked([user("hi"), answer("hello"), user("bye")], answer("bye"), session_id="s1", session_done=True)
    sessions = Sessions(HOUR)
    for exchange in (first, edited, stranger, done):
        sessions.add(exchange, sure=False)
    assert [arrived.exchange for arrived in sessions.unsure] == [stranger, done]
    for arrived in sessions.unsure.take():
        sessions.add(arrived.exchange)
    assert {row.turn_id for row in sessions.take_rows()} == {e.exchange_id for e in (first, edited, done, stranger)}


def test_a_turn_that_waits_is_overtaken_by_its_parent_from_another_writer_alone() -> None:
    talk = [user("hi"), answer("hello"), user("how?"), answer("so"), user("ty")]
    root, parent, child = (asked(talk[:at], answer(text)) for at, text in ((1, "hello"), (3, "so"), (5, "welcome")))
    other = asked([user("elsewhere")], answer("hello"))
    sessions = Sessions(HOUR)
    sessions.add(child, sure=False, writer="a")
    for exchange, writer in ((other, "a"), (parent, "b"), (root, "c")):
        sessions.add(exchange, sure=False, writer=writer)
    assert [arrived.exchange for arrived in sessions.unsure] == [child, other, parent]
    stitched = [sessions.add(e) for e in (parent, child)]
    assert [node.parent_id for node in stitched if node] == [root.exchange_id, parent.exchange_id]


def test_the_end_of_a_session_ends_no_conversation_without_one_that_began_with_the_same_words() -> None:
    """Anna's second request names a session, her first did not; Ben said the same before and goes on."""
    opening = [asked([user("hi")], answer("hello")) for _ in range(2)]
    anna = asked([user("hi"), answer("hello"), user("bye")], answer("bye"), session_id="s1", session_done=True)
    ben = [asked([user("hi"), answer("hello"), user("I am Ben")], answer("Hello Ben."))]
    ben.append(asked([*ben[0].messages, answer("Hello Ben."), user("thanks")], answer("Welcome.")))
    rows = stitch(*opening, ben[0], anna, ben[1])
    assert rows[ben[1].exchange_id].parent_turn_id == ben[0].exchange_id
    assert rows[ben[0].exchange_id].next_state == [user("thanks")]
    again = stitch(opening[0], ben[0], anna, ben[1])  # they share the one opening that was kept
    assert again[ben[1].exchange_id].parent_turn_id == ben[0].exchange_id
    assert again[anna.exchange_id].next_state is None


def test_a_conversation_that_is_over_is_no_twin_of_one_that_begins_with_the_same_words_whenever_it_was_looked_at() -> None:
    early = asked([user("hi")], answer("hello"), at=1000.0)
    late = asked([user("hi")], answer("hey"), at=1000.0 + 2 * HOUR)
    assert stitch(early, late)[early.exchange_id].untrainable_reason == "no next state"


def test_a_turn_that_has_its_row_is_never_linked_to_another_with_the_same_words() -> None:
    """Read again after a restart: its parent's session is over, and somebody else has said the same."""
    other = asked([user("hi")], answer("hello"))
    child = asked([user("hi"), answer("hello"), user("bye")], answer("bye"), session_id="s1")
    sessions = Sessions(HOUR, {child.exchange_id: "gone"})
    for exchange in (other, child):
        sessions.add(exchange)
    assert sessions.take_rows() == []
    sessions.tick(LATER)
    assert [(row.turn_id, row.next_state) for row in sessions.take_rows()] == [(other.exchange_id, None)]
