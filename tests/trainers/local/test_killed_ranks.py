"""Killed ranks: the others report it and end, torchrun restarts them, and the weights equal those of an undisturbed run."""

import signal
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from clawctl.config import dump_recipe
from clawctl.run.directory import RunDir, open_run
from clawctl.train.checkpoints import read_rows
from tests import forked
from tests.train.tiny import Sampler, make_recipe, publish_turns
from tests.waiting import until

STEPS, PATIENCE = 6, 120


def arguments(run: RunDir, model: Path) -> list[str]:
    recipe = run.root.parent / f"{run.root.name}.yaml"
    recipe.write_text(dump_recipe(make_recipe(model, lr=1e-4, shard="full")))
    return ["train", "--run-dir", str(run.root), "--recipe", str(recipe), "--once"]


@pytest.fixture
def launch(tmp_path: Path, model_path: Path) -> Iterator[Callable[[RunDir], ForkServerProcess]]:
    """Trains under torchrun. What was launched, with all its ranks, is gone when the test is over."""
    started: list[ForkServerProcess] = []

    def begin(run: RunDir) -> ForkServerProcess:
        log = tmp_path / "torchrun.log"
        started.append(forked.start_torchrun(arguments(run, model_path), log, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"))
        return started[-1]

    yield begin
    for torchrun in started:
        if torchrun.is_alive():
            for process in (*ranks_of(torchrun), torchrun):
                process.kill()
            torchrun.join()


def appears(run: RunDir, pattern: str) -> None:
    """Wait, closely, until a file matches."""
    until(lambda: any(run.root.glob(pattern)), PATIENCE, lambda: pattern, pause_s=0.002)


def ranks_of(torchrun: ForkServerProcess) -> list[psutil.Process]:
    return sorted(psutil.Process(torchrun.pid).children(), key=lambda child: (child.create_time(), child.pid))


def test_ranks_that_are_killed_anywhere_between_saving_and_publishing_make_the_same_weights_bit_for_bit(
    tmp_path: Path, sampler: Sampler, model_path: Path, launch: Callable[[RunDir], ForkServerProcess]
) -> None:
    def complete(run: RunDir) -> None:
        log = tmp_path / f"{run.root.name}.log"
        forked.finish(forked.start_ranks(arguments(run, model_path), log, 2), log)

    undisturbed, killed = (open_run(tmp_path / name) for name in ("undisturbed", "killed"))
    for run in (undisturbed, killed):
        publish_turns(run, sampler, 4 * STEPS)
    complete(undisturbed)

    torchrun = launch(killed)
    appears(killed, "train/checkpoints/.2.*")  # all ranks write their parts of step 2, or rank 0 commits them
    ranks_of(torchrun)[1].kill()
    appears(killed, "train/checkpoints/[34]")  # the ranks that torchrun started again have gone on
    ranks = ranks_of(torchrun)
    appears(killed, "train/checkpoints/.[4-5].*")
    torchrun.kill()  # its ranks die with it; otherwise they would go on and keep the trainer's lock
    assert psutil.wait_procs(ranks, timeout=PATIENCE)[1] == []
    torchrun.join(PATIENCE)
    assert torchrun.exitcode == -signal.SIGKILL
    talk = (tmp_path / "torchrun.log").read_text()
    assert "another process of this trainer has exited" in talk
    assert "\nTraceback" not in talk  # lines of the agent begin with the time
    assert len(read_rows(killed)) < STEPS

    complete(killed)
    assert [row["step"] for row in read_rows(killed)] == list(range(1, STEPS + 1))
    for version in range(1, STEPS + 1):
        ours, theirs = (load_file(run.version_folder(version) / "model.safetensors") for run in (undisturbed, killed))
        assert all(bool((value == theirs[name]).all()) for name, value in ours.items())
    assert list((killed.train / "checkpoints").glob(".*")) == []
