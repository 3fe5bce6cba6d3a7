"""`clawctl up` on a terminal: the status of the stages in place of their log."""

import io
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from clawctl.launch.status import LiveStatus
from clawctl.run.directory import RunDir, open_run
from clawctl.run.policies import ensure_base_policy
from clawctl.run.progress import StepReport, report
from tests.extension import needs
from tests.waiting import exit_code_of


@dataclass
class Stage:
    stage: str = "judge"
    starts: int = 2
    began: float = 0.0
    finished: bool = False
    runs: bool = True


def shown(run: RunDir, lines: list[tuple[str, str]], stage: str = "judge") -> tuple[str, str]:
    """What stays above the table, and the table."""
    output = io.StringIO()
    status = LiveStatus(run, Console(file=output, width=120))
    status.follow([Stage(stage, began=time.monotonic() - 600)])
    for stage, line in lines:
        status.take_line(stage, line)
    above = output.getvalue()
    status.console.print(status.draw())
    return above, output.getvalue()[len(above) :]


def test_the_table_has_each_stage_and_the_live_version(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    ensure_base_policy(run, "crafts")
    above, table = shown(run, [("judge", "10:00:00 I clawctl.judge: 3 turns judged"), ("up", "judge runs as process 7")])
    assert above == ""
    for text in ("version 0 is live", "● running", "10 min", "clawctl.judge: 3 turns judged", "up: judge runs as process 7"):
        assert text in table


def test_the_row_of_the_trainer_shows_the_microbatch_of_its_step(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    with StepReport(run).of_step(5):
        report(3, 8)
        _, table = shown(run, [("train", "10:00:00 I a: step 4 is done")], "train")
        assert "━" in table
        assert "step 5: microbatch 3 of 8" in table
        assert "step 4 is done" not in table
        assert "microbatch" not in shown(run, [], "judge")[1]
    assert "step 4 is done" in shown(run, [("train", "10:00:00 I a: step 4 is done")], "train")[1]


@needs("secrets")
def test_warnings_errors_and_keys_stay_above_the_table(tmp_path: Path) -> None:
    key = "claw-Zx81mQpT0aRk7Lw2NvYc9Ue4Hs6Bd3Gf"
    lines = [
        "10:00:00 W a: careful",
        "Traceback (most recent call last):",
        f"10:00:00 I serve: the key is {key}",
        "10:00:00 I a: fine",
    ]
    above, table = shown(open_run(tmp_path / "run"), [("judge", line) for line in lines])
    assert [line.split(" | ")[1].strip() for line in above.splitlines()] == lines[:3]
    assert key not in table


def test_a_terminal_shows_the_status_in_place_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("up: {stages: [collect], backoff_s: 0.2}\n")
    command = [sys.executable, "-m", "clawctl", "up", str(tmp_path / "recipe.yaml"), "--run", str(tmp_path / "run")]
    leader, follower = pty.openpty()
    process = subprocess.Popen(command, stdout=follower, stderr=follower, stdin=follower, env={**os.environ, "TERM": "xterm"})
    os.close(follower)
    output = b""
    while b"Ctrl-C stops all stages" not in output:
        output += os.read(leader, 65536)
    process.send_signal(signal.SIGTERM)
    with suppress(OSError):  # it has ended
        while chunk := os.read(leader, 65536):
            output += chunk
    assert exit_code_of(process) == 0
    os.close(leader)
    assert b" | " not in output
