"""Draining: health reports it, then the port closes, and requests that do not finish in time are captured."""

import signal
import threading
from pathlib import Path

import httpx
import pytest
from asking import body
from served import Server

from clawctl.run.endpoint import registered_url
from tests.waiting import exit_code_of, until


def test_after_sigterm_health_reports_draining_before_the_port_closes(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path, drain_notice_s=3) as server:
        root = server.url.removesuffix("/v1")
        server.process.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{root}/health/ready").status_code == 503)
        assert httpx.get(f"{root}/health/ready").json() == {"ready": False, "reason": "draining"}
        assert httpx.get(f"{root}/health/live").status_code == 200
        assert server.say("hello").choices  # a balancer that has not noticed yet is served
        assert exit_code_of(server.process) == 0, server.log.read_text()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{root}/health")


def test_a_server_registers_again_when_a_later_one_of_its_run_has_ended(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path) as first:
        with Server(tmp_path / "run", model_path) as second:
            assert registered_url(first.run) == second.url
        until(lambda: registered_url(first.run) == first.url)


def test_requests_that_outlast_the_drain_are_ended_and_captured(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path, drain_s=0.3) as server:
        frames: list[str] = []

        def listen() -> None:
            settings = body(n=16, max_tokens=3000, temperature=2, stream=True)
            with httpx.stream("POST", server.url + "/chat/completions", content=settings, headers={"x-api-key": "key"}) as answer:
                frames.extend(answer.iter_lines())

        listener = threading.Thread(target=listen)
        listener.start()
        until(lambda: server.health()["requests"]["running"] == 1)
        server.process.send_signal(signal.SIGTERM)
        listener.join()
        assert exit_code_of(server.process) == 0, server.log.read_text()
        lines = server.captured()
        assert len(lines) == 16
        assert "cancelled" in {line["status"] for line in lines}
        last = next(frame for frame in reversed(frames) if frame.startswith("data: "))
        assert "the server is stopping" in last
