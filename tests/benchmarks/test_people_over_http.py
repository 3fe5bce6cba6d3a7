"""Simulated people against a real server: their requests and their counts."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

from clawctl.asking import Refused, ask, new_client
from clawctl.environments.episode import graded
from clawctl.run.directory import RunDir, open_run
from clawctl.run.endpoint import Endpoint
from clawctl.run.policies import ensure_base_policy
from scripts.wishes.axes import USUAL, write
from scripts.wishes.chat import WANTS, Conversation, Crowd, converse, play
from scripts.wishes.environment import Wishes
from scripts.wishes.people import Wisher
from scripts.wishes.problems import make_problems
from tests.eval.answering_server import Answer, Answering, announce, answering
from tests.stub_http import StubHandler, StubServer, running
from tests.waiting import until

PROBLEM = make_problems(1, 5)[0]
GOOD, BAD = (write(PROBLEM, {**USUAL, **wants}, Random(0)) for wants in (WANTS, {}))


def talk(server: Answering, session_id: str | None, stream: bool = False) -> Conversation:
    async def run() -> Conversation:
        endpoint, person = Endpoint(server.url, "key", "crafts"), Wisher(WANTS, 5)
        async with new_client(endpoint) as client:
            return await converse(client, endpoint, person, PROBLEM, session_id, stream)

    return asyncio.run(run())


def one_question(server: Answering, stream: bool) -> str:
    async def run() -> str:
        return await ask(Endpoint(server.url, "key", "crafts"), [{"role": "user", "content": "hi"}], stream=stream)

    return asyncio.run(run())


def a_run(folder: Path) -> RunDir:
    run = open_run(folder / "run")
    ensure_base_policy(run, "crafts")
    return run


@pytest.mark.parametrize("stream", [False, True])
def test_line_separators_within_an_answer_are_text(stream: bool) -> None:
    text = "one\u2028two\x85three\x0bfour"
    with answering(lambda body: text) as server:
        assert one_question(server, stream).rstrip(" ") == text


@pytest.mark.parametrize("stream", [False, True])
def test_a_satisfied_persons_last_message_closes_the_session(stream: bool) -> None:
    with answering(lambda body: GOOD) as server:
        outcome = talk(server, "s1", stream)
    assert (outcome.satisfied, outcome.refusal, outcome.requests) == (True, None, 2)
    assert outcome.first is not None
    assert (outcome.first.satisfaction, outcome.first.correct) == (1.0, True)
    first, last = (call["headers"] for call in server.asked)
    assert (first["x-session-id"], first.get("x-session-done")) == ("s1", None)
    assert (last["x-session-id"], last["x-session-done"]) == ("s1", "true")
    assert [message["role"] for message in server.asked[1]["body"]["messages"]] == ["user", "assistant", "user"]
    assert server.asked[0]["body"].get("stream", False) is stream


def test_without_session_headers_only_messages_are_sent() -> None:
    with answering(lambda body: GOOD) as server:
        talk(server, None)
    for call in server.asked:
        assert [name for name in call["headers"] if name.startswith("x-")] == []
        assert set(call["body"]) == {"model", "messages"}


def test_a_displeased_person_complains_and_gives_up_in_the_end() -> None:
    with answering(lambda body: BAD) as server:
        outcome = talk(server, "s1")
    assert not outcome.satisfied
    assert len(server.asked) >= 4
    assert outcome.first is not None
    assert outcome.first.satisfaction == 0.0


@pytest.mark.parametrize("status", [400, 401, 429, 500, 503])
@pytest.mark.parametrize("stream", [False, True])
def test_any_other_status_than_200_is_a_refusal(status: int, stream: bool) -> None:
    with answering(lambda body: status) as server, pytest.raises(Refused, match=f"status {status}"):
        one_question(server, stream)


def test_a_stream_that_breaks_off_is_a_refusal() -> None:
    with answering(lambda body: "one two", breaks_streams=True) as server, pytest.raises(Refused, match="broke off"):
        one_question(server, stream=True)


def test_a_conversation_that_fills_the_context_is_ended_by_the_policy() -> None:
    class Full(StubHandler):
        def do_POST(self) -> None:
            self.sent()
            self.answer({"error": {"message": "too long", "code": "context_length_exceeded"}}, 400)

    (task,) = Wishes().tasks("train", 1, 0)
    with running(StubServer(Full)) as server:
        outcome = asyncio.run(graded(Wishes(), task, Endpoint(f"{server.url}/v1", "key", "crafts"), 9.0))
    assert (outcome.status, outcome.ending) == ("done", "context")


def test_a_server_that_is_gone_is_a_refusal() -> None:
    with pytest.raises(Refused, match="Unreachable"):
        one_question(Answering(url="http://127.0.0.1:9/v1"), stream=False)


def run_crowd(run: RunDir, answer: Answer, crowd: Crowd) -> tuple[dict[str, Any], Answering]:
    with answering(answer) as server:
        return asyncio.run(play(run, Endpoint(server.url, "key", "crafts"), crowd, threading.Event())), server


def test_half_the_sessions_have_headers_and_half_stream(tmp_path: Path) -> None:
    summary, server = run_crowd(a_run(tmp_path), lambda body: "hm", Crowd(people=4, sessions=16))
    openings = [call for call in server.asked if len(call["body"]["messages"]) == 1]
    assert len(openings) == summary["sessions"] == len(summary["first_replies"]) == 16
    assert sum("x-session-id" in call["headers"] for call in openings) == 8
    assert sum(call["body"].get("stream", False) for call in openings) == 8
    assert len({call["headers"]["x-session-id"] for call in openings if "x-session-id" in call["headers"]}) == 8
    assert (summary["refused"], summary["requests"]) == (0, len(server.asked))


def test_refused_requests_are_counted_with_their_reason(tmp_path: Path) -> None:
    summary, _ = run_crowd(a_run(tmp_path), lambda body: 503, Crowd(people=3, sessions=3))
    assert (summary["refused"], summary["requests"], summary["first_replies"]) == (3, 3, [])
    assert summary["refusals"][0].startswith("status 503")


def test_no_session_begins_once_the_awaited_version_is_live(tmp_path: Path) -> None:
    summary, server = run_crowd(a_run(tmp_path), lambda body: "hm", Crowd(people=3, stop_at_version=0))
    assert (summary["sessions"], server.asked) == (0, [])


def test_the_same_seed_brings_the_same_people_with_the_same_words(tmp_path: Path) -> None:
    def openings(seed: int) -> set[str]:
        _, server = run_crowd(a_run(tmp_path), lambda body: "hm", Crowd(people=2, sessions=6, seed=seed))
        return {call["body"]["messages"][0]["content"] for call in server.asked}

    first = openings(1)
    assert first == openings(1)
    assert first != openings(2)


def test_the_command_prints_its_summary_and_ctrl_c_lets_people_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWCTL_API_KEY", "key")
    command = [sys.executable, "-m", "scripts.wishes.chat", "--run", str(tmp_path / "run"), "--people", "3"]
    with answering(lambda body: "hm") as server:
        announce(a_run(tmp_path), server.url)
        done = subprocess.run([*command, "--sessions", "5"], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["sessions"] == 5
        before = len(server.asked)
        endless = subprocess.Popen([*command, "--think-s", "0.05"], stdout=subprocess.PIPE, text=True)
        until(lambda: len(server.asked) >= before + 10)
        endless.send_signal(signal.SIGINT)
        out, _ = endless.communicate()
    assert endless.returncode == 0
    summary = json.loads(out)
    assert summary["sessions"] > 0
    assert summary["refused"] == 0


def test_a_folder_that_is_no_run_is_a_wrong_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scripts.wishes.chat", "--run", str(tmp_path / "nothing")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is not a run directory" in done.stderr
