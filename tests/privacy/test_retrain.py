"""After `forget --retrain`, training gives the same result as if the turn had never existed."""

import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from clawctl.config import Recipe
from clawctl.privacy.forget import forget
from clawctl.privacy.selection import Selection
from clawctl.run.directory import RunDir, open_run
from clawctl.run.policies import ensure_base_policy, list_versions, live_version
from clawctl.train.checkpoints import read_rows
from clawctl.train.ledger import read_ledger
from clawctl.trainers.local.ranks import Ranks
from tests.train.tiny import Sampler, make_model, make_recipe, publish_turns, run_training


@pytest.fixture(scope="module")
def sampler(tmp_path_factory: pytest.TempPathFactory) -> Sampler:
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(1)
    return Sampler(make_model(tmp_path_factory.mktemp("model")))


def train(run: RunDir, recipe: Recipe) -> None:
    ensure_base_policy(run, recipe.model.path)
    run_training(run, recipe, Ranks(0, 1, torch.device("cpu")), threading.Event(), once=True)


@pytest.mark.parametrize(("kept", "back_to"), [(3, 1), (1, 0)])
def test_after_retraining_the_weights_never_knew_the_turn(tmp_path: Path, sampler: Sampler, kept: int, back_to: int) -> None:
    """Twelve turns make three steps of four; a05 was in step 2. With its checkpoint gone, step 1 is made again as well."""
    recipe = make_recipe(sampler.path, keep_checkpoints=kept)
    taught, innocent = open_run(tmp_path / "taught"), open_run(tmp_path / "innocent")
    for run in (taught, innocent):
        publish_turns(run, sampler, 12)
    train(taught, recipe)
    assert (list_versions(taught), live_version(taught)) == ([0, 1, 2, 3], 3)

    done = forget(taught, Selection(session="s-a05"), dry_run=False, retrain=True)
    assert done.policies == [2, 3]
    assert done.rollback_plan is not None
    assert (done.rollback_plan.to_version, done.rollback_plan.live) == (back_to, back_to)
    assert (list_versions(taught), live_version(taught)) == (list(range(back_to + 1)), back_to)
    assert [row["step"] for row in read_rows(taught)] == list(range(1, back_to + 1))
    assert sorted(read_ledger(taught)) == [f"a{i:02d}" for i in range(4 * back_to)]

    forget(innocent, Selection(session="s-a05"), dry_run=False, retrain=False)  # before anything was trained
    for run in (taught, innocent):
        train(run, recipe)
    assert list_versions(taught) == list_versions(innocent) == [0, 1, 2]
    ours, theirs = (load_file(run.version_folder(2) / "model.safetensors") for run in (taught, innocent))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
