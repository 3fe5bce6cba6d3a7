"""Clients that rewrite their history: evidence that links a request to its turn, and look-alikes that must stay separate."""

import html
import itertools
import time
import unicodedata
from collections.abc import Callable

import pytest
from made_exchanges import answer, asked, new_id, system, tool, user
from stitching import stitch

from clawctl.collect.sessions import Sessions
from clawctl.run.rows import Exchange, Feedback, Message

REMINDER = "<reminder>\nKeep to the rules.\n</reminder>"


def test_an_answer_to_which_the_client_appends_is_found_by_its_beginning() -> None:
    first = asked([user("go")], answer("Thought: I print.\n<code>\nprint(1)\n"))
    shown = answer("Thought: I print.\n<code>\nprint(1)\n</code>\nCalling tools: [{'id': 'call_1'}]")
    second = asked([user("go"), shown, user("Observation: 1")], answer("Done"))
    third = asked([user("go"), shown, user("Observation: 1"), answer("Done</code>"), user("right")], answer("!"))
    rows = stitch(first, second, third)
    assert rows[first.exchange_id].next_state == [user("Observation: 1")]
    assert rows[second.exchange_id].next_state == [user("right")]
    assert [rows[e.exchange_id].turn_index for e in (first, second, third)] == [0, 1, 2]


def test_of_two_answers_to_one_request_the_longest_beginning_is_the_parent() -> None:
    tries = [asked([user("go")], answer(text)) for text in ("I print", "I print it")]
    second = asked([user("go"), answer("I print it\n</code>"), user("ok")], answer("Done"))
    assert stitch(*tries, second)[second.exchange_id].parent_turn_id == tries[1].exchange_id


def test_a_reminder_that_the_client_drops_from_the_last_message_breaks_nothing() -> None:
    """As further lines of the message, before or behind the words, or as a part of its own; with a session and without."""
    for form in ("before", "behind", "part"):
        for session in ({}, {"session_id": "s1"}):
            messages: list[Message] = []
            exchanges = []
            for number in range(3):
                question = f"question {number}\nin two lines"
                with_reminder = {
                    "before": user(f"{REMINDER}\n\n{question}"),
                    "behind": user(f"{question}\n\n{REMINDER}"),
                    "part": {"role": "user", "content": [{"type": "text", "text": text} for text in (REMINDER, question)]},
                }[form]
                exchanges.append(asked([*messages, with_reminder], answer("yes"), **session))
                messages = [*messages, user(question), answer("yes")]
            rows = stitch(*exchanges)
            for before, after in itertools.pairwise(exchanges):
                assert rows[after.exchange_id].parent_turn_id == before.exchange_id, (form, session)
                assert rows[before.exchange_id].next_state == [after.messages[-1]]


def test_a_client_that_keeps_final_answers_only_is_one_conversation() -> None:
    call = answer(None, (f"call{new_id()}0", "look", "{}"))
    result = tool(call["tool_calls"][0]["id"], "sunny")
    first = asked([user("weather?")], call)
    second = asked([user("weather?"), call, result], answer("It is sunny."))
    third = asked([user("weather?"), answer("It is sunny."), user("thanks")], answer("welcome"))
    rows = stitch(first, second, third)
    assert rows[third.exchange_id].parent_turn_id == second.exchange_id
    assert rows[second.exchange_id].next_state == [user("thanks")]


def test_a_broken_tool_call_that_the_client_clears_breaks_nothing() -> None:
    broken = answer("I look.", (f"call{new_id()}0", "look", '{"path": '))
    first = asked([user("look")], broken)
    second = asked([user("look"), answer("I look."), user("Your tool call was not valid JSON.")], answer("Sorry."))
    rows = stitch(first, second)
    assert rows[first.exchange_id].next_state == [user("Your tool call was not valid JSON.")]
    empty = asked([user("peek")], answer(None, (f"call{new_id()}0", "look", '{"path": ')))
    after = asked([user("peek"), answer(""), user("Your tool call was not valid JSON.")], answer("Sorry."))
    assert stitch(empty, after)[after.exchange_id].parent_turn_id == empty.exchange_id


def test_a_handle_deeper_in_the_history_finds_the_answer_among_its_descendants() -> None:
    """Everything around it was rewritten: the first message, the result, the system prompt."""
    call = answer("I look.", (f"call{new_id()}0", "look", "{}"))
    handle = call["tool_calls"][0]["id"]
    first = asked([user("look")], call)
    second = asked([user("look"), call, tool(handle, "a\nb")], answer("Two files."))
    rewritten = [user("[earlier messages were shortened]"), call, tool(handle, "[cleared]"), answer("Two files."), user("which?")]
    third = asked(rewritten, answer("a and b"))
    rows = stitch(first, second, third)
    assert rows[third.exchange_id].parent_turn_id == second.exchange_id
    assert rows[second.exchange_id].next_state == [user("which?")]


def test_the_evidence_of_each_link_is_kept() -> None:
    call = answer(None, (f"call{new_id()}0", "look", "{}"))
    handle = call["tool_calls"][0]["id"]
    sessions = Sessions(3600.0)
    links = [
        (None, asked([user("look\n" + REMINDER)], call)),
        ("handle", asked([user("look\n" + REMINDER), call, tool(handle, "a")], answer("One file."))),
    ]
    asks = [*links[1][1].messages, answer("One file."), user("ty")]
    links.append(("conversation", asked(asks, answer("Welcome"))))
    links.append(("prefix", asked([*asks, answer("Welcome, and so on"), user("stop\n" + REMINDER)], answer("ok, I stop"))))
    links.append(("reminder", asked([*links[3][1].messages[:-1], user("stop"), answer("ok, I stop"), user("bye")], answer("bye"))))
    for expected, exchange in links:
        node = sessions.add(exchange)
        assert node is not None
        assert node.evidence == expected


def conversations(*talks: list[Message]) -> tuple[list[list[Exchange]], list[Exchange]]:
    """The requests of each talk, and those of all talks, one of each in turn."""
    requests = [
        [asked(talk[:at], talk[at]) for at in range(1, len(talk), 2)]  # the answers stand at odd places
        for talk in talks
    ]
    return requests, [exchange for some in itertools.zip_longest(*requests) for exchange in some if exchange is not None]


def test_conversations_that_look_alike_stay_apart() -> None:
    alike = {
        "the same question of two people": [
            [user("what is 2+2?"), answer("4"), user("and 3+3?"), answer("6"), user("I am Anna"), answer("Hello Anna")],
            [user("what is 2+2?"), answer("4"), user("and 5+5?"), answer("10"), user("I am Ben"), answer("Hello Ben")],
        ],
        "the same answer to other questions": [
            [user("is it wet?"), answer("yes"), user("how wet?"), answer("very")],
            [user("is it cold?"), answer("yes"), user("how cold?"), answer("very")],
        ],
        "a message that holds the lines of another": [
            [user("rules\nbe brief\ngo"), answer("ok"), user("next"), answer("so"), user("a"), answer("A")],
            [user("be brief\ngo"), answer("ok"), user("next"), answer("so"), user("b"), answer("B")],
        ],
        "an answer that begins another": [
            [user("count"), answer("one two"), user("more"), answer("three")],
            [user("list"), answer("one two three"), user("more"), answer("four")],
        ],
        "a sub-agent that is given the same task": [
            [system("main"), user("write a poem"), answer("A rose"), user("longer"), answer("A rose is")],
            [system("kid"), user("write a poem!"), answer("A rose"), user("shorter"), answer("Rose")],
        ],
    }
    for name, talks in alike.items():
        talks = [[message for message in talk if message["role"] != "system"] for talk in talks]
        requests, exchanges = conversations(*talks)
        rows = stitch(*exchanges)
        for conversation in requests:
            for before, after in itertools.pairwise(conversation):
                if before.messages[-1] in (user("what is 2+2?"),):
                    continue  # the text does not distinguish these two yet
                assert rows[after.exchange_id].parent_turn_id == before.exchange_id, name


def test_a_client_that_changes_ids_arguments_and_its_newest_message_at_once_is_one_conversation() -> None:
    """An agent with absolute paths, as its client shows them later; without arguments, the names and the conversation are left."""
    question = "Please list the files of my project."
    first = asked([user(f"{question}\n\nReply in English.")], answer(None, ("toolu_a", "look", '{"path": "/home/user/app"}')))
    shown = answer(None, ("toolu_b", "look", '{"path": "."}'))
    second = asked([user(question), shown, tool("toolu_b", "a.py")], answer("One file."))
    assert stitch(first, second)[second.exchange_id].parent_turn_id == first.exchange_id
    other = answer(None, ("toolu_b", "run", '{"path": "."}'))
    third = asked([user(question), other, tool("toolu_b", "a.py")], answer("One file."))
    assert stitch(first, third)[third.exchange_id].parent_turn_id is None


def test_a_client_that_clears_earlier_results_and_gives_calls_other_ids_and_arguments_is_one_conversation() -> None:
    question, said = "Please list the files of my project.", "There are two files in the project."
    call = answer(None, ("toolu_a", "look", '{"path": "/app"}'))
    first = asked([user(question), call, tool("toolu_a", "a.py\nb.py")], answer(said))
    shown = [answer(None, ("toolu_b", "look", '{"path": "."}')), tool("toolu_b", "[cleared]"), answer(said), user("thanks")]
    second = asked([user(question), *shown], answer("welcome"))
    assert stitch(first, second)[second.exchange_id].parent_turn_id == first.exchange_id
    other = asked([user("Please list the files of my other project."), *shown], answer("welcome"))
    assert stitch(first, other)[other.exchange_id].parent_turn_id is None
    twin = asked(first.messages, answer(said))
    assert stitch(first, twin, second)[second.exchange_id].parent_turn_id is None


def test_two_runs_of_one_cron_prompt_stay_apart() -> None:
    runs = []
    for _ in range(2):
        call = answer(None, (f"call{new_id()}0", "check", "{}"))
        result = tool(call["tool_calls"][0]["id"], "all well")
        first = asked([user("Check the backups.")], call)
        second = asked([user("Check the backups."), call, result], answer("All well."))
        runs.append((first, second))
    rows = stitch(*itertools.chain(*zip(*runs, strict=True)))
    assert [rows[second.exchange_id].parent_turn_id for _, second in runs] == [first.exchange_id for first, _ in runs]
    assert len({row.session_id for row in rows.values()}) == 2


def test_an_answer_of_another_conversation_is_not_matched_by_its_text_alone() -> None:
    """No session is named, and the histories share nothing but the answer."""
    first = asked([user("a long question\nwith lines")], answer("Certainly."))
    other = asked([user("something else\nwith lines"), answer("Certainly."), user("no")], answer("Sorry."))
    prefix = asked([user("something else"), answer("Certainly. And more"), user("no")], answer("Sorry."))
    rows = stitch(first, other, prefix)
    assert [rows[e.exchange_id].parent_turn_id for e in (other, prefix)] == [None, None]


def test_an_answer_that_continues_the_last_message_is_found_however_the_client_keeps_the_two() -> None:
    """Joined, as Anthropic's clients do; as two messages; or the answer alone."""
    for shown in ([answer('{"city": "Paris"}')], [answer('{"city"'), answer(': "Paris"}')], [answer(': "Paris"}')]):
        first = asked([user("hi")], answer("hello"))
        begun = [user("hi"), answer("hello"), user("as JSON"), answer('{"city"')]
        second = asked(begun, answer(': "Paris"}'))
        third = asked([*begun[:3], *shown, user("thanks")], answer("!"))
        rows = stitch(first, second, third)
        assert rows[second.exchange_id].parent_turn_id == first.exchange_id
        assert rows[first.exchange_id].next_state == [user("as JSON")]
        assert rows[third.exchange_id].parent_turn_id == second.exchange_id, shown
        assert rows[second.exchange_id].next_state == [user("thanks")]


def test_a_message_that_only_begins_like_a_continued_one_is_not_its_answer() -> None:
    first = asked([user("as JSON"), answer("{")], answer('"city": "Paris"}'))
    other = asked([user("as JSON"), answer('{"city": "Rome"}'), user("thanks")], answer("!"))
    rows = stitch(first, other)
    assert rows[other.exchange_id].parent_turn_id is None
    assert rows[first.exchange_id].next_state is None


def test_messages_that_a_client_wrote_for_both_sides_are_neither_a_break_nor_a_next_state() -> None:
    """aider: files precede the newest message, and a note on the commit follows the answer."""
    front = [
        user("I have *added these files to the chat* so:\na.py\nprint(1)"),
        answer("Ok, any changes I propose will be to those files."),
    ]
    renewed = [user("I have *added these files to the chat* so:\na.py\nprint(2)"), front[1]]
    rules = "\n".join(f"Rule {number}: reply with whole files." for number in range(8))
    note = [user("I committed the changes with git hash 1 & commit msg: two"), answer("Ok.")]
    first = asked([*front, user(f"print two\n\n{rules}")], answer("a.py\nprint(2), as you asked me to in your message."))
    talk = [user("print two"), answer("a.py\nprint(2), as you asked me to in your message.")]
    second = asked([*talk, *note, *renewed, user(f"thanks\n\n{rules}")], answer("welcome"))
    rows = stitch(first, second)
    assert rows[second.exchange_id].parent_turn_id == first.exchange_id
    assert rows[first.exchange_id].next_state == [user(f"thanks\n\n{rules}")]


def test_a_call_that_a_client_writes_into_the_text_is_found_by_its_id() -> None:
    """smolagents: two agents that were given one task, each with its own call."""
    calls = [answer(None, (f"call{new_id()}0", "look", "{}")) for _ in range(2)]
    firsts = [asked([user("Task: look")], call) for call in calls]
    shown = [answer(f"Calling tools:\n[{{'id': '{call['tool_calls'][0]['id']}', 'name': 'look'}}]") for call in calls]
    seconds = [asked([user("Task: look"), text, user("Observation: sunny")], answer("It is sunny.")) for text in shown]
    rows = stitch(*firsts, *reversed(seconds))
    assert [rows[second.exchange_id].parent_turn_id for second in seconds] == [first.exchange_id for first in firsts]


def test_an_answer_that_the_client_writes_itself_does_not_hide_the_one_before_it() -> None:
    """smolagents puts a plan between its steps, and appends to each answer."""
    talk = [user("New task:\ncount the files"), answer("Thought: look\n<code>\nls()\n")]
    first = asked(talk[:1], talk[1])
    plan = answer("I still need to solve the task. Here is my new plan:\n1. count")
    shown = [talk[0], answer("Thought: look\n<code>\nls()\n</code>\nCalling tools: []"), user("Observation:\na b"), plan]
    second = asked([*shown, user("Now proceed and carry out this plan.")], answer("<code>\nfinal_answer(2)\n"))
    rows = stitch(first, second)
    assert rows[second.exchange_id].parent_turn_id == first.exchange_id
    assert rows[first.exchange_id].next_state == [user("Observation:\na b")]


def test_a_reminder_that_moves_to_the_new_message_proves_a_short_conversation() -> None:
    reminder = "\n\n" + "\n".join(f"{number}. Rule number {number} of the format." for number in range(1, 8))
    first = asked([user("hi" + reminder)], answer("hello"))
    second = asked([user("hi"), answer("hello"), user("bye" + reminder)], answer("bye"))
    other = asked([user("hi"), answer("hello"), user("bye")], answer("bye"))
    rows = stitch(first, second)
    assert rows[second.exchange_id].parent_turn_id == first.exchange_id
    assert rows[first.exchange_id].next_state == [user("bye" + reminder)]
    assert stitch(first, other)[other.exchange_id].parent_turn_id is None


def test_an_answer_that_several_conversations_of_one_session_have_proves_nothing() -> None:
    """A header that names a person and not a conversation, and a client that rewrites its history."""
    firsts = [asked([user(f"Context: {name}. Who is {name}?")], answer("A friend."), session_id="anna") for name in ("ben", "eva")]
    next_ = asked([user("Who is he?"), answer("A friend."), user("Context: x. Since when?")], answer("May."), session_id="anna")
    assert stitch(*firsts, next_)[next_.exchange_id].parent_turn_id is None
    assert stitch(firsts[0], next_)[next_.exchange_id].parent_turn_id == firsts[0].exchange_id


def test_a_long_history_that_was_never_captured_costs_no_more_if_its_answers_have_many_lines() -> None:
    """Two answers may be in one message, but only after a known beginning of the conversation."""

    def seconds(lines: int) -> float:
        said = "\n".join(["word " * (32 // lines)] * lines)
        history = [message for n in range(60) for message in (user(f"ask {n}"), answer(said))]
        exchanges = [asked([user(f"I am {n}"), *history], answer("yes")) for n in range(8)]
        sessions, began = Sessions(1e9), time.process_time()
        for exchange in exchanges:
            sessions.add(exchange)
        return time.process_time() - began

    assert min(seconds(32) for _ in range(3)) < 2.5 * min(seconds(1) for _ in range(3))


LONG = "Please plan a trip to Rome for three days."


def shown_as(change: Callable[[Message, bool], Message], talk: list[Message], **hints: str) -> list[Exchange]:
    """The requests of a talk whose client changes each message (`change(message, is_newest)`); the answers are captured as they
    are.
    """
    ends = [index for index, message in enumerate(talk) if message["role"] == "assistant"]
    return [asked([change(talk[i], i == end - 1) for i in range(end)], talk[end], **hints) for end in ends]


def test_a_client_that_reformats_answers_or_questions_is_one_conversation() -> None:
    talk = [
        user(LONG), answer("Day 1: the “Forum” &\n\nDay 2: a Cafe\u0301.  \nDay 3: rest."), user("shorter, please"),
        answer("The Forum — a café — and rest."), user("thank you very much"), answer("You are welcome."),
    ]  # fmt: skip
    picture = {"type": "image_url", "image_url": {"url": "https://pictures/cat.png"}}
    numbers = itertools.count()

    def old(change: Callable[[str], str], role: str = "assistant") -> Callable[[Message, bool], Message]:
        return lambda m, newest: {**m, "content": change(m["content"])} if m["role"] == role and not newest else m

    noted = old(lambda text: f"{text}[image]", "user")

    def signed(message: Message, newest: bool) -> Message:
        signature = {**picture, "image_url": {"url": f"{picture['image_url']['url']}?sig={next(numbers)}"}}
        return (
            {**message, "content": [{"type": "text", "text": message["content"]}, signature]} if LONG in str(message) else message
        )

    clients = {
        "other line ends": old(lambda text: text.replace("\n", "\r\n")),
        "spaces collapsed": old(lambda text: " ".join(text.split())),
        "plain quotes and dashes": old(lambda text: text.replace("“", '"').replace("”", '"').replace("—", "-")),
        "composed letters": old(lambda text: unicodedata.normalize("NFC", text)),
        "escaped": old(html.escape),
        "a speaker in front": old(lambda text: f"Guide: {text}"),
        "wrapped in tags": old(lambda text: f"<answer>{text}</answer>"),
        "cut short": old(lambda text: f"{text[:30]}…"),
        "interrupted": old(lambda text: f"{text[:30]}\n[interrupted by the user]"),
        "questions trimmed": old(lambda text: f" {text} ".replace(" ", "  "), "user"),
        "a template around the newest question": lambda m, newest: (
            {**m, "content": f"Use the documents: {next(numbers)}. Question: {m['content']} Answer:"} if newest else m
        ),
        "a signed picture": signed,
        "a picture that becomes a note": lambda m, newest: signed(m, newest) if newest else noted(m, newest),
    }  # fmt: skip
    for name, change in clients.items():
        exchanges = shown_as(change, talk)
        rows = stitch(*exchanges)
        for before, after in itertools.pairwise(exchanges):
            assert rows[after.exchange_id].parent_turn_id == before.exchange_id, name
            assert rows[before.exchange_id].next_state == [after.messages[-1]], name


def test_a_turn_that_is_closed_is_still_found_if_its_answer_comes_back_in_another_form() -> None:
    """Its user rated it before the next request, or collect was started again."""
    talk = [user(LONG), answer("Day 1: the Forum. Day 2: rest."), user("shorter"), answer("The Forum, then rest.")]
    first, second = shown_as(lambda m, newest: answer(f"<said>{m['content']}</said>") if m["role"] == "assistant" else m, talk)
    rated = Sessions(3600.0)
    rated.add(first)
    rated.rate(Feedback("f1", first.finished_at, "default", first.exchange_id, -1.0, None))
    for sessions in (rated, Sessions(3600.0, published={first.exchange_id: None})):
        sessions.add(first)
        node = sessions.add(second)
        assert node is not None
        assert (node.parent_id, node.evidence) == (first.exchange_id, "alike")


def test_alike_texts_of_other_conversations_and_agents_stay_apart() -> None:
    said = "I have written the poem about the sea as you asked me to, in four lines."
    first = asked([system("You plan."), user("be brief")], answer(said))
    others = {
        "a longer question": [system("You plan."), user("rules\nbe brief"), answer(said)],
        "another answer": [system("You plan."), user("be brief"), answer("I have written a song about the sea, in five lines.")],
        "another agent": [system("You work."), user("be brief"), answer(f"<plan>{said}</plan>")],
        "a call that it did not make": [system("You plan."), user("be brief"), answer(f"Well: {said}", ("call_1", "look", "{}"))],
    }
    for name, history in others.items():
        last = tool("call_1", "a") if "call" in name else user("go on")
        other = asked([*history, last], answer("ok"))
        assert stitch(first, other)[other.exchange_id].parent_turn_id is None, name


def test_a_user_who_says_the_same_again_is_heard_although_the_client_changed_the_first_time() -> None:
    again = "try again please, with the second chapter of the book"
    exchanges = shown_as(
        lambda m, newest: user(f"{m['content']}\n{REMINDER}") if newest else m,
        [user(again), answer("Chapter one."), user(again), answer("Chapter three."), user(again), answer("Chapter two.")],
    )
    rows = stitch(*exchanges)
    for before, after in itertools.pairwise(exchanges):
        assert rows[before.exchange_id].next_state == [after.messages[-1]]


def test_results_that_stand_between_the_calls_of_one_answer_are_all_its_next_state() -> None:
    call = answer("I look.", *((f"call{new_id()}{i}", "look", f'{{"at": {i}}}') for i in range(2)))
    results = [tool(part["id"], f"result {i}") for i, part in enumerate(call["tool_calls"])]
    parts = [{**call, "tool_calls": [part]} for part in call["tool_calls"]]
    first = asked([user("look twice")], call)
    second = asked([user("look twice"), parts[0], results[0], parts[1], results[1]], answer("Done."))
    assert stitch(first, second)[first.exchange_id].next_state == results


def test_a_window_of_the_last_answer_and_a_note_that_moves_are_one_conversation() -> None:
    talk: list[Message] = []
    for number, text in enumerate(
        ("The Forum on day one.", "Pasta at the market.", "Wine by the river.", "A boat on the last day.")
    ):
        talk += [user(f"what about item {number}, please?"), answer(text)]
    ends = range(1, len(talk), 2)
    window = [asked(talk[max(end - 3, 0) : end], talk[end]) for end in ends]
    noted = [asked([*talk[: max(end - 2, 0)], user("[Be terse]"), *talk[max(end - 2, 0) : end]], talk[end]) for end in ends]
    for exchanges in (window, noted):
        rows = stitch(*exchanges)
        for before, after in itertools.pairwise(exchanges):
            assert rows[after.exchange_id].parent_turn_id == before.exchange_id
            assert rows[before.exchange_id].next_state == [after.messages[-1]]


def test_two_people_who_asked_the_same_questions_in_another_order_are_two_conversations() -> None:
    questions, poem = (
        [user("what is two and two?"), user("please be brief and go")],
        answer("I have written the poem, in four lines."),
    )
    weather = answer("It is because of the weather that we have.")
    for shown in (questions, questions[::-1]):
        ours = asked([shown[0], poem, shown[1]], weather)
        theirs = asked([shown[1], poem, shown[0], weather, user("thanks")], answer("You are welcome."))
        assert stitch(ours, theirs)[theirs.exchange_id].parent_turn_id is None


def test_a_response_that_is_named_as_the_previous_one_is_the_parent_in_any_session() -> None:
    first = asked([user("plan a trip")], answer("Where to?"), session_id="a")
    named = {**answer("Where to?"), "handle": first.exchange_id}
    second = asked([user("plan a trip"), named, user("Rome")], answer("ok"), session_id="b", continues=first.exchange_id)
    assert stitch(first, second)[first.exchange_id].next_state == [user("Rome")]


@pytest.mark.parametrize(
    ("kept", "note"),
    [(1, []), (2, []), (3, []), (2, [user("[3 messages were removed]")])],
    ids=["question", "answer", "two", "note"],
)
def test_a_client_that_cuts_the_middle_out_is_one_conversation(kept: int, note: list[Message]) -> None:
    talk: list[Message] = []
    for number in range(6):
        talk += [user(f"question {number}, about the garden"), answer(f"answer {number}: water it in the evening")]
    ends = range(1, len(talk), 2)
    shown = [talk[:end] if end < kept + 4 else [*talk[:kept], *note, *talk[end - 3 : end]] for end in ends]
    exchanges = [asked(messages, talk[end]) for messages, end in zip(shown, ends, strict=True)]
    rows = stitch(*exchanges)
    for before, after in itertools.pairwise(exchanges):
        assert rows[after.exchange_id].parent_turn_id == before.exchange_id
        assert rows[before.exchange_id].next_state == [after.messages[-1]]


def test_user_messages_that_a_client_joins_or_divides_are_the_same() -> None:
    parts, whole = [user("First part"), user("second part")], [user("First part\n\nsecond part")]
    for sent, shown in ((parts, whole), (whole, parts)):
        first = asked([*sent], answer("Yes"))
        second = asked([*shown, answer("Yes"), user("go")], answer("Gone"))
        third = asked([*shown, answer("Yes"), user("go"), answer("Gone"), user("bye")], answer("!"))
        rows = stitch(first, second, third)
        assert rows[second.exchange_id].parent_turn_id == first.exchange_id
        assert rows[first.exchange_id].next_state == [user("go")]
    other = asked([user("First part, and another"), answer("Yes"), user("go")], answer("Gone"))
    assert stitch(asked(parts, answer("Yes")), other)[other.exchange_id].parent_turn_id is None


def test_documents_that_a_client_puts_in_front_of_each_question_are_no_part_of_it() -> None:
    def framed(documents: str, question: str) -> Message:
        return user(f"Context:\n{documents}\n\nQuestion: {question}")

    questions = ["What is the warranty?", "And for batteries?", "How do I claim it?"]
    documents = ["Two years for all devices.", "Batteries have six months.", "Claims need a receipt."]
    exchanges: list[Exchange] = []
    history: list[Message] = []
    for question, document in zip(questions, documents, strict=True):
        exchanges.append(asked([*history, framed(document, question)], answer(f"About {question[:-1]}: see the documents.")))
        history += [user(question), exchanges[-1].response]
    rows = stitch(*exchanges)
    for before, after in itertools.pairwise(exchanges):
        assert rows[after.exchange_id].parent_turn_id == before.exchange_id
        assert rows[before.exchange_id].next_state == [after.messages[-1]]
    other = asked([user("What is the warranty?"), answer("Ask the shop for it."), framed("None.", "Why?")], answer("So."))
    assert stitch(exchanges[0], other)[other.exchange_id].parent_turn_id is None


def test_one_message_that_is_edited_between_answers_leaves_the_conversation_whole() -> None:
    history: list[Message] = []
    exchanges: list[Exchange] = []
    for topic in ("alpha", "beta", "gamma"):
        history.append(user(f"Write about {topic}, please"))
        exchanges.append(asked([*history], answer(f"Here is what I know about {topic}.")))
        history.append(exchanges[-1].response)
    edited = [*history[:2], user("Sorry, delta was meant"), *history[3:], user("Now omega")]
    last = asked(edited, answer("The last one."))
    rows = stitch(*exchanges, last)
    assert rows[last.exchange_id].parent_turn_id == exchanges[-1].exchange_id
    assert rows[exchanges[-1].exchange_id].next_state == [user("Now omega")]
