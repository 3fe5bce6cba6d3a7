"""An engine from a file: that of examples/."""

import math
from pathlib import Path

from tests.serve.served import PATIENCE_S, Server

EXAMPLE = Path(__file__).parents[2] / "examples" / "engine.py"


def test_the_engine_of_the_examples_answers_and_its_turns_have_what_training_needs(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path, engine=f"{EXAMPLE}:start") as server:
        answers = [choice.message.content for choice in server.say("hello", n=2, max_tokens=5).choices]
        assert [(len(answer), answer.isdigit()) for answer in answers] == [(5, True), (5, True)]
        assert server.health()["engine"]["adapters"] is False
        exchange = server.captured()[0]
    assert (exchange["policy_version"], exchange["untrainable_reason"]) == (0, None)
    assert exchange["logprobs"] == [-math.log(10)] * 5
    assert bytes(exchange["completion_ids"]).decode() == exchange["response"]["content"]


def test_an_unknown_engine_is_refused_before_anything_is_created(tmp_path: Path, model_path: Path) -> None:
    process = Server.starting(tmp_path / "run", model_path, engine="vlmm")
    assert process.wait(PATIENCE_S) == 2
    said = (tmp_path / "run.log").read_text()
    assert "serve.engine: there is no engine 'vlmm'" in said
    assert "transformers, vllm" in said
    assert not (tmp_path / "run" / "policies").exists()
