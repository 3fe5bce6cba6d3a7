"""Crash safety: each turn is trained once, and the weights equal those of an undisturbed run."""

import shutil
import signal
import threading
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from safetensors.torch import load_file

from clawctl.config import Recipe, dump_recipe
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, open_run
from clawctl.run.policies import ensure_base_policy, list_versions, live_version, move_live
from clawctl.train.checkpoints import read_rows
from clawctl.trainers.local.model import MASTER
from clawctl.trainers.local.ranks import Ranks
from tests import forked
from tests.train.tiny import Sampler, make_model, make_recipe, publish_turns, run_training
from tests.waiting import until

ALONE = Ranks(0, 1, torch.device("cpu"))


def train(run: RunDir, recipe: Recipe) -> None:
    ensure_base_policy(run, recipe.model.path)
    run_training(run, recipe, ALONE, threading.Event(), once=True)


def ledger(run: RunDir) -> list[str]:
    """Ids of all trained turns, in the order of their steps."""
    entries = [orjson.loads(path.read_bytes()) for path in (run.train / "ledger").glob("*.json")]
    return [turn for entry in sorted(entries, key=lambda e: e["step"]) for ids in entry["turns"].values() for turn in ids]


def same_weights(first: Path, other: Path, name: str = "model.safetensors") -> bool:
    ours, theirs = load_file(first / name), load_file(other / name)
    return ours.keys() == theirs.keys() and all(torch.equal(value, theirs[key]) for key, value in ours.items())


def test_a_resumed_run_makes_the_same_weights_bit_for_bit(tmp_path: Path, sampler: Sampler, model_path: Path) -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("model.safetensors", {"baseline": "mean", "warmup_steps": 3}),
        ("adapter_model.safetensors", {"lora": {"rank": 4, "dropout": 0.2}}),
    ]
    for number, (name, changes) in enumerate(cases):
        runs = [open_run(tmp_path / f"{number}{kind}") for kind in ("undisturbed", "resumed")]
        for run in runs:
            publish_turns(run, sampler, 12)
        train(runs[0], make_recipe(model_path, **changes))
        for last in (1, 2, 3):
            train(runs[1], make_recipe(model_path, max_steps=last, **changes))
        assert list_versions(runs[1]) == [0, 1, 2, 3]
        assert all(same_weights(runs[0].version_folder(version), runs[1].version_folder(version), name) for version in (1, 2, 3))
        assert ledger(runs[0]) == ledger(runs[1]) == [f"a{i:02d}" for i in range(12)]


def test_a_narrow_policy_has_a_wide_master_so_that_small_updates_are_not_lost(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", dtype=torch.bfloat16)
    sampler = Sampler(model)
    runs = [open_run(tmp_path / kind) for kind in ("undisturbed", "resumed")]
    for run in runs:
        publish_turns(run, sampler, 8)
    train(runs[0], make_recipe(model, lr=1e-7))
    for last in (1, 2):
        train(runs[1], make_recipe(model, lr=1e-7, max_steps=last))
    checkpoints = [run.train / "checkpoints" / "2" for run in runs]
    assert same_weights(checkpoints[0], checkpoints[1], MASTER)
    master, published = load_file(checkpoints[0] / MASTER), load_file(runs[0].version_folder(2) / "model.safetensors")
    assert {value.dtype for value in published.values()} == {torch.bfloat16}
    assert orjson.loads((runs[0].version_folder(2) / "config.json").read_bytes())["dtype"] == "bfloat16"
    base = load_file(model / "model.safetensors")
    assert all(torch.equal(published[name], value.to(torch.bfloat16)) for name, value in master.items() if name in published)
    assert any(not torch.equal(value, base[name].float()) for name, value in master.items() if name in base)


def forget_nothing(run: RunDir) -> None:
    pass


def forget_row(run: RunDir) -> None:
    path = run.train / "steps.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0] + b'{"step": 2, "ver')  # killed while writing it


def forget_live(run: RunDir) -> None:
    forget_row(run)
    (run.policies / "LIVE").write_text("1\n")
    moves = run.policies / "moves.jsonl"
    moves.write_bytes(b"".join(moves.read_bytes().splitlines(keepends=True)[:-1]))


def forget_policy(run: RunDir) -> None:
    forget_live(run)
    run.version_folder(2).rename(run.policies / ".2.1-abcd.tmp")


def forget_ledger(run: RunDir) -> None:
    forget_policy(run)
    (run.train / "ledger" / "2.json").unlink()


def forget_commit(run: RunDir) -> None:
    forget_ledger(run)
    (run.train / "checkpoints" / "2").rename(run.train / "checkpoints" / ".2.1-abcd.tmp")


@pytest.mark.parametrize("crash", [forget_nothing, forget_row, forget_live, forget_policy, forget_ledger, forget_commit])
def test_resume_completes_all_work_that_a_kill_interrupted(
    run: RunDir, sampler: Sampler, model_path: Path, tmp_path: Path, crash: Callable[[RunDir], None]
) -> None:
    publish_turns(run, sampler, 8)
    train(run, make_recipe(model_path))
    shutil.copytree(run.version_folder(2), tmp_path / "undisturbed")
    crash(run)
    train(run, make_recipe(model_path))
    assert same_weights(run.version_folder(2), tmp_path / "undisturbed")
    assert (list_versions(run), live_version(run)) == ([0, 1, 2], 2)
    assert ledger(run) == [f"a{i:02d}" for i in range(8)]
    assert [row["step"] for row in read_rows(run)] == [1, 2]
    assert [path for folder in (run.policies, run.train / "checkpoints") for path in folder.glob(".*")] == []


def test_a_rollback_by_hand_survives_a_restart_of_the_trainer(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 4)
    train(run, make_recipe(model_path))
    move_live(run, 0)
    train(run, make_recipe(model_path, max_steps=1))
    assert live_version(run) == 0


def test_with_a_gate_the_trainer_leaves_live_alone(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 4)
    recipe = make_recipe(model_path).model_copy(update={"gate": Recipe.model_validate({"gate": {}}).gate})
    train(run, recipe)
    assert (list_versions(run), live_version(run)) == ([0, 1], 0)


def test_only_the_newest_checkpoints_stay_and_every_policy_and_ledger_entry(
    run: RunDir, sampler: Sampler, model_path: Path
) -> None:
    publish_turns(run, sampler, 12)
    train(run, make_recipe(model_path, keep_checkpoints=1))
    assert [path.name for path in (run.train / "checkpoints").iterdir()] == ["3"]
    assert list_versions(run) == [0, 1, 2, 3]
    assert len(ledger(run)) == 12


def test_a_checkpoint_of_another_model_or_of_other_lora_settings_is_refused(
    run: RunDir, sampler: Sampler, model_path: Path, tmp_path: Path
) -> None:
    publish_turns(run, sampler, 8)
    train(run, make_recipe(model_path, max_steps=1))
    with pytest.raises(ClawError, match=r"full weights, but the recipe has .* LoRA rank 4"):
        train(run, make_recipe(model_path, lora={"rank": 4}))
    shutil.copytree(model_path, tmp_path / "other")
    with pytest.raises(ClawError, match=r"was created for the model '.*', but the recipe names '.*other'"):
        train(run, make_recipe(tmp_path / "other"))
    shutil.rmtree(run.train / "checkpoints")
    with pytest.raises(ClawError, match="no checkpoint to resume from"):
        train(run, make_recipe(model_path))


def test_a_checkpoint_that_cannot_be_read_is_a_clear_error(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 8)
    train(run, make_recipe(model_path, max_steps=1))
    (run.train / "checkpoints" / "1" / "optimizer.safetensors").write_bytes(b"half")
    with pytest.raises(
        ClawError, match=r"no intact checkpoint; checkpoint 1: optimizer\.safetensors has changed since it was written"
    ):
        train(run, make_recipe(model_path))


def appears(run: RunDir, patterns: list[str], process: ForkServerProcess) -> None:
    """Wait, closely, until a file matches, or the process ends."""
    pause_s = 0.001  # or the search takes the core that the trainer computes on
    until(lambda: not process.is_alive() or any(next(run.root.glob(name), None) for name in patterns), pause_s=pause_s)


def test_a_trainer_killed_at_any_phase_trains_each_turn_once_and_to_the_same_weights(
    tmp_path: Path, sampler: Sampler, model_path: Path
) -> None:
    runs = [open_run(tmp_path / kind) for kind in ("undisturbed", "killed")]
    for run in runs:
        publish_turns(run, sampler, 14)
    recipe = make_recipe(model_path, max_steps=3, lr=1e-4)
    train(runs[0], recipe)
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
    command = ["train", "--run", str(runs[1].root), "--recipe", str(tmp_path / "recipe.yaml")]
    moments = [
        ["train/checkpoints/.[2-3].*"],  # while a step is being committed
        ["policies/.3.*", "policies/3"],  # while a version is being published
    ]
    ends = []
    for moment in moments:
        process = forked.start(command, tmp_path / "log")
        appears(runs[1], moment, process)
        process.kill()
        process.join()
        ends.append(process.exitcode)
    assert -signal.SIGKILL in ends
    forked.finish([forked.start(command, tmp_path / "log")], tmp_path / "log")
    assert ledger(runs[1]) == ledger(runs[0]) == [f"a{i:02d}" for i in range(12)]
    assert [row["step"] for row in read_rows(runs[1])] == [1, 2, 3]
    assert live_version(runs[1]) == 3
    assert all(same_weights(runs[0].version_folder(version), runs[1].version_folder(version)) for version in (1, 2, 3))


def damage(path: Path) -> None:
    """Flip one bit in the middle of a file, under another inode: hard links to it are unchanged."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["state.json", "optimizer.safetensors", "policy/model.safetensors"])
def test_from_a_damaged_checkpoint_training_goes_back_one_and_no_turn_is_lost_or_trained_twice(
    run: RunDir, sampler: Sampler, model_path: Path, name: str, tmp_path: Path
) -> None:
    publish_turns(run, sampler, 8)
    train(run, make_recipe(model_path))
    shutil.copytree(run.version_folder(2), tmp_path / "undisturbed")
    damage(run.train / "checkpoints" / "2" / name)
    train(run, make_recipe(model_path))
    assert same_weights(run.version_folder(2), tmp_path / "undisturbed")
    assert ledger(run) == [f"a{i:02d}" for i in range(8)]
    assert [row["step"] for row in read_rows(run)] == [1, 2]
    kept = {path.name for path in run.quarantine.iterdir()}
    assert {"checkpoints-2", "policies-2", "ledger-2.json"} <= kept
    assert "training went back to step 1: checkpoint 2" in (run.quarantine / "checkpoints-2.reason.txt").read_text()


def test_a_removed_checkpoint_is_made_again_with_its_turns(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 8)
    train(run, make_recipe(model_path))
    shutil.rmtree(run.train / "checkpoints" / "2")
    train(run, make_recipe(model_path))
    assert (list_versions(run), ledger(run)) == ([0, 1, 2], [f"a{i:02d}" for i in range(8)])


def test_without_a_sound_checkpoint_training_refuses_and_touches_nothing(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 4)
    train(run, make_recipe(model_path))
    damage(run.train / "checkpoints" / "1" / "optimizer.safetensors")
    with pytest.raises(
        ClawError, match=r"no intact checkpoint; checkpoint 1: optimizer\.safetensors has changed since it was written"
    ):
        train(run, make_recipe(model_path))
    assert (list_versions(run), list(run.quarantine.iterdir())) == ([0, 1], [])


def test_a_damaged_ledger_entry_is_written_anew_from_its_policy(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 8)
    train(run, make_recipe(model_path))
    before = orjson.loads((run.train / "ledger" / "1.json").read_bytes())
    damage(run.train / "ledger" / "1.json")
    train(run, make_recipe(model_path))
    assert orjson.loads((run.train / "ledger" / "1.json").read_bytes()) == before
    assert (run.quarantine / "ledger-1.json.reason.txt").exists()
    damage(run.train / "ledger" / "1.json")
    damage(run.version_folder(1) / "policy.json")
    with pytest.raises(ClawError, match="otherwise turns would be trained twice"):
        train(run, make_recipe(model_path))


def test_a_damaged_row_of_steps_is_passed_over(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 8)
    train(run, make_recipe(model_path))
    path = run.train / "steps.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first.replace(b'"step":1', b'"step":3') + second)
    train(run, make_recipe(model_path))
    assert [row["step"] for row in read_rows(run)] == [2]
    assert live_version(run) == 2
