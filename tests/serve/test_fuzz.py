"""A few hundred of the ten thousand requests of `scripts/bench serve_fuzz`."""

from typing import Any

import httpx
import orjson
import pytest
from served import Server

from scripts.benchmarks.fuzz.raw import raw_requests, send
from scripts.benchmarks.serve_fuzz import Tally, by_document, growth


def root_of(server: Server) -> str:
    return server.url.removesuffix("/v1")


def test_malformed_requests_cause_no_server_error_and_leak_nothing(server: Server) -> None:
    host, port = root_of(server).split("//")[1].split(":")
    tally = Tally()
    for data in raw_requests(270, seed=7):
        status, answer = send((host, int(port)), data)
        tally.add(status, answer, repr(data[:300]))
    assert (tally.own_5xx, tally.tracebacks, tally.examples) == (0, 0, [])
    assert tally.statuses.keys() >= {200, 400}, tally.statuses
    assert server.say("hello").choices


def test_requests_generated_from_the_openapi_document_cause_no_server_error(server: Server) -> None:
    tally = Tally()
    by_document(root_of(server), 24, 3, tally)
    assert (tally.own_5xx, tally.tracebacks, tally.examples) == (0, 0, [])
    assert "Traceback" not in server.log.read_text()


def test_the_tally_counts_the_errors_that_it_searches() -> None:
    tally = Tally()
    tally.add(500, b"{}", "a")
    tally.add(200, b"Traceback (most recent call last):", "b")
    tally.add(None, b"", "c")
    assert (tally.requests, tally.own_5xx, tally.tracebacks, len(tally.examples)) == (3, 1, 1, 2)


def test_growth_is_counted_from_the_second_part_on_and_over_the_last_half() -> None:
    rows = {row.metric: row.value for row in growth([100, 130, 140, 145, 148, 150, 150, 151, 151, 152])}
    assert rows == {"rss_growth_mb": 22, "rss_growth_last_half_mb": 4}


def test_the_document_names_the_routes_that_are_there_and_no_others(server: Server) -> None:
    document: dict[str, Any] = httpx.get(f"{root_of(server)}/openapi.json").json()
    key = {"x-api-key": "key"}
    for path, methods in document["paths"].items():
        for method in methods.keys() - {"parameters"}:
            answer = httpx.request(method, root_of(server) + path.replace("{id}", "x"), headers=key, content=b"{")
            message = orjson.loads(answer.content)["error"]["message"] if answer.status_code == 404 else ""
            assert "is not supported. Supported:" not in message, f"{method} {path}"
            assert answer.status_code != 405, f"{method} {path}"
            assert str(answer.status_code) in methods[method]["responses"], f"{method} {path} answers {answer.status_code}"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/models", "GET, HEAD"),
        ("/v1/messages", "POST"),
        ("/v1/responses/x", "DELETE, GET, HEAD"),
        ("/v1/models/x", "GET, HEAD"),
    ],
)
def test_an_unsupported_method_is_answered_with_the_supported_ones(server: Server, path: str, allowed: str) -> None:
    answer = httpx.put(root_of(server) + path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
