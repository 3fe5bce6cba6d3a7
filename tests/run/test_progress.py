"""How far a running step is, as readers see it."""

import os
import time
from pathlib import Path

import pytest

from clawctl.run.directory import RunDir, open_run
from clawctl.run.progress import Progress, StepReport, read_progress, report


def test_the_file_is_there_while_a_step_computes_microbatches_and_only_then(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    policy_run = run.of("anna")
    steps = StepReport(policy_run)
    report(1, 8)
    assert read_progress(run) is None, "no step is running"
    with steps.of_step(5):
        assert read_progress(run) is None, "it has no microbatch yet"
        report(1, 8)
        assert read_progress(run) == Progress("anna", 5, 1, 8)
    assert str(Progress("anna", 5, 1, 8)) == "step 5 of anna: microbatch 1 of 8"
    assert read_progress(run) is None
    with pytest.raises(RuntimeError), StepReport(run).of_step(6):
        raise RuntimeError(report(3, 4), read_progress(run))
    assert not run.progress.exists()


def test_at_most_one_file_a_second_is_written(tmp_path: Path) -> None:
    run, began = open_run(tmp_path / "run"), time.monotonic()
    with StepReport(run).of_step(1):
        written = {(report(number, 500), read_progress(run))[1] for number in range(1, 501)}
    assert len(written) <= 1 + (time.monotonic() - began)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b'"x"', b"\xff", b'{"step": 1}', b'{"policy": "a", "step": 1, "microbatch": 9, "of": 8}',
        b'{"policy": "a", "step": 1, "microbatch": "1", "of": 8}', b'{"policy": "a", "step": "<b>", "microbatch": 1, "of": 8}',
    ],
)  # fmt: skip
def test_a_file_of_another_form_shows_nothing(tmp_path: Path, content: bytes) -> None:
    run = open_run(tmp_path / "run")
    run.progress.write_bytes(content)
    assert read_progress(run) is None


def killed(run: RunDir) -> None:
    run.progress.write_bytes(b'{"policy": "default", "step": 1, "microbatch": 1, "of": 8}')
    assert read_progress(run) is not None


def test_what_a_killed_trainer_left_goes_with_the_next_one_or_with_time(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    killed(run)
    StepReport(run)
    assert read_progress(run) is None
    killed(run)
    os.utime(run.progress, (time.time() - 7200,) * 2)
    assert read_progress(run) is None


def test_a_disk_that_refuses_the_file_stops_no_step(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    run.progress.mkdir()
    with StepReport(run).of_step(1):
        report(1, 2)
    assert read_progress(run) is None
