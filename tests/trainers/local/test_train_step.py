"""A whole step on a tiny model: the laws that no single formula shows."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from clawctl.run.directory import RunDir
from clawctl.run.policies import ensure_base_policy
from clawctl.train.advantages.baselines import Baselines
from clawctl.train.feed import Feed
from clawctl.train.measures import Measures
from clawctl.train.sample import Batch, Sample
from clawctl.train.turn_queue import TurnQueue
from clawctl.trainers import Model
from clawctl.trainers.local.batches import make_microbatch
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.scores import teacher_logprobs, turn_branches
from clawctl.trainers.local.step import train_step
from clawctl.trainers.local.training import Training, learning_rate
from clawctl.trainers.texts import TokenizerTexts
from tests.train.tiny import HINT, Sampler, make_recipe, publish_shard, publish_turns, resume, run_training

ALONE = Ranks(0, 1, torch.device("cpu"))


def begin(run: RunDir, model: Path, **train: Any) -> Training:
    return resume(run, make_recipe(model, **train), ALONE)


def take(run: RunDir, training: Training) -> Batch:
    policy = training.policy
    texts = TokenizerTexts(policy.tokenizer, policy.vocabulary, policy.context)
    batch = Feed(TurnQueue(run, training.config, Model(texts, adapter=True, exact=True), {})).next_batch(0)
    assert batch is not None
    return batch


def weights(training: Training) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in training.policy.module.named_parameters()}


def score(training: Training, sample: Sample) -> Tensor:
    """Logprobs of the sampled tokens by the policy as it is."""
    batch = make_microbatch(turn_branches([sample]), "none", ALONE.device)
    with torch.no_grad():
        return training.policy.logprobs(batch)


def test_before_the_first_step_the_trainer_and_the_sampler_agree_on_every_logprob(
    run: RunDir, sampler: Sampler, model_path: Path
) -> None:
    publish_turns(run, sampler, 4)
    training = begin(run, model_path)
    outcome = train_step(training, take(run, training))
    assert outcome.row is not None
    assert outcome.row["mismatch_max"] < 1e-4
    assert outcome.row["ratio_quantiles"] == pytest.approx([1.0] * 7, abs=1e-4)
    assert outcome.row["staleness_max"] == 0


def test_loss_and_weights_do_not_depend_on_how_the_step_is_cut(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 8)
    results = []
    for tokens in (10_000, 100, 1):  # no bound: where a session is cut, its pieces are bounded apart
        cut: dict[str, Any] = {"tokens_per_microbatch": tokens, "turn_bound": None}
        training = begin(run, model_path, batch_turns=8, clip_grad=1e9, lr=1e-4, **cut)
        outcome = train_step(training, take(run, training))
        assert outcome.row is not None
        results.append((outcome.row["loss"], outcome.row["grad_norm"], weights(training)))
    for loss, norm, after in results[1:]:
        assert loss == pytest.approx(results[0][0], rel=1e-5)
        assert norm == pytest.approx(results[0][1], rel=1e-5)
        for name, value in after.items():
            torch.testing.assert_close(value, results[0][2][name], atol=1e-6, rtol=0)


def test_a_session_longer_than_a_microbatch_is_cut_and_the_row_reports_the_cost(
    run: RunDir, sampler: Sampler, model_path: Path
) -> None:
    publish_turns(run, sampler, 4)
    rows = []
    for tokens in (10_000, 1):
        training = begin(run, model_path, tokens_per_microbatch=tokens, method="binary")
        row = train_step(training, take(run, training)).row
        assert row
        rows.append(row)
    whole, cut = rows
    assert (whole["cuts"], whole["recomputed_tokens"]) == (0, 0)
    assert cut["cuts"] == 3
    assert cut["computed_tokens"] == whole["computed_tokens"] + cut["recomputed_tokens"] == cut["sequence_tokens"]
    assert whole["tree_saving"] == whole["sequence_tokens"] / whole["computed_tokens"] > 1


def test_turns_without_a_hint_change_nothing_in_the_distillation_term(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    hinted, plain = sampler.turn("h"), [sampler.turn(f"p{i}", tokens=20, seed=i) for i in range(3)]
    publish_shard(run, "a", [(hinted, -1.0, HINT)])
    training = begin(run, model_path, batch_turns=1)
    alone = train_step(training, take(run, training)).row
    publish_shard(run, "b", [(turn, 1.0, None) for turn in plain])
    training = begin(run, model_path, batch_turns=4)
    among = train_step(training, take(run, training)).row
    assert alone
    assert among
    assert among["terms"]["opd"]["tokens"] == alone["terms"]["opd"]["tokens"] == 12
    assert among["terms"]["opd"]["loss"] == pytest.approx(alone["terms"]["opd"]["loss"], rel=1e-5)
    # binary, by hand: ratios are 1, so -(sum of rewards over tokens) / tokens = -(60 - 12) / 72
    assert among["terms"]["binary"]["tokens"] == 72
    assert among["terms"]["binary"]["loss"] == pytest.approx(-48 / 72, rel=1e-4)
    assert among["loss"] == pytest.approx(among["terms"]["binary"]["loss"] + among["terms"]["opd"]["loss"])


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
@pytest.mark.parametrize("reward", [1.0, -1.0])
def test_a_reward_moves_the_probability_of_the_sampled_tokens(
    run: RunDir, sampler: Sampler, model_path: Path, lora: Any, reward: float
) -> None:
    publish_shard(run, "a", [(sampler.turn("x"), reward, None)])
    training = begin(run, model_path, method="binary", batch_turns=1, lora=lora)
    batch = take(run, training)
    before = score(training, batch.samples[0]).sum()
    train_step(training, batch)
    assert (score(training, batch.samples[0]).sum() - before) * reward > 0


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
@pytest.mark.parametrize("teacher", ["self", "base"])
def test_distillation_moves_the_policy_towards_the_hinted_teacher(
    run: RunDir, sampler: Sampler, model_path: Path, lora: Any, teacher: str
) -> None:
    turns = [sampler.turn(f"x{i}", seed=i, tokens=20) for i in range(4)]
    publish_shard(run, "a", [(turn, -1.0, HINT) for turn in turns])
    training = begin(run, model_path, method="opd", teacher=teacher, lora=lora, gap_clip=20.0, lr=1e-3)
    batch = take(run, training)
    scores = torch.cat(list(teacher_logprobs(training, batch.samples, Measures()).values()))

    def gap() -> Tensor:
        return (scores - torch.cat([score(training, sample) for sample in batch.samples])).square().mean()

    before = gap()
    train_step(training, batch)
    assert gap() < before


def test_the_teacher_has_one_true_logprob_for_each_token_at_the_sampler_temperature(
    run: RunDir, sampler: Sampler, model_path: Path
) -> None:
    publish_shard(run, "a", [(sampler.turn("x", tokens=9), -1.0, HINT), (sampler.turn("y", tokens=4), -1.0, HINT)])
    training = begin(run, model_path, method="opd", batch_turns=2)
    batch = take(run, training)
    scores = teacher_logprobs(training, batch.samples, Measures())
    for sample in batch.samples:
        assert sample.teacher_prompt_ids
        ids = torch.tensor([sample.teacher_prompt_ids + sample.completion_ids])
        with torch.no_grad():
            logits = sampler.model(ids).logits[0, len(sample.teacher_prompt_ids) - 1 : -1] / sample.temperature
        by_hand = logits.log_softmax(-1).gather(1, torch.tensor(sample.completion_ids)[:, None]).squeeze(1)
        torch.testing.assert_close(scores[sample.turn_id], by_hand, atol=1e-5, rtol=1e-5)


def test_the_base_teacher_stays_version_0_while_the_policy_moves(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_shard(run, "a", [(sampler.turn("x"), -1.0, HINT)])
    for lora in (None, {"rank": 4}):
        training = begin(run, model_path, teacher="base", lora=lora, batch_turns=1)
        batch = take(run, training)
        before = teacher_logprobs(training, batch.samples, Measures())["x"]
        train_step(training, batch)
        torch.testing.assert_close(teacher_logprobs(training, batch.samples, Measures())["x"], before, atol=0, rtol=0)


def test_an_adapter_leaves_the_base_weights_alone(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 4)
    training = begin(run, model_path, lora={"rank": 4, "dropout": 0.1})
    before = weights(training)
    train_step(training, take(run, training))
    changed = {name for name, value in weights(training).items() if not torch.equal(value, before[name])}
    assert changed == {name for name, _ in training.policy.trained() if "lora_" in name}
    assert changed


@pytest.mark.parametrize("changes", [{"lora": {"rank": 4}}, {}])
def test_a_published_version_loads_alone_and_reproduces_its_canary(
    run: RunDir, sampler: Sampler, model_path: Path, changes: dict[str, Any]
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from clawctl.run.policies import live_version, read_policy

    publish_turns(run, sampler, 4)
    recipe = make_recipe(model_path, **changes)
    ensure_base_policy(run, recipe.model.path)
    run_training(run, recipe, ALONE, threading.Event(), once=True)
    assert live_version(run) == 1
    folder, policy = run.version_folder(1), read_policy(run, 1)
    base: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    if changes:
        model: Any = PeftModel.from_pretrained(base, str(folder))
    else:
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert model.dtype == torch.float32
        assert AutoTokenizer.from_pretrained(folder).chat_template == sampler.tokenizer.chat_template
    assert policy.canary is not None
    for ids, logprobs in zip(policy.canary["prompt_ids"], policy.canary["logprobs"], strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])
        assert logprobs[0] is None
        assert logprobs[1:] == pytest.approx(expected.squeeze(1).tolist(), abs=1e-5)


def test_a_step_that_is_not_finite_is_left_out_and_only_the_turn_that_caused_it_is_skipped(
    run: RunDir, sampler: Sampler, model_path: Path
) -> None:
    from clawctl.train.ledger import read_ledger

    good = [sampler.turn(f"g{i}", seed=i) for i in range(4)]
    bad = sampler.turn("bad", tokens=2, logprobs=[-1e30, -1.0])  # impossible for a model: its square is infinite
    publish_shard(run, "a", [(bad, 1.0, None), *((turn, 1.0, None) for turn in good)])
    recipe = make_recipe(model_path)
    ensure_base_policy(run, recipe.model.path)
    run_training(run, recipe, ALONE, threading.Event(), once=True)
    assert read_ledger(run) == {"bad": "skipped", **{turn.turn_id: "trained" for turn in good}}
    run_training(run, recipe, ALONE, threading.Event(), once=True)
    assert read_ledger(run)["bad"] == "skipped"


def test_a_step_that_is_not_finite_changes_no_weight(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_shard(run, "a", [(sampler.turn("bad", tokens=2, logprobs=[-1e30, -1.0]), 1.0, None)])
    training = begin(run, model_path, batch_turns=1)
    before = weights(training)
    outcome = train_step(training, take(run, training))
    assert (outcome.row, outcome.broken) == (None, ("bad",))
    assert all(torch.equal(value, before[name]) for name, value in weights(training).items())


def test_an_infinite_gradient_of_a_finite_loss_leaves_the_step_out_and_names_its_turn(
    run: RunDir, sampler: Sampler, model_path: Path
) -> None:
    good, plain = sampler.turn("good"), sampler.turn("bad", tokens=2)
    far = [value - 80.0 for value in plain.logprobs or []]  # ratios of e^80: a float32 holds them, but not their squares
    publish_shard(run, "a", [(good, 1.0, None), (replace(plain, logprobs=far), -1.0, None)])
    training = begin(run, model_path, batch_turns=2)
    before = weights(training)
    outcome = train_step(training, take(run, training))
    assert (outcome.row, outcome.problem, outcome.broken) == (None, "loss or gradient is not finite", ("bad",))
    assert all(torch.equal(value, before[name]) for name, value in weights(training).items())


def test_the_learning_rate_rises_from_zero_to_its_value() -> None:
    config = make_recipe(Path("x"), lr=1e-3, warmup_steps=4).train
    assert [learning_rate(config, step) for step in (1, 2, 4, 5)] == pytest.approx([2.5e-4, 5e-4, 1e-3, 1e-3])


def test_a_large_epsilon_keeps_the_step_of_a_faint_gradient_small(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    """With AdamW's default a loss of a thousandth of the weight moves the policy as far."""
    publish_turns(run, sampler, 4)

    def moved(weight: float, epsilon: float) -> float:
        training = begin(run, model_path, method="combine", weight_binary=weight, weight_opd=0.0, epsilon=epsilon, weight_decay=0.0)
        before = weights(training)
        train_step(training, take(run, training))
        return sum(float((now - before[name]).square().sum()) for name, now in weights(training).items()) ** 0.5

    assert moved(1e-3, 1e-8) > 0.8 * moved(1.0, 1e-8)
    assert moved(1e-3, 1e-3) < 0.1 * moved(1.0, 1e-3)


def test_a_baseline_of_the_turns_before_is_subtracted(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_shard(run, "a", [(sampler.turn("a", seed=1), 1.0, None), (sampler.turn("b", seed=2), -1.0, None)])
    publish_shard(run, "b", [(sampler.turn("c", seed=3), 1.0, None), (sampler.turn("d", seed=4), 1.0, None)])
    training = begin(run, model_path, baseline="mean", method="binary", batch_turns=2)
    batch = take(run, training)
    baselines = Baselines({"homework": (0.5, 10)})
    row = train_step(training, replace(batch, baselines={s.turn_id: baselines.of(s.kind) for s in batch.samples})).row
    baselines.update(batch.samples)
    assert row
    assert row["terms"]["binary"]["advantage_quantiles"][0] == -1.5
    assert row["terms"]["binary"]["advantage_quantiles"][-1] == 0.5
    assert baselines.of("homework") == pytest.approx(0.5 + 0.5 / 11 - (1 + 0.5 + 0.5 / 11) / 12)
