"""A user's own loss: called as documented, and refused at start if it cannot work."""

from pathlib import Path
from typing import Any

import pytest
import torch

from clawctl.config import LoraConfig, TrainConfig
from clawctl.errors import ClawError
from clawctl.plugins import GENERATE, LOSS, load_function
from clawctl.run.directory import RunDir
from clawctl.train.checkpoints import read_rows
from clawctl.trainers.local.custom_loss import load_custom_loss
from clawctl.trainers.local.step import train_step
from tests.train.tiny import Sampler, publish_turns
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
    found = []
    for custom in (None, EXAMPLE):
        settings = {"method": "binary", "batch_turns": 8, "ratio_penalty": 0.0, "custom_loss": custom, "lr": 1e-4, **changes}
        training = begin(run, model_path, tokens_per_microbatch=100, **settings)
        row = train_step(training, take(run, training)).row
        assert row is not None
        found.append((row, weights(training)))
    (ours, after), (theirs, also) = found
    assert list(theirs["terms"]) == ["custom"]
    assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-4)
    assert theirs["grad_norm"] == pytest.approx(ours["grad_norm"], rel=1e-4)
    assert theirs["terms"]["custom"]["advantage_mean"] == pytest.approx(ours["terms"]["binary"]["advantage_mean"])
    for name, value in after.items():
        torch.testing.assert_close(also[name], value, atol=1e-5, rtol=0)


@pytest.mark.parametrize("changes", [{"lora": {"rank": 4}}, {"teacher": "base"}])
def test_a_custom_loss_gets_version_0_rewards_and_the_turn_of_each_token(
    run: RunDir, sampler: Sampler, model_path: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    code = """
import torch
def compute_loss(policy_logits, reference_logits, rewards, advantages, config):
    if len(rewards) > 2:  # not the two tokens of the trial
        assert reference_logits.shape == policy_logits.shape == (len(rewards), policy_logits.shape[1])
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
        ("def compute_loss(a, b, c, d, e): return 1 / 0", "fails on two tokens: ZeroDivisionError"),
        ("def compute_loss(a, b, c, d, e): return 1.0", "returned float"),
        ("def compute_loss(a, b, c, d, e): return a", r"returned a tensor of shape \[2, 7\]"),
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
        ("return policy_logits.sum() if len(rewards) == 2 else 1 / 0", "fails in step 1: ZeroDivisionError"),
        ("return policy_logits.sum() if len(rewards) == 2 else policy_logits", r"returned a tensor of shape .* in step 1"),
        ("return policy_logits.sum() if len(rewards) == 2 else policy_logits.detach().sum()", "without gradient in step 1"),
    ],
)
def test_a_loss_that_fails_later_is_reported_with_its_step_and_position_and_consumes_no_turn(
    run: RunDir,
    sampler: Sampler,
    model_path: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    code: str,
    problem: str,
) -> None:
    publish_turns(run, sampler, 4)
    mine = write(tmp_path, f"def compute_loss(policy_logits, reference_logits, rewards, advantages, config):\n    {code}")
    with pytest.raises(ClawError, match=problem):
        train(run, model_path, method="binary", custom_loss=mine)
    told = [record.exc_info for record in caplog.records if record.exc_info]
    assert len(told) == ("fails" in problem)  # with its traceback, which has the line of mine.py
    assert read_rows(run) == []
    assert list((run.train / "ledger").glob("*.json")) == []


def test_a_loss_that_needs_version_0_is_refused_at_start_if_it_is_not_available(tmp_path: Path) -> None:
    code = "def compute_loss(a, reference_logits, c, d, e): return (a - reference_logits).square().sum()"
    mine = write(tmp_path, code)
    with pytest.raises(ClawError, match=r"fails on two tokens: TypeError") as raised:
        load_custom_loss(TrainConfig(method="binary", custom_loss=mine), 7)
    assert "reference_logits is None here" in (raised.value.fix or "")
    for changes in ({"teacher": "base"}, {"lora": LoraConfig(rank=4)}):
        assert load_custom_loss(TrainConfig(method="binary", custom_loss=mine).model_copy(update=changes), 7) is not None


def test_a_loss_needs_a_method_that_has_advantages(tmp_path: Path) -> None:
    with pytest.raises(ClawError, match="no advantages with method hybrid"):
        load_custom_loss(TrainConfig(method="hybrid", custom_loss=EXAMPLE), 7)


def test_a_value_other_than_file_and_name_is_refused(tmp_path: Path) -> None:
    for spec, problem in (
        ("mine.py", "is not file.py:name"),
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
