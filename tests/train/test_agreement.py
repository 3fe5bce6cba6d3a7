"""Whether the model that sampled the turns is the one that is trained: by name, by files and by logprobs."""

import logging
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch

from clawctl.config import TrainConfig
from clawctl.run.directory import RunDir
from clawctl.run.model_files import origin_of
from clawctl.run.policies import ensure_base_policy
from clawctl.run.rows import Turn
from clawctl.run.shards import UNKNOWN, Origin, write_turns
from clawctl.train.agreement import Watch, model_difference
from clawctl.train.ledger import read_ledger
from clawctl.trainers.local.ranks import Ranks
from tests.train.tiny import Sampler, make_model, make_recipe, publish_shard, publish_turns, run_training

ALONE = Ranks(0, 1, torch.device("cpu"))


def warnings_of(run: RunDir, model: Path, caplog: pytest.LogCaptureFixture, **train: Any) -> list[str]:
    """The warnings of a trainer until no batch is full."""
    recipe = make_recipe(model, batch_wait_s=1e9, **train)
    ensure_base_policy(run, recipe.model_path)
    with caplog.at_level(logging.WARNING, "clawctl.train"):
        run_training(run, recipe, ALONE, threading.Event(), once=True)
    return [record.getMessage() for record in caplog.records if record.name == "clawctl.train"]


def blurred(turn: Turn, by: float) -> Turn:
    """Every second logprob is higher, the others lower."""
    assert turn.logprobs is not None
    return replace(turn, logprobs=[value + (by if i % 2 and value < -by else -by) for i, value in enumerate(turn.logprobs)])


def publish_blurred(run: RunDir, sampler: Sampler, by: float, stem: str = "b") -> None:
    turns = [sampler.turn(f"{stem}{i}", tokens=8, seed=i, temperature=1.2) for i in range(4)]
    publish_shard(run, stem, [(blurred(turn, by), 1.0, None) for turn in turns])


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        (UNKNOWN, None),
        (Origin("mine", None, "2 layers", "aa"), None),
        (Origin("elsewhere/mine", None, "2 layers", "aa"), None),
        (Origin("mine", None, None, None), None),
        (Origin("other", None, "2 layers", None), "sampled by other, .* trained model is mine; .* not known"),
        (Origin("mine", None, "2 layers", "bb"), r"sampled by mine \(weights bb\), .* trained model is mine \(weights aa\)"),
        (Origin("other", None, "3 layers", "bb"), r"turns of other \(3 layers\) are refused, because .* mine \(2 layers\)"),
    ],
)
def test_a_difference_is_reported_with_both_names_and_equal_or_unknown_models_give_none(theirs: Origin, named: str | None) -> None:
    difference = model_difference(theirs, Origin("mine", None, "2 layers", "aa"))
    assert (difference is None) == (named is None)
    assert re.search(named or "", difference or "")


def test_turns_of_a_model_of_another_size_are_refused_counted_and_logged_once(
    run: RunDir, sampler: Sampler, model_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = origin_of("models/other", str(make_model(tmp_path / "other", hidden=64)))
    for stem in "ab":
        write_turns(run.trajectories / f"{stem}.parquet", publish_turns(run, sampler, 2, stem), theirs)
    (warning,) = warnings_of(run, model_path, caplog, batch_turns=1)
    assert "models/other (2 layers of 64 in 2 heads)" in warning
    assert f"{model_path} (2 layers of 32 in 2 heads)" in warning
    assert orjson.loads((run.train / "feed.json").read_bytes())["refused"] == {"sampled by another model": 4}
    assert read_ledger(run) == {}


def test_turns_of_other_weights_are_trained_if_their_logprobs_agree_and_the_difference_is_logged_once(
    run: RunDir, sampler: Sampler, model_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = origin_of("models/other", str(make_model(tmp_path / "other", dtype=torch.bfloat16)))
    for stem in "ab":
        write_turns(run.trajectories / f"{stem}.parquet", publish_turns(run, sampler, 4, stem), theirs)
    (warning,) = warnings_of(run, model_path, caplog)
    assert f"models/other (weights {theirs.weights})" in warning
    assert str(model_path) in warning
    assert len(read_ledger(run)) == 8


def test_a_mismatch_beyond_rounding_is_logged_once_with_its_size_and_causes(
    run: RunDir, sampler: Sampler, model_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish_blurred(run, sampler, 0.06)
    (warning,) = warnings_of(run, model_path, caplog)
    assert "step 1: log-probabilities" in warning
    assert "by 0.06 on average" in warning
    assert "another type than model.dtype" in warning
    assert len(read_ledger(run)) == 4


@pytest.mark.parametrize(("dtype", "by"), [("float32", 0.0), ("bfloat16", 0.0), ("bfloat16", 0.01)])
def test_rounding_differences_cause_no_warning(
    run: RunDir, sampler: Sampler, model_path: Path, caplog: pytest.LogCaptureFixture, dtype: str, by: float
) -> None:
    publish_blurred(run, sampler, by)
    assert warnings_of(run, model_path, caplog, dtype=dtype) == []
    assert len(read_ledger(run)) == 4


@pytest.mark.parametrize(("quantize", "by", "warned"), [(None, 0.2, True), ("nf4", 0.2, False), ("nf4", 0.9, True)])
def test_a_trainer_over_4_bits_may_differ_as_4_bits_do(
    quantize: str | None, by: float, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = TrainConfig.model_validate({"dtype": "bfloat16", "lora": {"rank": 16, "quantize": quantize}})
    with caplog.at_level(logging.WARNING, "clawctl.train"):
        Watch.of(False, config).check({"mismatch_mean": by, "step": 1})
    assert bool(caplog.records) == warned
