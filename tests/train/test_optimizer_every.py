"""`train.optimizer_every`: the optimizer's state is written at some steps only, and a killed trainer loses and repeats no step."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from clawctl.config import dump_recipe
from clawctl.run.directory import RunDir, open_run
from clawctl.run.policies import list_versions, live_version
from clawctl.train.checkpoints import read_rows, read_state
from clawctl.trainers.local.model import MASTER
from clawctl.trainers.local.training import OPTIMIZER_FILE, optimizer_step, parts_step
from tests import forked
from tests.train.test_checkpoints import (
    ALONE,
    appears,
    damage,
    forget_commit,
    forget_ledger,
    forget_live,
    forget_nothing,
    forget_policy,
    forget_row,
    ledger,
    same_weights,
    train,
)  # fmt: skip
from tests.train.tiny import Sampler, make_model, make_recipe, publish_turns, resume


def step_bytes_written(run: RunDir, steps: int) -> list[int]:
    """Bytes that each step wrote to its checkpoint and version. A hard link to a file of an earlier step is not written."""
    seen: set[int] = set()
    written = []
    for step in range(1, steps + 1):
        files = [
            path for folder in (run.checkpoint(step), run.version_folder(step)) for path in folder.rglob("*") if path.is_file()
        ]
        new = {path.stat().st_ino: path.stat().st_size for path in files if path.suffix == ".safetensors"}
        written.append(sum(size for inode, size in new.items() if inode not in seen))
        seen |= new.keys()
    return written


@pytest.mark.parametrize("shard", ["none", "full"])
def test_a_step_between_two_writes_of_the_optimizer_writes_six_bytes_a_weight_and_not_fourteen(tmp_path: Path, shard: str) -> None:
    model = make_model(tmp_path / "model", hidden=64, dtype=torch.bfloat16)
    weights = sum(value.numel() for value in load_file(model / "model.safetensors").values())
    sampler, per_weight = Sampler(model), {}
    for every in (1, 3):
        run = open_run(tmp_path / f"every-{every}")
        publish_turns(run, sampler, 20)
        train(run, make_recipe(model, optimizer_every=every, keep_checkpoints=9, shard=shard))
        per_weight[every] = [round(size / weights, 1) for size in step_bytes_written(run, 5)]
    assert per_weight[1] == pytest.approx([14.0] * 5, abs=0.8)
    assert per_weight[3] == pytest.approx([14.0, 6.0, 6.0, 14.0, 6.0], abs=0.8)


def test_with_an_adapter_a_step_between_writes_the_adapter_once_and_not_three_times(tmp_path: Path, model_path: Path) -> None:
    run = open_run(tmp_path / "run")
    publish_turns(run, Sampler(model_path), 20)
    train(run, make_recipe(model_path, lora={"rank": 8}, optimizer_every=3, keep_checkpoints=9))
    adapter = (run.version_folder(1) / "adapter_model.safetensors").stat().st_size
    times = [size / adapter for size in step_bytes_written(run, 5)]
    assert times == pytest.approx([3, 1, 1, 3, 1], abs=0.1)


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
@pytest.mark.parametrize("crash", [forget_nothing, forget_row, forget_live, forget_policy, forget_ledger, forget_commit])
def test_resume_completes_all_work_that_a_kill_interrupted(
    run: RunDir, sampler: Sampler, model_path: Path, tmp_path: Path, crash: Callable[[RunDir], None], lora: dict[str, Any] | None
) -> None:
    """Step 2 has the optimizer's state of step 1, at which it was also made."""
    publish_turns(run, sampler, 8)
    recipe = make_recipe(model_path, optimizer_every=4, lora=lora)
    train(run, recipe)
    shutil.copytree(run.version_folder(2), tmp_path / "undisturbed")
    crash(run)
    train(run, recipe)
    name = "model.safetensors" if lora is None else "adapter_model.safetensors"
    assert same_weights(run.version_folder(2), tmp_path / "undisturbed", name)
    assert (list_versions(run), live_version(run)) == ([0, 1, 2], 2)
    assert ledger(run) == [f"a{i:02d}" for i in range(8)]
    assert [row["step"] for row in read_rows(run)] == [1, 2]


def test_a_resumed_trainer_has_the_newest_weights_and_moments_that_are_some_steps_old(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", dtype=torch.bfloat16)
    run = open_run(tmp_path / "run")
    publish_turns(run, Sampler(model), 24)
    train(run, make_recipe(model, optimizer_every=3, max_steps=3, keep_checkpoints=9))
    assert [optimizer_step(run.checkpoint(step)) for step in (1, 2, 3)] == [1, 1, 1]
    training = resume(run, make_recipe(model, optimizer_every=3, keep_checkpoints=9), ALONE)
    master = load_file(run.checkpoint(3) / MASTER)
    assert all(torch.equal(weight, master[name]) for name, weight in training.policy.trained() if name in master)
    assert {float(state["step"]) for state in training.optimizer.state.values()} == {1.0}
    train(run, make_recipe(model, optimizer_every=3, max_steps=6, keep_checkpoints=9))
    assert [optimizer_step(run.checkpoint(step)) for step in (4, 5, 6)] == [4, 4, 4]
    assert ledger(run) == [f"a{i:02d}" for i in range(24)]
    assert [row["step"] for row in read_rows(run)] == [1, 2, 3, 4, 5, 6]
    for step in range(1, 7):
        files = read_state(run.checkpoint(step))["files"]
        assert files[OPTIMIZER_FILE] == read_state(run.checkpoint(4 if step > 3 else 1))["files"][OPTIMIZER_FILE]


@pytest.mark.parametrize(("shard", "lora"), [("none", None), ("full", None), ("none", {"rank": 4})])
def test_a_trainer_killed_at_any_phase_trains_each_turn_once(
    tmp_path: Path, sampler: Sampler, model_path: Path, shard: str, lora: dict[str, Any] | None
) -> None:
    run = open_run(tmp_path / "killed")
    publish_turns(run, sampler, 18)
    recipe = make_recipe(model_path, max_steps=4, lr=1e-4, optimizer_every=3, shard=shard, lora=lora)
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
    command = ["train", "--run", str(run.root), "--recipe", str(tmp_path / "recipe.yaml")]
    ends = []
    for moment in (["train/checkpoints/.[2-3].*"], ["policies/.3.*", "policies/3"], ["train/checkpoints/.4.*"]):
        process = forked.start(command, tmp_path / "log")
        appears(run, moment, process)
        process.kill()
        process.join()
        ends.append(process.exitcode)
    assert -signal.SIGKILL in ends
    forked.finish([forked.start(command, tmp_path / "log")], tmp_path / "log")
    assert ledger(run) == [f"a{i:02d}" for i in range(16)]
    assert [row["step"] for row in read_rows(run)] == [1, 2, 3, 4]
    assert live_version(run) == 4
    written = parts_step(run.checkpoint(4), 1) if shard == "full" else optimizer_step(run.checkpoint(4))
    assert written in (3, 4), "at most two steps older"


def test_a_damaged_link_leaves_the_optimizer_state_of_the_parent_and_of_later_writes(
    run: RunDir, sampler: Sampler, model_path: Path
) -> None:
    publish_turns(run, sampler, 12)
    train(run, make_recipe(model_path, optimizer_every=9, keep_checkpoints=3, max_steps=2))
    damage(run.checkpoint(2) / OPTIMIZER_FILE)
    train(run, make_recipe(model_path, optimizer_every=9, keep_checkpoints=3))
    assert ledger(run) == [f"a{i:02d}" for i in range(12)]
    assert [row["step"] for row in read_rows(run)] == [1, 2, 3]


def test_an_interval_that_makes_no_sense_is_refused(model_path: Path) -> None:
    with pytest.raises(ValidationError, match="greater"):
        make_recipe(model_path, optimizer_every=0)
