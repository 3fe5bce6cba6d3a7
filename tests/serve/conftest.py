"""One random tiny model, and one server on it that the tests which only talk share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from served import Server, build_model

from scripts.asgi import serving
from scripts.rehearsal import Rehearsal


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return build_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[Server]:
    """One server that stays on version 0, shared by the tests that only talk to it."""
    with Server(tmp_path_factory.mktemp("shared") / "run", model_path) as running:
        yield running
        assert running.stop() == 0, running.log.read_text()


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[Server]:
    """A server in front of a scripted upstream that speaks as vLLM does."""
    with serving(Rehearsal().app()) as url:
        upstream = {"url": url, "kind": "vllm"}
        with Server(tmp_path_factory.mktemp("rehearsed") / "run", model_path, upstream=upstream) as server:
            yield server
            assert server.stop() == 0, server.log.read_text()
