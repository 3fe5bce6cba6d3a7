"""A user's own loss: called as documented, and refused at start if it cannot work."""

from pathlib import Path
from typing import Any

import pytest
import torch

from clawctl.config import TrainConfig
from clawctl.errors import ClawError
from clawctl.plugins import GENERATE, LOSS, load_function
from clawctl.run.directory import RunDir
from clawctl.train.checkpoints import read_rows
from clawctl.trainers.local.objective import load_custom_loss
from clawctl.trainers.local.step import train_step
from tests.extension import needs
from tests.train.tiny import HINT, Sampler, publish_shard, publish_turns
from tests.trainers.local.test_methods_in_a_step import train
from tests.trainers.local.test_train_step import begin, take, weights

# the policy loss of `binary` and `combine` without mask and penalty, from the arguments of a custom loss alone
EXAMPLE = f"{Path(__file__).parents[3] / 'examples' / 'loss.py'}:compute_loss"


def write(tmp_path: Path, code: str) -> str:
    path = tmp_path / "mine.py"
    path.write_text(code)
    return f"{path}:compute_loss"


@pytest.mark.parametrize("changes", [{}, {"lora": {"rank": 4}}])
def test_a_custom_loss_that_writes_the_policy_loss_makes_the_same_step(
    run: RunDir, sampler: Sampler, model_path: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    publish_turns(run, sampler, 8)
    results = []
    for custom in (None, EXAMPLE):
        settings = {"method": "binary", "batch_turns": 8, "ratio_penalty": 0.0, "custom_loss": custom, "lr": 1e-4, **changes}
        training = begin(run, model_path, tokens_per_microbatch=100, **settings)
        row = train_step(training, take(run, training)).row
        assert row is not None
        results.append((row, weights(training)))
    (ours, after), (theirs, also) = results
    assert list(theirs["terms"]) == ["custom"]
    assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-4)
    assert theirs["grad_norm"] == pytest.approx(ours["grad_norm"], rel=1e-4)
    assert theirs["terms"]["custom"]["advantage_mean"] == pytest.approx(ours["terms"]["binary"]["advantage_mean"])
    for name, value in after.items():
        torch.testing.assert_close(also[name], value, atol=1e-5, rtol=0)


@pytest.mark.parametrize("changes", [{"lora": {"rank": 4}}, {"teacher": "base"}, {}])
def test_a_custom_loss_gets_version_0_rewards_and_the_turn_of_each_token(
    run: RunDir, sampler: Sampler, model_path: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    code = """
import torch
def compute_loss(policy_logits, reference_logits, rewards, advantages, config):
    if len(rewards) > 4:  # not the tokens of the trial
        assert reference_logits.shape == policy_logits.shape == rewards.shape
        torch.testing.assert_close(reference_logits, policy_logits.detach())  # before the first step both are version 0
        lengths = torch.bincount(config.turns)
        assert lengths.tolist() == [8, 5] or lengths.tolist() == [5, 8]
        assert sorted(rewards[config.turns == 0].unique().tolist() + rewards[config.turns == 1].unique().tolist()) == [-1.0, 1.0]
        assert config.count == 13 and config.step == 1
    return policy_logits.sum() * 0.0
"""
    publish_turns(run, sampler, 2)
    train(run, model_path, method="binary", batch_turns=2, custom_loss=write(tmp_path, code), **changes)
    assert read_rows(run)[0]["terms"]["custom"]["tokens"] == 13


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (
            "def compute_loss(logits, config): ...",
            r"compute_loss takes \(logits, config\), expected \(policy_logits, reference_logits",
        ),
        ("compute_loss = 3", "compute_loss is not a function"),
        ("def other(): ...", "has no 'compute_loss'"),
        ("import nothing_of_that_name", "cannot be loaded: there is no module 'nothing_of_that_name'"),
        ("def compute_loss(a, b, c, d, e): return 1 / 0", "fails on four tokens: ZeroDivisionError"),
        ("def compute_loss(a, b, c, d, e): return 1.0", "returned float"),
        ("def compute_loss(a, b, c, d, e): return a", r"returned a tensor of shape \[4\]"),
        ("def compute_loss(a, b, c, d, e): return a.detach().sum()", "without gradient"),
    ],
)
def test_a_loss_that_cannot_be_called_as_it_will_be_is_refused_at_start(tmp_path: Path, code: str, problem: str) -> None:
    with pytest.raises(ClawError, match=problem) as raised:
        load_custom_loss(TrainConfig(custom_loss=write(tmp_path, code)), 7)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("return policy_logits.sum() if len(rewards) == 4 else 1 / 0", "fails in step 1: ZeroDivisionError"),
        ("return policy_logits.sum() if len(rewards) == 4 else policy_logits", r"returned a tensor of shape .* in step 1"),
        ("return policy_logits.sum() if len(rewards) == 4 else policy_logits.detach().sum()", "without gradient in step 1"),
    ],
)
def test_a_loss_that_fails_later_is_reported_with_its_step_and_position_and_consumes_no_turn(
    run: RunDir, sampler: Sampler, model_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, code: str, problem: str
) -> None:
    publish_turns(run, sampler, 4)
    mine = write(tmp_path, f"def compute_loss(policy_logits, reference_logits, rewards, advantages, config):\n    {code}")
    with pytest.raises(ClawError, match=problem):
        train(run, model_path, method="binary", custom_loss=mine)
    tracebacks = [record.exc_info for record in caplog.records if record.exc_info]
    assert len(tracebacks) == ("fails" in problem)  # with its traceback, which has the line of mine.py
    assert read_rows(run) == []
    assert list((run.train / "ledger").glob("*.json")) == []


def test_a_loss_needs_a_method_that_has_advantages(tmp_path: Path) -> None:
    with pytest.raises(ClawError, match="no advantages with method hybrid"):
        load_custom_loss(TrainConfig(method="hybrid", custom_loss=EXAMPLE), 7)


def test_a_value_other_than_file_and_name_is_refused(tmp_path: Path) -> None:
    for spec, problem in (
        ("mine.py", "there is no file"),
        ("mine", "is not file.py:name"),
        ("nowhere.py:x", "there is no file"),
        (f"{tmp_path}:x", "there is no file"),
    ):
        with pytest.raises(ClawError, match=problem):
            load_function(spec, "--custom-loss", LOSS)
    path = tmp_path / "mine.py"
    path.write_text(
        "def generate(messages, tools=None, config=None): ...\nclass Own:\n    def __call__(self, *parts): ...\nown = Own()"
    )
    assert callable(load_function(f"{path}:generate", "--generate", GENERATE))
    assert callable(load_function(f"{path}:own", "--generate", GENERATE))


MEAN = """
def compute_loss(policy_logits, reference_logits, rewards, advantages, config):
    ratio = (policy_logits - config.sampler_logprobs).exp()
    return -(ratio * advantages).mean(), {"ratio": ratio.mean().item()}
"""
OPD = """
def compute_opd_loss(student_logprobs, teacher_logprobs, advantage_mask, clip_ratio=0.2):
    assert clip_ratio == CLIP, clip_ratio
    gap = (teacher_logprobs - student_logprobs).detach()
    loss = -gap * (student_logprobs - student_logprobs.detach()).exp() * advantage_mask
    return loss.sum() / advantage_mask.sum()
"""
HYBRID = """
def compute_hybrid_loss(student_logprobs, teacher_logprobs, scalar_rewards, opd_weight=0.5):
    advantages = compute_gae(scalar_rewards)
    assert advantages.shape == scalar_rewards.shape and not scalar_rewards.isnan().any()
    ratio = (student_logprobs - student_logprobs.detach()).exp()
    return -(advantages * ratio).mean() - opd_weight * (teacher_logprobs - student_logprobs).mean(), {}
"""
WHOLE = """
def compute_loss(policy_logits, vocabulary_logits, reference_vocabulary_logits, advantages, config):
    logprobs = vocabulary_logits.log_softmax(-1).gather(1, config.token_ids[:, None]).squeeze(1)
    assert (logprobs - policy_logits).abs().max() < 1e-5
    assert reference_vocabulary_logits.shape == vocabulary_logits.shape
    return -((logprobs - config.sampler_logprobs).exp() * advantages).sum() / config.count
"""


@needs("migrate")
@pytest.mark.parametrize(
    ("code", "changes"),
    [
        (MEAN, {"method": "binary"}),
        (OPD.replace("CLIP", "0.2"), {"method": "opd"}),
        (OPD.replace("CLIP", "0.1"), {"method": "combine", "off_policy": "ppo_clip", "clip_high": 0.1}),
        (HYBRID, {"method": "combine", "lora": {"rank": 4}}),
        (WHOLE, {"method": "binary"}),
    ],
)
def test_a_loss_of_another_system_makes_the_same_step_however_the_step_is_cut(
    run: RunDir, sampler: Sampler, model_path: Path, tmp_path: Path, code: str, changes: dict[str, Any]
) -> None:
    turns = [(sampler.turn(f"t{i}", seed=i, tokens=5 + i), (1.0, -1.0)[i % 2], HINT if i < 3 else None) for i in range(6)]
    publish_shard(run, "a", turns)
    path = tmp_path / "mine.py"
    path.write_text(code)
    count = 3 if changes["method"] == "opd" else 6
    results = []
    for size in (60, 10_000):
        settings = {"batch_turns": count, "custom_loss": str(path), "tokens_per_microbatch": size, **changes}
        training = begin(run, model_path, **settings)
        row = train_step(training, take(run, training)).row
        assert row is not None
        results.append((row["loss"], row["grad_norm"]))
    assert results[0] == pytest.approx(results[1], rel=1e-3)
    assert results[0][1] > 0


def test_a_mean_over_tokens_is_the_same_loss_as_a_sum_over_the_count_of_the_step(
    run: RunDir, sampler: Sampler, model_path: Path, tmp_path: Path
) -> None:
    publish_turns(run, sampler, 8)
    (tmp_path / "mean.py").write_text(MEAN)
    rows = []
    for loss in (EXAMPLE, str(tmp_path / "mean.py")):
        training = begin(run, model_path, method="binary", batch_turns=8, tokens_per_microbatch=60, custom_loss=loss)
        rows.append(train_step(training, take(run, training)).row)
    assert rows[0]["grad_norm"] == pytest.approx(rows[1]["grad_norm"], rel=1e-4)
    assert rows[0]["loss"] == pytest.approx(rows[1]["loss"], rel=1e-4)


def test_version_0_is_loaded_beside_all_weights_only_for_a_loss_that_reads_it(
    run: RunDir, sampler: Sampler, model_path: Path, tmp_path: Path
) -> None:
    publish_turns(run, sampler, 2)
    assert begin(run, model_path, method="binary", custom_loss=EXAMPLE).reference is None
    code = "def compute_loss(a, b, c, d, e): return ((a - b).exp() * d).mean()"
    assert begin(run, model_path, method="binary", custom_loss=write(tmp_path, code)).reference is not None


def test_a_loss_with_a_teacher_needs_a_method_that_has_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OPD.replace("CLIP", "0.2"))
    with pytest.raises(ClawError, match="needs a teacher, and method binary has none"):
        load_custom_loss(TrainConfig(method="binary", custom_loss=str(path)), 7)


@pytest.mark.parametrize("name", ["custom_loss.py", "custom_opd_loss.py", "hybrid_loss.py"])
@pytest.mark.parametrize("changes", [{}, {"lora": {"rank": 4}}])
def test_the_described_losses_train_as_they_are(
    run: RunDir, sampler: Sampler, model_path: Path, name: str, changes: dict[str, Any]
) -> None:
    path = Path(__file__).parents[4] / "shared" / "described" / name
    if not path.exists():
        pytest.skip("the described system's examples are not here")
    publish_shard(run, "a", [(sampler.turn(f"t{i}", seed=i), (1.0, -1.0)[i % 2], HINT) for i in range(4)])
    train(run, model_path, method="combine", batch_turns=4, custom_loss=str(path), **changes)
    (row,) = read_rows(run)
    assert row["grad_norm"] > 0
