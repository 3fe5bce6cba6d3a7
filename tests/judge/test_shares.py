"""The probabilities of the scores: read from one answer, and what a verdict makes of them. Numbers are worked out by hand."""

import math
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from clawctl.judge.prompts import Vote, read_vote_in_form
from clawctl.judge.shares import ScoreShare, read_share
from clawctl.judge.votes import as_votes, likeliest
from clawctl.judge.worker import judge
from tests.judge.judging import recipe, verdicts_of
from tests.judge.made_turns import reply, shard


def token(text: str, **likeliest: float) -> dict[str, Any]:
    """A sampled token. `likeliest` has the probabilities, with names for the texts that are no names."""
    texts = {"minus": "-", "brace": "{", "brace_minus": "{-", "one": "1", "zero": "0", "begin": "\\boxed", "it": "It"}
    top = [{"token": texts[name], "logprob": math.log(p)} for name, p in likeliest.items()]
    return {"token": text, "logprob": next(row["logprob"] for row in top if row["token"] == text), "top_logprobs": top}


BEGIN = [token("\\boxed", begin=1.0), token("{", brace=1.0)]


@pytest.mark.parametrize(
    ("tokens", "share"),
    [
        ([*BEGIN, token("1", one=0.7, minus=0.2, zero=0.1)], (0.7, 0.1, 0.2)),
        ([*BEGIN, token("-", one=0.7, minus=0.2, zero=0.1)], (0.7, 0.1, 0.2)),
        # A tokenizer that joins the brace and the sign: the path forks before the score.
        ([BEGIN[0], token("{", brace=0.6, brace_minus=0.4), token("1", one=0.5, zero=0.5)], (0.3, 0.3, 0.4)),
        ([BEGIN[0], token("{-", brace=0.6, brace_minus=0.4), token("1", one=1.0)], (0.0, 0.0, 0.4)),
        ([token("\\boxed", begin=0.5, it=0.5), BEGIN[1], token("1", one=1.0)], (0.5, 0.0, 0.0)),
    ],
)
def test_the_share_of_a_score_is_the_probability_of_all_its_tokens(tokens, share) -> None:
    assert read_share(tokens) == pytest.approx(share)


@pytest.mark.parametrize(
    "tokens",
    [
        None,
        [],
        [token("It", it=1.0), *BEGIN, token("1", one=1.0)],  # the score follows other text
        BEGIN,  # no score
        [{"token": "\\boxed{1}", "logprob": 0.0, "top_logprobs": []}],
        [{"token": "\\boxed{1}"}],
        ["\\boxed{1}"],
    ],
)
def test_other_answers_have_no_share(tokens) -> None:
    assert read_share(tokens) is None


def test_the_likeliest_score_decides_if_its_share_reaches_the_threshold() -> None:
    assert likeliest(ScoreShare(0.6, 0.3, 0.1), 0.5) == 1.0
    assert likeliest(ScoreShare(0.2, 0.3, 0.5), 0.5) == -1.0
    assert likeliest(ScoreShare(0.45, 0.4, 0.15), 0.5) is None
    assert likeliest(ScoreShare(0.5, 0.0, 0.5), 0.5) is None
    assert likeliest(ScoreShare(0.3, 0.2, 0.1), 0.0) == 1.0


def test_a_share_is_recorded_as_votes_in_proportion() -> None:
    assert as_votes(ScoreShare(1.0, 0.0, 0.0), 3) == [1, 1, 1]
    assert as_votes(ScoreShare(0.6, 0.3, 0.1), 3) == [1, 1, 0]  # 1.8, 0.9 and 0.3
    assert as_votes(ScoreShare(0.0, 0.0, 0.4), 3) == [-1, None, None]  # 1.2, and 1.8 for anything else
    assert as_votes(ScoreShare(0.2, 0.1, 0.7), 1) == [-1]


def answer(content: str, good: float, neutral: float, bad: float, **message: Any) -> Response:
    sampled = content[len("\\boxed{") :][0]
    scores = token(sampled, one=good, zero=neutral, minus=bad)
    choice = {"message": {"content": content, **message}, "logprobs": {"content": [*BEGIN, scores]}}
    return JSONResponse({"choices": [choice]})


HINTED = "\\boxed{-1} [HINT_START]Write plain sentences.[HINT_END]"


def test_one_call_decides_where_the_endpoint_gives_probabilities(run, serving) -> None:
    server = serving(
        lambda text, number: answer("\\boxed{1}", 0.9, 0.05, 0.05) if "thanks" in text else answer(HINTED, 0.2, 0.1, 0.7)
    )
    shard(run, "1-a", [reply("thanks"), reply("too much bold")])
    judge(run, recipe(server.url), once=True)
    assert [(verdict.reward, verdict.votes, verdict.hint) for verdict in verdicts_of(run)] == [
        (1.0, [1, 1, 1], None),
        (-1.0, [1, -1, -1], "Write plain sentences."),
    ]
    assert len(server.asked) == 2
    assert [(body["logprobs"], body["top_logprobs"]) for body in server.asked] == [(True, 5)] * 2


def test_a_share_below_the_threshold_abstains(run, serving) -> None:
    server = serving(lambda text, number: answer("\\boxed{1}", 0.45, 0.25, 0.3))
    shard(run, "1-a", [reply("hm")])
    judge(run, recipe(server.url), once=True)
    (verdict,) = verdicts_of(run)
    assert (verdict.reward, verdict.votes, verdict.reason, len(server.asked)) == (None, [1, 0, -1], "no consensus", 1)


def test_further_calls_are_made_for_the_hint_of_a_bad_turn_only(run, serving) -> None:
    server = serving(lambda text, number: answer("\\boxed{1}" if number == 1 else HINTED, 0.2, 0.1, 0.7))
    shard(run, "1-a", [reply("too much bold")])
    judge(run, recipe(server.url), once=True)
    (verdict,) = verdicts_of(run)
    assert (verdict.reward, verdict.hint, len(server.asked)) == (-1.0, "Write plain sentences.", 2)


def test_an_endpoint_that_refuses_to_give_probabilities_is_asked_for_samples(run, serving) -> None:
    server = serving(lambda text, number: Response(status_code=400) if "logprobs" in server.asked[-1] else "\\boxed{1}")
    shard(run, "1-a", [reply("thanks"), reply("thanks")])
    judge(run, recipe(server.url, concurrency=1), once=True)
    assert [verdict.votes for verdict in verdicts_of(run)] == [[1, 1]] * 2
    assert sum("logprobs" in body for body in server.asked) == 1
    assert len(server.asked) == 1 + 4


def test_a_judge_that_reasons_first_is_asked_for_samples(run, serving) -> None:
    server = serving(lambda text, number: answer("\\boxed{1}", 0.9, 0.05, 0.05, reasoning_content="It is accepted."))
    shard(run, "1-a", [reply("thanks"), reply("thanks")])
    judge(run, recipe(server.url, concurrency=1), once=True)
    assert [verdict.votes for verdict in verdicts_of(run)] == [[1, 1]] * 2
    assert sum("logprobs" in body for body in server.asked) <= 2  # both turns had begun


def in_form(server, given: str) -> Any:
    """An answer without a score, and `given` where the call constrains the answer."""
    return lambda text, number: given if "response_format" in server.asked[-1] else "I would say that it was fine."


def test_an_answer_without_a_score_is_asked_for_again_in_a_form_that_has_one(run, serving) -> None:
    server = serving(lambda text, number: in_form(server, '{"score": -1}')(text, number))
    shard(run, "1-a", [reply("too much bold")])
    judge(run, recipe(server.url), once=True)
    (verdict,) = verdicts_of(run)
    assert (verdict.reward, verdict.votes, verdict.hint) == (-1.0, [-1, -1], None)
    assert [body["response_format"]["type"] for body in server.asked if "response_format" in body] == ["json_schema"] * 2


@pytest.mark.parametrize("given", ["Fine, as I said.", "[1]", Response(status_code=400)])
def test_an_endpoint_that_does_not_constrain_answers_is_not_asked_to_again(run, serving, given) -> None:
    server = serving(lambda text, number: in_form(server, given)(text, number))
    shard(run, "1-a", [reply("thanks"), reply("thanks")])
    judge(run, recipe(server.url, concurrency=1), once=True)
    assert {(verdict.reward, verdict.reason) for verdict in verdicts_of(run)} == {(None, "no valid vote")}
    assert sum("response_format" in body for body in server.asked) == 1


def test_one_answer_that_is_not_in_the_form_does_not_end_the_asking(run, serving) -> None:
    given = iter(['{"score": 1}', "no"])
    server = serving(lambda text, number: in_form(server, next(given, '{"score": 1}'))(text, number))
    shard(run, "1-a", [reply("thanks") for _ in range(3)])
    judge(run, recipe(server.url, concurrency=1, votes=1), once=True)
    assert [verdict.reward for verdict in verdicts_of(run)] == [
        1.0
    ] * 3  # the second turn was asked again, as after any invalid vote


@pytest.mark.parametrize(("score", "valid"), [(1, 1), (-1, -1), (0, 0), (True, None), (2, None), ("1", None), (None, None)])
def test_a_vote_in_the_form_is_a_valid_score(score, valid) -> None:
    assert read_vote_in_form({"score": score}) == Vote(valid, None)
