"""Requests that clients make for themselves, by clients that no rule knows. The next state is what the user said."""

import itertools

import pytest
from made_exchanges import answer, asked, new_id, system, tool, user
from stitching import stitch

from clawctl.types import Exchange, Message

AGENT = system("You are an agent.")
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("look", "run", "write")]
SUGGEST = user("Predict the next thing that the user may want to type here.")
SAID = ["make a plan", "shorter please", "now in French", "thanks"]


def said_in_turn(tools: list | None, asides: list[tuple[Message, Message, list | None]]) -> list[tuple[str, Exchange]]:
    """A conversation in which the client asks every one of `asides` (system prompt, words, tools) behind each answer."""
    messages: list[Message] = []
    exchanges = []
    for number, words in enumerate(SAID):
        messages = [*messages, user(words)]
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
def test_what_the_user_says_is_the_next_state_whatever_the_client_asks_in_between(tools, asides) -> None:
    offered = {"same": tools, "fewer": tools and tools[:1], "none": None}
    exchanges = said_in_turn(tools, [(prompt, ask, offered[own]) for prompt, ask, own in asides])
    rows = stitch(*(exchange for _, exchange in exchanges))
    turns = [rows[exchange.exchange_id] for kind, exchange in exchanges if kind == "turn"]
    assert [turn.next_state for turn in turns] == [[user(words)] for words in SAID[1:]] + [None]
    assert [turn.kind for turn in turns] == ["main"] * 4
    for before, after in itertools.pairwise(turns):
        assert after.parent_turn_id == before.turn_id
    others = [rows[exchange.exchange_id] for kind, exchange in exchanges if kind == "aside"]
    assert {(row.kind, row.untrainable_reason) for row in others} == {("side", "side turn")}
    assert len({row.session_id for row in rows.values()}) == 1


def test_an_aside_that_works_with_tools_of_its_own_does_not_take_the_place_of_the_user() -> None:
    """A sub-agent that goes on with the history of the conversation: it calls a tool, gets the result and ends."""
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
    """ "continue, please do it" is what the conversation went on with each time."""
    messages: list[Message] = []
    exchanges = []
    for number in range(4):
        messages = [*messages, user("continue, please do it")]
        exchanges.append(asked([AGENT, *messages], answer(f"part {number}"), tools=TOOLS))
        messages = [*messages, answer(f"part {number}")]
    rows = stitch(*exchanges)
    assert [rows[e.exchange_id].next_state for e in exchanges] == [[user("continue, please do it")]] * 3 + [None]


def test_tool_results_that_a_client_sends_as_system_messages_are_the_next_state() -> None:
    """gptme: the answer holds the call as text, and what it printed comes back from the system."""
    first = asked([AGENT, user("run it")], answer("```shell\nls\n```"))
    second = asked([AGENT, user("run it"), answer("```shell\nls\n```"), system("Ran command: ls\na b c")], answer("Three files."))
    third = asked([*second.messages, answer("Three files."), system("Today is Monday."), user("ty")], answer("welcome"))
    rows = stitch(first, second, third)
    assert rows[first.exchange_id].next_state == [system("Ran command: ls\na b c")]
    assert rows[second.exchange_id].next_state == [user("ty")]
