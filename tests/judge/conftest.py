from collections.abc import Iterator

import pytest

from clawctl.run.directory import RunDir, open_run
from tests.judge.scripted_judge import ScriptedJudge


@pytest.fixture
def run(tmp_path) -> RunDir:
    return open_run(tmp_path / "run")


@pytest.fixture
def serving() -> Iterator:
    """Starts scripted judges and stops them at the end."""
    servers: list[ScriptedJudge] = []

    def begin(script, port: int | None = None, delay_s: float = 0.0) -> ScriptedJudge:
        servers.append(ScriptedJudge(script, port, delay_s).start())
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()
