import atexit
import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from clawctl.run.directory import RunDir
from tests import forked

# For PyTorch, here and in what the tests start. On a busy machine two threads wait for each other's core, and a forward pass of the
# pretrained model takes a minute.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The server changes the sampling of a client with this User-Agent, and of no other.
FORCED: dict[str, Any] = {"per_client": {"forced-": {"temperature": {"at_least": 0.7}, "ignore": "all"}}}

# The same draws in every run: a failure can be repeated, and no change fails because of another draw.
# HYPOTHESIS_PROFILE=random uses new draws.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.register_profile("random", derandomize=False)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """A full garbage collection looks at a million objects of imported modules, and the trainer makes one for each model that it
    loads. So none is made during the imports, and later ones leave out what was imported."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # or extensions report what was never freed
        gc.enable()


@pytest.fixture(autouse=True)
def own_signal_handlers() -> Iterator[None]:
    """A worker that runs in the test process takes the signals: give them back."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[Callable[[str, RunDir, str], forked.Command]]:
    """Starts `clawctl STAGE` on a run, with this text as its recipe, as its own process."""
    started: list[forked.Command] = []

    def begin(stage: str, run: RunDir, recipe: str) -> forked.Command:
        settings = tmp_path / f"recipe-{len(started)}.yaml"
        settings.write_text(recipe)
        command = [stage, "--run", str(run.root), "--recipe", str(settings)]
        started.append(forked.Command(command, tmp_path / "workers.log"))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


# Shared by the tests of serve and of the engines. Torch is imported only where one of these is used.


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One random tiny model."""
    import torch

    from tests.serve.served import build_model

    torch.set_num_threads(1)
    return build_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def vision_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One random tiny Qwen3-VL."""
    from tests.vision.tiny import make_vision_model

    return make_vision_model(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="session")
def reader(vision_path: Path) -> Any:
    """Its `ImageReader`."""
    from clawctl.vision.reader import image_reader

    reader = image_reader(str(vision_path))
    assert reader is not None
    return reader


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[Any]:
    """One server that stays on version 0, shared by the tests that only talk to it."""
    from tests.serve.served import Server

    with Server(tmp_path_factory.mktemp("shared") / "run", model_path, forks=False, sampling=FORCED) as running:
        yield running
        assert running.stop() == 0, running.log.read_text()
