"""A user's own engine, from a file."""

import subprocess
from pathlib import Path

from tests.serve.served import PATIENCE_S, Server

OWN = """
from clawctl.engines.embedded.engine import Embedded, start as start_embedded

def start(run, recipe):
    engine = start_embedded(run, recipe)
    engine.waiting_for = lambda: "my engine is never ready"
    return engine
"""


def test_a_recipe_may_name_an_engine_in_a_file(tmp_path: Path, model_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    with Server(tmp_path / "run", model_path, engine=f"{tmp_path / 'mine.py'}:start") as server:
        assert server.say("hello").choices
        assert server.health()["engine"]["waiting_for"] == "my engine is never ready"


def test_an_unknown_engine_is_refused_before_anything_is_created(tmp_path: Path, model_path: Path) -> None:
    process: subprocess.Popen[bytes] = Server.starting(tmp_path / "run", model_path, engine="vlmm")
    assert process.wait(PATIENCE_S) == 2
    said = (tmp_path / "run.log").read_text()
    assert "serve.engine: there is no engine 'vlmm'" in said
    assert "transformers, vllm" in said
    assert not (tmp_path / "run" / "policies").exists()
