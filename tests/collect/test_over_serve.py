"""Conversations over a real server: captured by serve, stitched by collect, rated late."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from made_exchanges import system, user

from clawctl.collect.worker import collect
from clawctl.config import EvalConfig, Recipe
from clawctl.run.directory import published
from clawctl.run.rows import Message, Turn
from clawctl.run.shards import read_turns
from tests.serve.served import Server, build_model
from tests.waiting import until

END = {"X-Session-Done": "true"}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("over-serve")
    with Server(folder / "run", build_model(folder / "model")) as running:
        yield running


class Talk:
    """One conversation as a client keeps it."""

    def __init__(self, server: Server, *opening: Message, **headers: str) -> None:
        self.server, self.messages = server, list(opening)
        self.all_headers = {"Authorization": "Bearer key", **{name.replace("_", "-"): value for name, value in headers.items()}}
        self.turns: list[str] = []  # their ids
        self.user_digests: list[str] = []

    def ask(self, text: str, keep: bool = True, **settings: Any) -> Message:
        """Send a message; with `keep` the answer is part of the history."""
        messages = [*self.messages, user(text)]
        self.user_digests.append(text)
        reply = self.request(messages, **settings)
        if keep:
            self.messages = [*messages, reply]
        return reply

    def request(self, messages: list[Message], headers: dict[str, str] | None = None, **settings: Any) -> Message:
        body = {"model": "tiny", "messages": messages, "max_tokens": 6, **settings}
        response = httpx.post(
            f"{self.server.url}/chat/completions", json=body, timeout=120,
            headers={**self.all_headers, **(headers or {})},
        )  # fmt: skip
        assert response.status_code == 200, response.text
        reply_body = response.json()
        self.turns.append(reply_body["id"].removeprefix("chatcmpl"))
        return {"role": "assistant", "content": reply_body["choices"][0]["message"]["content"]}


def stitched(server: Server) -> dict[str, Turn]:
    """All rows after a `clawctl collect --once`."""
    collect(server.run, Recipe(eval=EvalConfig(holdout=0)), once=True)
    rows = [row for path in published(server.run.trajectories, ".parquet") for row in read_turns(path)]
    assert len({row.turn_id for row in rows}) == len(rows)
    return {row.turn_id: row for row in rows}


def parents(rows: dict[str, Turn], talk: Talk) -> list[str | None]:
    return [rows[turn].parent_turn_id for turn in talk.turns]


def test_parallel_sub_agents_two_people_and_equal_answers_never_mix(server: Server) -> None:
    """Six conversations at once behind one key: two people who say the same for a while, a session of four agents who do; all
    greedy, so that equal requests get equal answers."""
    people = [Talk(server, system("kind")) for _ in range(2)]
    agents = [Talk(server, system("agent"), X_Session_Id="swarm") for _ in range(4)]

    def run(talk: Talk, name: str) -> None:
        for text in ("hello", "how are you", f"i am {name}", f"{name} again", "bye"):
            talk.ask(text, temperature=0)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(run, [*people, *agents], ["anna", "ben", "one", "two", "three", "four"]))
    for talk in (*people, agents[0]):
        talk.ask("the end", headers=END)
    rows = stitched(server)
    for talk in (*people, *agents):
        diverged = talk.turns[
            2:
        ]  # from where their words differ on, each has its own line; who said the first ones is anybody's guess
        assert [rows[turn].parent_turn_id for turn in diverged[1:]] == diverged[:-1]
        assert [rows[turn].next_state for turn in diverged[:2]] == [[user(talk.user_digests[3])], [user("bye")]]
        assert [rows[turn].turn_index for turn in diverged] == list(range(2, len(talk.turns)))
    assert {rows[turn].session_id for talk in agents for turn in talk.turns[2:]} == {"swarm"}


def test_edits_regenerations_clocks_and_utility_calls_in_one_conversation(server: Server) -> None:
    talk = Talk(server, X_Session_Id="edited")
    for minute in range(3):
        talk.messages[:1] = [system(f"It is 10:{minute:02d}.")]
        talk.ask(f"question {minute}", tools=TOOLS)
    title = talk.ask("A title in three words, please.", keep=False)  # without tools, and no rule matches it
    talk.ask("question 3", keep=False, tools=TOOLS)
    talk.ask("question 3", tools=TOOLS)  # the user pressed "again"
    talk.ask("question 4", tools=TOOLS)
    edited = [*talk.messages[:3], user("question 1, put otherwise")]
    talk.request(edited, headers=END, tools=TOOLS)
    rows = stitched(server)
    first, second, third, aside, dropped, kept, last, edit = talk.turns
    assert title["role"] == "assistant"
    assert parents(rows, talk) == [None, first, second, third, third, third, kept, first]
    assert rows[third].next_state == [user("question 3")]
    assert (rows[aside].kind, rows[aside].untrainable_reason) == ("side", "side turn")
    assert rows[dropped].untrainable_reason == "regenerated"
    assert rows[kept].untrainable_reason in (None, "cut tool call")  # random weights may begin a call
    assert rows[last].untrainable_reason in ("no next state", "cut tool call")
    assert (rows[first].next_state, rows[edit].next_state) == ([user("question 1")], None)


def test_a_client_that_hangs_up_and_tries_again_loses_nothing_and_trains_nothing_twice(server: Server) -> None:
    talk = Talk(server, X_Session_Id="hung-up")
    talk.ask("hello")
    messages = [*talk.messages, user("a long one")]
    body = {"model": "tiny", "messages": messages, "max_tokens": 3000, "stream": True}
    before = len(server.captured())
    with (
        contextlib.suppress(httpx.HTTPError),
        httpx.stream("POST", f"{server.url}/chat/completions", json=body, headers=talk.all_headers) as stream,
    ):
        next(stream.iter_raw())
    talk.ask("a long one")
    talk.ask("thanks", headers=END)
    until(lambda: len(server.captured()) == before + 3)
    rows = stitched(server)
    first, again, last = talk.turns
    assert parents(rows, talk) == [None, first, again]
    assert rows[first].next_state == [user("a long one")]
    hung_up = [row for row in rows.values() if row.parent_turn_id == first and row.turn_id != again]
    assert [(row.next_state, row.trainable) for row in hung_up] == [(None, False)]
    assert rows[last].untrainable_reason == "no next state"


def test_compaction_keeps_the_session_and_its_end_closes_the_last_turn_at_once(server: Server) -> None:
    talk = Talk(server, system("long"), X_Session_Id="compacted")
    for text in ("one", "two"):
        talk.ask(text)
    talk.messages = [system("long"), user("Summary of what was said: one, two."), *talk.messages[-1:]]
    talk.ask("three")
    talk.ask("four", headers=END)
    rows = stitched(server)
    first, second, third, fourth = talk.turns
    assert rows[first].next_state == [user("two")]
    assert parents(rows, talk)[1:] == [first, second, third]
    assert rows[fourth].untrainable_reason == "no next state"
    assert {rows[turn].session_id for turn in talk.turns} == {"compacted"}


def test_a_late_rating_of_a_judged_turn_and_of_the_last_turn_reach_the_rows_that_wait(server: Server) -> None:
    """tests/train/test_late_ratings.py tests their use by the trainer."""
    talk = Talk(server, X_Session_Id="rated", X_Turn_Type="main")
    talk.ask("hello")
    talk.ask("open")
    rows = stitched(server)
    assert talk.turns[0] in rows
    assert talk.turns[1] not in rows  # it waits for what comes back
    for turn, rating in zip(talk.turns, (-1.0, 1.0), strict=True):
        body = {"turn_id": turn, "rating": rating, "comment": "I mean it."}
        answer = httpx.post(f"{server.url}/feedback", json=body, headers={"Authorization": "Bearer key"})
        assert answer.status_code in (200, 201, 202), answer.text
    rows = stitched(server)
    assert (rows[talk.turns[0]].feedback, rows[talk.turns[1]].feedback) == (None, 1.0)  # a row that is published is never edited
    assert rows[talk.turns[1]].next_state == [user("I mean it.")]


@pytest.mark.parametrize("api", ["chat/completions", "responses", "messages"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_the_engine_refuses_as_too_long_is_the_next_state_of_the_turn_before(
    server: Server, api: str, stream: bool
) -> None:
    field, limit = ("input", "max_output_tokens") if api == "responses" else ("messages", "max_tokens")
    headers = {"Authorization": "Bearer key", "X-Session-Id": f"refused-{api.replace('/', '-')}-{stream}"}

    def ask(said: list[Message]) -> httpx.Response:
        body = {"model": "tiny", field: said, limit: 6, "stream": stream and len(said) > 1}
        return httpx.post(f"{server.url}/{api}", json=body, headers=headers, timeout=120)

    opening = user(f"hello {api} {stream}")
    first = ask([opening])
    assert first.status_code == 200, first.text
    first_body = first.json()
    answer = {
        "chat/completions": lambda: first_body["choices"][0]["message"]["content"],
        "responses": lambda: first_body["output"][-1]["content"][0]["text"],
        "messages": lambda: first_body["content"][0]["text"],
    }[api]()
    question = "and now this: " + "word " * 2500
    assert ask([opening, {"role": "assistant", "content": answer}, user(question)]).status_code == 400
    until(lambda: len([line for line in server.captured() if line["hints"]["session_id"] == headers["X-Session-Id"]]) == 2)
    collect(server.run, Recipe(eval=EvalConfig(holdout=0)), once=True, end_sessions=True)
    rows = [row for path in published(server.run.trajectories, ".parquet") for row in read_turns(path)]
    (row, refused) = sorted((row for row in rows if row.session_id == headers["X-Session-Id"]), key=lambda row: row.turn_index)
    assert (row.next_state, row.trainable) == ([user(question)], True)
    assert refused.untrainable_reason == "error"
