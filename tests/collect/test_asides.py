"""Utility requests of clients that no rule knows. The next state is the user's message."""

import itertools

import pytest
from made_exchanges import answer, asked, new_id, system, tool, user
from stitching import stitch

from clawctl.run.rows import Exchange, Message

AGENT = system("You are an agent.")
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("look", "run", "write")]
SUGGEST = user("Predict the next thing that the user may want to type here.")
SAID = ["make a plan", "shorter please", "now in French", "thanks"]


def said_in_turn(tools: list | None, asides: list[tuple[Message, Message, list | None]]) -> list[tuple[str, Exchange]]:
    """A conversation in which the client asks every one of `asides` (system prompt, words, tools) behind each answer."""
    messages: list[Message] = []
    exchanges = []
    for number, text in enumerate(SAID):
        messages = [*messages, user(text)]
        reply = answer(f"Answer number {number}.")
        exchanges.append(("turn", asked([AGENT, *messages], reply, tools=tools)))
        messages = [*messages, reply]
        for prompt, ask, own_tools in asides:
            exchanges.append(("aside", asked([prompt, *messages, ask], answer(f"Aside {number}."), tools=own_tools)))
    return exchanges


@pytest.mark.parametrize("tools", [TOOLS, None])
@pytest.mark.parametrize(
    "asides",
    [
        [(AGENT, SUGGEST, "same")],
        [(AGENT, SUGGEST, "same"), (AGENT, user("Name this conversation in at most four words."), "same")],
        [(system("You extract memories."), user("What is worth remembering of this?"), "fewer")],
        [(AGENT, SUGGEST, "same"), (system("You extract memories."), user("What is worth remembering of this?"), "fewer")],
        [(AGENT, user("Name this conversation in at most four words."), "none")],
    ],
)
def test_the_users_message_is_the_next_state_whatever_the_client_requests_in_between(tools, asides) -> None:
    offered = {"same": tools, "fewer": tools and tools[:1], "none": None}
    exchanges = said_in_turn(tools, [(prompt, ask, offered[offer]) for prompt, ask, offer in asides])
    rows = stitch(*(exchange for _, exchange in exchanges))
    turns = [rows[exchange.exchange_id] for kind, exchange in exchanges if kind == "turn"]
    assert [turn.next_state for turn in turns] == [[user(text)] for text in SAID[1:]] + [None]
    assert [turn.kind for turn in turns] == ["main"] * 4
    for before, after in itertools.pairwise(turns):
        assert after.parent_turn_id == before.turn_id
    others = [rows[exchange.exchange_id] for kind, exchange in exchanges if kind == "aside"]
    assert {(row.kind, row.untrainable_reason) for row in others} == {("side", "side turn")}
    assert len({row.session_id for row in rows.values()}) == 1


def test_an_aside_that_works_with_tools_of_its_own_does_not_take_the_place_of_the_user() -> None:
    """A sub-agent that continues the history of the conversation: it calls a tool, gets the result and ends."""
    talk = [user("plan a trip"), answer("Day 1: Rome.")]
    first = asked([AGENT, *talk[:1]], talk[1], tools=TOOLS)
    call = answer(None, (f"call{new_id()}0", "save", "{}"))
    keeper = [system("You keep notes."), *talk, user("Write down what matters.")]
    aside = asked(keeper, call, tools=TOOLS[:1])
    aside_end = asked([*keeper, call, tool(call["tool_calls"][0]["id"], "saved")], answer("Done."), tools=TOOLS[:1])
    second = asked([AGENT, *talk, user("and day 2?")], answer("Day 2: Siena."), tools=TOOLS)
    for order in ([first, aside, aside_end, second], [first, aside, second, aside_end], [first, second, aside, aside_end]):
        assert stitch(*order)[first.exchange_id].next_state == [user("and day 2?")]


def test_the_last_words_of_a_conversation_are_its_next_state_though_nothing_continues_them() -> None:
    first = asked([AGENT, user("2+2?")], answer("5"), tools=TOOLS)
    last = asked([AGENT, user("2+2?"), answer("5"), user("No, 4.")], answer("4"), tools=TOOLS)
    assert stitch(first, last)[first.exchange_id].next_state == [user("No, 4.")]


def test_tool_results_are_the_next_state_at_once() -> None:
    call = answer(None, (f"call{new_id()}0", "run", "{}"))
    first = asked([AGENT, user("go")], call, tools=TOOLS)
    second = asked([AGENT, user("go"), call, tool(call["tool_calls"][0]["id"], "ok")], answer("Done."), tools=TOOLS)
    assert list(stitch(first, second, end=False)) == [first.exchange_id]


def test_words_that_the_user_repeats_are_words_of_the_user() -> None:
    """The conversation continues with "continue, please do it" each time."""
    messages: list[Message] = []
    exchanges = []
    for number in range(4):
        messages = [*messages, user("continue, please do it")]
        exchanges.append(asked([AGENT, *messages], answer(f"part {number}"), tools=TOOLS))
        messages = [*messages, answer(f"part {number}")]
    rows = stitch(*exchanges)
    assert [rows[e.exchange_id].next_state for e in exchanges] == [[user("continue, please do it")]] * 3 + [None]


def test_tool_results_that_a_client_sends_as_system_messages_are_the_next_state() -> None:
    """gptme: the answer contains the call as text, and the system message returns its output."""
    first = asked([AGENT, user("run it")], answer("```shell\nls\n```"))
    second = asked([AGENT, user("run it"), answer("```shell\nls\n```"), system("Ran command: ls\na b c")], answer("Three files."))
    third = asked([*second.messages, answer("Three files."), system("Today is Monday."), user("ty")], answer("welcome"))
    rows = stitch(first, second, third)
    assert rows[first.exchange_id].next_state == [system("Ran command: ls\na b c")]
    assert rows[second.exchange_id].next_state == [user("ty")]


def test_a_request_for_a_repeated_answer_does_not_replace_the_users_message() -> None:
    """It extracts data from each answer, without tools, and reports errors of the extraction."""
    messages: list[Message] = []
    turns = []
    exchanges: list[Exchange] = []
    for number, text in enumerate(SAID):
        messages = [*messages, user(text)]
        turns.append(asked([AGENT, *messages], answer(f"Answer number {number}.")))
        messages = [*messages, answer(f"Answer number {number}.")]
        extract = [AGENT, *messages, user("Extract the entities as JSON.")]
        broken = answer(f"{{broken {number}")
        again = asked([*extract, broken, user("That was no JSON. Try again.")], answer("{}"))
        exchanges += [turns[-1], asked(extract, broken), again]
    rows = stitch(*exchanges)
    assert [rows[turn.exchange_id].next_state for turn in turns] == [[user(message)] for message in SAID[1:]] + [None]


@pytest.mark.parametrize(
    "ask",
    [
        lambda number, reply: f"[12:0{number}:4{number}, Monday] Predict what the user may type next, in a few words.",
        lambda number, reply: (
            f"The last message of the assistant was this one:\n{reply}\nPredict what the user may type next to it."
        ),
    ],
)
def test_a_call_of_the_client_that_quotes_the_time_or_the_answer_is_one_in_all_its_forms(ask) -> None:
    messages: list[Message] = []
    turns, exchanges = [], []
    for number, text in enumerate(SAID):
        messages = [*messages, user(text)]
        reply = f"Answer number {number}, at some length."
        turns.append(asked([AGENT, *messages], answer(reply), tools=TOOLS))
        messages = [*messages, answer(reply)]
        exchanges += [turns[-1], asked([AGENT, *messages, user(ask(number, reply))], answer("more"), tools=TOOLS)]
    rows = stitch(*exchanges)
    assert [rows[turn.exchange_id].next_state for turn in turns] == [[user(message)] for message in SAID[1:]] + [None]


def test_long_words_that_end_several_conversations_and_that_none_went_on_with_are_no_next_state() -> None:
    """A client that suggests a next message after its only answer. Users' last messages are short, or differ from it."""
    suggest = "Suggest three questions that the user may ask next, as JSON."
    firsts, exchanges = [], []
    for last in (suggest, suggest, "thanks", "thanks", "Why is it that you speak of the spring and not of the winter?"):
        talk = [user(f"plan trip {len(firsts)}"), answer(f"Trip {len(firsts)} is planned.")]
        firsts.append(asked(talk[:1], talk[1]))
        exchanges += [firsts[-1], asked([*talk, user(last)], answer("well"))]
    rows = stitch(*exchanges)
    collected = [rows[first.exchange_id] for first in firsts]
    assert [row.next_state is not None for row in collected] == [False, False, True, True, True]
    assert {row.untrainable_reason for row in collected[:2]} == {"no next state"}


def test_the_end_of_a_session_does_not_make_an_aside_the_next_state() -> None:
    name = user("Name this conversation in at most four words.")
    talk = [user("plan a trip"), answer("Planned."), user("ok then"), answer("Fine.")]
    first, aside = asked(talk[:1], talk[1], session_id="s"), asked([*talk[:2], name], answer("Trip"), session_id="s")
    second = asked(talk[:3], talk[3], session_id="s")
    rows = stitch(first, aside, second, asked([*talk, name], answer("Trip"), session_id="s", session_done=True))
    assert [rows[turn.exchange_id].next_state for turn in (first, second)] == [[user("ok then")], None]


def test_results_that_another_agent_brings_are_the_next_state_unless_the_agent_itself_brings_its_own() -> None:
    """A watcher asks with a placeholder; a client that changes its mode has other tools and another prompt."""
    call = answer(None, (f"call{new_id()}0", "run", "{}"))
    handle = call["tool_calls"][0]["id"]
    first = asked([AGENT, user("go")], call, tools=TOOLS)
    watcher = asked([system("You watch."), user("go"), call, tool(handle, "(still running)")], answer("It runs."))
    second = asked([AGENT, user("go"), call, tool(handle, "ok")], answer("Done."), tools=TOOLS)
    assert stitch(first, watcher, second)[first.exchange_id].next_state == [tool(handle, "ok")]
    acting = asked([system("You act now."), user("go"), call, tool(handle, "approved")], answer("Done."), tools=TOOLS[1:])
    assert stitch(first, acting)[first.exchange_id].next_state == [tool(handle, "approved")]
    progress = asked([AGENT, user("go"), call, user("Describe in three words what you do.")], answer("I go on."), tools=TOOLS)
    assert stitch(first, acting, progress)[first.exchange_id].next_state == [tool(handle, "approved")]


def test_a_prompt_that_begins_with_the_day_is_that_of_the_same_agent() -> None:
    talk = [user("2+2?"), answer("5"), user("No, 4.")]
    first = asked([system("Today is Monday, 9 March. You are an agent."), *talk[:1]], talk[1], tools=TOOLS)
    last = asked([system("Today is Wednesday, 11 March. You are an agent."), *talk], answer("4"), tools=TOOLS)
    assert stitch(first, last)[first.exchange_id].next_state == [user("No, 4.")]


def test_two_runs_whose_results_are_system_messages_stay_apart() -> None:
    """Two runs of one prompt with the same answers: the tools' output distinguishes them."""

    def run(name: str) -> list[Exchange]:
        talk = [system("You are gptme."), user("list the files"), answer("```shell\nls\n```")]
        first = asked(talk, answer("```shell\nls\n```"))
        first = asked(talk[:2], talk[2])
        talk += [system(f"Ran command: ls\n{name}.txt"), answer("There is one file.")]
        second = asked(talk[:4], talk[4])
        return [first, second, asked([*talk, user(f"thanks for {name}")], answer("welcome"))]

    runs = [run("a"), run("b"), run("c")]
    rows = stitch(*(exchange for step in zip(*runs, strict=True) for exchange in step))
    for name, (first, second, third) in zip("abc", runs, strict=True):
        assert rows[third.exchange_id].parent_turn_id == second.exchange_id
        assert rows[second.exchange_id].next_state == [user(f"thanks for {name}")]
        assert rows[first.exchange_id].next_state is not None


def test_a_result_as_a_system_message_that_the_client_shortens_later_breaks_nothing() -> None:
    talk = [user("list all the files, please"), answer("```shell\nls\n```"), system("Ran command: ls\n" + "a.txt " * 50)]
    first, second = asked(talk[:1], talk[1]), asked(talk, answer("There are many of them."))
    shown = [*talk[:2], system("Ran command: ls\n(truncated)"), answer("There are many of them."), user("how many?")]
    third = asked(shown, answer("Fifty."))
    rows = stitch(first, second, third)
    assert rows[third.exchange_id].parent_turn_id == second.exchange_id
    assert [rows[turn.exchange_id].next_state for turn in (first, second)] == [[talk[2]], [user("how many?")]]


def test_another_attempt_at_the_same_task_makes_no_turn_an_aside() -> None:
    """One question without tools that lists its possible answers: two attempts give different ones."""
    asking = user("Classify: the film was dull. Answer with exactly one of these words:\nwonderful\nunfavourable")
    said = ("wonderful", "unfavourable")
    attempts = [asked([asking], answer(text), session_id=text, task_id="film-1", group_id="g") for text in said]
    assert {row.kind for row in stitch(*attempts).values()} == {"main"}


def test_a_clients_own_call_is_found_within_its_episode() -> None:
    talk = [AGENT, user("Find the bug in prices.py and mend it, then tell me what it was.")]
    named = {"session_id": "e1", "task_id": "bug-1"}
    work = asked(talk, answer("The sign was wrong."), tools=TOOLS, **named)
    title = asked([system("Name it."), user(f"Title for: {talk[1]['content']}")], answer("Wrong sign"), **named)
    rows = stitch(work, title)
    assert [rows[exchange.exchange_id].kind for exchange in (work, title)] == ["main", "side"]


SUGGESTION = (
    "[SUGGESTION MODE: Suggest what the user might type next.]\n\nPredict it.\n\nReply with ONLY the suggestion, no quotes."
)
FLUSH = "Pre-compaction memory flush. Store durable memories only in memory/2026-11-21.md."


@pytest.mark.parametrize(
    "text", [f"What is this?\n\n{SUGGESTION}", f"{SUGGESTION}\n\nWhat is this?", f"Explain: {SUGGESTION}", f"I read:\n{FLUSH}"]
)
def test_a_person_who_writes_a_sentence_around_a_clients_text_has_a_main_turn(text: str) -> None:
    first, second = (
        asked([user("hi")], answer("hello")),
        asked([user("hi"), answer("hello"), user(text)], answer("It is a prompt.")),
    )
    rows = stitch(first, second)
    assert rows[second.exchange_id].kind == "main"
    assert rows[first.exchange_id].next_state == [user(text)]


@pytest.mark.parametrize("text", [SUGGESTION, FLUSH])
@pytest.mark.parametrize("added", ["", "Reply in English.\n\n", "<reminder>\nThe list is empty.\n</reminder>\n\n"])
def test_a_clients_text_is_a_side_turn_alone_and_with_text_that_the_client_adds_to_each_message(text: str, added: str) -> None:
    first = asked([user(f"{added}How many files are there?")], answer("There are two files."))
    talk = [user("How many files are there?"), answer("There are two files.")]
    aside = asked([*talk, user(added + text)], answer("which ones?"))
    second = asked([*talk, user(f"{added}thanks")], answer("welcome"))
    rows = stitch(first, aside, second)
    assert [rows[turn.exchange_id].kind for turn in (first, aside, second)] == ["main", "side", "main"]
    assert rows[first.exchange_id].next_state == [user(f"{added}thanks")]


def test_last_messages_that_a_client_surrounds_with_the_same_text_are_next_states() -> None:
    """The frame of a message is the person's text, not what the client puts in front of it and behind it."""

    def sent(text: str) -> Message:
        time = "<current_datetime>2026-11-22T05:45:44.528+00:00</current_datetime>"
        return user(f"{time}\n\n{text}\n\nRemember: ask before you change a file.")

    turns, exchanges = [], []
    for name, last in (("rose", "Now water the rose in the garden."), ("lily", "The lily should be cut tomorrow.")):
        call = answer(None, (f"call{new_id()}0", "look", "{}"))
        talk = [user(f"look after the {name}"), call, tool(call["tool_calls"][0]["id"], "wet"), answer(f"The {name} is wet.")]
        turns.append(asked(talk[:3], talk[3]))
        exchanges += [asked([sent(f"look after the {name}")], call), turns[-1], asked([*talk, sent(last)], answer("well"))]
    rows = stitch(*exchanges)
    assert [rows[turn.exchange_id].next_state is not None for turn in turns] == [True, True]
