"""Paths, methods, compressed bodies, and pages of other origins."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import orjson
import pyarrow as pa
import pytest
from asking import body
from served import Server

from clawctl.config import Recipe
from clawctl.engines.requests import Refusal
from clawctl.serve.intake import unpacked
from scripts.asgi import serving
from scripts.rehearsal import Rehearsal

KEY = {"x-api-key": "key"}
TEXTS = orjson.loads(body())


def root(server: Server) -> str:
    return server.url.removesuffix("/v1")


# ---- paths -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *(
            (path, TEXTS)
            for path in ("/v1/chat/completions/", "/chat/completions", "/v1/v1/chat/completions", "//v1//chat/completions/")
        ),
        *((path, {"prompt": "hi", "max_tokens": 2}) for path in ("/completions", "/v1/completions/", "/v1/v1/completions")),
        *((path, {"input": "hi", "max_output_tokens": 2}) for path in ("/responses", "/v1/v1/responses", "/responses/")),
        *((path, TEXTS) for path in ("/messages", "/v1/v1/messages/", "/v1/messages/?beta=true", "/messages/count_tokens/")),
        *((path, None) for path in ("/models", "/v1/models/", "/v1/v1/models", "/models/tiny", "/v1/models/tiny/")),
        *((path, None) for path in ("/healthz", "/livez", "/readyz", "/ping", "/health/", "/metrics/")),
    ],
)
def test_a_path_that_is_meant_is_answered(server: Server, path: str, body: Any) -> None:
    answer = httpx.request("GET" if body is None else "POST", root(server) + path, json=body, headers=KEY, timeout=60)
    assert answer.status_code == 200, answer.text


def test_every_alias_of_a_route_requires_the_key_and_answers_alike(server: Server) -> None:
    for path in ("/models", "/v1/v1/models", "/v1/models/", "/models/tiny"):
        assert httpx.get(root(server) + path).status_code == 401
    for path in ("/completions", "/responses/", "/v1/v1/messages", "/chat/completions"):
        assert httpx.post(root(server) + path, json={}).status_code == 401
    outside = {"X-Forwarded-For": "203.0.113.7"}
    assert httpx.get(root(server) + "/healthz", headers=outside).json().keys() == {"status", "live", "ready"}
    assert httpx.get(root(server) + "/metrics/", headers=outside).status_code == 401
    assert httpx.get(root(server) + "/healthz", headers={"Host": "evil.example"}).status_code == 421


@pytest.mark.parametrize(
    ("method", "path", "says"),
    [
        ("POST", "/v1/embeddings", "not support embeddings"),
        ("POST", "/embeddings/", "Supported"),
        ("GET", "/v1/responses/resp_x/input_items", "GET and DELETE"),
        ("POST", "/v1/responses/resp_x/cancel", "background"),
        ("POST", "/v1/conversations", "previous_response_id"),
        ("POST", "/v1/files", "files"),
        ("POST", "/v1/audio/speech", "audio"),
        ("POST", "/v1/moderations", "not support moderation"),
        ("GET", "/nowhere", "/v1/chat/completions"),
    ],
)
def test_a_route_that_is_not_here_names_those_that_are(server: Server, method: str, path: str, says: str) -> None:
    for key in (KEY, {}):
        answer = httpx.request(method, root(server) + path, headers=key)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["code"]) == (404, "not_found_error", "unknown_route")
        assert says in error["message"]


def test_the_error_has_the_shape_of_the_dialect(server: Server) -> None:
    for path, headers in (("/v1/messages/batches", {}), ("/v1/complete", {}), ("/v1/files", {"anthropic-version": "2023-06-01"})):
        error = httpx.post(root(server) + path, headers=headers).json()
        assert (error["type"], error["error"]["type"]) == ("error", "not_found_error")
    for path in ("/api/tags", "/api/chat"):
        error = httpx.get(root(server) + path)
        assert (error.status_code, type(error.json()["error"])) == (404, str)
    refused = httpx.get(f"{server.url}/models", headers={"anthropic-version": "2023-06-01"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")


def test_options_lists_the_allowed_methods_without_a_key(server: Server) -> None:
    for path, allowed in (("/v1/messages", "POST, OPTIONS"), ("/models/", "GET, HEAD, OPTIONS")):
        answer = httpx.options(root(server) + path)
        assert (answer.status_code, answer.headers["allow"], answer.content) == (204, allowed, b"")


# ---- models ----------------------------------------------------------------------------------------------------------------


def test_a_list_of_models_is_shown_in_pages(server: Server) -> None:
    def page(**params: Any) -> tuple[list[str], bool]:
        body = httpx.get(f"{server.url}/models", params=params, headers=KEY).json()
        names = [model["id"] for model in body["data"]]
        assert (body["first_id"], body["last_id"]) == ((names[0], names[-1]) if names else (None, None))
        return names, body["has_more"]

    assert page() == (["tiny", "tiny@0"], False)
    assert page(limit=1) == (["tiny"], True)
    assert page(limit=1, after_id="tiny") == page(limit=1, after="tiny") == (["tiny@0"], False)
    assert page(before_id="tiny@0") == (["tiny"], False)
    assert page(before_id="tiny") == page(after_id="tiny@0") == ([], False)
    claude = anthropic.Anthropic(base_url=root(server), api_key="key")
    assert [model.id for model in claude.models.list(limit=1)] == ["tiny", "tiny@0"]
    assert [model.id for model in server.client.models.list()] == ["tiny", "tiny@0"]
    assert claude.models.retrieve("tiny").id == server.client.models.retrieve("tiny").id == "tiny"
    for wrong in ({"limit": 0}, {"limit": 1001}, {"limit": "x"}, {"after_id": "none"}, {"after_id": "tiny", "before_id": "tiny"}):
        answer = httpx.get(f"{server.url}/models", params=wrong, headers=KEY)
        assert answer.status_code == 400
        assert "1000" in answer.text or "_id" in answer.text


def test_a_limit_names_its_maximum(server: Server) -> None:
    for fields, most in (({"n": 129}, "128"), ({"logprobs": True, "top_logprobs": 21}, "20"), ({"stop": ["a"] * 65}, "64")):
        answer = httpx.post(f"{server.url}/chat/completions", json={**TEXTS, **fields}, headers=KEY)
        assert answer.status_code == 400
        assert most in answer.json()["error"]["message"]


# ---- compressed bodies -----------------------------------------------------------------------------------------------------


def packed(data: bytes) -> Iterator[tuple[str, bytes]]:
    yield "gzip", gzip.compress(data)
    yield "x-gzip", gzip.compress(data[:9]) + gzip.compress(data[9:])
    yield "deflate", zlib.compress(data)
    yield "deflate", zlib.compress(data)[2:-4]  # without its header, as some clients send it
    for name, arrows in (("zstd", "zstd"), ("br", "brotli")):
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, arrows) as stream:
            stream.write(data)
        yield name, sink.getvalue().to_pybytes()


def test_a_compressed_body_is_read(server: Server) -> None:
    for name, data in packed(body(temperature=0)):
        answer = httpx.post(f"{server.url}/chat/completions", content=data, headers={**KEY, "Content-Encoding": name})
        assert answer.status_code == 200, (name, answer.text)
    long = body(messages=[{"role": "user", "content": "hello " * 8000}])
    answer = httpx.post(f"{server.url}/messages", content=gzip.compress(long), headers={**KEY, "Content-Encoding": "gzip"})
    assert "prompt is too long" in answer.json()["error"]["message"], "it was looked through like any long body"


def test_a_body_that_cannot_be_decompressed_is_refused_with_the_reason(server: Server) -> None:
    for name, data, status in (
        ("gzip", b"x", 400),
        ("gzip", gzip.compress(body())[:-9], 400),
        ("deflate", b"\xff\xff", 400),
        ("br", b"\xff" * 30, 400),
        ("zstd", b"x" * 30, 400),
        ("gzip", b"", 400),
        ("compress", b"x", 415),
        ("gzip, gzip", b"x", 415),
    ):
        answer = httpx.post(f"{server.url}/chat/completions", content=data, headers={**KEY, "Content-Encoding": name})
        assert answer.status_code == status, (name, answer.text)
        assert answer.headers.get("accept-encoding") == ("gzip, deflate, zstd, br" if status == 415 else None)


def test_a_bomb_is_refused_before_it_is_unpacked(server: Server) -> None:
    for name, data in packed(b'{"messages": "' + b"a" * (8 << 20) + b'"}'):
        answer = httpx.post(f"{server.url}/chat/completions", content=data, headers={**KEY, "Content-Encoding": name}, timeout=60)
        assert (answer.status_code, "MB" in answer.json()["error"]["message"]) == (413, True), name
    with pytest.raises(Refusal, match="more than 10 values"):
        unpacked("gzip", gzip.compress(b"[" + b"1," * 1000 + b"1]"), 1 << 20, 10)
    assert unpacked("gzip", gzip.compress(b"") * 1000, 1 << 20, 10) == b""


# ---- pages -----------------------------------------------------------------------------------------------------------------

PAGE, OTHER = "https://app.example.com", "https://evil.example"
WANTS = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type, x-session-id"}


def leave(answer: httpx.Response) -> str | None:
    assert "access-control-allow-credentials" not in answer.headers
    return answer.headers.get("access-control-allow-origin")


def test_pages_of_origins_in_the_recipe_may_read_answers_to_their_key(tmp_path: Path, model_path: Path) -> None:
    with (
        serving(Rehearsal().app()) as url,
        Server(tmp_path / "run", model_path, upstream={"url": url, "kind": "vllm"}, cors_origins=[PAGE], max_tokens=3) as server,
    ):
        assert_the_recipes_limit_holds_where_the_client_names_none(server)
        chat = f"{server.url}/chat/completions"
        response = httpx.options(chat, headers={"Origin": PAGE, **WANTS})
        assert (response.status_code, leave(response)) == (200, PAGE)
        assert "Origin" in response.headers["vary"]
        assert response.headers["access-control-allow-headers"] == WANTS["Access-Control-Request-Headers"]
        assert "POST" in response.headers["access-control-allow-methods"]
        refused = httpx.options(chat, headers={"Origin": OTHER, **WANTS})
        assert (refused.status_code, leave(refused)) == (400, None)
        for key, status in ((KEY, 200), ({}, 403)):  # without a key the page's name is not known here, as ever
            answer = httpx.post(chat, json=TEXTS, headers={"Origin": PAGE, **key})
            assert (answer.status_code, leave(answer)) == (status, PAGE)
        streamed = httpx.post(chat, json={**TEXTS, "stream": True}, headers={"Origin": PAGE, **KEY})
        assert (streamed.status_code, leave(streamed)) == (200, PAGE)
        readable = set(streamed.headers["access-control-expose-headers"].split(", "))
        assert {"x-request-id", "x-clawctl-ignored", "x-clawctl-sampling"} <= readable
        for origin in (OTHER, "null", f"{PAGE}.evil.example", f"{PAGE}:8443", "http://app.example.com"):
            assert leave(httpx.post(chat, json=TEXTS, headers={"Origin": origin, **KEY})) is None, origin
        assert httpx.get(f"{root(server)}/health", headers={"Origin": PAGE}).status_code == 403
        assert httpx.get(f"{root(server)}/health", headers={"Host": "evil.example"}).status_code == 421


def assert_the_recipes_limit_holds_where_the_client_names_none(server: Server) -> None:
    said = [{"role": "user", "content": "[[say:a b c d e]]"}]
    answer = server.client.chat.completions.create(model="tiny", messages=said).choices[0]  # type: ignore[arg-type]
    assert (answer.message.content, answer.finish_reason) == ("a b c", "length")
    longer = server.client.chat.completions.create(model="tiny", messages=said, max_tokens=4).choices[0]  # type: ignore[arg-type]
    assert longer.message.content == "a b c d", "a client's own limit is the client's"


def test_any_page_may_read_answers_to_its_key_if_all_origins_are_allowed(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path, cors_origins=["*"]) as server:
        chat = f"{server.url}/chat/completions"
        response = httpx.options(chat, headers={"Origin": OTHER, "Host": "claw.example.com", **WANTS})
        assert (response.status_code, leave(response)) == (200, "*")
        answer = httpx.post(chat, json={**TEXTS, "max_tokens": 1}, headers={"Origin": OTHER, **KEY}, timeout=60)
        assert (answer.status_code, leave(answer)) == (200, "*")
        for path in ("/health", "/metrics", "/v1/models"):
            assert httpx.get(root(server) + path, headers={"Origin": OTHER}).status_code == 403, "it reads nothing without a key"


@pytest.mark.parametrize("origin", ["app.example.com", "https://app.example.com/", "https://*.example.com", "", "null"])
def test_an_invalid_origin_in_the_recipe_is_refused(origin: str) -> None:
    with pytest.raises(ValueError, match="origin of a page"):
        Recipe.model_validate({"serve": {"cors_origins": [origin]}})
