"""A secret in a stream: the client gets it unchanged, and no file of the run contains it, however the stream was cut."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from scripts import asgi
from scripts.benchmarks.labelled_lines import labelled_lines
from scripts.benchmarks.redaction import rest_of
from tests.extension import needs
from tests.serve.served import Server, build_model

BY_CHANCE = 8  # characters; fewer digits of a secret may stand in some time or checksum as well
SECRETS = [line for line in labelled_lines(200, seed=7) if line.secret is not None][:40]


def pieces_of(number: int) -> list[str]:
    """The line that holds secret `number`, cut at random: often within the secret, at times into letters."""
    draw, text = Random(number), f"As you wish. {SECRETS[number].text}\nDone."
    longest = draw.choice((1, 3, 9, 40))
    pieces = []
    while text:
        length = draw.randint(1, longest)
        pieces, text = [*pieces, text[:length]], text[length:]
    return pieces


def chosen(body: dict[str, Any]) -> int:
    return int(body["messages"][-1]["content"].rpartition(" ")[2])


async def answer(request: Request) -> Any:
    """An upstream with ids and logprobs, one token per chunk, like vLLM."""
    body = await request.json()
    said = pieces_of(chosen(body)) if body.get("stream") else ["Hi"]
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    entry = {"token": "x", "logprob": -0.5 / body.get("temperature", 1.0), "top_logprobs": [{"token": "x", "logprob": -0.5}]}
    if not body.get("stream"):
        entry["top_logprobs"] = [{"token": "x", "logprob": -0.5 / body.get("temperature", 1.0)}]
        choice = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop", "token_ids": [5]}
        counts = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
        return JSONResponse(
            {**head, "choices": [{**choice, "logprobs": {"content": [entry]}}], "prompt_token_ids": [7, 8], "usage": counts}
        )

    async def stream() -> Any:
        first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        chunks: list[dict[str, Any]] = [{**head, "choices": [first], "prompt_token_ids": [7, 8]}]
        for at, piece in enumerate(said):
            finish = "stop" if at == len(said) - 1 else None
            choice = {"index": 0, "delta": {"content": piece}, "finish_reason": finish, "token_ids": [100 + at]}
            chunks.append({**head, "choices": [{**choice, "logprobs": {"content": [entry]}}]})
        counts = {"prompt_tokens": 2, "completion_tokens": len(said), "total_tokens": 2 + len(said)}
        for chunk in [*chunks, {**head, "choices": [], "usage": counts}]:
            yield f"data: {json.dumps(chunk)}\n\n"
        yield "data: [DONE]\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    def models(request: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 4096}]})

    routes = [Route("/v1/chat/completions", answer, methods=["POST"]), Route("/v1/models", models)]
    with asgi.serving(Starlette(routes=routes)) as url:
        yield url


@pytest.fixture(scope="module")
def serving(upstream: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = build_model(tmp_path_factory.mktemp("model"))
    settings = {"url": upstream, "kind": "vllm"}
    with Server(tmp_path_factory.mktemp("streamed") / "run", model, upstream=settings) as running:
        yield running


@needs("secrets")
def test_a_secret_cut_anywhere_is_answered_whole_and_written_nowhere(serving: Server) -> None:
    cut = 0
    for number, line in enumerate(SECRETS):
        said = [{"role": "user", "content": f"case {number}"}]
        stream = serving.client.chat.completions.create(model="tiny", messages=said, stream=True)  # type: ignore[call-overload]
        heard = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert str(line.secret) in heard
        cut += not any(str(line.secret) in piece for piece in pieces_of(number))
    assert cut > 30  # most come in pieces
    serving.stop()
    written = {path: path.read_text(errors="replace") for path in serving.run.root.rglob("*") if path.is_file()}
    written[Path("log")] = serving.log.read_text()
    rests = [(path.name, line.kind, rest_of(str(line.secret), text)) for path, text in written.items() for line in SECRETS]
    assert [rest for rest in rests if len(rest[2]) >= BY_CHANCE] == []
    lines = [line for line in serving.captured() if line["response"] and "As you wish" in str(line["response"]["content"])]
    assert len(lines) == len(SECRETS)
    for captured in lines:
        assert "[redacted:" in captured["response"]["content"]
        assert (captured["prompt_ids"], captured["completion_ids"], captured["logprobs"]) == (None, None, None)
        assert captured["untrainable_reason"] == "redacted"
