"""Routes: unknown ones, the state, and model names in requests."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from asking import body, post
from served import Server

HOSTILE = "hostile-name"
AUDIT = """
import sys
def hook(event, args, mark={mark!r}, out={out!r}, opened=open):
    if event != "open" and not event.startswith(("os.", "shutil.", "glob.", "import")):
        return
    if mark in repr(args):
        with opened(out, "a") as file:
            file.write(event + repr(args)[:200] + chr(10))
sys.addaudithook(hook)
"""


# ---- unknown ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/", "/v1/embeddings", "/v1/chat/completions/x", "/docs", "/%2e%2e/etc/passwd", "/v1/models/x/y"]
)
def test_an_unknown_route_is_404_in_json(server: Server, path: str) -> None:
    answer = httpx.get(server.url.removesuffix("/v1") + path, headers={"x-api-key": "key"})
    assert answer.status_code == 404
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "path",
    [
        "/collective_rpc",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/pause",
        "/resume",
        "/sleep",
        "/tokenize",
        "/update_weights",
    ],
)
def test_an_engines_own_routes_are_not_reachable_from_outside(server: Server, path: str) -> None:
    answer = httpx.post(server.url.removesuffix("/v1") + path, json={}, headers={"x-api-key": "key"})
    assert answer.status_code == 404


def test_origins_get_no_leave_where_the_recipe_names_none_and_other_methods_no_answer(server: Server) -> None:
    origin = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for path in ("/v1/chat/completions", "/v1/models", "/health", "/nowhere"):
        answer = httpx.options(server.url.removesuffix("/v1") + path, headers=origin)
        assert answer.status_code == (404 if path == "/nowhere" else 204)
        assert ("allow" in answer.headers) == (path != "/nowhere")
        assert not [name for name in answer.headers if name.startswith("access-control")]
    response = httpx.get(server.url + "/models", headers={**origin, "x-api-key": "key"})
    assert not [name for name in response.headers if name.startswith("access-control")]
    for method in ("PUT", "DELETE", "PATCH", "TRACE", "PROPFIND"):
        assert httpx.request(method, server.url + "/chat/completions").status_code == 405


def test_head_has_the_status_and_no_body(server: Server) -> None:
    root = server.url.removesuffix("/v1")
    assert (httpx.head(f"{root}/health").status_code, httpx.head(f"{root}/health").content) == (200, b"")
    assert (httpx.head(f"{root}/api/hello").status_code, httpx.head(f"{root}/api/hello").content) == (404, b"")
    assert httpx.head(f"{root}/v1/chat/completions").status_code == 405


def test_every_answer_names_its_request(server: Server) -> None:
    for given, kept in (("my-id:1", True), ("", False), ("a b", False), ("x" * 129, False), ('"><script>', False)):
        for answer in (post(server, body(), **{"x-request-id": given}), post(server, b"{", **{"x-request-id": given})):
            assert (answer.headers["x-request-id"] == given) == kept
            assert answer.headers["request-id"] == answer.headers["x-request-id"]
            if answer.status_code == 400:
                assert answer.json()["request_id"] == answer.headers["x-request-id"]
    with server.client.chat.completions.with_streaming_response.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=2, stream=True
    ) as streamed:
        assert streamed.headers["x-request-id"].startswith("req_")


# ---- the state -------------------------------------------------------------------------------------------------------------


def test_outsiders_learn_whether_it_is_well_and_no_more(server: Server) -> None:
    root = server.url.removesuffix("/v1")
    outside = {"X-Forwarded-For": "203.0.113.7"}
    assert httpx.get(f"{root}/health", headers=outside).json() == {"status": "ok", "live": 0, "ready": True}
    for forged in (outside, {"X-Forwarded-For": "127.0.0.1"}, {"Forwarded": "for=127.0.0.1"}):
        assert httpx.get(f"{root}/metrics", headers=forged).status_code == 401
    assert httpx.get(f"{root}/metrics", headers={**outside, "x-api-key": "key"}).status_code == 200
    assert "capture" in httpx.get(f"{root}/health", headers={**outside, "x-api-key": "key"}).json()
    assert httpx.get(f"{root}/health/live").json() == {"alive": True}
    assert httpx.get(f"{root}/health/ready").json() == {"ready": True, "reason": None}


def sample(server: Server, name: str) -> float:
    text = httpx.get(server.url.removesuffix("/v1") + "/metrics").text
    return next((float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + " ")), 0.0)


def test_metrics_count_requests_and_tokens(server: Server) -> None:
    counter = 'clawctl_requests_total{api="chat",key="default",status="200"}'
    before = {name: sample(server, name) for name in (counter, 'clawctl_refused_total{reason="http_400"}')}
    told_before = sample(server, 'clawctl_completion_tokens_total{api="chat",key="default"}')
    answer = server.say("hello")
    post(server, b"{")
    assert sample(server, counter) == before[counter] + 1
    assert sample(server, 'clawctl_refused_total{reason="http_400"}') == before['clawctl_refused_total{reason="http_400"}'] + 1
    assert (
        sample(server, 'clawctl_completion_tokens_total{api="chat",key="default"}') == told_before + answer.usage.completion_tokens
    )
    assert (
        sample(server, 'clawctl_request_seconds_bucket{api="chat",le="+Inf"}')
        == sample(server, 'clawctl_request_seconds_count{api="chat"}')
        > 0
    )
    assert sample(server, 'clawctl_time_to_first_token_seconds_count{api="chat"}') > 0
    assert (sample(server, "clawctl_engine_up"), sample(server, "clawctl_ready"), sample(server, "clawctl_live_version")) == (
        1,
        1,
        0,
    )
    assert sample(server, "clawctl_capture_written_total") == len(server.captured())
    assert sample(server, "clawctl_capture_lost_total") == 0


# ---- names from a request --------------------------------------------------------------------------------------------------


def test_a_models_name_never_becomes_a_path(tmp_path: Path, model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(AUDIT.format(mark=HOSTILE, out=str(tmp_path / "touched")))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
    subprocess.run([sys.executable, "-c", f"open({str(tmp_path / HOSTILE)!r}, 'w')"], check=True)
    assert "hostile-name" in (tmp_path / "touched").read_text()  # what it would look like
    (tmp_path / "touched").unlink()
    with Server(tmp_path / "run", model_path) as server:
        for name in (
            f"/tmp/{HOSTILE}",
            f"../{HOSTILE}",
            f"{HOSTILE}@../0",
            f"{HOSTILE}\x00",
            f"{HOSTILE}@0/../1",
            f"{HOSTILE}@٣",
            f"{HOSTILE}@0\n",
        ):
            answer = post(server, body(model=name))
            assert answer.status_code == 200, name  # no version is named: the live policy answers
            assert answer.json()["model"] == name
        for name in (f"{HOSTILE}@7", f"{HOSTILE}@" + "9" * 5000, f"{HOSTILE}@999999999999999999"):
            assert post(server, body(model=name)).status_code == 404, name[:40]
        for name in (f"../{HOSTILE}", f"%2e%2e%2f{HOSTILE}", f"{HOSTILE}@0"):
            assert httpx.get(f"{server.url}/models/{name}", headers={"x-api-key": "key"}).status_code == 404
        assert httpx.get(f"{server.url}/models/tiny@0", headers={"x-api-key": "key"}).json()["id"] == "tiny@0"
    assert not (tmp_path / "touched").exists(), (tmp_path / "touched").read_text()
