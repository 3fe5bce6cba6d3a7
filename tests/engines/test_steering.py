"""Rare sampling settings, worked by hand and through the engine."""

import asyncio
import math
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from decoding import sample
from transformers import AutoModelForCausalLM, AutoTokenizer

from clawctl.config import Recipe
from clawctl.engines.embedded.decoder import Decoder
from clawctl.engines.embedded.frames import Sampling, Token
from clawctl.engines.embedded.steering import Steering, above_min_p, drawn, likeliest, penalised, steers, uniform
from clawctl.engines.requests import CallStart, Refusal
from clawctl.run.directory import open_run
from clawctl.run.policies import ensure_base_policy
from clawctl.serve.answer_decoder import AnswerDecoder
from clawctl.serve.dialects import chat
from clawctl.serve.dialects.fields import steering
from tests.serve.served import Server, logprobs_of, recipe_data

PROMPT = list(range(3, 40))


def test_penalties_are_those_of_their_formulas_and_of_their_own_row_alone() -> None:
    logits_BV = torch.tensor([[2.0, -2.0, 1.0, 0.5], [2.0, -2.0, 1.0, 0.5]])
    seen_BV = torch.tensor([[True, True, False, False], [True, True, True, True]])
    counts_BV = torch.tensor([[0.0, 3.0, 0.0, 0.0], [0.0, 3.0, 1.0, 0.0]])
    result = penalised(logits_BV, seen_BV, counts_BV, torch.tensor([2.0, 1.0]), torch.tensor([0.5, 0.0]), torch.tensor([0.25, 1.0]))
    # row 0: 2/2; -2·2 - 3·0.25 - 0.5; what was never seen stays. Row 1: no repetition, no presence, 1 for each time.
    assert result.tolist() == [[1.0, -5.25, 1.0, 0.5], [2.0, -5.0, 0.0, 0.5]]


def test_min_p_keeps_tokens_with_that_share_of_the_likeliest() -> None:
    logits_BV = torch.tensor([[0.5, 0.25, 0.2, 0.05]]).log().repeat(2, 1)
    kept = above_min_p(logits_BV, torch.tensor([0.45, 1e-9])) > float("-inf")
    assert kept.tolist() == [[True, True, False, False], [True] * 4]  # 0.45 · 0.5 = 0.225


def test_a_draw_takes_the_token_at_which_the_sum_passes_the_number() -> None:
    probabilities_BV = torch.tensor([[0.0, 0.25, 0.5, 0.25, 0.0]]).repeat(6, 1)
    numbers = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53], dtype=torch.float64)
    assert drawn(probabilities_BV, numbers).tolist() == [1, 1, 2, 2, 3, 3]
    unsure = torch.tensor([[0.1, 0.2, 0.7]]).repeat(20000, 1)
    numbers = torch.tensor([uniform(5, index) for index in range(20000)], dtype=torch.float64)
    shares = drawn(unsure, numbers).bincount(minlength=3) / 20000
    assert shares.tolist() == pytest.approx([0.1, 0.2, 0.7], abs=0.01)  # 3 standard errors: 0.0097


def test_the_number_is_of_seed_and_place_alone() -> None:
    assert uniform(7, 3) == uniform(7, 3)
    assert len({uniform(seed, index) for seed in (-1, 0, 7) for index in range(50)}) == 150
    assert all(0 <= uniform(seed, 0) < 1 for seed in range(100))


def test_the_likeliest_tokens_exclude_tokens_that_cannot_be_drawn() -> None:
    logits_BV = torch.tensor([[0.25, 0.0, 0.75], [0.5, 0.3, 0.2]]).log()
    top = likeliest(logits_BV, 2)
    assert [[token for token, _ in row] for row in top] == [[2, 0], [0, 1]]
    assert top[0][0][1] == pytest.approx(math.log(0.75))
    assert likeliest(torch.tensor([[0.0, float("-inf")]]), 5) == [[(0, 0.0)]]


@pytest.mark.parametrize(
    "body",
    [
        {"min_p": 1.1},
        {"presence_penalty": -3},
        {"frequency_penalty": "much"},
        {"repetition_penalty": 0},
        {"seed": 1.5},
        {"seed": 1 << 63},
        {"logit_bias": [1]},
        {"logit_bias": {"ten": 1}},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {"400": 1}},
        {"logit_bias": {"3": 101}},
        {"logit_bias": {"3": None, "9999999999999": 1}},
    ],
)
def test_invalid_parameters_are_refused_by_name(body: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as refused:
        steering(body, 400)
    assert (refused.value.status, str(refused.value.param)) in [(400, name) for name in (*body, *body.get("logit_bias", ()))]


def test_only_requests_with_settings_are_steered() -> None:
    settings = steering({"logit_bias": {"3": -100}, "seed": 4, "min_p": None, "presence_penalty": 1}, 400)
    assert settings == {"logit_bias": {3: -100.0}, "seed": 4, "presence_penalty": 1.0}
    assert not steers(Sampling(0.5, 0.9, 3, 10, **steering({"logit_bias": {}, "min_p": 0, "repetition_penalty": 1}, 400)))
    assert steers(Sampling(0.5, 0.9, 3, 10, seed=0))
    steering_of_none = Steering(4)
    logits = torch.zeros(2, 4)
    assert steering_of_none.idle
    assert steering_of_none.adjusted(logits) is logits
    assert steering_of_none.with_min_p(logits) is logits


# ---- through the engine ----------------------------------------------------------------------------------------------------


def ids(tokens: list[Token]) -> list[int]:
    return [token.id for token in tokens]


def test_each_request_is_steered_by_its_own_settings_whatever_else_runs(tmp_path: Path, model_path: Path) -> None:
    run = open_run(tmp_path / "run")
    ensure_base_policy(run, str(model_path))
    engine = Decoder(run, Recipe.model_validate(recipe_data(model_path)), 0)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    never = dict.fromkeys(engine.eos_ids, -100.0)

    async def main() -> None:
        alone = await sample(engine, PROMPT, seed=5)
        beside = await asyncio.gather(
            sample(engine, PROMPT, 30), sample(engine, PROMPT, seed=5), sample(engine, PROMPT, logit_bias={7: 100.0}),
            sample(engine, PROMPT, seed=6, top_logprobs=3),
            sample(engine, PROMPT, temperature=0, repetition_penalty=50.0, logit_bias=never),
            sample(engine, PROMPT, temperature=0, presence_penalty=2.0, frequency_penalty=2.0), sample(engine, PROMPT, min_p=1.0),
        )  # fmt: skip
        plain, seeded, biased, ranked, unrepeated, _, certain = beside
        assert ids(seeded) == ids(alone) != ids(ranked)
        for tokens in (plain, seeded, ranked):
            assert [token.logprob for token in tokens] == pytest.approx(logprobs_of(model, PROMPT, ids(tokens)), abs=1e-4)
        assert set(ids(biased)) == {7}
        assert len({*ids(unrepeated)} - set(PROMPT)) == len(unrepeated)
        assert [token.logprob for token in certain] == pytest.approx([0.0] * len(certain))  # only the likeliest was left
        assert ids(certain) == ids(await sample(engine, PROMPT, temperature=0))[: len(certain)]
        for token in ranked:
            logprobs = [logprob for _, logprob in token.top]
            assert logprobs == sorted(logprobs, reverse=True)
            assert len(token.top) == 3
            assert dict(token.top).get(token.id, token.logprob) == pytest.approx(token.logprob, abs=1e-6)
        assert not any(token.top for token in seeded)
        assert not engine.steering._requests

    try:
        asyncio.run(main())
    finally:
        engine.stop()


# ---- through HTTP ----------------------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_answer_again_and_other_choices_differ(server: Server) -> None:
    settings = {"seed": 11, "n": 2, "max_tokens": 12}
    first, again, other = (server.say("hello", **{**settings, **more}) for more in ({}, {}, {"seed": 99}))
    said = [[choice.message.content for choice in answer.choices] for answer in (first, again, other)]
    assert said[0] == said[1] != said[2]
    assert said[0][0] != said[0][1]
    assert {line["untrainable_reason"] for line in server.captured()[-6:]} == {None}


def test_the_likeliest_tokens_are_returned_on_request(server: Server) -> None:
    answer = server.say("hello", logprobs=True, top_logprobs=4, max_tokens=6)
    sampled = iter(server.captured()[-1]["logprobs"])
    for entry in answer.choices[0].logprobs.content:
        logprob = next(value for value in sampled if value == pytest.approx(entry.logprob))  # a control token has no entry
        tops = entry.top_logprobs
        assert [top.logprob for top in tops] == sorted((top.logprob for top in tops), reverse=True)
        assert len(tops) == 4
        assert all(top.logprob == pytest.approx(logprob, abs=1e-6) for top in tops if top.bytes == entry.bytes and tops[0] is top)
    assert not server.say("hello", logprobs=True, max_tokens=3).choices[0].logprobs.content[0].top_logprobs


def test_settings_that_alter_the_distribution_are_applied_and_not_trained(server: Server) -> None:
    for name, value in {"presence_penalty": 1, "frequency_penalty": -1, "logit_bias": {"7": -100}}.items():
        assert server.say("hello", max_tokens=3, **{name: value}).choices
        assert server.captured()[-1]["untrainable_reason"] == name
    for name, value in {"min_p": 0.5, "repetition_penalty": 1.5}.items():
        assert server.say("hello", max_tokens=3, extra_body={name: value}).choices
        assert server.captured()[-1]["untrainable_reason"] == name
    with pytest.raises(openai.BadRequestError, match="logit_bias"):
        server.say("hello", logit_bias={"99999": 1})


def test_without_parallel_calls_only_one_call_is_returned(model_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": {"name": "look"}}]}
    shown = {}
    for parallel in (True, False):
        reading = AnswerDecoder(tokenizer, chat.read({**body, "parallel_tool_calls": parallel}, "m"), False)
        for token in tokenizer(call + call)["input_ids"]:
            reading.add(token, None)
        events = [event for piece in (reading.shown(), reading.end()) if piece for event in piece.events]
        shown[parallel] = [event.name for event in events if isinstance(event, CallStart)]
    assert shown == {True: ["look", "look"], False: ["look"]}
