"""A command on a terminal is never silent for long."""

import os
import subprocess
import sys
from pathlib import Path

from scripts.terminal import terminal

SLOW = """
import time
from clawctl.cli.heartbeat import heartbeat
with heartbeat("train"):
    time.sleep(2)
    print("one step")
    print("Go on? ", end="", flush=True)
    time.sleep(2)
    print()
"""


def test_a_silent_command_shows_that_it_runs_until_it_prints_something_or_asks(tmp_path: Path) -> None:
    with terminal([sys.executable, "-c", SLOW], tmp_path, {**os.environ, "TERM": "xterm"}) as at:
        assert at.wait(60) == 0
        at.hang_up()
        before, printed, after = at.drawn.partition(b"\r\x1b[2Kone step")
    assert b"train is running (1 s)\r" in before
    assert printed
    assert b"running" not in after, "a question stays as it is"


def test_what_is_no_terminal_gets_the_output_alone(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SLOW], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("one step\nGo on? \n", "")
