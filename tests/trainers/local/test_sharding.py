"""Sharded weights, gradient checkpointing, offload: other memory, the same numbers."""

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from clawctl.config import dump_recipe
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, open_run
from clawctl.run.policies import ensure_base_policy
from clawctl.train.checkpoints import read_rows
from clawctl.trainers.local.ranks import Ranks, leave_ranks
from tests import forked
from tests.train.tiny import Sampler, make_recipe, publish_turns, run_training

ALONE = Ranks(0, 1, torch.device("cpu"))


@pytest.fixture(autouse=True)
def alone_again() -> Iterator[None]:
    yield
    leave_ranks()


def trained(tmp_path: Path, name: str, sampler: Sampler, model: Path, turns: int = 8, **changes: Any) -> RunDir:
    run = open_run(tmp_path / name)
    if not any(run.trajectories.iterdir()):
        publish_turns(run, sampler, turns)
    ensure_base_policy(run, str(model))
    run_training(run, make_recipe(model, **{"lr": 1e-4, **changes}), ALONE, threading.Event(), once=True)
    return run


def launched(tmp_path: Path, name: str, sampler: Sampler, model: Path, ranks: int, turns: int = 8, **changes: Any) -> RunDir:
    run = open_run(tmp_path / name)
    if not any(run.trajectories.iterdir()):
        publish_turns(run, sampler, turns)
    (tmp_path / "recipe.yaml").write_text(dump_recipe(make_recipe(model, lr=1e-4, **changes)))
    command = ["train", "--run", str(run.root), "--recipe", str(tmp_path / "recipe.yaml"), "--once"]
    forked.finish(forked.start_ranks(command, tmp_path / "log", ranks), tmp_path / "log")
    return run


def assert_same(first: RunDir, other: RunDir, version: int, atol: float = 0.0) -> None:
    [file] = [path.name for path in first.version_folder(version).glob("*model.safetensors")]
    ours, theirs = (load_file(run.version_folder(version) / file) for run in (first, other))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], atol=atol, rtol=0)


CASES: list[dict[str, Any]] = [
    {},
    {"lora": {"rank": 4}},
    {"lora": {"rank": 4, "dropout": 0.2}},
    {"method": "hybrid", "teacher": "base", "base_pull": 0.1, "kl_budget": 1e-6},
    {"lr": "auto", "movement": 1e-3},
]


@pytest.mark.parametrize("changes", CASES)
def test_memory_settings_change_no_number(tmp_path: Path, sampler: Sampler, model_path: Path, changes: dict[str, Any]) -> None:
    plain = trained(tmp_path, "plain", sampler, model_path, **changes)
    scaled = changes.get("lr") == "auto"  # by a divergence, whose rounding the next step's loss shows
    for other in ({"shard": "full"}, {"gradient_checkpointing": True}, {"optimizer_offload": True}):
        saved = trained(tmp_path, str(*other), sampler, model_path, **changes, **other)
        assert_same(plain, saved, 2, atol=1e-6)  # a bounded turn is the difference of two passes
        for mine, theirs in zip(read_rows(plain), read_rows(saved), strict=True):
            assert theirs["loss"] == pytest.approx(mine["loss"], rel=1e-5 if scaled else 1e-6), other
            assert theirs["grad_norm"] == pytest.approx(mine["grad_norm"], rel=1e-4 if scaled else 1e-5), other
        leave_ranks()


def test_any_number_of_ranks_resumes_from_any_other_with_the_same_weights(
    tmp_path: Path, sampler: Sampler, model_path: Path
) -> None:
    # turns a step, so that some ranks have nothing in the last round; the bound is of what the ranks compute together
    five: dict[str, Any] = {"turns": 20, "batch_turns": 5, "turn_bound": None}
    one_by_one: dict[str, Any] = {**five, "shard": "full", "tokens_per_microbatch": 1}
    alone = trained(tmp_path, "alone", sampler, model_path, **five)
    trained(tmp_path, "many", sampler, model_path, **five, max_steps=1)
    launched(tmp_path, "many", sampler, model_path, 2, **one_by_one, max_steps=2)
    launched(tmp_path, "many", sampler, model_path, 4, **one_by_one, max_steps=3)
    many = trained(tmp_path, "many", sampler, model_path, **five, max_steps=4)
    for version in (1, 2, 3, 4):
        assert_same(alone, many, version, atol=2e-6)
    for mine, theirs in zip(read_rows(alone), read_rows(many), strict=True):
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=1e-4)
        assert theirs["terms"]["opd"]["tokens"] == mine["terms"]["opd"]["tokens"]
    assert (many.train / "checkpoints" / "3" / "sharded" / "index.json").exists()
    assert not (many.train / "checkpoints" / "4" / "sharded").exists()


@pytest.mark.parametrize("lora", [None, {"rank": 4, "dropout": 0.2}])
def test_a_killed_sharded_run_resumes_bit_for_bit_and_loads_as_a_plain_model(
    tmp_path: Path, sampler: Sampler, model_path: Path, lora: Any
) -> None:
    undisturbed = trained(tmp_path, "undisturbed", sampler, model_path, turns=12, shard="full", lora=lora)
    trained(tmp_path, "killed", sampler, model_path, turns=12, shard="full", lora=lora, max_steps=1)
    left = tmp_path / "killed" / "train" / "checkpoints" / ".2.sharded"  # of one that died while all ranks wrote
    left.mkdir()
    (left / "0-of-8.weights.safetensors").write_bytes(b"half")
    (left / "7-of-8.weights.safetensors").write_bytes(b"of a rank that is no more")
    killed = trained(tmp_path, "killed", sampler, model_path, shard="full", lora=lora)
    for version in (1, 2, 3):
        assert_same(undisturbed, killed, version)
    assert list((killed.train / "checkpoints").glob(".*")) == []
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder = killed.version_folder(3)
    base: Any = AutoModelForCausalLM.from_pretrained(model_path if lora else folder)
    assert type(PeftModel.from_pretrained(base, folder).get_base_model() if lora else base).__name__ == "Qwen3ForCausalLM"
    assert "FSDP" not in (folder / ("adapter_config.json" if lora else "config.json")).read_text()


def test_a_sharded_checkpoint_that_cannot_be_read_is_a_clear_error(tmp_path: Path, sampler: Sampler, model_path: Path) -> None:
    run = trained(tmp_path, "broken", sampler, model_path, shard="full", max_steps=1)
    parts = run.train / "checkpoints" / "1" / "sharded"
    whole = (parts / "0-of-1.weights.safetensors").read_bytes()
    for damage in (whole[:-4], whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]):
        (parts / "0-of-1.weights.safetensors").write_bytes(damage)
        with pytest.raises(ClawError, match=r"checkpoint .* cannot be read"):
            trained(tmp_path, "broken", sampler, model_path, shard="full")
    (parts / "0-of-1.weights.safetensors").write_bytes(whole)
    (parts / "index.json").write_bytes(b"half")
    with pytest.raises(ClawError, match=r"checkpoint .* cannot be read"):
        trained(tmp_path, "broken", sampler, model_path, shard="full")


def test_a_pickle_in_a_sharded_checkpoint_is_never_run(tmp_path: Path, sampler: Sampler, model_path: Path) -> None:
    run = trained(tmp_path, "trapped", sampler, model_path, shard="full", max_steps=1)
    parts, sprung = run.train / "checkpoints" / "1" / "sharded", tmp_path / "sprung"
    trap = pickle.dumps(Trap(sprung))
    (parts / ".metadata").write_bytes(trap)
    (parts / "__0_0.distcp").write_bytes(trap)
    trained(tmp_path, "trapped", sampler, model_path, shard="full", max_steps=2)
    assert not sprung.exists()
    parts = run.train / "checkpoints" / "2" / "sharded"
    (parts / "index.json").rename(parts / ".metadata")
    (parts / ".metadata").write_bytes(trap)
    with pytest.raises(ClawError, match="written by an older clawctl, with a pickle"):
        trained(tmp_path, "trapped", sampler, model_path, shard="full")
    (parts / "index.json").write_bytes(trap)
    (parts / "0-of-1.weights.safetensors").write_bytes(trap)
    with pytest.raises(ClawError, match="cannot be read"):
        trained(tmp_path, "trapped", sampler, model_path, shard="full")
    assert not sprung.exists()


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, sprung: Path) -> None:
        self._sprung = sprung

    def __reduce__(self) -> Any:
        return Path.touch, (self._sprung,)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"shard": "full", "teacher": "ema"}, "ema does not work with sharded weights"),
        ({"shard": "full", "lora": {"quantize": "nf4"}}, "quantised base model cannot be sharded"),
        ({"lora": {"quantize": "nf4"}}, "needs a CUDA device"),
        ({"optimizer_offload": True, "shard": "none"}, "needs sharding, but"),
    ],
)
def test_unsupported_combinations_are_refused_with_a_cure(
    tmp_path: Path, sampler: Sampler, model_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ClawError, match=problem) as caught:
        trained(tmp_path, "refused", sampler, model_path, **changes)
    assert caught.value.exit_code == 2
