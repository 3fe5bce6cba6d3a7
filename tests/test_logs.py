"""Logs contain no secret, no text of a client, no control character and no forged line."""

import logging
import os
import sys
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from clawctl.launch.up import MergedLog
from clawctl.process import LogFormatter, harmless, hidden
from clawctl.run.directory import open_run
from tests import forked
from tests.extension import needs

KEY = "claw" + "-" + "aB3dE6gH9jK2mN5pQ8sT1vW4"


def line(message: str, *arguments: object, name: str = "clawctl.serve", error: bool = False) -> str:
    record = logging.LogRecord(name, logging.ERROR, __file__, 1, message, arguments, sys.exc_info() if error else None)
    return LogFormatter().format(record)


def test_a_message_has_no_control_character_and_forges_no_line() -> None:
    text = line("refused: %s", "a\x1b[2Jb\r\n12:00:00 I clawctl: all is well\x9b")
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert r"\x1b[2Jb" in text
    assert not any(line.startswith("12:00:00 I clawctl: all") for line in text.splitlines())


@needs("secrets")
def test_a_message_has_no_secret_and_an_end() -> None:
    assert KEY not in line("cannot reach %s with %s", "https://ann:hunter2!x@host/v1", KEY)
    assert "hunter2!x" not in line("cannot reach %s", "https://ann:hunter2!x@host/v1")
    assert len(line("%s", "x" * 1_000_000)) < 5000


@pytest.mark.parametrize("error", [ValueError, KeyError, TypeError, AttributeError])
def test_the_log_of_serve_omits_text_that_an_exception_quotes(error: type[Exception]) -> None:
    try:
        try:
            raise error("what a client said")
        except error as cause:
            raise RuntimeError("the engine is gone") from cause
    except RuntimeError:
        text = line("request failed", error=True)
    assert "what a client said" not in text.replace('raise error("what a client said")', "")
    assert error.__name__ in text
    assert "the engine is gone" in text
    assert "test_logs.py" in text


def test_the_logs_of_other_stages_keep_the_text_of_an_exception() -> None:
    try:
        int("seven")
    except ValueError:
        assert "invalid literal" in line("a plugin failed", name="clawctl.collect", error=True)


def test_harmless_text_is_unchanged() -> None:
    said = "http://127.0.0.1:30000/v1 serves demo, version 3; conversations are captured"
    assert harmless(said) == said
    assert hidden(said) == said


@needs("secrets")
@pytest.mark.parametrize("terminal", [True, False])
def test_the_key_that_serve_shows_once_is_on_a_terminal_and_in_no_log(tmp_path: Path, terminal: bool) -> None:
    """A pipe stands for a file and for the journal of systemd."""
    reading, writing = os.openpty() if terminal else os.pipe()
    with (tmp_path / "up.log").open("w") as file, os.fdopen(writing, "w") as stderr, redirect_stderr(stderr):
        MergedLog(file).write("serve", f"API key, created now and stored in {tmp_path}/api_key: {KEY}")
        stderr.flush()
        shown = os.read(reading, 65536).decode()
    os.close(reading)
    assert "API key, created now" in shown
    assert (KEY in shown) is terminal
    assert KEY not in (tmp_path / "up.log").read_text()
    assert "API key, created now" in (tmp_path / "up.log").read_text()


def test_a_server_that_logs_into_a_file_does_not_write_its_new_key_there(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text("def start(run, recipe):\n    raise SystemExit(7)\n")
    done = forked.run("serve", "--engine", f"{tmp_path}/engine.py:start", "--port", "0", "--run", tmp_path / "run")
    key = (tmp_path / "run" / "api_key").read_text().strip()
    assert (done.returncode, "API key, created now" in done.stderr) == (7, True)
    assert key.startswith("claw-")
    assert key not in done.stdout + done.stderr


def test_a_link_in_place_of_a_log_is_not_followed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious\n")
    run = open_run(tmp_path / "run")
    for name in ("collect.log", "up.log"):
        (run.logs / name).symlink_to(mine)
    collect = forked.run("collect", "--once", "--run", run.root)
    (tmp_path / "r.yaml").write_text("up: {stages: [collect]}\n")
    up = forked.run("up", tmp_path / "r.yaml", "--run", run.root)
    assert (collect.returncode, up.returncode) == (0, 1), (collect.stderr, up.stderr)
    assert "logs to the terminal only" in collect.stderr
    assert "up.log cannot be written" in up.stderr
    assert mine.read_text() == "precious\n"
