"""An episode over a real server: its address, its endings, its outcome, and the workers that play it."""

import asyncio
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from clawctl.asking import Refused, ask
from clawctl.collect.worker import collect
from clawctl.config import CollectConfig, Recipe
from clawctl.environments import EpisodeFailed, Outcome, Task
from clawctl.environments.episode import graded
from clawctl.environments.player import Plan, Player, Summary, episode_endpoint, is_ready, make_plan
from clawctl.errors import ClawError
from clawctl.eval.suites import SuiteSettings
from clawctl.eval.suites.tasks import measure_tasks
from clawctl.inspect.why import show_why
from clawctl.privacy.forget import forget
from clawctl.privacy.selection import Selection
from clawctl.run.capabilities import LONGEST, Capability, episode_secret, issue, read_capability
from clawctl.run.directory import published
from clawctl.run.endings import ENDINGS, MAX_TRIES
from clawctl.run.endpoint import Endpoint
from clawctl.run.episodes import EpisodeSpec, Played, SpecFile
from clawctl.run.feedback import FeedbackFile
from clawctl.run.outcomes import SessionOutcome
from clawctl.run.rows import Turn
from clawctl.run.shards import read_turns
from tests.eval.answering_server import answering
from tests.extension import needs
from tests.serve.served import Server, build_model

needs_sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing: apt-get install bubblewrap")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("episodes")
    with Server(folder / "run", build_model(folder / "model")) as running:
        yield running


NUMBERS = iter(range(10_000))


def made_spec(**changed: Any) -> EpisodeSpec:
    number, now = next(NUMBERS), time.time()
    spec = EpisodeSpec(
        session_id=f"e-test-{number}-0", created_at=now, plan="e-test", environment="mine", version="1", task_id=f"sum-{number}",
        task_hash="abc", split="train", seed=0, number=number, group_id=f"e-test-{number}", attempt=0, attempts=2, attempt_try=0,
        deadline=now + 600, sampling={}, worker="here:1",
    )  # fmt: skip
    return replace(spec, **changed)


def place_of(server: Server, spec: EpisodeSpec) -> Endpoint:
    return episode_endpoint(Endpoint(server.url, "key", "tiny"), issue(episode_secret(server.run), spec), spec)


def post(endpoint: Endpoint, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.post(f"{endpoint.url}/{path}", json=body, headers=headers, timeout=120)


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 8, **more}


def give(server: Server, spec: EpisodeSpec, **changed: Any) -> None:
    """The outcome, as a worker appends it."""
    said: dict[str, Any] = {"status": "done", "reward": 1.0, "parts": {}, "steps": {}, "ending": "done", **changed}
    episode = {name: getattr(spec, name) for name in EpisodeSpec.__dataclass_fields__}
    line = SessionOutcome(f"o-{spec.session_id}", time.time(), spec.key, spec.session_id, **said, episode=episode)
    FeedbackFile(server.run.feedback).append(line)


def rows_of(server: Server, spec: EpisodeSpec, recipe: Recipe | None = None) -> list[Turn]:
    collect(server.run, recipe or Recipe(), once=True)
    turns = [row for path in published(server.run.trajectories, ".parquet") for row in read_turns(path)]
    return [turn for turn in turns if turn.session_id == spec.session_id]


# ---- the address ---------------------------------------------------------------------------------------------------------


def test_every_dialect_answers_at_the_address_of_an_episode_and_its_turns_carry_the_episode(server: Server) -> None:
    spec = made_spec()
    endpoint = place_of(server, spec)
    bodies = {
        "chat/completions": chat("one"),
        "responses": {"model": "tiny", "input": "two", "max_output_tokens": 16},
        "messages": {"model": "tiny", "messages": [{"role": "user", "content": "three"}], "max_tokens": 8},
    }
    claims = {"X-Session-Id": "another", "X-Task-Id": "other", "X-Group-Id": "g", "X-Session-Done": "true", "X-Capture": "off"}
    for path, body in bodies.items():
        assert post(endpoint, path, body, **claims, **{"X-Feedback": "1"}).status_code == 200, path
    as_a_key = httpx.post(f"{server.url}/chat/completions", json=chat("four"), headers={"x-api-key": endpoint.api_key}, timeout=120)
    assert as_a_key.status_code == 200
    assert httpx.get(f"{endpoint.url}/models").status_code == 200
    assert rows_of(server, spec) == []
    give(server, spec)
    turns = rows_of(server, spec)
    assert len(turns) == 4
    assert {(turn.task_id, turn.group_id, turn.feedback, turn.outcome_reward) for turn in turns} == {
        (spec.task_id, spec.group_id, None, 1.0)
    }
    assert {(turn.episode or {})["ending"] for turn in turns} == {"done"}


def test_a_capability_opens_model_calls_of_its_own_episode_and_nothing_else(server: Server) -> None:
    endpoint = place_of(server, made_spec())
    first = post(endpoint, "responses", {"model": "tiny", "input": "mine", "max_output_tokens": 16}).json()
    for path, body in (("outcome", {"session_id": "x", "reward": 1}), ("feedback", {"completion_id": first["id"], "rating": 1})):
        refused = post(endpoint, path, body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_in_an_episode"), path
    assert httpx.get(f"{endpoint.url}/responses/{first['id']}").status_code == 403
    assert post(endpoint, "responses/input_tokens", {"model": "tiny", "input": "mine"}).json()["input_tokens"] > 0
    address, key = endpoint.url.removesuffix("/v1"), endpoint.api_key
    changed = address[:-1] + ("A" if address[-1] != "A" else "B")
    for wrong in (changed, address[:-30], f"{server.url.removesuffix('/v1')}/e/claw-e-", address.replace(key, key + "x")):
        answer = httpx.post(f"{wrong}/v1/chat/completions", json=chat("hello"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_episode"), wrong


def test_an_episode_is_closed_at_its_deadline(server: Server) -> None:
    late = place_of(server, made_spec(deadline=time.time() - 1))
    answer = post(late, "chat/completions", chat("too late"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "episode_over")


def test_a_capability_outlives_the_server_and_is_of_one_run(tmp_path: Path, server: Server) -> None:
    spec = made_spec(task_id="sum/…".replace("…", "3"), attempt=1)
    text = issue(episode_secret(server.run), spec)
    assert len(text) <= LONGEST
    again = read_capability(episode_secret(server.run), text)
    assert again == Capability(spec.session_id, spec.task_id, spec.group_id, 1, int(spec.deadline), "default")
    assert read_capability(b"another secret".ljust(32), text) is None
    assert server.run.episode_key.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ClawError, match="too long"):
        issue(episode_secret(server.run), replace(spec, task_id="t" * 300))


def test_the_server_enforces_and_reports_the_recipes_sampling_in_episodes(server: Server) -> None:
    spec = made_spec()
    request = chat("greedy please", temperature=0, top_p=0.1, seed=3)
    answer = post(place_of(server, spec), "chat/completions", {**request, "model": "tiny@0"})
    assert "temperature 1 instead of 0" in answer.headers["x-clawctl-sampling"]
    give(server, spec)
    (turn,) = rows_of(server, spec)
    assert (turn.temperature, turn.top_p, turn.top_k, turn.trainable) == (1.0, 1.0, 0, True)


@needs("secrets")
def test_a_capability_is_in_no_log_and_in_no_capture(server: Server) -> None:
    endpoint = place_of(server, made_spec())
    post(endpoint, "chat/completions", chat(f"my OPENAI_BASE_URL is {endpoint.url}"))
    post(endpoint, "nothing", {})
    stored = [path for path in server.run.root.rglob("*") if path.is_file() and path.suffix in (".jsonl", ".log", ".json")]
    assert not [path for path in [*stored, server.log] if endpoint.api_key.encode() in path.read_bytes()]


# ---- retries -------------------------------------------------------------------------------------------------------------


def test_a_repeated_request_gets_the_first_answer_and_is_captured_once(server: Server) -> None:
    spec, other = made_spec(), made_spec()
    endpoint = place_of(server, spec)
    first, second = (post(endpoint, "chat/completions", chat("again")).json() for _ in range(2))
    assert first == second
    assert post(place_of(server, other), "chat/completions", chat("again")).json()["id"] != first["id"], "another episode's"
    streams = [post(endpoint, "messages", {**chat("streamed"), "stream": True}).text for _ in range(2)]
    assert streams[0] == streams[1]
    assert post(endpoint, "chat/completions", chat("again", seed=1)).json()["id"] != first["id"], "another body"
    give(server, spec)
    assert len(rows_of(server, spec)) == 3


def test_an_answer_is_sampled_to_its_end_for_a_client_whose_connection_broke(server: Server) -> None:
    spec = made_spec()
    endpoint = place_of(server, spec)
    body = chat("a long one", max_tokens=64)
    request = httpx.Request("POST", f"{endpoint.url}/chat/completions", json=body)
    host, port = request.url.host, request.url.port
    with socket.create_connection((host, port)) as raw:  # it sends, and hangs up before the answer
        head = f"POST {request.url.raw_path.decode()} HTTP/1.1\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        raw.sendall(head.encode() + b"\r\n" + request.content)
        time.sleep(0.05)
    answer = httpx.post(f"{endpoint.url}/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200
    give(server, spec)
    (turn,) = rows_of(server, spec)
    assert (turn.turn_id, turn.trainable) == (answer.json()["id"].removeprefix("chatcmpl"), True)


# ---- endings -------------------------------------------------------------------------------------------------------------


class Ends:
    """Ends with the ending in its task."""

    episode_s = 0.2
    worst = -0.5

    def tasks(self, split: str, count: int, seed: int) -> list[Task]:
        return [Task(f"ends-{number}", number) for number in range(count)]

    async def play(self, task: Task, endpoint: Endpoint) -> Outcome:
        match task.spec:
            case "time":
                raise Refused("over", 403, "episode_over")
            case "context":
                raise Refused("too long", 400, "context_length_exceeded")
            case "server":
                raise Refused("gone", 503)
            case "sandbox" | "verifier" | "unverified":
                raise EpisodeFailed(task.spec, "broken")
            case "environment":
                raise KeyError("a bug")
            case "killed":
                raise asyncio.CancelledError
        return Outcome(reward=0.25, ending=task.spec)


@pytest.mark.parametrize("name", ENDINGS)
def test_every_ending_is_graded_played_again_or_unwritten_as_its_kind_requires(name: str) -> None:
    ending, endpoint = ENDINGS[name], Endpoint("http://127.0.0.1:9/v1", "key", "tiny")
    if ending.kind == "killed":
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(graded(Ends(), Task("t", name), endpoint, 1.0))
        assert not ending.is_written
        return
    outcome = asyncio.run(graded(Ends(), Task("t", name), endpoint, 1.0))
    assert (outcome.ending, outcome.status) == (name, "done" if ending.is_trained else "failed")
    graded_as = {"time": -0.5, "context": -0.5}.get(name, 0.25)  # `worst` where play could not grade it
    assert outcome.reward == (graded_as if ending.kind == "policy" else None)


def test_a_failed_episode_is_played_again_up_to_three_times_and_then_left_out(server: Server) -> None:
    plan = Plan("ends", Ends(), [Task("fails-1", "sandbox"), Task("fine-1", "done")], 2, 0)
    player = Player(server.run, plan, lambda: Endpoint(server.url, "key", "tiny"), 4, threading.Event())
    summary = asyncio.run(player.play())
    assert summary.endings == {"sandbox": 2, "done": 2}
    played = Played(server.run, plan.id)
    played.poll()
    assert [played.of(0).tries, played.of(1).tries] == [{0: MAX_TRIES - 1, 1: MAX_TRIES - 1}, {}]


def test_a_task_that_its_environment_refuses_is_settled_without_an_episode(server: Server) -> None:
    examined = list[str]()

    class Picky(Ends):
        async def refusal(self, task: Task) -> str | None:
            examined.append(task.id)
            return "its tests never end" if task.id == "bad-1" else None

    plan = Plan("picky", Picky(), [Task("bad-1", "done"), Task("fine-1", "done")], 2, 0)
    player = Player(server.run, plan, lambda: Endpoint(server.url, "key", "tiny"), 4, threading.Event())
    assert asyncio.run(player.play()).endings == {"done": 2, "verifier": 2}
    assert sorted(examined) == ["bad-1", "fine-1"]
    played = Played(server.run, plan.id)
    played.poll()
    assert [outcome.log for outcome in played.of(0).settled.values()] == ["its tests never end"] * 2
    settings = SuiteSettings(problems=4, seed=0, temperature=1.0, max_tokens=8, concurrency=2)
    with pytest.raises(ClawError, match="no held-out task can be played; bad-1: its tests never end"):
        asyncio.run(measure_tasks(OneTask(), Endpoint(server.url, "key", "tiny"), settings))


class OneTask:
    def tasks(self, split: str, count: int, seed: int) -> list[Task]:
        return [Task("bad-1", "")]

    async def refusal(self, task: Task) -> str | None:
        return "its tests never end"

    async def play(self, task: Task, endpoint: Endpoint) -> Outcome:
        raise AssertionError("it is refused")


def test_an_episode_that_fails_because_its_worker_is_being_stopped_has_no_outcome(server: Server) -> None:
    stop = threading.Event()

    class Stopped(Ends):
        async def play(self, task: Task, endpoint: Endpoint) -> Outcome:
            threading.Timer(0.1, stop.set).start()
            raise EpisodeFailed("sandbox", "the browser has been closed")

    plan = Plan("stopped", Stopped(), [Task("stopped-1", "sandbox")], 2, 0)
    summary = asyncio.run(Player(server.run, plan, lambda: Endpoint(server.url, "key", "tiny"), 4, stop).play())
    played = Played(server.run, plan.id)
    played.poll()
    assert (summary.endings, played.of(0).tries, played.of(0).settled) == ({}, {}, {})


def test_inspect_why_shows_the_episode_of_a_turn_and_its_group(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    good = made_spec(group_id="why", attempts=3)
    bad, failed = (replace(good, session_id=f"{good.session_id}-{n}", attempt=n) for n in (1, 2))
    ids = [post(place_of(server, spec), "chat/completions", chat("why?")).json()["id"] for spec in (good, bad, failed)]
    turn = ids[0].removeprefix("chatcmpl")
    give(server, good, reward=1.0, parts={"tests": 0.5}, steps={turn: 0.25}, log="2 passed")
    give(server, bad, reward=-1.0, ending="turns", truncated=True)
    give(server, failed, status="failed", reward=None, ending="sandbox")
    rows_of(server, good)
    show_why(server.run, turn, tokens=False, as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    for text in (
        f"attempt 0 of 3 at {good.task_id} in mine",
        "done, reward 1, tests 0.5; version 0 to 0",
        "0: done 1, 1: turns -1, 2: sandbox -; mean 0, std 1 over 2 episodes",
        "reward: +1.25 = outcome +1, environment step +0.25",
        "verdict: 2 passed",
    ):
        assert text in shown, shown


# ---- workers -------------------------------------------------------------------------------------------------------------


class Counts:
    """Counts its episodes; each makes one call."""

    version = "1"

    def __init__(self) -> None:
        self.played: list[str] = []

    def tasks(self, split: str, count: int, seed: int) -> list[Task]:
        return [Task(f"count-{seed}-{number}", number) for number in range(count)]

    async def play(self, task: Task, endpoint: Endpoint) -> Outcome:
        self.played.append(task.id)
        await ask(endpoint, [{"role": "user", "content": task.id}], max_tokens=2)
        return Outcome(reward=float(task.spec % 2))


def played_by(server: Server, environment: Counts, count: int, seed: int, **more: Any) -> Summary:
    plan = make_plan(environment, "counts", count, 3, seed)
    player = Player(server.run, plan, lambda: Endpoint(server.url, "key", "tiny"), 8, threading.Event(), **more)
    return asyncio.run(player.play())


def test_finished_attempts_are_not_repeated_except_in_another_round_or_seed(server: Server) -> None:
    environment = Counts()
    first = played_by(server, environment, 4, seed=11)
    again = played_by(server, environment, 4, seed=11)
    assert first.text == again.text == "12 episodes: 12 done; mean reward 0.50"
    assert len(environment.played) == 12
    plan = make_plan(environment, "counts", 4, 3, 11)
    assert not list(server.run.locks.glob(f"play-{plan.id}-*")), "a settled plan leaves no locks"
    played_by(server, environment, 2, seed=12)
    assert len(environment.played) == 18


def test_two_workers_share_the_tasks_and_no_attempt_has_two_outcomes(server: Server) -> None:
    first, other = Counts(), Counts()
    plans = [make_plan(environment, "counts", 6, 3, seed=13) for environment in (first, other)]
    assert plans[0].id == plans[1].id

    async def both() -> list[Summary]:
        players = [Player(server.run, plan, lambda: Endpoint(server.url, "key", "tiny"), 3, threading.Event()) for plan in plans]
        return await asyncio.gather(*(player.play() for player in players))

    assert [summary.text for summary in asyncio.run(both())] == ["18 episodes: 18 done; mean reward 0.50"] * 2
    assert sorted(first.played + other.played) == sorted(3 * [f"count-13-{number}" for number in range(6)])


def test_an_episode_that_was_killed_is_not_trained_and_leaves_its_attempt_to_the_next_worker(server: Server) -> None:
    spec = made_spec()
    assert post(place_of(server, spec), "chat/completions", chat("and then it was killed")).status_code == 200
    (turn,) = rows_of(server, spec, Recipe(collect=CollectConfig(session_timeout_s=0.01)))
    assert (turn.trainable, turn.untrainable_reason, turn.outcome_reward) == (False, "episode without outcome", None)
    played = Played(server.run, spec.plan)
    played.poll()
    assert played.of(spec.number).settled == {}


def test_a_forgotten_episode_leaves_neither_its_line_nor_its_outcome(server: Server) -> None:
    spec = made_spec()
    SpecFile(server.run).append(spec)
    post(place_of(server, spec), "chat/completions", chat("forget me"))
    give(server, spec)
    assert len(rows_of(server, spec)) == 1
    forget(server.run, Selection(session=spec.session_id), dry_run=False, retrain=False)
    lines = [path for folder in (server.run.episodes, server.run.feedback) for path in folder.glob("*.jsonl")]
    assert not [path for path in lines if spec.session_id.encode() in path.read_bytes()]
    assert rows_of(server, spec) == []


def test_the_turns_of_an_episode_are_in_one_shard(server: Server) -> None:
    specs = [made_spec() for _ in range(2)]
    for spec in specs:
        for number in range(3):
            post(place_of(server, spec), "chat/completions", chat(f"{number} of {spec.session_id}"))
    for spec in specs:
        give(server, spec)
    collect(server.run, Recipe(collect=CollectConfig(shard_turns=2)), once=True)
    for spec in specs:
        shards = [read_turns(path) for path in published(server.run.trajectories, ".parquet")]
        holding = [sum(turn.session_id == spec.session_id for turn in turns) for turns in shards]
        assert sorted(holding)[-2:] == [0, 3]


def test_a_server_that_captures_nothing_is_refused_before_anything_is_played() -> None:
    with (
        answering(lambda body: "hello", health={"capture": {"on": False}}) as deaf,
        pytest.raises(ClawError, match="does not capture conversations"),
    ):
        asyncio.run(is_ready(Endpoint(deaf.url, "key", "tiny")))
