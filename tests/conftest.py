import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from clawctl.run.directory import RunDir

# The same draws in every run: a failure can be repeated, and no change fails because of somebody else's draw.
# HYPOTHESIS_PROFILE=random draws anew.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.register_profile("random", derandomize=False)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture(autouse=True)
def own_signal_handlers() -> Iterator[None]:
    """A worker that runs in the test process takes the signals: give them back."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[Callable[[str, RunDir, str], subprocess.Popen[bytes]]]:
    """Starts `clawctl STAGE` on a run, with this text as its recipe, as its own process."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(stage: str, run: RunDir, recipe: str) -> subprocess.Popen[bytes]:
        settings = tmp_path / f"recipe-{len(started)}.yaml"
        settings.write_text(recipe)
        command = [sys.executable, "-m", "clawctl", stage, "--run", str(run.root), "--recipe", str(settings)]
        started.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()
