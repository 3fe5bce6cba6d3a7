"""Practice: which requests are asked again, of which version, and what their turns carry."""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from clawctl.config import Recipe
from clawctl.environments import Outcome
from clawctl.environments.hint_trial import settle_hint_place
from clawctl.environments.note_cost import is_costly, short_questions
from clawctl.environments.player import make_plan
from clawctl.environments.practice import Asked, Practice, earlier_requests, other_requests, without_oldest
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, open_run
from clawctl.run.endpoint import Endpoint
from clawctl.run.hint_places import PLACES
from clawctl.run.rows import plain_prompt
from clawctl.run.shards import write_turns
from tests.eval.answering_server import Answering, answering
from tests.inspect.example_run import turn

NOTE = "Answer in one short sentence."


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return open_run(tmp_path / "run")


def recipe(place: str = "line", method: str = "opd_topk") -> Recipe:
    return Recipe.model_validate({"train": {"method": method, **({"hint_place": place} if method != "binary" else {})}})


def write_requests(run: RunDir, count: int = 3, stem: str = "a") -> None:
    write_turns(run.trajectories / f"{stem}.parquet", [turn(f"{stem}{n}", index=n) for n in range(count)])


def prepared(run: RunDir, url: str = "http://127.0.0.1:9/v1", note: str = NOTE, **options: Any) -> Practice:
    practice = Practice(note, anyway=True, **options)
    practice.prepare(run, recipe(), Endpoint(url, "key", "tiny"))
    return practice


def texts(requests: list[Asked]) -> list[str]:
    return [request.messages[-1]["content"] for request in requests]


# ---- the requests --------------------------------------------------------------------------------------------------------


def test_requests_are_those_of_people_without_held_out_sessions_side_turns_and_episodes(run: RunDir) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    episode = {"hint": NOTE, "hint_place": "line"}
    write_turns(run.trajectories / "a.parquet", [
        turn("mine"), turn("annas", user="anna"), turn("silent", reason="no next state", next_state=None),
        turn("held", session="s2", reason="held out"), turn("title", kind="side", reason="side turn"), turn("tools", tools=tools),
        turn("episode", episode=episode), turn("plain", messages=[plain_prompt("Once upon")]),
    ])  # fmt: skip
    assert texts(earlier_requests(run)) == ["question mine", "question annas", "question silent", "question tools"]
    assert texts(earlier_requests(run, user="anna")) == ["question annas"]


def test_no_request_of_a_held_out_session_is_practised_whatever_its_own_reason_and_none_with_an_image(run: RunDir) -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "clawctl:sha256:0"}}]}]
    write_turns(run.trajectories / "a.parquet", [
        turn("stopped", session="held", reason="cancelled"), turn("held", session="held", index=1, reason="held out"),
        turn("greedy", session="held", index=2, reason="greedy"), turn("image", session="s2", messages=image),
        turn("annas", session="held", user="anna", reason="greedy"),
    ])  # fmt: skip
    assert texts(earlier_requests(run)) == ["question annas"]


def test_requests_are_in_the_order_of_time_and_each_occurs_once(run: RunDir) -> None:
    again = turn("new", created_at=3000.0)
    write_turns(run.trajectories / "a.parquet", [again, turn("old", created_at=1.0)])
    write_turns(run.trajectories / "b.parquet", [replace(again, turn_id="again"), turn("middle", created_at=2000.0)])
    assert texts(earlier_requests(run)) == ["question old", "question middle", "question new"]
    tasks = prepared(run, requests=2).tasks("train", 8, 0)
    assert set(asked(tasks)) == {"question middle", "question new"}


def test_a_long_conversation_is_practised_without_its_oldest_turns(run: RunDir) -> None:
    system, results = {"role": "system", "content": "s" * 500}, {"role": "tool", "content": "r" * 500}
    talk = [{"role": role, "content": f"{role} {n} " + "w" * 50} for n in range(3) for role in ("user", "assistant")]
    last = [{"role": "user", "content": "q" * 500}, {"role": "assistant", "content": "c"}, results]
    request = [system, *talk, *last]
    assert without_oldest(request, 10_000) == request
    assert without_oldest(request, 400) == [system, *talk[2:], *last]
    assert without_oldest(request, 200) == [system, *talk[4:], *last]
    assert without_oldest(request, 0) == [system, *last]
    assert without_oldest([system], 0) == [system]
    write_turns(run.trajectories / "a.parquet", [turn("long", messages=[*talk, *last])])
    sent = [task.spec.messages for task in prepared(run, history_chars=0, told=0).tasks("train", 1, 0)]
    assert sent == [last]


def test_a_damaged_shard_does_not_stop_practice(run: RunDir) -> None:
    write_requests(run)
    (run.trajectories / "broken.parquet").write_bytes(b"PAR1 broken")
    assert len(earlier_requests(run)) == 3


def test_without_an_earlier_request_the_cure_is_named(run: RunDir) -> None:
    with pytest.raises(ClawError, match="no earlier requests") as raised:
        prepared(run)
    assert "talk to the model first" in raised.value.fix


def test_a_method_that_learns_from_no_hint_is_refused(run: RunDir) -> None:
    write_requests(run)
    with pytest.raises(ClawError, match=r"train\.method binary does not learn from hints"):
        Practice(NOTE).prepare(run, recipe(method="binary"), Endpoint("http://127.0.0.1:9/v1", "key", "tiny"))


@pytest.mark.parametrize("options", [{"note": "  "}, {"told": 1.5}, {"told": -0.1}, {"requests": 0}, {"max_tokens": 0}])
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ClawError, match=rf"play\.options\.{next(iter(options))} is") as raised:
        Practice(**{"note": NOTE, **options})
    assert raised.value.exit_code == 2


# ---- the tasks -----------------------------------------------------------------------------------------------------------


def asked(tasks: Any) -> list[str]:
    """The earlier requests that the tasks practise, without the note."""
    built_in = {messages[-1]["content"] for messages in other_requests()}
    return [text for task in tasks if (text := task.spec.messages[-1]["content"].removesuffix(f" {NOTE}")) not in built_in]


def test_the_teachers_answers_come_first_and_every_fourth_turn_is_a_request_of_another_job(run: RunDir) -> None:
    write_requests(run)
    kinds = [task.kind for task in prepared(run).tasks("train", 20, 0)]
    assert kinds == ["told", "told", "told", "elsewhere"] * 3 + ["alone", "alone", "alone", "elsewhere"] * 2
    assert {task.kind for task in prepared(run, told=1).tasks("train", 16, 0)} == {"told", "elsewhere"}
    assert {task.kind for task in prepared(run, told=0).tasks("train", 16, 0)} == {"alone", "elsewhere"}


def test_all_requests_are_practised_before_any_is_repeated(run: RunDir) -> None:
    write_requests(run, 3)
    texts = asked(prepared(run, told=1).tasks("train", 8, 0))
    assert len(set(texts[:3])) == len(set(texts[3:])) == 3


def test_the_same_seed_gives_the_same_plan_and_another_note_another_one(run: RunDir) -> None:
    """A plan that was played is not played again, so a second note must not have the plan of the first."""
    write_requests(run)
    plans = [make_plan(prepared(run, note=note), "practice", 8, 1, 0).id for note in (NOTE, NOTE, "Answer in Spanish.")]
    assert plans[0] == plans[1] != plans[2]
    alone = [make_plan(prepared(run, note=note, told=0), "practice", 8, 1, 0).id for note in (NOTE, "Answer in Spanish.")]
    assert alone[0] != alone[1]


def test_practice_is_no_suite(run: RunDir) -> None:
    write_requests(run)
    assert prepared(run).tasks("eval", 8, 0) == []


# ---- the calls -----------------------------------------------------------------------------------------------------------


def test_a_request_is_asked_again_with_its_tools(run: RunDir) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    write_turns(run.trajectories / "a.parquet", [turn("a", tools=tools), turn("b")])
    with answering(lambda body: "yes") as server:
        practice = prepared(run, server.url, told=1)
        for task in practice.tasks("train", 8, 0):
            asyncio.run(practice.play(task, Endpoint(server.url, "key", "tiny")))
        asked_tools = {request["body"]["messages"][-1]["content"]: request["body"].get("tools") for request in server.asked}
    assert asked_tools[f"question a {NOTE}"] == tools
    assert asked_tools[f"question b {NOTE}"] is None


def played(practice: Practice, server: Answering, count: int = 16) -> list[tuple[str, dict[str, Any], Outcome]]:
    """The kind of each task, the body of its one request and its outcome."""
    result = []
    for task in practice.tasks("train", count, 0):
        before = len(server.asked)
        outcome = asyncio.run(practice.play(task, Endpoint(server.url, "key", "tiny")))
        (request,) = server.asked[before:]
        result.append((task.kind, request["body"], outcome))
    return result


def test_the_teachers_answers_come_from_version_0_and_the_policy_s_from_the_live_model(run: RunDir) -> None:
    write_requests(run)
    others = [messages[-1]["content"] for messages in other_requests()]
    with answering(lambda body: "Because.") as server:
        rows = played(prepared(run, server.url, max_tokens=24), server)
    assert {(kind, body["model"]) for kind, body, _ in rows} == {("told", "tiny@0"), ("alone", "tiny"), ("elsewhere", "tiny@0")}
    for kind, body, outcome in rows:
        text = body["messages"][-1]["content"]
        assert body["max_tokens"] == 24
        assert text.endswith(f" {NOTE}") == (kind == "told")
        assert (text in others) == (kind == "elsewhere")
        expected = {"told": (NOTE, "line"), "alone": (NOTE, None), "elsewhere": ("", None)}
        assert (outcome.hint, outcome.hint_place, outcome.reward, outcome.status) == (*expected[kind], None, "done")


@pytest.mark.parametrize("fields", [{"hint_place": "line"}, {"hint": "", "hint_place": "line"}, {"hint": NOTE, "reward": 1.0}])
def test_an_outcome_has_no_place_without_a_hint_and_no_reward_beside_one(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="hint"):
        Outcome(**fields)


# ---- the place -----------------------------------------------------------------------------------------------------------


def follows_above(body: dict[str, Any]) -> str:
    return "It is short." if body["messages"][-1]["content"].startswith("Answer") else "It is long. It goes on."


def test_the_place_is_tried_once_and_recorded(run: RunDir) -> None:
    with answering(follows_above) as server:
        endpoint = Endpoint(server.url, "key", "tiny@0")
        assert settle_hint_place(run, endpoint) == "above"
        before = len(server.asked)
        assert settle_hint_place(run, endpoint) == "above"
        assert len(server.asked) == before > 0
    assert {request["headers"]["x-capture"] for request in server.asked} == {"off"}
    record = orjson.loads(run.hint_place.read_bytes())
    assert (record["followed"]["above"], record["followed"]["line"]) == (0.33, 0.0)
    assert sum(record["answers"].values()) == before
    assert record["answers"].keys() == set(PLACES)


@pytest.mark.parametrize(("often", "chosen"), [(3, "line"), (1, "above")])
def test_the_usual_place_is_left_only_for_one_that_is_better_beyond_chance(run: RunDir, often: int, chosen: str) -> None:
    """Above the request, the model answers short (6 of 18 answers meet their wish); in its line, at some of them."""
    requests = Counter[str]()

    def answer(body: dict[str, Any]) -> str:
        text = body["messages"][-1]["content"]
        in_line = text.endswith(" Answer in one short sentence.")
        requests["line"] += in_line
        return "Short." if text.startswith("Answer") or (in_line and requests["line"] <= often) else "It is long. It goes on."

    with answering(answer) as server:
        assert settle_hint_place(run, Endpoint(server.url, "key", "tiny@0")) == chosen


def test_two_that_try_the_place_at_once_get_the_same(run: RunDir) -> None:
    """By chance, one alone would have found another place."""
    requests = Counter[str]()

    def answer(body: dict[str, Any]) -> str:
        requests["all"] += 1
        in_the_first_trial = requests["all"] <= 48  # 6 answers at each of four places, and 12 more at two
        return "Short." if body["messages"][-1]["content"].startswith("Answer") == in_the_first_trial else "It is long. It goes on."

    with answering(answer) as server, ThreadPoolExecutor(2) as threads:
        endpoint = Endpoint(server.url, "key", "tiny@0")
        assert {*threads.map(lambda _: settle_hint_place(run, endpoint), range(2))} == {"above"}
    assert len(server.asked) == 48


def test_practice_tries_the_place_only_if_the_recipe_says_auto(run: RunDir) -> None:
    write_requests(run)
    with answering(follows_above) as server:
        for place, stands in (("line", "line"), ("auto", "above")):
            practice = Practice(NOTE, anyway=True)
            practice.prepare(run, recipe(place), Endpoint(server.url, "key", "tiny"))
            (first, *_) = practice.tasks("train", 8, 0)
            assert first.spec.place == stands
            assert bool(server.asked) == (place == "auto")
    assert {request["body"]["model"] for request in server.asked} == {"tiny@0"}


def test_a_model_that_follows_no_hint_gets_the_published_place(run: RunDir) -> None:
    with answering(lambda body: "One. Two.") as server:
        assert settle_hint_place(run, Endpoint(server.url, "key", "tiny@0")) == "block"


def test_a_server_that_answers_nothing_is_named_and_nothing_is_recorded(run: RunDir) -> None:
    with answering(lambda body: 400) as server, pytest.raises(ClawError, match="answered none"):
        settle_hint_place(run, Endpoint(server.url, "key", "tiny@0"))
    assert not run.hint_place.exists()


def test_a_server_that_ends_meanwhile_is_named_and_the_answers_before_record_nothing(run: RunDir) -> None:
    requests = Counter[str]()

    def answer(body: dict[str, Any]) -> str | int:
        requests["all"] += 1
        return "Short." if requests["all"] <= 20 else 503

    with answering(answer) as server, pytest.raises(ClawError, match="failed while places of hints were tried: status 503"):
        settle_hint_place(run, Endpoint(server.url, "key", "tiny@0"))
    assert not run.hint_place.exists()


# ---- what a note costs ---------------------------------------------------------------------------------------------------


def forgets_when_told(body: dict[str, Any]) -> str:
    """Right answers to all short questions, until the note stands in the request."""
    text = body["messages"][-1]["content"]
    row = next((row for row in short_questions() if text.startswith(row["question"])), None)
    return "I am happy to help." if row is None or text.endswith(NOTE) else f"It is {row['answers'][0].title()}."


def test_a_note_that_costs_what_the_model_knows_is_practised_only_on_demand(run: RunDir) -> None:
    write_requests(run)
    with answering(forgets_when_told) as server:
        with pytest.raises(ClawError, match="0 of 24 short questions are answered right with it, 24 without") as raised:
            Practice(NOTE).prepare(run, recipe(), Endpoint(server.url, "key", "tiny"))
        assert "--option anyway=true" in raised.value.fix
        assert {(request["body"]["model"], request["headers"]["x-capture"]) for request in server.asked} == {("tiny@0", "off")}
        Practice(NOTE, anyway=True).prepare(run, recipe(), Endpoint(server.url, "key", "tiny"))
    with answering(lambda body: "It is 60.") as server:
        Practice(NOTE).prepare(run, recipe(), Endpoint(server.url, "key", "tiny"))  # as many right answers with the note


def test_a_server_that_refuses_the_questions_is_named_with_the_cure(run: RunDir) -> None:
    write_requests(run)
    with answering(lambda body: 503) as server, pytest.raises(ClawError, match=r"what a note costs: .*503") as raised:
        Practice(NOTE).prepare(run, recipe(), Endpoint(server.url, "key", "tiny"))
    assert "--option anyway=true" in raised.value.fix


@pytest.mark.parametrize(
    ("before", "noted", "costly"),
    [
        ("1111 1111 1111 1110 0000", "1100 0000 0000 0000 0001", True),  # 13 lost, 1 gained
        ("1111 1111 1111 1110 0000", "1111 1111 1111 1000 0000", False),  # two lost may be chance
        ("1111 1111 1111 1110 0000", "1111 1111 1100 0000 0000", True),  # five lost and none gained: 1/32
        ("1111 1111 1111 1110 0000", "1111 1111 1111 1111 1111", False),
    ],
)
def test_a_loss_that_chance_explains_is_none(before: str, noted: str, costly: bool) -> None:
    right, right_when_told = ([mark == "1" for mark in marks.replace(" ", "")] for marks in (before, noted))
    assert is_costly(right, right_when_told) is costly
