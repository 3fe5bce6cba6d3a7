"""When a turn closes, and with which reason."""

from made_exchanges import answer, asked, system, user
from stitching import HOUR, LATER, stitch

from clawctl.collect.sessions import Sessions


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


def test_a_clients_main_hint_overrides_the_rules() -> None:
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
    assert sessions.pop_rows() == []
    sessions.tick(100.6 + HOUR)
    assert [row.untrainable_reason for row in sessions.pop_rows()] == ["no next state"]
    late = asked([user("hi"), answer("hello"), user("bye")], answer("bye"), at=200.0 + HOUR)
    sessions.add(late)
    sessions.tick(LATER)
    assert [row.parent_turn_id for row in sessions.pop_rows()] == [None]


def test_a_session_times_out_by_the_exchanges_clock_without_a_tick() -> None:
    first = asked([user("hi")], answer("hello"), at=100.0)
    late = asked([user("hi"), answer("hello"), user("bye")], answer("bye"), at=200.0 + HOUR)
    assert stitch(first, late)[late.exchange_id].parent_turn_id is None


def test_an_error_closes_at_once_but_its_request_is_still_the_previous_turns_next_state() -> None:
    first = asked([user("hi")], answer("hello"))
    failed = asked([user("hi"), answer("hello"), user("bye")], None, status="error", completion_ids=None, logprobs=None)
    again = asked([user("hi"), answer("hello"), user("bye")], answer("bye"))
    rows = stitch(first, failed, again)
    assert rows[failed.exchange_id].untrainable_reason == "error"
    assert rows[first.exchange_id].next_state == [user("bye")]
    assert rows[again.exchange_id].parent_turn_id == first.exchange_id


def test_every_untrainable_turn_has_a_reason_and_a_truncated_one_with_a_next_state_is_trained() -> None:
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
    assert [arrived.exchange for arrived in sessions.waiting] == [second]
    sessions.waiting.pop_all()
    sessions.add(second)
    sessions.tick(1e9)
    assert [row.next_state for row in sessions.pop_rows()] == [[user("bye")], None]


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
    rows = sessions.pop_rows()
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
    assert [arrived.exchange for arrived in sessions.waiting] == [stranger, done]
    for arrived in sessions.waiting.pop_all():
        sessions.add(arrived.exchange)
    assert {row.turn_id for row in sessions.pop_rows()} == {e.exchange_id for e in (first, edited, done, stranger)}


def test_a_turn_that_waits_is_overtaken_by_its_parent_from_another_writer_alone() -> None:
    talk = [user("hi"), answer("hello"), user("how?"), answer("so"), user("ty")]
    root, parent, child = (asked(talk[:at], answer(text)) for at, text in ((1, "hello"), (3, "so"), (5, "welcome")))
    other = asked([user("elsewhere")], answer("hello"))
    sessions = Sessions(HOUR)
    sessions.add(child, sure=False, writer="a")
    for exchange, writer in ((other, "a"), (parent, "b"), (root, "c")):
        sessions.add(exchange, sure=False, writer=writer)
    assert [arrived.exchange for arrived in sessions.waiting] == [child, other, parent]
    stitched = [sessions.add(e) for e in (parent, child)]
    assert [node.parent_id for node in stitched if node] == [root.exchange_id, parent.exchange_id]


def test_the_end_of_a_session_ends_no_conversation_without_one_that_began_with_the_same_words() -> None:
    """Anna's second request names a session, her first did not; Ben sent the same text before and continues."""
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
    """Read again after a restart: its parent's session has ended, and another user has sent the same text."""
    other = asked([user("hi")], answer("hello"))
    child = asked([user("hi"), answer("hello"), user("bye")], answer("bye"), session_id="s1")
    sessions = Sessions(HOUR, {child.exchange_id: "gone"})
    for exchange in (other, child):
        sessions.add(exchange)
    assert sessions.pop_rows() == []
    sessions.tick(LATER)
    assert [(row.turn_id, row.next_state) for row in sessions.pop_rows()] == [(other.exchange_id, None)]
