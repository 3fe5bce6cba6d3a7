"""A real vLLM server as a child: it ends with serve, and reports why it does not start."""

from pathlib import Path

import psutil
from vllm_served import NEEDS_VLLM, STARTS_S, engine

from tests.named_models import TEXT_MODEL
from tests.serve.served import Server, until
from tests.waiting import until_gone

pytestmark = NEEDS_VLLM


def test_nothing_is_left_when_serve_is_killed(tmp_path: Path) -> None:
    """Not even while the engine starts: that is when it is easiest to lose."""
    server = Server.starting(tmp_path / "run", TEXT_MODEL, **engine())
    process = psutil.Process(server.pid)
    until(lambda: any("vllm" in " ".join(child.cmdline()) for child in process.children(recursive=True)))
    children = process.children(recursive=True)
    server.kill()
    server.wait()
    until_gone(children)


def test_an_unknown_argument_of_vllm_is_reported_with_exit_code_2(tmp_path: Path) -> None:
    server = Server.starting(tmp_path / "run", TEXT_MODEL, **engine("--no-such-thing"))
    assert server.wait(STARTS_S) == 2
    said = (tmp_path / "run.log").read_text()
    assert "unrecognized arguments: --no-such-thing" in said
    assert "serve.engine_args" in said
