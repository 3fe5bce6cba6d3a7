"""User suites, and environments as suites: how they are named, run, compared by the gate, and refused."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from clawctl.config import EvalConfig, Recipe, dump_recipe, load_recipe
from clawctl.errors import ClawError
from clawctl.eval.results import write_record
from clawctl.eval.suites import CannotMeasure, Measured
from clawctl.eval.suites.loading import load_suites
from clawctl.eval.worker import Follower, evaluate, follow
from clawctl.run.checksums import read_sealed
from clawctl.run.directory import RunDir, open_run
from clawctl.run.endpoint import Endpoint
from clawctl.run.policies import begin_policy, ensure_base_policy, live_version, publish_policy
from clawctl.run.rows import Policy
from scripts.benchmarks.circle import WORLD
from tests.eval.answering_server import announce, answering
from tests.eval.sums import SUMS
from tests.extension import needs
from tests.stub_http import StubHandler, StubServer, running

CODE = """
import asyncio
from clawctl.environments import Outcome, Task
from clawctl.asking import ask

async def echo(endpoint, settings):
    asked = [ask(endpoint, [{"role": "user", "content": f"say {n}"}]) for n in range(settings.problems)]
    replies = await asyncio.gather(*asked)
    return {"heard": [reply == f"say {n}" for n, reply in enumerate(replies)], "length": [len(reply) for reply in replies]}

echo.metrics = ("heard", "length")

async def crash(endpoint, settings):
    raise RuntimeError("no data")

async def nothing_to_count(endpoint, settings):
    return {"share": [float("nan")]}

def not_async(endpoint, settings): ...

class Sums:
    def tasks(self, split, count, seed):
        return [Task(f"{'even' if n % 2 == 0 else 'odd'}-{split}-{n}", n, split) for n in range(count)]

    async def play(self, task, endpoint):
        reply = await ask(endpoint, [{"role": "user", "content": f"{task.spec} + 1"}])
        return Outcome(reward=1.0 if reply == str(task.spec + 1) else -1.0, parts={"digits": reply.isdigit()})

class Flaky(Sums):
    failures = 0

    def play(self, task, endpoint):  # in a thread; fails twice
        type(self).failures += 1
        return Outcome(status="failed") if self.failures <= 2 else Outcome(parts={"done": True})

class Broken(Sums):
    def play(self, task, endpoint):
        return 1.0
"""


def spec(folder: Path, name: str) -> str:
    path = folder / "mine.py"
    path.write_text(CODE)
    return f"{path}:{name}"


def measured(recipe: Recipe, url: str) -> Measured:
    (suite,) = load_suites(recipe.eval)
    return asyncio.run(suite.measure(Endpoint(url, "key", "crafts@1")))


def run_with(folder: Path, url: str, *versions: int) -> RunDir:
    run = open_run(folder / "run")
    ensure_base_policy(run, "crafts")
    for version in versions:
        publish_policy(
            run, Policy(version, version - 1, version, "combine", "full", "crafts", [], None, {}, 1.0), lambda folder: None
        )
    announce(run, url)
    return run


def record(run: RunDir, version: int) -> dict[str, Any]:
    content: dict[str, Any] = read_sealed((run.eval / f"{version}.json").read_bytes())
    return content


def follow_once(run: RunDir, recipe: Recipe) -> None:
    follow(run, recipe, threading.Event(), as_json=False, once=True)


def says_it(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


def test_a_function_of_the_users_own_is_a_suite_with_its_own_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = spec(tmp_path, "echo")
    settings = {"suites": [{"name": suite, "problems": 3, "temperature": 0.2}], "max_tokens": 7}
    with answering(says_it) as server:
        run = run_with(tmp_path, server.url, 1)
        evaluate(run, Recipe.model_validate({"eval": settings}), version=1, once=False, as_json=True)
    metrics = json.loads(capsys.readouterr().out)["suites"][suite]
    assert (metrics["heard"]["mean"], metrics["heard"]["n"]) == (1.0, 3)
    assert (metrics["length"]["mean"], metrics["length"]["n"]) == (5.0, 3)
    for call in server.asked:
        assert (call["headers"]["x-capture"], call["body"]["model"]) == ("off", "crafts@1")
        assert (call["body"]["temperature"], call["body"]["max_tokens"]) == (0.2, 7)


def test_an_environment_is_a_suite_on_its_held_out_tasks(tmp_path: Path) -> None:
    recipe = Recipe.model_validate({"eval": {"suites": [spec(tmp_path, "Sums")], "problems": 4}})
    with answering(lambda body: str(int(says_it(body).split()[0]) + 1) if says_it(body) != "3 + 1" else "five") as server:
        result = measured(recipe, server.url)
    assert {name: (value.mean, value.n) for name, value in result.metrics.items()} == {"reward": (0.5, 4), "digits": (0.75, 4)}
    assert result.parts["even"]["reward"].mean == 1.0
    assert result.parts["odd"]["reward"].mean == 0.0
    assert -1.0 <= result.metrics["reward"].low < 0.5 < result.metrics["reward"].high <= 1.0
    assert {example["task_id"] for example in result.examples} == {"even-eval-0", "odd-eval-1", "even-eval-2", "odd-eval-3"}


def test_an_episode_that_fails_is_played_again_and_counted_once(tmp_path: Path) -> None:
    recipe = Recipe.model_validate({"eval": {"suites": [spec(tmp_path, "Flaky")], "problems": 1}})
    assert measured(recipe, "http://127.0.0.1:9/v1").metrics["done"].n == 1


class Full(StubHandler):
    def do_POST(self) -> None:
        self.sent()
        self.answer({"error": {"message": "too long", "code": "context_length_exceeded"}}, 400)


@pytest.mark.parametrize("name", [SUMS, WORLD])
def test_an_episode_that_fills_the_context_is_measured_as_the_worst_and_is_no_trouble_of_the_suite(name: str) -> None:
    (suite,) = load_suites(EvalConfig.model_validate({"suites": [name], "problems": 2}))
    with running(StubServer(Full)) as server:
        result = asyncio.run(suite.measure(Endpoint(f"{server.url}/v1", "key", "crafts@1")))
    assert suite.metrics is not None
    assert {metric: (value.mean, value.n) for metric, value in result.metrics.items()} == dict.fromkeys(suite.metrics, (0.0, 2))


def test_a_key_that_is_not_known_here_is_named_with_the_variable_that_sets_it(tmp_path: Path) -> None:
    run = run_with(tmp_path, "http://127.0.0.1:9", 1)
    run.api_key.unlink()
    with pytest.raises(ClawError, match="is not known here") as caught:
        Follower(run, Recipe(), threading.Event(), as_json=False).catch_up(once=True)
    assert "CLAWCTL_API_KEY" in caught.value.fix


@pytest.mark.parametrize(
    ("name", "problem"),
    [("crash", "RuntimeError"), ("nothing_to_count", "reports no number for share"), ("Broken", "play returned float")],
)
def test_a_failing_suite_keeps_the_version_out_and_is_reported_with_its_error(tmp_path: Path, name: str, problem: str) -> None:
    suite = spec(tmp_path, name)
    rows = [{"suite": suite, "metric": "share", "max_drop": 0.1}]
    recipe = Recipe.model_validate({"eval": {"suites": [suite], "problems": 1}, "gate": rows})
    with answering(says_it) as server:
        with pytest.raises(CannotMeasure, match=problem):
            measured(recipe, server.url)
        run = run_with(tmp_path, server.url, 1)
        follower = Follower(run, recipe, threading.Event(), as_json=False)
        for _ in range(4):  # the live version, then the candidate
            with pytest.raises(ClawError, match="cannot measure"):
                follower.catch_up(once=True)
        follower.catch_up(once=True)
    assert live_version(run) == 0
    assert record(run, 1)["decision"]["promote"] is False
    assert problem in record(run, 1)["decision"]["reason"]


def test_the_gate_compares_the_metrics_that_its_rows_name(tmp_path: Path) -> None:
    echo, sums = spec(tmp_path, "echo"), spec(tmp_path, "Sums")
    rows = [{"suite": echo, "metric": "heard", "max_drop": 0.2}, {"suite": sums, "metric": "digits", "max_drop": 0.5}]
    recipe = Recipe.model_validate({"eval": {"suites": [echo, sums], "problems": 4}, "gate": rows})

    def answer(body: dict[str, Any]) -> str:
        said, version = says_it(body), body["model"].partition("@")[2]
        return said if said.startswith("say") and version in ("0", "2") else "5"

    with answering(answer) as server:
        run = run_with(tmp_path, server.url, 1)
        follow_once(run, recipe)
        assert live_version(run) == 0
        assert record(run, 1)["decision"]["reason"] == f"{echo} heard fell from 1.00 to 0.00, more than the 0.20 allowed"
        policy = Policy(2, 0, 2, "combine", "full", "crafts", [], None, {}, 1.0)
        publish_policy(run, policy, lambda folder: None)
        follow_once(run, recipe)
    assert live_version(run) == 2
    assert record(run, 2)["decision"]["reason"] == f"{echo} heard 1.00 -> 1.00, {sums} digits 1.00 -> 1.00"


def test_a_metric_that_the_suite_does_not_report_is_an_error_at_the_start_or_the_reason_for_a_refusal(tmp_path: Path) -> None:
    for name, known_before in (("echo", True), ("Sums", False)):
        suite = spec(tmp_path, name)
        rows = [{"suite": suite, "metric": "speed", "max_drop": 0.1}]
        recipe = Recipe.model_validate({"eval": {"suites": [suite], "problems": 2}, "gate": rows})
        with answering(says_it) as server:
            run = run_with(tmp_path / name, server.url, 1)
            if known_before:
                with pytest.raises(ClawError, match="names the metric speed") as refused:
                    follow_once(run, recipe)
                assert (refused.value.exit_code, refused.value.fix) == (2, "use one of heard, length")
                continue
            follow_once(run, recipe)
            assert "does not report speed" in record(run, 1)["decision"]["reason"]
            assert "it reports digits, reward: correct the gate" in record(run, 1)["decision"]["reason"]
        assert live_version(run) == 0


def test_a_gate_on_a_suite_that_is_not_run_is_refused_when_the_recipe_is_read(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({"gate": [{"suite": "tools", "metric": "valid", "max_drop": 0.1}]}))
    with pytest.raises(ClawError, match=r"names the suite tools, but eval\.suites runs own") as refused:
        load_recipe(path)
    assert (refused.value.exit_code, "add tools to eval.suites" in refused.value.fix) == (2, True)


@pytest.mark.parametrize(
    ("suite", "problem"),
    [
        ("unheard-of", "there is no suite 'unheard-of'"),
        ("{code}:not_async", "is not a suite"),
        ("{code}:missing", "has no 'missing'"),
    ],
)
def test_a_suite_that_does_not_exist_or_cannot_be_called_is_refused_at_the_start(tmp_path: Path, suite: str, problem: str) -> None:
    code = spec(tmp_path, "x").rpartition(":")[0]
    recipe = Recipe.model_validate({"eval": {"suites": [suite.replace("{code}", code)]}})
    with pytest.raises(ClawError, match=problem) as refused:
        follow_once(run_with(tmp_path, "http://127.0.0.1:9/v1", 1), recipe)
    assert refused.value.exit_code == 2
    if suite == "unheard-of":
        assert "own" in refused.value.fix


def test_a_recipe_with_suites_and_rows_survives_being_written_and_read(tmp_path: Path) -> None:
    data: dict[str, Any] = {
        "eval": {"suites": ["own", {"name": "a.py:b", "problems": 3, "options": {"hard": True}}]},
        "gate": [{"suite": "a.py:b", "metric": "m", "max_drop": 2.5}],
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(data))
    recipe = load_recipe(path)
    written = yaml.safe_load(dump_recipe(recipe))
    assert (written["eval"]["suites"], written["gate"]) == (data["eval"]["suites"], data["gate"])
    path.write_text(dump_recipe(recipe))
    assert load_recipe(path) == recipe
    for gate, metric in (({}, "preferred"), ({"when": "after"}, "accepted")):
        short = Recipe.model_validate({"gate": gate})
        assert Recipe.model_validate(yaml.safe_load(dump_recipe(short))) == short
        assert [(row.suite, row.metric, row.max_drop) for row in short.gate.rows] == [("own", metric, 0.1), ("own", "guards", 0.1)]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("data", "key", "problem"),
    [
        ({"gate": []}, "gate", "a gate without rows refuses nothing"),
        ({"gate": [{"suite": "own", "metric": "m"}]}, r"gate\.limits\.0\.max_drop", "field required"),
        ({"eval": {"suites": ["a", {"name": "a"}]}}, r"eval\.suites", "the suite a is named twice"),
        ({"eval": {"suites": [{"name": "a", "problem": 3}]}}, r"eval\.suites\.0\.problem", ""),
    ],
)  # fmt: skip
def test_contradictory_gates_and_suites_are_refused_with_their_key(
    tmp_path: Path, data: dict[str, Any], key: str, problem: str
) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(ClawError, match=f"{key}.*{problem}"):
        load_recipe(path)


@needs("worlds")
def test_a_record_of_an_older_clawctl_is_read_and_compared(tmp_path: Path) -> None:
    """Its settings and its numbers, as version 0.1 wrote them, need no new measurement."""
    recipe = Recipe.model_validate(
        {"eval": {"suites": ["toolcall"]}, "gate": [{"suite": "toolcall", "metric": "reward", "max_drop": 0.1}]}
    )
    perfect = {"mean": 1.0, "ci95": [0.9, 1.0], "n": 36}
    numbers = {"reward": perfect, "by_role": {"shop": {"reward": perfect}}}
    old = {
        "settings": {"suites": ["toolcall"], "problems": 36, "seed": 0, "temperature": 1.0},
        "suites": {"toolcall": numbers}, "examples": [], "seconds": 1.0, "at": 1.0,
        "decision": {"promote": None, "reason": "measured without a decision", "against": None},
    }  # fmt: skip
    with answering(lambda body: 500) as server:
        run = run_with(tmp_path, server.url, 1)
        for version in (0, 1):
            write_record(run, {"version": version, **old})
        follow_once(run, recipe)
        assert server.asked == []
    assert live_version(run) == 1
    assert record(run, 1)["decision"]["promote"] is True


def test_the_gate_decides_for_each_policy_by_its_own_versions(tmp_path: Path) -> None:
    """Anna's candidate answers like her live version; the shared one does not."""
    suite = spec(tmp_path, "echo")
    settings = {"eval": {"suites": [suite], "problems": 2}, "gate": [{"suite": suite, "metric": "heard", "max_drop": 0.1}]}
    recipe = Recipe.model_validate({**settings, "policies": {"per": "key"}, "train": {"lora": {"rank": 2}}})
    with answering(lambda body: "no" if body["model"] == "crafts@1" else says_it(body)) as server:
        run = run_with(tmp_path, server.url, 1)
        anna = run.of(begin_policy(run, "anna"))
        publish_policy(anna, Policy(1, 0, 1, "combine", "full", "crafts", [], None, {}, 1.0), lambda folder: None)
        follow_once(run, recipe)
        models = {request["body"]["model"] for request in server.asked}
    assert models == {"crafts@0", "crafts@1", "crafts@anna@0", "crafts@anna@1"}
    assert (live_version(run), live_version(anna)) == (0, 1)
    assert (record(run, 1)["decision"]["promote"], record(anna, 1)["decision"]["promote"]) == (False, True)
