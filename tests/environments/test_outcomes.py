"""An outcome reaches the turns of its episode, over a real server and an environment of ten lines."""

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from clawctl.collect.dry_run import stitch_all
from clawctl.collect.worker import collect
from clawctl.config import EvalConfig, JudgeConfig, Recipe
from clawctl.environments import ENVIRONMENTS, AgentOutcome, Outcome, Task, create
from clawctl.environments.player import Plan, Player
from clawctl.eval.suites.loading import load_suites
from clawctl.inspect.health import read_health
from clawctl.inspect.health_lines import health_lines
from clawctl.judge.panel import with_rating
from clawctl.judge.protocol import read_evidence
from clawctl.judge.rules import rating_opinion
from clawctl.privacy.forget import forget
from clawctl.privacy.selection import Selection
from clawctl.run.directory import published
from clawctl.run.endpoint import Endpoint
from clawctl.run.feedback import Ratings
from clawctl.run.groups import Groups
from clawctl.run.keys import add_key
from clawctl.run.outcomes import SessionOutcome
from clawctl.run.reward import OUTCOME, worth
from clawctl.run.rows import Turn
from clawctl.run.shards import read_turns
from tests import forked
from tests.extension import needs
from tests.serve.served import Server, build_model
from tests.waiting import until

ROOT = Path(__file__).parents[2]
CODE = """
from clawctl.environments import Outcome, Task
from clawctl.asking import ask

class Letters:
    def tasks(self, split, count, seed):
        return [Task(f"letters-{seed + n}", "abc"[n % 3], split) for n in range(count)]

    async def play(self, task, endpoint):
        messages = [{"role": "user", "content": f"say {task.spec}"}]
        messages.append({"role": "assistant", "content": await ask(endpoint, messages, max_tokens=4)})
        messages.append({"role": "user", "content": "again"})
        await ask(endpoint, messages, max_tokens=4)
        if task.spec == "c":
            raise RuntimeError("the sandbox is gone")
        verdict = "unverified" if task.spec == "b" else "trusted"
        return Outcome(reward={"a": 1.0, "b": -0.5}[task.spec], parts={"heard": True}, verdict=verdict)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("outcomes")
    with Server(folder / "run", build_model(folder / "model")) as running:
        yield running


def say(server: Server, text: str, session: str | None, key: str = "key", **headers: str) -> str:
    """The id of the turn."""
    named = {"X-Session-Id": session} if session else {}
    sent = {"Authorization": f"Bearer {key}", **named, **{name.replace("_", "-"): value for name, value in headers.items()}}
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    answer = httpx.post(f"{server.url}/chat/completions", json=body, headers=sent, timeout=120)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"]).removeprefix("chatcmpl")


def give(server: Server, session: str, key: str = "key", **body: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{server.url}/outcome", json={"session_id": session, **body}, headers=headers, timeout=60)


def rows(server: Server) -> dict[str, Turn]:
    """All turns after a `clawctl collect --once`."""
    collect(server.run, Recipe(eval=EvalConfig(holdout=0)), once=True)
    return {row.turn_id: row for path in published(server.run.trajectories, ".parquet") for row in read_turns(path)}


def test_an_environment_of_ten_lines_is_played_and_its_outcomes_are_in_the_published_turns(tmp_path: Path, server: Server) -> None:
    code = tmp_path / "mine.py"
    code.write_text(CODE)
    command = ["play", f"{code}:Letters", "--run", server.run.root]
    options = ["--recipe", str(server.run.root.parent / "run.yaml"), "--tasks", "3", "--attempts", "2", "--seed", "4"]
    played = forked.run(*command, *options, timeout_s=200)
    assert played.returncode == 0, played.stderr
    assert "6 episodes: 4 done, 2 environment; mean reward 0.25" in played.stdout
    collected = list(rows(server).values())
    assert len(collected) == 8 + 2 * 4 * 2, "what failed was played again up to three times"
    by_task = {task: [turn for turn in collected if turn.task_id == task] for task in ("letters-4", "letters-5", "letters-6")}
    assert [{turn.outcome_reward for turn in turns} for turns in by_task.values()] == [{1.0}, {-0.5}, {None}]
    assert all(turn.trainable for task in ("letters-4", "letters-5") for turn in by_task[task]), "the last turn of each as well"
    assert {turn.untrainable_reason for turn in by_task["letters-6"]} == {"episode failed"}
    for turns in by_task.values():
        assert len({turn.group_id for turn in turns}) == 1
        sessions = {turn.session_id for turn in turns}
        assert len(sessions) == (8 if turns[0].task_id == "letters-6" else 2), "each episode is a session"
        for session in sessions:
            (episode,) = {orjson.dumps(turn.episode) for turn in turns if turn.session_id == session}
            assert orjson.loads(episode)["attempts"] == 2
    assert len({turn.group_id for turn in collected}) == 3
    for path in published(server.run.trajectories, ".parquet"):
        for turn in read_evidence(path):
            opinion = rating_opinion(turn, JudgeConfig())
            assert (opinion and (opinion.judge, opinion.reward)) == (turn.outcome_reward and (OUTCOME, turn.outcome_reward))
    assert worth(None, collected[0].outcome_reward).value == collected[0].outcome_reward
    health = read_health(server.run)
    assert health["unverified_outcomes"] == 2
    assert [str(text) for what, text in health_lines(health) if what == "unverified"] == [
        "2 outcomes: the tests believed the graded code, so it earned nothing unless the option accept_unverified is set"
    ]
    assert httpx.get(f"{server.url.removesuffix('/v1')}/health").json()["unverified_outcomes"] == 2


DUEL = """
from clawctl.environments import AgentOutcome, Outcome, Task
from clawctl.asking import complete, new_client

class Duel:
    def tasks(self, split, count, seed):
        return [Task(f"duel-{n}", n, split) for n in range(count)]

    async def play(self, task, endpoint):
        turns = {}
        for name in ("white", "black"):
            messages = [{"role": "user", "content": f"you play {name}"}]
            async with new_client(endpoint) as client:
                turns[name] = (await complete(endpoint, messages, client, max_tokens=4))["turn_id"]
        return Outcome(0.0, agents={name: AgentOutcome(worth, (turns[name],)) for name, worth in (("white", 1.0), ("black", -1.0))})
"""


def test_a_turn_of_two_agents_and_an_id_in_place_of_a_list_are_errors_of_the_environment() -> None:
    with pytest.raises(ValueError, match="two agents have the same turn"):
        Outcome(0.0, agents={"white": AgentOutcome(1.0, ("a", "b")), "black": AgentOutcome(-1.0, ("b",))})
    with pytest.raises(ValueError, match="the turns of an agent are 'abc', not a list of ids"):
        AgentOutcome(1.0, "abc")  # type: ignore[arg-type]


def test_each_of_several_agents_is_credited_with_its_own_outcome_and_compared_with_itself(tmp_path: Path, server: Server) -> None:
    code = tmp_path / "duel.py"
    code.write_text(DUEL)
    command = ["play", f"{code}:Duel", "--run", server.run.root, "--tasks", "1"]
    options = ["--recipe", str(server.run.root.parent / "run.yaml"), "--attempts", "2"]
    played = forked.run(*command, *options, timeout_s=200)
    assert played.returncode == 0, played.stderr
    duel = [turn for turn in rows(server).values() if turn.task_id == "duel-0"]
    assert len(duel) == 4
    by_agent = {name: [turn for turn in duel if f"you play {name}" in str(turn.messages)] for name in ("white", "black")}
    assert {name: [turn.outcome_reward for turn in turns] for name, turns in by_agent.items()} == {
        "white": [1.0, 1.0], "black": [-1.0, -1.0],
    }  # fmt: skip
    groups = {name: {turn.group_id for turn in turns} for name, turns in by_agent.items()}
    assert all(group is not None and group.endswith(f":{name}") for name, (group,) in groups.items())
    ratings = Ratings(server.run)
    collected = Groups()
    for line in ratings.read():
        if isinstance(line, SessionOutcome):
            collected.add(line)
    for turns in by_agent.values():
        sessions = {turn.session_id for turn in turns}
        assert collected.is_complete(turns[0].user, turns[0].group_id or "", sessions, 0.0)
        assert not collected.is_complete(turns[0].user, turns[0].group_id or "", set(), 0.0)


def test_an_outcome_of_other_code_does_not_count_and_the_episode_is_played_again(tmp_path: Path, server: Server) -> None:
    code = tmp_path / "changed.py"
    command = ["play", f"{code}:Letters", "--run", server.run.root, "--tasks", "1"]
    options = ["--recipe", str(server.run.root.parent / "run.yaml"), "--attempts", "2"]

    def rewards(text: str) -> list[float | None]:
        code.write_text(text)
        assert forked.run(*command, *options, timeout_s=200).returncode == 0
        outcomes = (line for line in Ratings(server.run).read() if isinstance(line, SessionOutcome) and line.turn_ids is None)
        return sorted(line.reward or 0 for line in outcomes if line.episode and str(code) in line.episode["environment"])

    assert rewards(CODE) == [1.0, 1.0]
    assert rewards(f"# the same\n{CODE}") == [1.0, 1.0]
    assert rewards(CODE.replace('"a": 1.0', '"a": 0.25')) == [0.25, 0.25, 1.0, 1.0]


def test_the_turns_of_an_episode_wait_for_its_outcome_and_come_together(server: Server) -> None:
    first = say(server, "one", "waits", X_Task_Id="t-1")
    second = say(server, "two, in another conversation", "waits", X_Task_Id="t-1")
    third = say(server, "of no episode", None)
    assert not {first, second, third} & rows(server).keys()
    assert give(server, "waits", reward=0.5).status_code == 200
    by_id = rows(server)
    assert [(by_id[turn].outcome_reward, by_id[turn].task_id, by_id[turn].trainable) for turn in (first, second)] == [
        (0.5, "t-1", True)
    ] * 2
    assert third not in by_id


def test_an_outcome_that_comes_late_is_found_with_the_turn_as_a_late_rating_is(server: Server) -> None:
    turn = say(server, "published first", "late", X_Session_Done="true")
    before = rows(server)[turn]
    assert (before.outcome_reward, before.untrainable_reason) == (None, "no next state")
    assert give(server, "late", reward=-1.0).status_code == 200
    for _ in range(2):  # a restart names the turns once
        assert rows(server)[turn] == before, "a published row is fixed"
    lines = [line for path in published(server.run.feedback, ".jsonl") for line in path.read_bytes().split(b"\n")]
    late = [line for line in lines if b"late-" in line]
    assert [orjson.loads(line)["turn_ids"] for line in late] == [[turn]]
    ratings = Ratings(server.run)
    assert turn in ratings.poll()
    outcome = ratings.late_outcome("default", turn)
    assert outcome is not None
    assert outcome.changes(before.untrainable_reason) == {"outcome_reward": -1.0, "trainable": True, "untrainable_reason": None}
    judged = [row for path in published(server.run.trajectories, ".parquet") for row in read_evidence(path)]
    (evidence,) = [row for row in judged if row.turn_id == turn]
    assert with_rating(ratings, evidence).outcome_reward == -1.0


def test_an_outcome_applies_to_earlier_requests_and_a_session_has_one(server: Server) -> None:
    before = say(server, "before", "once", X_Task_Id="t-2")
    assert give(server, "once", reward=1.0, parts={"speed": 3.5}).status_code == 200
    again = give(server, "once", reward=1.0, parts={"speed": 3.5})
    other = give(server, "once", reward=-1.0)
    assert (again.status_code, other.status_code, other.json()["error"]["code"]) == (200, 409, "outcome_given")
    after = say(server, "after", "once", X_Task_Id="t-2", X_Session_Done="true")
    by_id = rows(server)
    assert (by_id[before].outcome_reward, by_id[after].outcome_reward) == (1.0, None)


def test_only_the_key_that_owns_a_session_gives_its_outcome(server: Server) -> None:
    anna = add_key(server.run, "anna")
    until(lambda: httpx.get(f"{server.url}/models", headers={"x-api-key": anna}).status_code == 200)
    mine = say(server, "mine", "shared name", X_Task_Id="t-3")
    stolen = give(server, "shared name", key=anna, reward=-1.0)
    assert (stolen.status_code, stolen.json()["error"]["code"]) == (404, "unknown_session")
    hers = say(server, "hers", "shared name", key=anna, X_Task_Id="t-3")
    assert give(server, "anna/shared name", reward=-1.0).status_code == 404, "nor by the name that her session has on disk"
    assert give(server, "shared name", key=anna, reward=-1.0).status_code == 200
    assert give(server, "shared name", reward=1.0).status_code == 200
    by_id = rows(server)
    assert (by_id[mine].outcome_reward, by_id[hers].outcome_reward) == (1.0, -1.0)


def test_a_regenerated_answer_shares_no_outcome(server: Server) -> None:
    dropped, kept = (say(server, "the same request", "retried", X_Task_Id="t-4") for _ in range(2))
    assert give(server, "retried", reward=1.0).status_code == 200
    by_id = rows(server)
    assert (by_id[dropped].untrainable_reason, by_id[dropped].outcome_reward) == ("regenerated", None)
    assert (by_id[kept].untrainable_reason, by_id[kept].outcome_reward) == (None, 1.0)


@needs("secrets")
def test_an_invalid_outcome_is_refused_and_its_field_is_named(server: Server) -> None:
    say(server, "hello", "s", X_Task_Id="t-5")
    for body, param in (
        ({"reward": 2}, "reward"),
        ({"reward": True}, "reward"),
        ({"reward": 1, "status": "failed"}, "reward"),
        ({"status": "over"}, "status"),
        ({"reward": 1, "parts": {"speed": "fast"}}, "parts"),
        ({"reward": 1, "steps": {"turn": 1.5}}, "steps"),
        ({"reward": 1, "stars": 5}, "stars"),
    ):
        answer = give(server, "s", **body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), body
    for session in ("", "ghp_16C7e42F292c6912E7710c838347Ae178B4a"):
        answer = give(server, session, reward=1)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "session_id")
    assert httpx.post(f"{server.url}/outcome", json={"session_id": "s", "reward": 1}).status_code == 401


def test_a_forgotten_session_leaves_no_outcome_behind(server: Server) -> None:
    turn = say(server, "forget me", "to forget", X_Task_Id="t-6")
    assert give(server, "to forget", reward=1.0).status_code == 200
    assert rows(server)[turn].outcome_reward == 1.0
    forget(server.run, Selection(session="to forget"), dry_run=False, retrain=False)
    assert not [path for path in published(server.run.feedback, ".jsonl") if b"to forget" in path.read_bytes()]
    assert turn not in rows(server)


def test_a_dry_run_shows_turns_with_their_outcome(server: Server) -> None:
    turn = say(server, "dry", "dry", X_Task_Id="t-7")
    assert give(server, "dry", reward=0.25).status_code == 200
    stitched, _, still_open = stitch_all(server.run, Recipe().collect, 0.0)
    assert {row.turn_id: row.outcome_reward for row in stitched}[turn] == 0.25
    assert turn not in still_open


def test_the_environment_and_the_suite_in_the_docs_run_unchanged(tmp_path: Path, server: Server) -> None:
    page = (ROOT / "docs" / "environments.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    environment, suite = (next(block for block in blocks if name in block) for name in ("class Capitals", "def manners"))
    example = ROOT / "examples" / "capitals.py"
    assert example.read_text().endswith(f"\n\n{environment}")
    (tmp_path / "manners.py").write_text(suite)
    capitals = create(ENVIRONMENTS.load(f"{example}:Capitals", "play"), "Capitals", "play")
    endpoint = Endpoint(server.url, "key", "tiny", sampling={"max_tokens": 4})
    plan = Plan("Capitals", capitals, [Task("capital-Perú", "Peru")], 1, 0)
    played = asyncio.run(Player(server.run, plan, lambda: endpoint, 1, threading.Event()).play())
    assert played.endings == {"done": 1}
    (turn,) = [turn for turn in rows(server).values() if turn.task_id == "capital-Per%C3%BA"]
    assert (turn.outcome_reward, turn.trainable) == (-1.0, True)
    names = [f"{example}:Capitals", f"{tmp_path / 'manners.py'}:manners"]
    tasks, calls = load_suites(EvalConfig.model_validate({"suites": names, "max_tokens": 4}))
    assert calls.metrics == ("brief", "answered")
    of_tasks, of_calls = (asyncio.run(suite.measure(Endpoint(server.url, "key", "tiny"))) for suite in (tasks, calls))
    assert {name: value.n for name, value in of_tasks.metrics.items()} == {"correct": 2, "reward": 2}
    assert {name: value.n for name, value in of_calls.metrics.items()} == {"brief": 3, "answered": 3}
