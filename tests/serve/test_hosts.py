"""The host names of a server: a web page that points its own name at this machine reads nothing."""

import socket

import httpx
import pytest
from served import Server

from clawctl.config import ServeConfig
from clawctl.engines.requests import Refusal
from clawctl.serve.hosts import Hosts

HERE = ["127.0.0.1", "127.0.0.1:30000", "localhost", "LOCALHOST:30000", "localhost.", "a.localhost", "[::1]:30000", "10.1.2.3:80"]
ELSEWHERE = [
    "evil.example", "evil.example:30000", "127.0.0.1.evil.example", "localhost.evil.example", "evil-localhost", "", "a b",
    "a@localhost", "[::1", "localhost:x", "::1",
]  # fmt: skip


def answers(serve: ServeConfig, hosts: list[str], origins: list[str] | None = None) -> bool:
    try:
        Hosts(serve).check(hosts, origins or [])
    except Refusal:
        return False
    return True


@pytest.mark.parametrize("host", HERE)
def test_a_request_under_an_address_or_a_name_of_this_machine_is_answered(host: str) -> None:
    assert answers(ServeConfig(), [host])


@pytest.mark.parametrize("host", ELSEWHERE)
def test_a_request_under_any_other_name_is_refused(host: str) -> None:
    assert not answers(ServeConfig(), [host])
    assert not answers(ServeConfig(), ["localhost", host])


def test_the_configured_host_and_the_names_in_the_recipe_are_known() -> None:
    serve = ServeConfig(host="gpu7.lan", allowed_hosts=["claw.example.com", "*.cluster.local"])
    for host in ("gpu7.lan:30000", "claw.example.com", "CLAW.example.com.", "a.b.cluster.local:80", socket.gethostname()):
        assert answers(serve, [host])
    for host in ("cluster.local", "evilcluster.local", "example.com", "a.claw.example.com"):
        assert not answers(serve, [host])
    assert answers(ServeConfig(allowed_hosts=["*"]), ["evil.example"], ["null"])


def test_a_page_of_another_origin_is_refused() -> None:
    for origin in ("http://evil.example", "https://evil.example:30000", "null", "http://[", "file://"):
        assert not answers(ServeConfig(), ["127.0.0.1"], [origin])
    assert answers(ServeConfig(), ["127.0.0.1"], ["http://localhost:3000"])


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready", "/metrics", "/openapi.json", "/v1/models"])
def test_a_page_that_rebinds_its_name_reads_nothing_and_a_key_opens_under_any_name(server: Server, path: str) -> None:
    root = server.url.removesuffix("/v1")
    for headers, status in (({"host": "evil.example"}, 421), ({"origin": "http://evil.example"}, 403)):
        refused = httpx.get(root + path, headers=headers)
        assert (refused.status_code, set(refused.json())) == (status, {"error", "request_id"})
    for method in ("POST", "OPTIONS", "PUT", "HEAD"):
        assert httpx.request(method, root + path, headers={"host": "evil.example"}).status_code == 421
    keyed = httpx.get(root + path, headers={"host": "claw.example.com", "x-api-key": "key"})
    assert keyed.status_code == 200
    assert httpx.get(root + path).status_code == (401 if path == "/v1/models" else 200)


def test_a_page_that_rebinds_its_name_gets_no_information_about_the_server(server: Server) -> None:
    root = server.url.removesuffix("/v1")
    for path in ("/", "/nowhere", "/v1", "/v1/feedback", "/healthz", "//metrics", "/%68ealth", "/docs"):
        for method in ("GET", "POST", "OPTIONS", "TRACE"):
            refused = httpx.request(method, root + path, headers={"host": "evil.example"})
            assert (refused.status_code, "v1/chat" in refused.text) == (421, False)
