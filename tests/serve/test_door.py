"""Start and end of serve: each refusal has one problem and one cure, and capture never breaks serving."""

import resource
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import yaml
from served import PATIENCE_S, Server, recipe_data

from tests import forked
from tests.waiting import until


def refused(run: Path, recipe: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    path = run.parent / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return forked.run("serve", "--run", run, "--recipe", path, "--intercept", timeout_s=PATIENCE_S)


def test_a_port_in_use_is_reported_before_anything_is_loaded(tmp_path: Path, model_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ended = refused(tmp_path / "run", recipe_data(model_path, port=port))
    assert ended.returncode == 1
    assert f"port {port} on 127.0.0.1 is already in use" in ended.stderr
    assert "stop the process that uses it, or choose another port with --port" in ended.stderr
    assert not (tmp_path / "run" / "serve.json").exists()


def test_a_missing_model_is_reported_with_exit_code_2(tmp_path: Path) -> None:
    ended = refused(tmp_path / "run", recipe_data(tmp_path / "nothing"))
    assert ended.returncode == 2
    assert f"there is no model in {tmp_path / 'nothing'}" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_lost_turns_are_counted_and_capture_recovers_by_itself(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path) as server:
        server.say("hello")
        size = sum(path.stat().st_size for path in server.run.captures.iterdir())
        _, most = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size + 100, most))  # the next line is torn, the others fail
        for _ in range(3):
            assert server.say("hello").choices
        capture = server.health()["capture"]
        assert (capture["written"], capture["lost"]) == (1, 3)
        assert capture["last_error"]
        assert server.health()["status"] == "degraded"
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (most, most))
        answer = server.say("hello again")
        lines = [line for path in server.run.captures.iterdir() for line in path.read_bytes().split(b"\n") if line]
        assert len(lines) == 2  # both whole: the torn one is cut off before the next is written
        assert answer.id[len("chatcmpl") :].encode() in lines[-1]
        assert lines[-1].startswith(b'{"exchange_id"')
        assert server.health()["capture"]["written"] == 2
        assert server.stop() == 0, server.log.read_text()


def test_without_intercept_nothing_is_written_and_sigterm_lets_running_requests_finish(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path, intercept=False) as server:
        answers: list[Any] = []
        talkers = [threading.Thread(target=lambda: answers.append(server.say("hello", n=4, max_tokens=150))) for _ in range(3)]
        for talker in talkers:
            talker.start()
        until(lambda: server.health()["requests"]["running"] == 3)
        server.process.send_signal(signal.SIGTERM)
        for talker in talkers:
            talker.join()
        assert server.process.wait(PATIENCE_S) == 0, server.log.read_text()
        assert len(answers) == 3
        assert all(choice.finish_reason for answer in answers for choice in answer.choices)
        assert list(server.run.captures.iterdir()) == []
        assert "key" not in (server.run.logs / "serve.log").read_text()
