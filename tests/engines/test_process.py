"""The process with the models of the embedded engine. serve imports no torch, and each of the two processes ends with the other."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.asking import body
from tests.serve.served import Server
from tests.waiting import exit_code_of, until


def children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def models_of(server: Server) -> int:
    """The process that holds the models."""
    named = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children(server.process.pid)}
    return next(pid for pid, command in named.items() if b"-m\0clawctl.engines.embedded\0" in command)


def maps_torch(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


def runs(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_serve_imports_no_torch_to_answer_requests_of_every_kind(server: Server) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    assert server.say("hello", seed=3, logprobs=True, top_logprobs=2).choices
    assert server.say("hello", model="tiny@0").choices
    for structured in ({"response_format": schema}, {}):
        httpx.post(server.url + "/chat/completions", content=body(**structured), headers={"x-api-key": "key"}, timeout=60)
    assert not maps_torch(server.process.pid)
    assert maps_torch(models_of(server))


def streaming(server: Server, frames: list[str]) -> threading.Thread:
    """A long answer that is read in a thread."""

    def listen() -> None:
        settings = body(max_tokens=3500, temperature=2, stream=True, n=8)
        try:
            with httpx.stream("POST", server.url + "/chat/completions", content=settings, headers={"x-api-key": "key"}) as answer:
                frames.extend(answer.iter_lines())
        except httpx.HTTPError as error:
            frames.append(repr(error))

    listener = threading.Thread(target=listen)
    listener.start()
    until(lambda: server.health()["requests"]["running"] == 1)
    return listener


def test_without_its_models_serve_refuses_requests_and_ends(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path, forks=False) as server:
        frames: list[str] = []
        listener = streaming(server, frames)
        os.kill(models_of(server), signal.SIGKILL)
        listener.join()
        assert any("the engine failed during the answer" in frame for frame in frames)
        assert exit_code_of(server.process) == 1
        assert "the engine failed: the engine's process was ended by SIGKILL" in server.log.read_text()
        assert {line["status"] for line in server.captured()} <= {"ok", "error"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_models_end_with_serve(tmp_path: Path, model_path: Path, number: Any) -> None:
    with Server(tmp_path / "run", model_path, forks=False) as server:
        models = models_of(server)
        server.process.send_signal(number)
        server.process.wait()
        until(lambda: not runs(models))


def test_an_interrupt_from_the_terminal_leaves_the_models_running_until_serve_has_drained(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path, forks=False, drain_notice_s=2) as server:
        models = models_of(server)
        assert os.getpgid(models) != os.getpgid(server.process.pid)  # the terminal signals a group
        server.process.send_signal(signal.SIGINT)
        assert server.say("hello").choices
        assert runs(models)
        server.process.wait()
        until(lambda: not runs(models))
