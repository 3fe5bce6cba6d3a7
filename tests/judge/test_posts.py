"""The judge's calls on the wire: in time, and through a proxy where the environment names one."""

import asyncio

import pytest

from clawctl.config import Recipe
from clawctl.engines.vllm.child import free_port
from clawctl.errors import ClawError
from clawctl.http_client import Broken, Unreachable
from clawctl.judge.calls import Calls
from clawctl.judge.posts import Posts
from clawctl.run.directory import RunDir
from tests.wire import OK, against, read_request


def test_the_request_has_our_headers_and_the_key_that_it_is_given() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            seen.append(await read_request(reader))
            writer.write(OK)
            await writer.drain()

    async def ask(url: str) -> list[bytes]:
        posts = Posts(5.0, {"x-turn-type": "judge"}, trust_env=False)
        try:
            return [(await posts.post(url, key, b"{}")).body for key in ("key", "")]
        finally:
            await posts.close()

    assert against(serve, ask) == [b"ok"] * 2
    assert [b"authorization: Bearer key" in each for each in seen] == [True, False]
    assert all(each.startswith(b"POST /v1 HTTP/1.1\r\n") and b"\r\nx-turn-type: judge\r\n" in each for each in seen)


def test_a_server_that_does_not_answer_in_time_is_given_up_and_its_late_answer_is_nobody_elses() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            slow = b"slow" in await read_request(reader)
            await asyncio.sleep(0.4 if slow else 0)
            writer.write(OK.replace(b"ok", b"!!") if slow else OK)
            await writer.drain()

    async def ask(url: str) -> list[bytes]:
        posts = Posts(0.2, {}, trust_env=False)
        try:
            with pytest.raises(Broken, match=r"no answer in 0\.2 s"):
                await posts.post(url, "", b"slow")
            await asyncio.sleep(0.3)
            return [(await posts.post(url, "", b"{}")).body for _ in range(3)]
        finally:
            await posts.close()

    assert against(serve, ask) == [b"ok"] * 3


@pytest.mark.parametrize("named", [False, True])
def test_an_endpoint_or_a_proxy_where_nobody_listens_is_told_apart_from_a_call_that_broke(
    monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    if named:
        monkeypatch.setenv("http_proxy", nobody)

    async def ask() -> None:
        posts = Posts(5.0, {}, trust_env=True)
        try:
            await posts.post("http://judge.example/v1" if named else nobody + "/v1", "", b"{}")
        finally:
            await posts.close()

    with pytest.raises(Unreachable, match="cannot be reached"):
        asyncio.run(ask())


@pytest.mark.parametrize("named", [False, True], ids=["direct", "by a proxy"])
def test_an_answer_of_gigabytes_is_given_up(monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9000000000\r\n\r\n")
        while True:
            writer.write(b"x" * 1_000_000)
            await writer.drain()

    async def ask(url: str) -> None:
        monkeypatch.setenv("no_proxy", "" if named else "*")
        monkeypatch.setenv("http_proxy", url.removesuffix("/v1"))
        posts = Posts(20.0, {}, trust_env=True)
        try:
            await posts.post("http://judge.example/v1" if named else url, "key", b"{}")
        finally:
            await posts.close()

    with pytest.raises(Broken, match="longer than 8 MiB"):
        against(serve, ask)


def test_a_proxy_that_the_environment_names_is_asked_and_only_for_given_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)
        await writer.drain()

    async def ask(url: str) -> bytes:
        monkeypatch.setenv("http_proxy", url.removesuffix("/v1"))
        monkeypatch.setenv("no_proxy", "judge.inside")
        trusting = Posts(2.0, {}, trust_env=True)
        try:
            return (await trusting.post("http://judge.example/v1/chat/completions", "key", b"{}")).body
        finally:
            await trusting.close()

    assert against(serve, ask) == b"ok"
    assert asked[0].startswith(b"POST http://judge.example/v1/chat/completions HTTP/1.1")


@pytest.mark.parametrize("key", ["two\r\nlines", "a\tb", "kéy"])
def test_a_key_that_no_header_may_hold_is_a_problem_with_a_cure(run: RunDir, key: str) -> None:
    with pytest.raises(ClawError, match=r"judge\.api_key") as refused:
        Calls(run, Recipe.model_validate({"judge": {"endpoint": "http://127.0.0.1:9/v1", "api_key": key}}))
    assert refused.value.exit_code == 2
