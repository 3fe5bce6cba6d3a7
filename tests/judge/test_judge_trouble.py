"""A judge that answers nonsense, refuses, fails, or is busy or unavailable."""

import logging

import orjson
import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from clawctl.config import Recipe
from clawctl.engines.vllm.child import free_port
from clawctl.errors import ClawError
from clawctl.judge.worker import judge
from clawctl.run.checksums import sealed
from clawctl.run.directory import publish_bytes
from clawctl.run.shards import write_turns
from tests.judge.judging import by_words, recipe, verdicts_of
from tests.judge.made_turns import reply, shard, turn


def test_invalid_answers_of_a_judge_are_logged_once_and_the_stage_continues(run, serving, caplog) -> None:
    server = serving(lambda text, number: "banana")
    for stem in ("1-a", "2-b"):
        shard(run, stem, [reply("thanks"), reply("hm")])
    with caplog.at_level(logging.WARNING):
        judge(run, recipe(server.url), once=True)
    verdicts = verdicts_of(run)
    assert [(verdict.reward, verdict.votes, verdict.reason) for verdict in verdicts] == [(None, [None] * 3, "no valid vote")] * 4
    assert len([record for record in caplog.records if "no valid score" in record.message]) == 1


SHAPES = [
    PlainTextResponse("<html>"),
    JSONResponse({"choices": []}),
    JSONResponse([1]),
    JSONResponse({"error": {"message": "upstream"}}),
    JSONResponse({"choices": [{"message": "hello"}]}),
]


@pytest.mark.parametrize("said", SHAPES)
def test_an_answer_of_another_shape_is_a_failed_vote_and_logged(run, serving, caplog, said) -> None:
    server = serving(lambda text, number: said if "odd" in text else by_words(text, number))
    shard(run, "1-a", [reply("odd words"), reply("thanks")])
    with caplog.at_level(logging.WARNING):
        judge(run, recipe(server.url, votes=1), once=True)
    assert [(verdict.reward, verdict.reason) for verdict in verdicts_of(run)] == [(None, "no valid vote"), (1.0, None)]
    assert [record.message for record in caplog.records if "not a chat completion" in record.message] != []


@pytest.mark.parametrize("said", SHAPES)
def test_a_server_that_never_gives_a_chat_completion_is_a_problem_with_a_cure_and_nothing_is_lost(run, serving, said) -> None:
    server = serving(lambda text, number: said)
    shard(run, "1-a", [reply("thanks"), reply("hm")])
    with pytest.raises(ClawError, match="data that is not a chat completion") as refused:
        judge(run, recipe(server.url), once=True)
    assert "/v1" in refused.value.fix
    assert verdicts_of(run) == []


@pytest.mark.parametrize("message", [{"content": None}, {}, {"content": [{"type": "text", "text": "1"}]}])
def test_a_completion_without_text_is_an_invalid_vote(run, serving, message) -> None:
    server = serving(lambda text, number: JSONResponse({"choices": [{"message": message}]}))
    shard(run, "1-a", [reply("thanks")])
    judge(run, recipe(server.url, votes=1), once=True)
    assert [verdict.votes for verdict in verdicts_of(run)] == [[None]]


@pytest.mark.parametrize("usage", ["free", [1], {"prompt_tokens": "10", "completion_tokens": None}, {"prompt_tokens": {}}])
def test_an_unreadable_usage_costs_no_verdict(run, serving, usage) -> None:
    server = serving(lambda text, number: JSONResponse({"choices": [{"message": {"content": "\\boxed{1}"}}], "usage": usage}))
    shard(run, "1-a", [reply("thanks")])
    judge(run, recipe(server.url, votes=1), once=True)
    assert [verdict.reward for verdict in verdicts_of(run)] == [1.0]


def test_a_server_of_this_run_with_another_key_is_reported_with_the_variable_to_set(run, serving) -> None:
    server = serving(lambda text, number: Response(status_code=401))
    publish_bytes(run.api_key, b"key\n")
    publish_bytes(run.root / "serve.json", sealed(orjson.dumps({"url": server.url, "pid": 1})))
    shard(run, "1-a", [reply("thanks")])
    with pytest.raises(ClawError, match="this run's server") as caught:
        judge(run, Recipe(), once=True)
    assert "CLAWCTL_API_KEY" in caught.value.fix


@pytest.mark.parametrize("status", [401, 404, 400, 302])
def test_a_judge_that_refuses_us_is_a_problem_with_a_cure_and_nothing_is_lost(run, serving, status) -> None:
    server = serving(lambda text, number: Response(status_code=status))
    shard(run, "1-a", [reply("thanks"), reply("hm")])
    with pytest.raises(ClawError, match=f"answers {status}"):
        judge(run, recipe(server.url), once=True)
    assert verdicts_of(run) == []
    server.script = by_words
    judge(run, recipe(server.url), once=True)
    assert [verdict.reward for verdict in verdicts_of(run)] == [1.0, 0.0]


def test_a_turn_that_is_too_long_for_the_judge_is_a_failed_vote_and_the_others_are_judged(run, serving) -> None:
    server = serving(lambda text, number: Response(status_code=400) if "endless" in text else by_words(text, number))
    shard(run, "1-a", [reply("endless words"), reply("thanks")])
    judge(run, recipe(server.url), once=True)
    assert [(verdict.reward, verdict.reason) for verdict in verdicts_of(run)] == [(None, "no valid vote"), (1.0, None)]


def test_a_call_that_breaks_is_tried_again(run, serving) -> None:
    server = serving(lambda text, number: Response(status_code=500) if number < 3 else "\\boxed{1}")
    shard(run, "1-a", [reply("thanks")])
    judge(run, recipe(server.url, votes=1), once=True)
    assert ([verdict.reward for verdict in verdicts_of(run)], len(server.asked)) == ([1.0], 3)


def test_a_server_that_is_busy_is_waited_for_and_costs_no_vote(run, serving) -> None:
    server = serving(lambda text, number: Response(status_code=503 if number % 2 else 429) if number < 5 else "\\boxed{1}")
    shard(run, "1-a", [reply("thanks")])
    judge(run, recipe(server.url, votes=1, timeout_s=30.0), once=True)
    assert [verdict.votes for verdict in verdicts_of(run)] == [[1]]


def test_a_judge_that_never_answers_is_a_failed_vote_after_some_tries_logged_once(run, serving, caplog) -> None:
    server = serving(by_words, delay_s=1.0)
    shard(run, "1-a", [reply("thanks")])
    with caplog.at_level(logging.WARNING):
        judge(run, recipe(server.url, votes=1, timeout_s=0.1), once=True)
    assert [verdict.reason for verdict in verdicts_of(run)] == ["no valid vote"]
    assert len([record for record in caplog.records if "no answer in 0.1 s" in record.message]) == 1
    assert 1 <= len(server.asked) <= 4


def test_once_does_not_wait_for_ever_for_a_server_that_is_away(run) -> None:
    shard(run, "1-a", [reply("thanks")])
    with pytest.raises(ClawError, match="is not available"):
        judge(run, recipe(f"http://127.0.0.1:{free_port()}/v1", timeout_s=0.3), once=True)
    with pytest.raises(ClawError, match="no server has registered"):
        judge(run, Recipe.model_validate({"judge": {"timeout_s": 0.3}}), once=True)


LONG = "".join(f"Line {number} of the page says that {number * 7919 % 1009} people came. " for number in range(600))


def test_a_long_turn_without_a_valid_vote_is_shown_shorter(run, serving) -> None:
    server = serving(lambda text, number: "\\boxed{-1}" if len(text) < 3000 else "I am confused")
    write_turns(
        run.trajectories / "a.parquet", [turn([{"role": "user", "content": LONG}], LONG, [{"role": "user", "content": "no"}])]
    )
    judge(run, recipe(server.url, votes=1), once=True)
    (verdict,) = verdicts_of(run)
    assert (verdict.reward, verdict.votes) == (-1.0, [-1])


def test_a_context_that_is_too_small_is_found_out_once(run, serving) -> None:
    def small(text: str, number: int) -> str | Response:
        return "\\boxed{-1}" if len(text) < 9000 else Response('{"error": "maximum context length"}', 400)

    server = serving(small)
    turns = [
        turn([{"role": "user", "content": LONG}], LONG, [{"role": "user", "content": "no"}], turn_id=f"t{number}")
        for number in range(6)
    ]
    write_turns(run.trajectories / "a.parquet", turns)
    judge(run, recipe(server.url, votes=1, concurrency=1), once=True)
    assert [verdict.reward for verdict in verdicts_of(run)] == [-1.0] * 6
    refused = [body for body in server.asked if len(body["messages"][1]["content"]) >= 9000]
    assert len(refused) < 6
