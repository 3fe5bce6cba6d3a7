"""A pool of servers: each answer comes from a member that has its version, and none is refused while a member lives."""

import secrets
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from vllm_stub import StandIn, ids, logprobs

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.inspect.health import read_health
from clawctl.inspect.health_lines import health_lines
from clawctl.run.policies import live_version, move_live, publish_policy
from clawctl.run.rows import Policy
from clawctl.serve.gateway import check_engine
from tests.serve.served import Server
from tests.waiting import until

CANARY = {"prompt_ids": [[1, 2]], "logprobs": [[None, -1.0]]}


@pytest.fixture
def stand_ins() -> Iterator[list[StandIn]]:
    servers = [StandIn(number) for number in range(3)]
    yield servers
    for server in servers:
        server.kill()


@pytest.fixture
def pool(tmp_path: Path, model_path: Path, stand_ins: list[StandIn]) -> Iterator[Server]:
    first, *others = [server.url for server in stand_ins]
    upstream = {"url": first, "others": others, "kind": "vllm"}
    with Server(tmp_path / "run", model_path, upstream=upstream, sections={"train": {"lora": {}}}) as running:
        until(lambda: all(member["version"] == 0 for member in members(running)))
        yield running
        assert running.stop() == 0, running.log.read_text()


def health(pool: Server) -> dict[str, Any]:
    """Without httpx, which reads certificates for each call."""
    with urllib.request.urlopen(pool.url.removesuffix("/v1") + "/health", timeout=60) as answer:
        read: dict[str, Any] = orjson.loads(answer.read())
    return read


def members(pool: Server) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = health(pool)["engine"]["members"]
    return listed


def publish(pool: Server, version: int) -> None:
    publish_policy(pool.run, Policy(version, 0, version, None, "adapter", "m", [], CANARY, {}, 0.0), lambda folder: None)
    move_live(pool.run, version, by="train")


def go_live(pool: Server, version: int) -> None:
    publish(pool, version)
    until(lambda: health(pool)["live"] == version)


def wrong_rows(pool: Server) -> list[dict[str, Any]]:
    """Complete answers whose ids or logprobs are not those of the version that the row names."""
    wrong = []
    for line in pool.captured():
        if line["status"] == "ok":
            version = line["policy_version"]
            right = line["completion_ids"] in [ids(server, version) for server in range(3)]
            right = right and line["policy_version_end"] == version and line["untrainable_reason"] is None
            if not right or line["logprobs"] != pytest.approx(logprobs(version)):
                wrong.append(line)
    return wrong


def server_of(text: str) -> int:
    return int(text.split()[0]) // 10_000


class Load:
    """Clients that ask without a pause, each request in a session of its own, half of them for a stream."""

    def __init__(self, pool: Server, clients: int = 6) -> None:
        self.pool, self.answers, self.broken, self.refused = pool, 0, 0, list[str]()
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(clients)]

    def _ask(self, client: int) -> None:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": client % 2 == 0}
        with httpx.Client(headers={"authorization": "Bearer key"}, timeout=120) as http:
            while not self._end.is_set():
                session = {"x-session-id": secrets.token_hex(8)}  # few sessions might all be at home at the same member
                answer = http.post(f"{self.pool.url}/chat/completions", json=body, headers=session)
                if answer.status_code != 200:
                    self.refused.append(answer.text)
                elif body["stream"] and "[DONE]" not in answer.text:
                    self.broken += 1  # its server was killed after the first token
                else:
                    self.answers += 1

    def more(self, answers: int = 30) -> None:
        """Wait until this many more requests are answered."""
        target = self.answers + answers
        until(lambda: self.answers >= target or self.refused)

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


def test_members_that_lag_refuse_or_die_during_swaps_refuse_no_request_and_answer_with_no_wrong_version(
    pool: Server, stand_ins: list[StandIn]
) -> None:
    slow, stubborn, mortal = stand_ins
    with Load(pool) as load:
        load.more()
        go_live(pool, 1)
        until(lambda: all(member["version"] == 1 for member in members(pool)))

        slow.set(load_s=3.0)
        go_live(pool, 2)
        assert members(pool)[0]["version"] == 1  # it still loads
        load.more()
        assert slow.set(load_s=0.0)["absent"] == 0  # it was not asked for what it lacks
        until(lambda: members(pool)[0]["version"] == 2)

        stubborn.set(refuses=True)
        go_live(pool, 3)
        until(lambda: members(pool)[1]["problem"])
        assert "it cannot be loaded" in members(pool)[1]["problem"]
        assert health(pool)["status"] == "degraded"
        load.more()
        assert stubborn.set(refuses=False)["absent"] == 0
        until(lambda: members(pool)[1]["version"] == 3)

        slow.set(load_s=1.0)
        stubborn.set(load_s=1.0)
        publish(pool, 4)
        mortal.kill()
        load.more()
        mortal.start()
        until(lambda: [member["version"] for member in members(pool)] == [4, 4, 4])
        load.more()
        assert mortal.set()["answered"]

        for server in (slow, stubborn):
            server.kill()
        load.more()
        mortal.kill()
        until(lambda: health(pool)["engine"]["waiting_for"])
        for server in stand_ins:
            server.start()
        load.more()
        until(lambda: [member["version"] for member in members(pool)] == [4, 4, 4])
        go_live(pool, 5)
        load.more()
    assert load.refused == []
    assert load.broken <= 9  # at most all streams at each kill
    assert wrong_rows(pool) == []
    assert {line["policy_version"] for line in pool.captured()} == {0, 1, 2, 3, 4, 5}
    assert health(pool)["status"] == "ok"


@pytest.mark.parametrize("ends", [1, 2])
def test_an_answer_that_is_not_streamed_survives_the_end_of_its_servers(pool: Server, stand_ins: list[StandIn], ends: int) -> None:
    """It begins again at another server, and once more if that one ends as well."""
    go_live(pool, 1)
    for server in stand_ins:
        server.set(token_s=0.2)
    texts, ended = list[str](), set[int]()
    asking = threading.Thread(target=lambda: texts.append(pool.say("hello").choices[0].message.content))
    asking.start()
    for _ in range(ends):
        until(lambda: any(member["running"] for i, member in enumerate(members(pool)) if i not in ended))
        at = next(i for i, member in enumerate(members(pool)) if member["running"] and i not in ended)
        until(lambda at=at: stand_ins[at].set()["answered"])
        time.sleep(0.5)  # some tokens
        stand_ins[at].kill()
        ended.add(at)
    asking.join()
    assert server_of(texts[0]) not in ended
    assert [line["status"] for line in pool.captured()] == ["ok"]
    assert wrong_rows(pool) == []


def test_a_conversation_stays_at_one_member_and_conversations_are_spread(pool: Server) -> None:
    def asked(first: str, hint: Callable[[int], dict[str, str]]) -> list[set[int]]:
        servers = defaultdict[int, set[int]](set)
        for session in range(12):
            for turn in range(3):
                messages = [{"role": "user", "content": f"{first} {session}"}, {"role": "assistant", "content": "a"}] * turn
                messages = [*messages, {"role": "user", "content": f"{first} {session}"}]
                said = pool.client.chat.completions.create(model="tiny", messages=messages, extra_headers=hint(session))
                servers[session].add(server_of(said.choices[0].message.content))
        return list(servers.values())

    for servers in (asked("same", lambda i: {"x-session-id": f"s{i}"}), asked("own", lambda i: {})):
        assert all(len(servers_of_one) == 1 for servers_of_one in servers)
        assert len(set.union(*servers)) > 1


def test_a_version_that_no_member_accepts_does_not_go_live(pool: Server, stand_ins: list[StandIn]) -> None:
    go_live(pool, 1)
    stand_ins[0].set(score=-9.0)
    go_live(pool, 2)  # its canary fails at one member, which is not asked
    until(lambda: "canary" in (members(pool)[0]["problem"] or ""))
    shown = [str(text) for what, text in health_lines(read_health(pool.run)) if what == "member"]
    assert [("canary" in line, "version 2" in line) for line in shown] == [(True, False), (False, True), (False, True)]
    for server in stand_ins[1:]:
        server.set(score=-9.0)
    publish(pool, 3)
    until(lambda: health(pool)["last_swap_error"])
    until(lambda: live_version(pool.run) == 2)
    assert health(pool)["live"] == 2
    for server in stand_ins[1:]:
        assert "tiny@3" not in server.set()["adapters"]
    for _ in range(6):
        assert server_of(pool.say("hello").choices[0].message.content) in (1, 2)
    stand_ins[0].set(score=-1.0)
    until(lambda: members(pool)[0]["version"] == 2)


def test_old_versions_are_unloaded_everywhere_and_pinned_ones_are_loaded_for_their_requests(
    pool: Server, stand_ins: list[StandIn]
) -> None:
    for version in range(1, 7):
        go_live(pool, version)
        until(lambda: len({member["version"] for member in members(pool)}) == 1)  # each has the new one
    until(lambda: all(server.set()["adapters"] == ["tiny@4", "tiny@5", "tiny@6"] for server in stand_ins))
    stand_ins[0].set(refuses=True)
    stand_ins[1].set(refuses=True)
    text = pool.say("hello", model="tiny@1").choices[0].message.content
    assert text.split() == [str(token) for token in ids(2, 1)]
    body = {"model": "tiny@1", "ids": [1, 2]}
    scored = httpx.post(f"{pool.url}/score", json=body, headers={"authorization": "Bearer key"}, timeout=60).json()
    assert (scored["version"], scored["logprobs"]) == (1, [-1.0])


def test_a_pool_without_vllm_or_lora_is_refused() -> None:
    two = {"url": "http://a", "others": ["http://b"]}
    for upstream, problem in (
        (two, "several servers need kind: vllm"),
        ({**two, "kind": "vllm", "others": ["http://a"]}, "each server of a pool is named once"),
    ):
        with pytest.raises(ValueError, match=problem):
            Recipe.model_validate({"serve": {"upstream": upstream}})
    with pytest.raises(ClawError, match="a pool of servers loads adapters only"):
        check_engine(Recipe.model_validate({"serve": {"upstream": {**two, "kind": "vllm"}}}))
