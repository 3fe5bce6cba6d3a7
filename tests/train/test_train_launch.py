"""The command itself, alone and under torchrun."""

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from clawctl.config import dump_recipe
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, open_run, sole_worker
from clawctl.run.policies import ensure_base_policy, list_versions, live_version
from clawctl.train.checkpoints import read_rows
from clawctl.trainers.local.ranks import Ranks
from tests import forked
from tests.train.tiny import Sampler, make_recipe, publish_turns, resume, run_training
from tests.waiting import exit_code_of, until


def command(run: RunDir, tmp_path: Path, model: Path, **changes: Any) -> list[str]:
    recipe = tmp_path / f"{run.root.name}.yaml"
    recipe.write_text(dump_recipe(make_recipe(model, **changes)))
    return [sys.executable, "-m", "clawctl", "train", "--run", str(run.root), "--recipe", str(recipe)]


def test_two_processes_make_the_same_weights_as_one(tmp_path: Path, sampler: Sampler, model_path: Path) -> None:
    runs = [open_run(tmp_path / str(ranks)) for ranks in (1, 2)]
    for run in runs:
        publish_turns(run, sampler, 8)
    ensure_base_policy(runs[0], str(model_path))
    run_training(runs[0], make_recipe(model_path, lr=1e-4), Ranks(0, 1, torch.device("cpu")), threading.Event(), once=True)
    together = [*command(runs[1], tmp_path, model_path, lr=1e-4), "--once", "--processes", "2"]
    done = subprocess.run(together, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for version in (1, 2):
        first, second = (load_file(run.version_folder(version) / "model.safetensors") for run in runs)
        for name, value in first.items():
            torch.testing.assert_close(value, second[name], atol=1e-6, rtol=0)
    alone, shared = (read_rows(run) for run in runs)
    for mine, theirs in zip(alone, shared, strict=True):
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=1e-5)
        assert theirs["terms"]["opd"]["tokens"] == mine["terms"]["opd"]["tokens"]
        assert theirs["sequence_tokens"] == mine["sequence_tokens"]
        assert mine["computed_tokens"] <= theirs["computed_tokens"] <= mine["sequence_tokens"]  # two share less than one


LEAVING = """
import os, time
import torch.distributed as dist
from clawctl.trainers.local.ranks import leave_ranks
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
import torch.distributed.nn.functional  # as loading a model does
threads = lambda: [open(f"/proc/self/task/{id}/comm").read() for id in os.listdir("/proc/self/task")]
while not any("gloo" in name for name in threads()):
    time.sleep(0.01)  # a thread names itself
leave_ranks()
assert not any("gloo" in name for name in threads()), threads()
"""


def test_no_thread_of_gloo_outlives_the_training() -> None:
    """One that drops its last tensor while Python ends aborts the process: exit code -6 after all was done."""
    done = subprocess.run([sys.executable, "-c", LEAVING], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_second_trainer_is_refused_at_once_with_a_cure(run: RunDir, sampler: Sampler, model_path: Path, tmp_path: Path) -> None:
    with sole_worker(run, "train"):
        done = forked.run(*command(run, tmp_path, model_path)[3:])
    assert done.returncode == 1
    assert "is already the train worker" in done.stderr
    assert "stop that process first" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_model_is_a_problem_with_a_cure(run: RunDir, tmp_path: Path) -> None:
    with pytest.raises(ClawError, match=r"nothing cannot be loaded") as caught:
        resume(run, make_recipe(tmp_path / "nothing"), Ranks(0, 1, torch.device("cpu")))
    assert caught.value.exit_code == 2
    assert "model.path" in caught.value.fix


def test_lora_targets_that_the_model_lacks_are_a_problem_with_a_cure(run: RunDir, model_path: Path) -> None:
    with pytest.raises(ClawError, match="do not match the model"):
        resume(run, make_recipe(model_path, lora={"targets": ["no_such_layer"]}), Ranks(0, 1, torch.device("cpu")))


def test_a_following_trainer_trains_new_turns_and_stops_cleanly(
    run: RunDir, sampler: Sampler, model_path: Path, tmp_path: Path
) -> None:
    process = forked.Command(command(run, tmp_path, model_path)[3:], tmp_path / "log")
    try:
        until(lambda: (run.train / "feed.json").exists())  # it runs, and has nothing to do
        assert list_versions(run) == [0]
        publish_turns(run, sampler, 6)
        until(lambda: live_version(run) == 1)
        process.send_signal(signal.SIGTERM)
        assert exit_code_of(process) == 0
    finally:
        process.kill()
    assert "Traceback" not in (tmp_path / "log").read_text()
    assert list_versions(run) == [0, 1]  # the two turns that are left are no batch
