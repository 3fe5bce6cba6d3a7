"""Shared by the trainer's tests: one tiny model, made once."""

from pathlib import Path

import pytest
import torch

from clawctl.run.directory import RunDir, open_run
from tests.train.tiny import Sampler, make_model


@pytest.fixture(scope="session", autouse=True)
def quiet() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def sampler(model_path: Path) -> Sampler:
    return Sampler(model_path)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return open_run(tmp_path / "run")
