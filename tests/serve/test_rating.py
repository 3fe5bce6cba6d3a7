"""A rating reaches the row of its turn, whichever way it is sent. It never breaks serving."""

import asyncio
from collections import Counter, deque
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from anthropic import Anthropic
from served import Server

from clawctl.collect.captures import parse_exchange
from clawctl.collect.sessions import Sessions
from clawctl.config import Recipe
from clawctl.engines.requests import Refusal
from clawctl.run.directory import RunDir, open_run
from clawctl.run.feedback import Ratings
from clawctl.run.keys import add_key
from clawctl.run.notes import read_notes, remove_note
from clawctl.run.rows import Exchange
from clawctl.serve.rating import Rating, RatingLimiter
from tests.extension import needs
from tests.waiting import until

SECRET = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"


def exchanges(server: Server) -> list[Exchange]:
    return [parse_exchange(orjson.dumps(line)) for line in server.captured()]


def rate(server: Server, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/feedback", json=body, headers={"authorization": "Bearer key"}, timeout=60)


@needs("secrets")
def test_a_rating_by_the_id_of_any_api_closes_its_turn(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path) as server:
        root = server.url.removesuffix("/v1")
        chat = server.say("hello").id
        response = server.client.responses.create(model="tiny", input="how are you", max_output_tokens=4).id
        with Anthropic(base_url=root, api_key="key") as anthropic:
            message = anthropic.messages.create(model="tiny", max_tokens=4, messages=[{"role": "user", "content": "thanks"}]).id
        for name, rating in ((chat, 1), (response, -1), (message, 0.5)):
            rated = rate(server, completion_id=name, rating=rating, comment=f"my key is {SECRET}")
            assert (rated.status_code, rated.json()["rating"]) == (200, rating), rated.text
        assert rate(server, turn_id=rated.json()["turn_id"], rating=0.25).status_code == 200
        headers = {"x-feedback": "-0.5"}
        messages: Any = [{"role": "user", "content": "today"}]
        said = server.client.chat.completions.create(model="tiny", messages=messages, max_tokens=4).choices[0].message.content
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "no"}]
        server.client.chat.completions.create(model="tiny", messages=messages, max_tokens=4, extra_headers=headers)
        server.say("a bad header", extra_headers={"x-feedback": "great"})
        metrics = httpx.get(root + "/metrics").text
        assert 'clawctl_ratings_total{outcome="kept"} 4' in metrics
        assert 'clawctl_ratings_total{outcome="lost"} 1' in metrics
        sessions, ratings = Sessions(3600.0), Ratings(server.run)
        for feedback in ratings.read():
            assert feedback.comment is None or SECRET not in feedback.comment
            sessions.rate(feedback)
        captured = exchanges(server)
        for exchange in captured:
            sessions.add(exchange)
        rated = {turn.turn_id: turn.feedback for turn in sessions.pop_rows()}
        assert [rated.get(exchange.exchange_id) for exchange in captured][:4] == [1.0, -1.0, 0.25, -0.5]
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"turn_id": "x", "rating": 2}, "rating"),
        ({"turn_id": "x", "rating": True}, "rating"),
        ({"turn_id": "x"}, "rating"),
        ({"rating": 1}, "turn_id"),
        ({"turn_id": "x", "completion_id": "y", "rating": 1}, "turn_id"),
        ({"completion_id": "chatcmpl-other", "rating": 1}, "completion_id"),
        ({"turn_id": "x", "rating": 1, "comment": "c" * 10_001}, "comment"),
        ({"turn_id": "x", "rating": 1, "comment": "c" * 2001, "remember": True}, "comment"),
        ({"turn_id": "x", "rating": 1, "remember": True}, "comment"),
        ({"turn_id": "x", "rating": 1, "comment": "Be brief.", "remember": "yes"}, "remember"),
        ({"turn_id": "x", "rating": 1, "stars": 5}, "stars"),
    ],
)
def test_an_invalid_rating_is_refused_and_its_field_is_named(server: Server, body: dict[str, Any], param: str) -> None:
    answer = rate(server, **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/feedback", "turn_id, completion_id, rating, comment, remember (did you mean turn_id or completion_id?)"),
        ("/v1/outcome", "session_id, reward, status, ending, parts, steps (did you mean session_id?)"),
        ("/v1/score", "model, ids, first"),
        ("/engine/unload", "version"),
    ],
)
def test_an_unknown_field_is_refused_with_the_fields_that_there_are(server: Server, path: str, fields: str) -> None:
    url, headers = server.url.removesuffix("/v1") + path, {"authorization": "Bearer key"}
    answer = httpx.post(url, json={"id": "x"}, headers=headers, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].endswith(f"the fields are {fields}")


@needs("secrets")
def test_a_comment_to_remember_is_a_note_of_the_key(server: Server) -> None:
    about = {"rating": -1, "comment": f"Call me Sam, not {SECRET}."}
    chat = server.say("hello").id
    assert "note" not in rate(server, completion_id=chat, **about).json()
    assert read_notes(server.run, "default") == []
    for _ in range(2):  # a repeated request adds no second note
        rated = rate(server, completion_id=chat, remember=True, **about).json()
    (note,) = read_notes(server.run, "default")
    assert (note.id, note.turns, note.state) == (rated["note"], (rated["turn_id"],), "new")
    assert note.text.startswith("Call me Sam, not ")
    assert SECRET not in f"{note.text}{note.said}"
    remove_note(server.run, "default", note.id)


def test_rating_requires_a_key(server: Server) -> None:
    assert httpx.post(f"{server.url}/feedback", json={"turn_id": "x", "rating": 1}).status_code == 401


def keep(run: RunDir | None, counts: Counter[tuple[str, ...]], turn_id: str = "x", **privacy: Any) -> int:
    recipe = Recipe.model_validate({"privacy": privacy})
    rating = Rating(run, recipe, counts)
    rating.note_answer("anna", "x")
    try:
        asyncio.run(rating.store({"turn_id": turn_id, "rating": 1}, "anna"))
    except Refusal as refusal:
        return refusal.status
    return 200


def test_uncaptured_turns_cannot_be_rated_and_lost_ratings_are_counted_and_reported(tmp_path: Path) -> None:
    counts: Counter[tuple[str, ...]] = Counter()
    assert keep(None, counts) == 409
    run = open_run(tmp_path / "run")
    assert keep(run, counts, skip_keys=["anna"]) == 409
    assert keep(run, counts, "y") == 404
    run.feedback.rmdir()
    run.feedback.write_text("")
    assert keep(run, counts) == 503
    run.feedback.unlink()
    assert keep(run, counts) == 200
    assert counts == {("lost",): 1, ("kept",): 1}


def test_turns_of_another_key_or_of_none_cannot_be_rated_also_after_a_restart(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path) as server:
        given = server.say("hello").id
        assert server.stop() == 0
    with Server(tmp_path / "run", model_path) as server:
        anna = add_key(server.run, "anna")
        until(lambda: httpx.get(f"{server.url}/models", headers={"x-api-key": anna}).status_code == 200)
        stolen = httpx.post(f"{server.url}/feedback", json={"completion_id": given, "rating": 1}, headers={"x-api-key": anna})
        assert (stolen.status_code, stolen.json()["error"]["code"]) == (404, "unknown_turn")
        assert rate(server, completion_id=f"chatcmpl{'0' * 24}", rating=1).status_code == 404
        assert [rate(server, completion_id=given, rating=1).status_code for _ in range(9)] == [200] * 8 + [429]
        assert server.stop() == 0


def test_a_key_that_rates_too_fast_is_refused_with_a_wait() -> None:
    pace = RatingLimiter()
    for _ in range(1000):
        pace.check("anna")
    with pytest.raises(Refusal, match="too fast") as refused:
        deque((pace.check("anna") for _ in range(100_000)), maxlen=0)
    assert refused.value.status == 429
    pace.check("bob")


def test_an_outcome_that_an_earlier_process_stored_is_confirmed_and_a_different_one_refused(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")

    def status(reward: float) -> int:
        rating = Rating(run, Recipe(), Counter())
        rating.note_answer("anna", "x", "s1")
        try:
            asyncio.run(rating.store_outcome({"session_id": "s1", "reward": reward}, "anna"))
        except Refusal as refusal:
            return refusal.status
        return 200

    assert [status(1), status(1), status(-1)] == [200, 200, 409]
    assert sum(len(path.read_bytes().splitlines()) for path in run.feedback.glob("*.jsonl")) == 1
