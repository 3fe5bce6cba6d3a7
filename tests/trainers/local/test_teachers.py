"""The teachers: the policy, its moving average, or a model behind a URL."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch

from clawctl.errors import ClawError
from clawctl.run.directory import RunDir
from clawctl.run.policies import ensure_base_policy, live_version
from clawctl.train.ledger import read_ledger
from clawctl.train.measures import Measures
from clawctl.train.remote_teacher import RemoteTeacher, open_remote_teacher, with_teacher_logprobs
from clawctl.train.sample import Batch, Sample
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.scores import taught_in_policy_pass, teacher_logprobs
from clawctl.trainers.local.step import train_step
from clawctl.trainers.local.training import Average
from tests.stub_http import StubHandler, StubServer, running
from tests.train.tiny import HINT, Sampler, make_recipe, publish_shard, resume, run_training
from tests.trainers.local.test_train_step import begin, take, weights

ALONE = Ranks(0, 1, torch.device("cpu"))


def a_sample(name: str, reward: float | None = 1.0, **changes: Any) -> Sample:
    return replace(Sample(name, "a", "", [5, 6], [7, 8, 9], [-1.0] * 3, 1.0, 0, reward, [5, 4, 6]), **changes)


@contextmanager
def served(sampler: Sampler, spoil: Any = None) -> Iterator[str]:
    """A model behind vLLM's completions: the logprob of every prompt token, as that server writes them. `spoil` edits an answer."""

    class Handler(StubHandler):
        def do_GET(self) -> None:
            self.answer({"data": [{"id": "tiny"}]})

        def do_POST(self) -> None:
            body = self.sent()
            assert body["model"] == "tiny"
            ids = body["prompt"]
            with torch.no_grad():
                logprobs = sampler.model(torch.tensor([ids])).logits[0].log_softmax(-1)
            prompt_logprobs: list[Any] = [
                None,
                *({str(t): {"logprob": float(logprobs[i, t]), "rank": 1}} for i, t in enumerate(ids[1:])),
            ]
            self.answer({"choices": [{"text": "x", "prompt_logprobs": spoil(prompt_logprobs) if spoil else prompt_logprobs}]})

    with running(StubServer(Handler)) as server:
        yield server.url + "/v1"


def test_an_average_moves_towards_the_policy_by_one_minus_decay_and_is_worn_only_inside() -> None:
    parameter = torch.nn.Parameter(torch.tensor([1.0]))
    average = Average([("w", parameter)], decay=0.75)
    parameter.data = torch.tensor([2.0])
    average.update()
    assert average.weights["w"].tolist() == [1.25]  # 1 + (2 - 1) / 4
    with average.worn():
        assert parameter.tolist() == [1.25]
    assert parameter.tolist() == [2.0]
    average.update()
    assert average.weights["w"].tolist() == [1.4375]


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_the_average_teaches_after_a_restart_as_it_would_have_without_one(
    run: RunDir, sampler: Sampler, model_path: Path, lora: Any
) -> None:
    for stem in "ab":
        publish_shard(run, stem, [(sampler.turn(f"{stem}{i}", seed=i), -1.0, HINT) for i in range(2)])
    settings: dict[str, Any] = {
        "teacher": "ema",
        "teacher_decay": 0.5,
        "batch_turns": 2,
        "method": "opd",
        "lora": lora,
        "max_steps": 1,
    }
    recipe = make_recipe(model_path, **settings)
    ensure_base_policy(run, recipe.model.path)
    steady = begin(run, model_path, **settings)
    first = take(run, steady)
    at_rest = teacher_logprobs(steady, first.samples, Measures())
    train_step(steady, first)
    moved = teacher_logprobs(steady, first.samples, Measures())
    assert any(not torch.equal(moved[name], at_rest[name]) for name in moved)
    run_training(run, recipe, ALONE, threading.Event(), once=True)
    resumed = resume(run, recipe, ALONE)
    assert live_version(run) == 1
    scores = teacher_logprobs(resumed, first.samples, Measures())
    for name, value in moved.items():
        torch.testing.assert_close(scores[name], value, atol=0, rtol=0)


def test_the_average_is_neither_trained_nor_published(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_shard(run, "a", [(sampler.turn("x"), -1.0, HINT)])
    training = begin(run, model_path, teacher="ema", method="opd", batch_turns=1)
    batch = take(run, training)
    train_step(training, batch)
    before = weights(training)
    teacher_logprobs(training, batch.samples, Measures())
    assert all(torch.equal(value, before[name]) for name, value in weights(training).items())


def test_a_teacher_server_returns_the_policys_own_logprobs(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_shard(run, "a", [(sampler.turn("x", temperature=1.0), -1.0, HINT)])
    training = begin(run, model_path, method="opd", batch_turns=1)
    batch = take(run, training)
    with served(sampler) as url:
        teacher = RemoteTeacher(url, None, None)
        scored, lost = with_teacher_logprobs(batch, teacher.ask(batch))
    assert lost == {}
    by_server = teacher_logprobs(training, scored.samples, Measures())["x"]
    torch.testing.assert_close(by_server, teacher_logprobs(training, batch.samples, Measures())["x"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda values: values[:-1], "did not return a logprob for each token"),
        (lambda values: None, "did not return a logprob for each token"),
        (lambda values: [*values[:-1], {"1": {"logprob": -1.0}}], "did not return a logprob for each token"),  # of another token
        (lambda values: [*values[:-1], None], "did not return a logprob for each token"),
        (lambda values: [*values[:-1], {"9": {"logprob": 3.0}}], "returned an invalid logprob"),
    ],
)
def test_an_answer_that_is_not_whole_costs_the_hint_and_is_never_filled_in(sampler: Sampler, spoil: Any, reason: str) -> None:
    with served(sampler, spoil) as url:
        teacher = RemoteTeacher(url, "tiny", None)
        (answer,) = teacher.ask(Batch(1, [a_sample("x")]))
    assert answer == f"the teacher's server {reason}"


def test_a_turn_without_its_teacher_is_trained_by_its_reward_or_not_at_all() -> None:
    batch = Batch(3, [a_sample("a"), a_sample("b", reward=None), a_sample("c"), a_sample("d", teacher_prompt_ids=None)])
    scored, lost = with_teacher_logprobs(batch, ["gone", "gone", (-1.0, -2.0, -3.0), None])
    assert lost == {"a": "gone", "b": "gone"}
    assert [(s.turn_id, s.teacher_prompt_ids is None, s.teacher_logprobs) for s in scored.samples] == [
        ("a", True, None), ("c", False, (-1.0, -2.0, -3.0)), ("d", True, None),
    ]  # fmt: skip
    assert scored.step == 3


def test_a_server_that_is_gone_or_scores_at_another_temperature_is_a_reason(sampler: Sampler) -> None:
    with served(sampler) as url:
        teacher = RemoteTeacher(url, "tiny", None)
        cool, warm = teacher.ask(Batch(1, [a_sample("x", temperature=0.5), a_sample("y")]))
        assert cool == "the teacher's server scores at temperature 1 only"
        assert isinstance(warm, tuple)
    assert teacher.ask(Batch(1, [a_sample("y")])) == ["the teacher's server does not answer"]


def test_a_run_whose_teacher_goes_away_trains_rewards_and_counts_lost_hints(
    run: RunDir, sampler: Sampler, model_path: Path
) -> None:
    publish_shard(run, "a", [(sampler.turn("x", temperature=1.0), -1.0, HINT), (sampler.turn("y", temperature=1.0), None, HINT)])
    with served(sampler, lambda values: values[:-1]) as url:
        recipe = make_recipe(model_path, teacher=url, batch_turns=2)
        ensure_base_policy(run, recipe.model.path)
        run_training(run, recipe, ALONE, threading.Event(), once=True)
    assert read_ledger(run) == {"x": "trained"}
    counts = orjson.loads((run.train / "feed.json").read_bytes())
    assert counts["lost_hints"] == counts["refused"] == {"the teacher's server did not return a logprob for each token": 1}


def test_an_unusable_teacher_is_refused_at_the_start(sampler: Sampler) -> None:
    with pytest.raises(ClawError, match="compares whole distributions"):
        open_remote_teacher(make_recipe(sampler.path, teacher="http://127.0.0.1:9/v1", method="hybrid").train)
    with pytest.raises(ClawError, match="does not list its models"):
        open_remote_teacher(make_recipe(sampler.path, teacher="http://127.0.0.1:9/v1").train)
    assert open_remote_teacher(make_recipe(sampler.path).train) is None


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_a_teacher_computed_in_the_policys_pass_changes_no_number_and_costs_fewer_tokens(
    run: RunDir, sampler: Sampler, model_path: Path, lora: Any
) -> None:
    long = [{"role": "system", "content": "hello " * 400}, {"role": "user", "content": "please solve the homework 1"}]
    prompt = list(sampler.tokenizer.apply_chat_template(long, add_generation_prompt=True, return_dict=False))
    turns = [sampler.turn(f"x{i}", tokens=5 + i, seed=i, messages=long, prompt_ids=prompt) for i in range(3)]
    publish_shard(run, "a", [(turn, -1.0, HINT if i else None) for i, turn in enumerate(turns)])
    results = []
    for tokens in (10_000, len(prompt) + 20):  # in the second there is room for the policy's branches alone
        training = begin(run, model_path, batch_turns=3, tokens_per_microbatch=tokens, lora=lora, lr=1e-4, max_mismatch=1e9)
        batch = take(run, training)
        expected = teacher_logprobs(training, batch.samples, Measures())
        assert len(taught_in_policy_pass(training.config, training.policy, batch.samples)) == (2 if tokens == 10_000 else 0)
        outcome = train_step(training, batch)
        assert outcome.row
        for name, value in expected.items():
            torch.testing.assert_close(torch.from_numpy(outcome.turns[name].teacher_T), value, atol=2e-5, rtol=2e-5)
        results.append((outcome.row or {}, weights(training)))
    (together, after), (apart, after_apart) = results
    assert together["loss"] == pytest.approx(apart["loss"], rel=1e-4)
    assert together["grad_norm"] == pytest.approx(apart["grad_norm"], rel=1e-4)
    assert together["computed_tokens"] + len(prompt) - 50 < apart["computed_tokens"]
    for name, value in after.items():
        torch.testing.assert_close(value, after_apart[name], atol=2e-6, rtol=0)


def test_a_name_that_the_teachers_server_does_not_serve_is_refused_at_the_start() -> None:
    class Lists(StubHandler):
        def do_GET(self) -> None:
            self.answer({"data": [{"id": "teacher-32b"}, {"id": "other"}]})

    with running(StubServer(Lists)) as server:
        assert [RemoteTeacher(server.url, name, None).model for name in (None, "other")] == ["teacher-32b", "other"]
        with pytest.raises(ClawError, match="serves no model 'teacher-33b'") as caught:
            RemoteTeacher(server.url, "teacher-33b", None)
    assert caught.value.fix == "set train.teacher_model to one of teacher-32b, other"
