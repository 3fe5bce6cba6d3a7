"""A GGUF file is served like a folder."""

from collections.abc import Iterator

import orjson
import pytest
from asking import post
from served import Server

from tests.run.tiny_gguf import write_gguf


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("short")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLAWCTL_MODEL_CACHE", str(root / "cache"))
        with Server(root / "run", write_gguf(root / "tiny.gguf", positions=512)) as server:
            yield server


def asks(text: str, **settings: object) -> bytes:
    return orjson.dumps({"messages": [{"role": "user", "content": text}], **settings})


def test_a_gguf_file_answers_and_its_turns_are_trainable(short: Server) -> None:
    answer = post(short, asks("hello", max_tokens=8)).json()
    assert answer["usage"]["completion_tokens"] <= 8
    assert short.captured()[-1]["untrainable_reason"] is None


def test_a_model_with_512_positions_says_at_start_what_it_will_refuse(short: Server) -> None:
    assert "tiny reads at most 512 tokens" in short.log.read_text()
    refused = post(short, asks("a" * 600))
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    whole = post(short, asks("a" * 400, logit_bias={"2": -100})).json()
    assert (whole["usage"]["total_tokens"], whole["choices"][0]["finish_reason"]) == (512, "length")
