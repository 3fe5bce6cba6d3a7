"""The door: the command itself, alone and under torchrun."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from clawctl.cli import dump_recipe
from clawctl.policies import list_versions, live_version, policy_folder
from clawctl.run_dir import RunDir, open_run, sole_worker
from clawctl.train.checkpoints import read_rows
from tests.train.tiny import Sampler, make_recipe, publish_turns


def command(run: RunDir, tmp_path: Path, model: Path, ranks: int = 1, **changes: Any) -> list[str]:
    recipe = tmp_path / f"{run.root.name}.yaml"
    recipe.write_text(dump_recipe(make_recipe(model, **changes)))
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    return [sys.executable, *start, "-m", "clawctl", "train", "--run-dir", str(run.root), "--recipe", str(recipe)]


def test_two_processes_make_the_same_weights_as_one(tmp_path: Path, sampler: Sampler, model_path: Path) -> None:
    runs = [open_run(tmp_path / str(ranks)) for ranks in (1, 2)]
    for ranks, run in zip((1, 2), runs, strict=True):
        publish_turns(run, sampler, 8)
        done = subprocess.run([*command(run, tmp_path, model_path, ranks, lr=1e-4), "--once"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    for version in (1, 2):
        one, two = (load_file(policy_folder(run, version) / "model.safetensors") for run in runs)
        for name, value in one.items():
            torch.testing.assert_close(value, two[name], atol=1e-6, rtol=0)
    alone, together = (read_rows(run) for run in runs)
    for mine, theirs in zip(alone, together, strict=True):
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=1e-5)
        assert theirs["terms"]["opd"]["tokens"] == mine["terms"]["opd"]["tokens"]
        assert theirs["computed_tokens"] == mine["computed_tokens"]


def test_a_second_trainer_is_refused_at_once_with_a_cure(run: RunDir, sampler: Sampler, model_path: Path, tmp_path: Path) -> None:
    with sole_worker(run, "train"):
        done = subprocess.run(command(run, tmp_path, model_path), capture_output=True, text=True)
    assert done.returncode == 1
    assert "is already the train worker" in done.stderr
    assert "stop that one first" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_model_is_one_line_and_a_cure(run: RunDir, tmp_path: Path) -> None:
    done = subprocess.run(command(run, tmp_path, tmp_path / "nothing"), capture_output=True, text=True)
    assert done.returncode == 2
    assert "cannot be loaded" in done.stderr
    assert "model.path" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_following_trainer_takes_what_comes_and_ends_cleanly_when_asked(
    run: RunDir, sampler: Sampler, model_path: Path, tmp_path: Path
) -> None:
    process = subprocess.Popen(command(run, tmp_path, model_path), stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: (run.train / "feed.json").exists())  # it runs, and has nothing to do
        assert list_versions(run) == [0]
        publish_turns(run, sampler, 6)
        wait_until(lambda: live_version(run) == 1)
        process.send_signal(signal.SIGTERM)
        _, talk = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "Traceback" not in talk
    assert list_versions(run) == [0, 1]  # the two turns that are left are no batch


def wait_until(true: Any, patience: float = 60) -> None:
    end = time.monotonic() + patience
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)
