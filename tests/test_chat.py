"""`clawctl chat`: what is said at a terminal is captured, rated and remembered like any client's words."""

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from clawctl.run.directory import RunDir, open_run
from clawctl.run.shards import read_turns
from scripts.real_clients import serving
from scripts.terminal import Terminal, terminal
from tests import forked
from tests.waiting import until


def exchanges(run: RunDir) -> list[dict[str, object]]:
    return [orjson.loads(line) for path in sorted(run.captures.glob("*.jsonl")) for line in path.read_bytes().splitlines()]


def say(at: Terminal, text: str, shown: str) -> None:
    at.say(text)
    until(lambda: shown in at.text(), why=at.text)


def test_a_conversation_at_a_terminal_becomes_turns_with_ratings_and_notes(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    with serving(run):
        command = [sys.executable, "-m", "clawctl", "chat", "--run", str(run.root)]
        with terminal(command, tmp_path, {**os.environ, "TERM": "xterm"}) as at:
            say(at, "Greet me [[say:hello there]]", "hello there\r\n")
            say(at, "/bad Be formal.", "(rated)")
            say(at, "/remember Answer in one sentence.", "(noted")
            say(at, "Shorter, please [[say:good day]]", "good day\r\n")
            say(at, "/new", "you: ")
            say(at, "/good", "there is no answer to rate yet")
            say(at, "And now? [[say:welcome]]", "welcome\r\n")
            say(at, "/what", "begin another conversation")
            at.say("/quit")
            assert at.wait(120) == 0
        exchanged = exchanges(run)
        assert [len(exchange["messages"]) for exchange in exchanged] == [1, 3, 1]  # type: ignore[arg-type]
        (rating,) = [orjson.loads(line) for path in run.feedback.glob("*.jsonl") for line in path.read_bytes().splitlines()]
        assert (rating["rating"], rating["comment"]) == (-1, "Be formal.")
        assert "Answer in one sentence." in forked.run("notes", "list", "--run", run.root).stdout
    assert forked.run("collect", "--run", run.root, "--once", "--end-sessions").returncode == 0
    turns = [turn for path in run.trajectories.glob("*.parquet") for turn in read_turns(path)]
    first = next(turn for turn in turns if turn.feedback == -1)
    assert first.next_state == [{"role": "user", "content": "Be formal."}]
    assert [turn.session_id for turn in turns if turn.parent_turn_id == first.turn_id] == [first.session_id]
    assert len({turn.session_id for turn in turns}) == 2


@pytest.mark.parametrize(("text", "version", "shown"), [("[[say:hi]]\n[[say:ho]]\n", 0, "hi\nho\n"), ("x\n", 7, "")])
def test_lines_of_a_pipe_are_messages_and_a_refusal_is_said(tmp_path: Path, text: str, version: int, shown: str) -> None:
    run = open_run(tmp_path / "run")
    command = [sys.executable, "-m", "clawctl", "chat", "--run", str(run.root), "--version", str(version)]
    with serving(run):
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        assert done.stdout.replace("\n\n", "\n").lstrip() == shown
        assert ("version 7" in done.stderr or "@7" in done.stderr) == (version == 7)
    gone = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert gone.returncode == 1
    assert "start it: clawctl start" in gone.stderr
