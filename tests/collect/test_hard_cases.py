"""Agents change their history: sub-agents, compaction, edits, merged replies, and two users of one key. Worked by hand."""

import itertools
import random

from made_exchanges import answer, asked, new_id, system, tool, user
from stitching import stitch

from clawctl.collect.sessions import Sessions
from clawctl.run.rows import Feedback

CLAIM = "c86d8302-cab8-4abc-a424-ee94d429d7d8"


def test_parallel_sub_agents_of_one_session_each_keep_their_own_conversation() -> None:
    """The same session claim, the same words of the model, requests that interleave."""
    parent = asked([system("main"), user("ask two agents")], answer("Started."), session_id=CLAIM)
    agents = [[system("kid"), user(f"[Subagent Context] job {number}")] for number in range(2)]
    first = [asked(messages, answer("Done."), session_id=CLAIM) for messages in agents]
    second = [
        asked([*messages, answer("Done."), user(f"check job {number}")], answer("Checked."), session_id=CLAIM)
        for number, messages in enumerate(agents)
    ]
    back = asked(
        [system("main"), user("ask two agents"), answer("Started."), user("A background task completed.")],
        answer("Both done."),
        session_id=CLAIM,
    )
    rows = stitch(parent, *first, *reversed(second), back)
    for number in range(2):
        assert rows[second[number].exchange_id].parent_turn_id == first[number].exchange_id
        assert rows[first[number].exchange_id].next_state == [user(f"check job {number}")]
        assert rows[first[number].exchange_id].parent_turn_id is None
    assert rows[parent.exchange_id].next_state == [user("A background task completed.")]


def test_two_users_of_one_key_with_the_same_first_messages_are_two_conversations() -> None:
    """Hours of it, in a random order: no next state crosses over once their words differ."""
    said = [user("hi"), user("what can you do?"), user("ok")]
    dice = random.Random(3)
    talks: dict[str, list] = {"anna": [], "ben": []}
    for name, exchanges in talks.items():
        messages: list[dict] = []
        for message in [*said, user(f"I am {name}"), user(f"{name}'s question"), user(f"{name} says bye")]:
            messages = [*messages, message]
            exchanges.append((messages, answer(f"reply {len(messages)}")))
            messages = [*messages, exchanges[-1][1]]
    order, turns = ["anna"] * 6 + ["ben"] * 6, {name: iter(exchanges) for name, exchanges in talks.items()}
    dice.shuffle(order)
    asked_by = {name: [] for name in talks}
    sessions = Sessions(3600.0)
    for name in order:
        asked_by[name].append(asked(*next(turns[name])))
        sessions.add(asked_by[name][-1])
    sessions.tick(1e9)
    rows = {row.turn_id: row for row in sessions.pop_rows()}
    for name, exchanges in asked_by.items():
        for before, after in itertools.pairwise(exchanges[3:]):
            assert rows[after.exchange_id].parent_turn_id == before.exchange_id
            assert rows[before.exchange_id].next_state == [after.messages[-1]]
        assert rows[exchanges[3].exchange_id].turn_index == 3, name
    openings = [exchanges[2].exchange_id for exchanges in asked_by.values()]
    replies = [rows[turn_id].next_state or [] for turn_id in openings]
    assert sorted(state[0]["content"] for state in replies) == ["I am anna", "I am ben"]


def test_an_edited_history_is_linked_in_its_session_but_unseen_messages_are_no_next_state() -> None:
    first = asked([user("my name is Anna")], answer("Hello Anna."), session_id=CLAIM)
    edited = asked([user("my name is Ben"), answer("Hello Anna."), user("no!")], answer("Sorry."), session_id=CLAIM)
    rows = stitch(first, edited)
    assert rows[edited.exchange_id].parent_turn_id == first.exchange_id
    assert rows[first.exchange_id].next_state is None
    elsewhere = asked([user("my name is Ben"), answer("Hello Anna."), user("no!")], answer("Sorry."))
    assert stitch(first, elsewhere)[elsewhere.exchange_id].parent_turn_id is None


def test_a_message_edited_and_sent_again_is_a_branch_beside_the_first() -> None:
    opening = asked([user("plan a trip")], answer("Where to?"))
    rome = asked([user("plan a trip"), answer("Where to?"), user("Rome")], answer("Day 1 …"))
    oslo = asked([user("plan a trip"), answer("Where to?"), user("Oslo")], answer("Day 1 …"))
    after = asked([user("plan a trip"), answer("Where to?"), user("Oslo"), answer("Day 1 …"), user("nice")], answer("!"))
    rows = stitch(opening, rome, oslo, after)
    assert rows[after.exchange_id].parent_turn_id == oslo.exchange_id
    assert rows[oslo.exchange_id].next_state == [user("nice")]
    assert rows[rome.exchange_id].next_state is None


def test_two_replies_that_the_client_merged_into_one_message_are_found_again() -> None:
    """OpenClaw after a background event: the event's message is gone, and both answers are in one message."""
    talk = [system("You are kind."), user("hi"), answer("hello"), user("watch it")]
    nine = asked(talk, answer("Fake reply number 9."))
    event = asked([*talk, answer("Fake reply number 9."), user("A background task completed.")], answer("Fake reply number 11."))
    merged = answer("Fake reply number 9.\nFake reply number 11.")
    beat = asked([*talk, merged, user("and now?")], answer("all fine"))
    rows = stitch(nine, event, beat)
    assert rows[beat.exchange_id].parent_turn_id == event.exchange_id
    assert rows[event.exchange_id].next_state == [user("and now?")]
    other = asked([user("another talk"), merged, user("and now?")], answer("all fine"))
    assert stitch(nine, event, other)[other.exchange_id].parent_turn_id is None


def test_after_compaction_the_last_answer_still_gets_the_users_message() -> None:
    long = [user("one"), answer("1."), user("two")]
    last = asked(long, answer("2."), session_id=f"{CLAIM}:0")
    summary = user("The conversation history before this point was compacted into the following summary: …")
    compacted = asked([summary, user("two"), answer("2."), user("three")], answer("3."), session_id=f"{CLAIM}:1")
    rows = stitch(last, compacted)
    assert rows[compacted.exchange_id].parent_turn_id == last.exchange_id
    assert rows[last.exchange_id].next_state == [user("three")]
    assert {row.session_id for row in rows.values()} == {CLAIM}


def test_the_id_of_a_tool_call_distinguishes_calls_with_equal_text() -> None:
    """One script run twice: the same request, the same call, the same result; only the engine's random ids differ."""
    ids = [f"call_{number}6c0d40e2a7f4c4a9d3b" for number in (1, 2)]
    calls = [asked([user("weather?")], answer(None, (call_id, "look", '{"city": "Paris"}'))) for call_id in ids]
    results = [
        asked([user("weather?"), answer(None, (call_id, "look", '{"city":"Paris"}')), tool(call_id, "sunny")], answer("Sunny."))
        for call_id in reversed(ids)
    ]
    rows = stitch(*calls, *results)
    assert [rows[e.exchange_id].parent_turn_id for e in results] == [e.exchange_id for e in reversed(calls)]
    short = asked([user("weather?")], answer(None, ("call_1", "look", "{}")))
    other = asked([user("rain?"), answer(None, ("call_1", "look", "{}")), tool("call_1", "no")], answer("No."))
    assert stitch(short, other)[other.exchange_id].parent_turn_id is None


def test_a_retry_after_an_error_answers_the_turn_before_and_the_error_is_no_ones_next_state() -> None:
    opening = asked([user("2+2?")], answer("4"))
    asks = [user("2+2?"), answer("4"), user("3+3?")]
    failed = asked(asks, None, status="error", finish_reason=None, completion_ids=None, logprobs=None)
    worked = asked(asks, answer("6"))
    end = asked([*asks, answer("6"), user("right")], answer("!"))
    rows = stitch(opening, failed, worked, end)
    assert rows[failed.exchange_id].parent_turn_id == rows[worked.exchange_id].parent_turn_id == opening.exchange_id
    assert (rows[failed.exchange_id].untrainable_reason, rows[worked.exchange_id].trainable) == ("error", True)
    assert rows[opening.exchange_id].next_state == [user("3+3?")]


def test_parallel_results_in_another_order_in_every_request_are_one_conversation() -> None:
    turn_id = new_id()
    calls = [(f"call{turn_id}{i}", "read", f'{{"path": "{i}"}}') for i in range(4)]
    results = [tool(calls[i][0], f"text {i}") for i in range(4)]
    asks = [user("read four"), answer(None, *calls)]
    first = asked([user("read four")], answer(None, *calls), exchange_id=turn_id)
    second = asked([*asks, *results], answer("done"))
    third = asked([*asks, *reversed(results), answer("done"), user("ty")], answer("bye"))
    rows = stitch(first, second, third)
    assert rows[third.exchange_id].parent_turn_id == second.exchange_id
    assert rows[second.exchange_id].next_state == [user("ty")]


def test_a_system_prompt_with_the_time_in_it_never_breaks_a_long_conversation() -> None:
    exchanges, messages = [], []
    for number in range(12):
        messages = [*messages, user(f"question {number}")]
        exchanges.append(asked([system(f"It is 10:{number:02d}."), *messages], answer("yes")))
        messages = [*messages, answer("yes")]
    rows = stitch(*exchanges)
    assert [rows[e.exchange_id].turn_index for e in exchanges] == list(range(12))
    assert [rows[e.exchange_id].next_state for e in exchanges[:-1]] == [[user(f"question {n}")] for n in range(1, 12)]


def test_the_session_that_openclaw_names_in_its_prompt_groups_like_a_header() -> None:
    runtime = "hi\n\nRuntime: agent=main | session=agent:main:main | sessionId=c388bb34-1111-2222-3333-444455556666 | host=vm"
    first = asked([system("s"), user(runtime)], answer("hello"))
    again = asked([system("s"), user("aside, in the same breath")], answer("yes"))
    rows = stitch(first, again)
    assert rows[first.exchange_id].session_id == "c388bb34-1111-2222-3333-444455556666"
    assert rows[again.exchange_id].session_id == f"s{again.exchange_id}"
    later = asked([user("hi"), answer("hello"), user(f"what does this mean?\n{runtime}")], answer("it is …"))
    assert stitch(later)[later.exchange_id].session_id == f"s{later.exchange_id}"  # quoted in the middle of a talk: no claim


def test_the_environment_that_codex_repeats_is_not_a_user_message() -> None:
    environment = "<environment_context>\n  <cwd>/ws</cwd>\n</environment_context>"
    first = asked([user(environment), user("2+2?")], answer("4"))
    second = asked([user(environment), user("2+2?"), answer("4"), user(environment), user("ty")], answer("welcome"))
    assert stitch(first, second)[first.exchange_id].next_state == [user("ty")]


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def test_a_utility_call_without_tools_in_the_middle_is_a_side_turn_and_not_a_next_state() -> None:
    """No rule matches its text; the same client's turns all have tools."""
    talk = [user("plan a trip to Rome"), answer("Day 1: …")]
    first = asked(talk[:1], talk[1], tools=TOOLS)
    title = asked([*talk, user("Name this conversation in three words.")], answer("Trip to Rome"), tools=[])
    second = asked([*talk, user("shorter please")], answer("1: …"), tools=TOOLS)
    for order in ([first, title, second], [first, second, title]):
        rows = stitch(*order)
        assert rows[first.exchange_id].next_state == [user("shorter please")]
        assert (rows[title.exchange_id].kind, rows[title.exchange_id].untrainable_reason) == ("side", "side turn")
        assert rows[title.exchange_id].parent_turn_id == first.exchange_id
    rows = stitch(first, title)
    assert (rows[first.exchange_id].next_state, rows[first.exchange_id].untrainable_reason) == (None, "no next state")


def test_a_turn_without_tools_that_the_conversation_continues_is_a_main_turn() -> None:
    """A client that leaves its tools out once: nothing is lost, the turns before and after are closed as ever."""
    talk = [user("plan a trip to Rome"), answer("Day 1: …"), user("just chat now"), answer("Gladly."), user("bye")]
    first, bare = asked(talk[:1], talk[1], tools=TOOLS), asked(talk[:3], talk[3])
    for tools in (TOOLS, None):
        rows = stitch(first, bare, asked(talk, answer("bye"), tools=tools))
        assert rows[first.exchange_id].next_state == [user("just chat now")]
        assert rows[bare.exchange_id].next_state == [user("bye")]
        assert all(rows[e.exchange_id].trainable for e in (first, bare))


def test_evidence_that_a_request_without_tools_is_a_turn() -> None:
    """Results of tools (recorded: openai-python 011), the client's word, a rating with it, a rating of it."""
    call = answer(None, ("call_1", "look", "{}"))
    first = asked([user("weather?")], call, tools=TOOLS)
    result = asked([user("weather?"), call, tool("call_1", "sunny")], answer("Sunny."))
    assert stitch(first, result)[first.exchange_id].next_state == [tool("call_1", "sunny")]
    talk = [user("weather?"), answer("Sunny."), user("ty")]
    opening = asked(talk[:1], talk[1], tools=TOOLS)
    for hints in ({"turn_type": "user"}, {"feedback": 1.0}):
        rows = stitch(opening, asked(talk, answer("welcome"), **hints))
        assert rows[opening.exchange_id].next_state == [user("ty")], hints
    last, sessions = asked(talk, answer("welcome")), Sessions(3600.0)
    for exchange in (opening, last):
        sessions.add(exchange)
    assert sessions.pop_rows() == []
    sessions.rate(Feedback("f1", last.finished_at, "default", last.exchange_id, 1.0, None))
    assert [(row.next_state, row.trainable) for row in sessions.pop_rows()] == [([user("ty")], True), (None, True)]


def test_a_root_without_tools_in_a_session_with_tools_is_a_side_turn_unless_it_is_continued() -> None:
    """A title call that names the session, and a planner without tools that works in it: before, between and after."""
    agent = asked([system("agent"), user("go")], answer("gone"), tools=TOOLS, session_id=CLAIM)
    title = asked([system("titles"), user("go")], answer("Going"), session_id=CLAIM)
    plans = [asked([system("planner"), user("plan")], answer("1, 2"), session_id=CLAIM)]
    plans.append(asked([system("planner"), user("plan"), answer("1, 2"), user("and 3?")], answer("3"), session_id=CLAIM))
    other = asked([system("titles"), user("go")], answer("Going"), session_id="another")
    for order in ([agent, title, *plans, other], [title, *plans, agent, other]):
        rows = stitch(*order)
        assert rows[title.exchange_id].untrainable_reason == "side turn"
        assert [rows[e.exchange_id].kind for e in (agent, *plans, other)] == ["main"] * 4
        assert rows[plans[0].exchange_id].trainable


def test_an_error_without_tools_is_an_error_and_its_message_waits_for_the_retry() -> None:
    talk = [user("weather?"), answer("Sunny."), user("a title please")]
    first = asked(talk[:1], talk[1], tools=TOOLS)
    failed = asked(talk, None, status="error", finish_reason=None, completion_ids=None, logprobs=None)
    rows = stitch(first, failed)
    assert (rows[failed.exchange_id].kind, rows[failed.exchange_id].untrainable_reason) == ("main", "error")
    assert rows[first.exchange_id].next_state is None


def test_the_end_of_a_conversation_without_a_session_closes_its_turn_and_not_a_namesakes() -> None:
    """Two users of one key whose first messages are equal may share a tree."""
    opening = [asked([user("hi")], answer("hello")) for _ in range(2)]
    talk = [user("hi"), answer("hello"), user("I am Anna")]
    anna = asked(talk, answer("Hello Anna."))
    done = asked([*talk, answer("Hello Anna."), user("bye")], answer("Bye."), session_done=True)
    ben = [asked([user("hi"), answer("hello"), user("I am Ben")], answer("Hello Ben."))]
    ben.append(asked([*ben[0].messages, answer("Hello Ben."), user("thanks")], answer("Welcome.")))
    sessions = Sessions(3600.0)
    for exchange in (*opening, anna, ben[0], done):
        sessions.add(exchange)
    assert done.exchange_id in {row.turn_id for row in sessions.pop_rows()}
    sessions.add(ben[1])
    sessions.rate(Feedback("f1", ben[1].finished_at, "default", ben[1].exchange_id, 1.0, None))  # so the thanks are Ben's
    assert (ben[0].exchange_id, [user("thanks")]) in [(row.turn_id, row.next_state) for row in sessions.pop_rows()]
