"""The gate requests comparisons until the evidence suffices or the budget is spent, and resumes after a kill."""

import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from clawctl.config import Recipe
from clawctl.eval.measuring import Stopped
from clawctl.eval.worker import Follower
from clawctl.inspect.policies import describe_policies
from clawctl.run.checksums import read_sealed
from clawctl.run.directory import RunDir, open_run
from clawctl.run.lineage import read_lineage
from clawctl.run.policies import ensure_base_policy, live_version, move_live, publish_policy, read_moves
from clawctl.run.rows import Policy
from tests.eval.answering_server import announce, answering

CODE = """
import asyncio
from clawctl.environments import Outcome, Task
from clawctl.asking import ask, new_client
from clawctl.eval.comparisons import Comparison

class Judged:
    metrics = ("preferred", "guards")

    async def compare(self, candidate, reference, settings, begin, count):
        tasks = range(begin, min(begin + count, int(settings.options.get("tasks", 10_000))))
        async with new_client(candidate) as client:
            both = [(n, version) for n in tasks for version in (candidate, reference)]
            asked = [ask(version, [{"role": "user", "content": f"task {n}"}], client=client) for n, version in both]
            replies = [float(reply) for reply in await asyncio.gather(*asked)]
        return [Comparison("preferred", str(n), *replies[2 * at : 2 * at + 2]) for at, n in enumerate(tasks)]

class Sums:
    metrics = ("right",)

    def tasks(self, split, count, seed):
        return [Task(f"sum-{n}", n, split) for n in range(count)]

    async def play(self, task, endpoint):
        return Outcome(parts={"right": float(await ask(endpoint, [{"role": "user", "content": f"task {task.spec}"}]))})
"""


def recipe_for(
    folder: Path, suite: str = "Judged", budget: dict[str, Any] | None = None, options: Any = None, **gate: Any
) -> Recipe:
    path = folder / "mine.py"
    path.write_text(CODE)
    name = f"{path}:{suite}"
    row = {"suite": name, "metric": "preferred" if suite == "Judged" else "right", "max_drop": 0.1}
    suites = [{"name": name, "problems": 12, "options": options or {}}]
    budget = {"comparisons": 480} if budget is None else budget
    return Recipe.model_validate({"eval": {"suites": suites, "budget": budget}, "gate": {"limits": [row], **gate}})


def run_with(folder: Path, url: str, *versions: int) -> RunDir:
    run = open_run(folder / "run")
    ensure_base_policy(run, "crafts")
    for version in versions:
        publish(run, version)
    announce(run, url)
    return run


def publish(run: RunDir, version: int, parent: int | None = None) -> None:
    parent = version - 1 if parent is None else parent
    publish_policy(run, Policy(version, parent, version, "combine", "full", "crafts", [], None, {}, 1.0), lambda folder: None)


def record(run: RunDir, version: int) -> dict[str, Any]:
    content: dict[str, Any] = read_sealed(run.eval_record(version).read_bytes())
    return content


def scored(of: dict[int, Callable[[int], float]]) -> Callable[[dict[str, Any]], str]:
    """The answer of each version to task n."""

    def answer(body: dict[str, Any]) -> str:
        version, number = int(body["model"].partition("@")[2]), int(body["messages"][-1]["content"].split()[1])
        return str(of[version](number))

    return answer


def follow_once(run: RunDir, recipe: Recipe, stop: threading.Event | None = None) -> None:
    Follower(run, recipe, stop or threading.Event(), as_json=False).catch_up(once=True)


def half(number: int) -> float:
    return number % 2


def mostly(number: int) -> float:
    return 0.0 if number % 10 == 0 else 1.0


def test_a_clear_candidate_needs_one_round_and_the_record_has_the_evidence_and_the_cost(tmp_path: Path) -> None:
    recipe = recipe_for(tmp_path)
    with answering(scored({0: half, 1: mostly})) as server:
        run = run_with(tmp_path, server.url, 1)
        follow_once(run, recipe)
    assert live_version(run) == 1
    measured = record(run, 1)
    (evidence,) = measured["evidence"]
    assert (evidence["what"], evidence["version"], evidence["verdict"]) == ("the live version", 0, "better")
    assert evidence["wins"] + evidence["losses"] + evidence["ties"] == 48
    assert evidence["e_better"] > 20
    assert evidence["interval"][0] > 0
    assert measured["spent"]["calls"] == 96
    assert measured["spent"]["seconds"] > 0
    described = describe_policies(run, [])[1]
    (tally,) = described["comparisons"]
    assert (tally["wins"] + tally["ties"] + tally["losses"], described["spent"]["calls"]) == (48, 96)
    assert "is better: 19 won, 0 lost, 29 tied against the live version (version 0)" in measured["decision"]["reason"]


def test_more_comparisons_are_made_until_an_unchanged_candidate_is_proven_no_worse(tmp_path: Path) -> None:
    recipe = recipe_for(tmp_path)
    with answering(scored({0: half, 1: half})) as server:
        run = run_with(tmp_path, server.url, 1)
        follow_once(run, recipe)
    (evidence,) = record(run, 1)["evidence"]
    assert (live_version(run), evidence["verdict"], evidence["ties"]) == (1, "not worse", 96)
    assert record(run, 1)["decision"]["reason"].startswith(f"{recipe.eval.suites[0].name} preferred is not worse: 0 won, 0 lost")


def test_a_worse_candidate_is_refused_by_the_evidence(tmp_path: Path) -> None:
    with answering(scored({0: mostly, 1: half})) as server:
        run = run_with(tmp_path, server.url, 1)
        follow_once(run, recipe_for(tmp_path))
    assert live_version(run) == 0
    assert record(run, 1)["decision"]["promote"] is False
    assert "is worse: 0 won, 19 lost" in record(run, 1)["decision"]["reason"]


def alternating(number: int) -> float:
    """Lower than `half` by 0.07 on average, and otherwise as often above as below."""
    return half(number + 1) if number % 7 else 0.0


@pytest.mark.parametrize(("undecided", "live"), [("keep", 0), ("promote", 1), ("estimate", 1)])
def test_when_the_budget_is_spent_the_recipe_decides(tmp_path: Path, undecided: str, live: int) -> None:
    recipe = recipe_for(tmp_path, budget={"comparisons": 90}, undecided=undecided)
    with answering(scored({0: half, 1: alternating})) as server:
        run = run_with(tmp_path, server.url, 1)
        follow_once(run, recipe)
    assert live_version(run) == live
    assert record(run, 1)["evidence"][0]["verdict"] == "open"
    assert record(run, 1)["spent"]["calls"] == 192, "two rounds of 48 comparisons reach 90"
    if undecided == "keep":
        assert "budget of 90 comparisons, so the live version stays" in record(run, 1)["decision"]["reason"]


@pytest.mark.parametrize("budget", [{"comparisons": 480, "calls": 90}, {"comparisons": 480, "seconds": 1e-6}])
def test_calls_and_seconds_end_the_comparisons_too(tmp_path: Path, budget: dict[str, Any]) -> None:
    with answering(scored({0: half, 1: alternating})) as server:
        run = run_with(tmp_path, server.url, 1)
        follow_once(run, recipe_for(tmp_path, budget=budget))
    assert record(run, 1)["spent"]["calls"] <= 96
    assert "not enough evidence within the budget of" in record(run, 1)["decision"]["reason"]


def test_a_suite_without_further_tasks_goes_by_the_mean(tmp_path: Path) -> None:
    recipe = recipe_for(tmp_path, options={"tasks": 4})
    with answering(scored({0: half, 1: half, 2: lambda number: 0.0})) as server:
        run = run_with(tmp_path, server.url, 1)
        follow_once(run, recipe)
        assert live_version(run) == 1
        publish(run, 2)
        follow_once(run, recipe)
    assert record(run, 1)["spent"]["calls"] == 8
    assert live_version(run) == 1
    assert "is lower by 0.50 on average, more than the 0.10 allowed: 0 won, 2 lost, 2 tied" in record(run, 2)["decision"]["reason"]


def test_a_row_whose_metric_is_not_compared_keeps_the_candidate_out_and_names_the_metrics(tmp_path: Path) -> None:
    recipe = recipe_for(tmp_path, options={"tasks": 4})
    assert recipe.gate is not None
    limits = [row.model_copy(update={"metric": "prefered"}) for row in recipe.gate.limits]
    wrong = recipe.model_copy(update={"gate": recipe.gate.model_copy(update={"limits": limits})})
    with answering(scored({0: half, 1: half})) as server:
        run = run_with(tmp_path, server.url, 1)
        follow_once(run, wrong)
    assert live_version(run) == 0
    assert "does not compare prefered; it compares preferred: correct the gate" in record(run, 1)["decision"]["reason"]


@pytest.mark.parametrize(("tasks", "calls"), [(4, 8), (10_000, 192)])
def test_a_declared_metric_that_no_task_has_keeps_nothing_out_within_the_budget(tmp_path: Path, tasks: int, calls: int) -> None:
    recipe = recipe_for(tmp_path, options={"tasks": tasks}, budget={"comparisons": 96})
    assert recipe.gate is not None
    limits = [row.model_copy(update={"metric": "guards"}) for row in recipe.gate.limits]
    sparse = recipe.model_copy(update={"gate": recipe.gate.model_copy(update={"limits": limits})})
    with answering(scored({0: half, 1: half})) as server:
        run = run_with(tmp_path, server.url, 1)
        follow_once(run, sparse)
    assert live_version(run) == 1
    assert record(run, 1)["spent"]["calls"] == calls  # two versions answer each task, in rounds of 48


def test_an_environment_plays_further_tasks_for_all_versions_and_each_only_once(tmp_path: Path) -> None:
    recipe = recipe_for(tmp_path, "Sums")
    with answering(scored({0: half, 1: half, 2: half})) as server:
        run = run_with(tmp_path, server.url, 1)
        follow_once(run, recipe)
        assert live_version(run) == 1
        publish(run, 2)
        follow_once(run, recipe)
    requests = [(call["body"]["model"], call["body"]["messages"][0]["content"]) for call in server.asked]
    assert live_version(run) == 2
    assert len(requests) == len(set(requests))
    assert record(run, 1)["evidence"][0]["ties"] == 60
    assert record(run, 1)["suites"][recipe.eval.suites[0].name]["right"]["n"] == 60
    assert [row["what"] for row in record(run, 2)["evidence"]] == ["the live version", "the base"]


def test_a_killed_gate_resumes_where_it_stopped(tmp_path: Path) -> None:
    recipe, stop = recipe_for(tmp_path), threading.Event()
    answer = scored({0: half, 1: half})
    seen: list[dict[str, Any]] = []

    def until_killed(body: dict[str, Any]) -> str:
        seen.append(body)
        if len(seen) == 120:
            stop.set()
        return answer(body)

    with answering(until_killed) as server:
        run = run_with(tmp_path, server.url, 1)
        with pytest.raises(Stopped):
            Follower(run, recipe, stop, as_json=False).step()
        assert record(run, 1)["decision"]["promote"] is None
        first = {body["messages"][-1]["content"] for body in seen[:96]}
        del seen[:]
        follow_once(run, recipe)
    assert live_version(run) == 1
    assert not first & {body["messages"][-1]["content"] for body in seen}, "the first round is on disk"
    assert record(run, 1)["evidence"][0]["ties"] == 96


def test_many_small_steps_down_are_stopped_by_the_base(tmp_path: Path) -> None:
    """Each version loses four more tasks in a hundred than the one before: no step alone is worse by the margin."""
    recipe = recipe_for(tmp_path, budget={"comparisons": 96}, undecided="estimate")
    losing = {v: (lambda n, v=v: 0.0 if (n * 37) % 100 < 4 * v else 1.0) for v in range(4)}
    with answering(scored(losing)) as server:
        run = run_with(tmp_path, server.url)
        for version in range(1, 4):
            publish(run, version, parent=live_version(run))
            follow_once(run, recipe)
    assert live_version(run) == 2
    assert "0 won, 12 lost, 84 tied against the base (version 0)" in record(run, 3)["decision"]["reason"]


# ---- versions that are live when they are measured -----------------------------------------------------------------------------


def after(folder: Path, **gate: Any) -> Recipe:
    recipe = recipe_for(folder, "Sums", when="after", **gate)
    data = recipe.model_dump()
    data["eval"]["suites"] = [{"name": recipe.eval.suites[0].name, "problems": 200}]
    return Recipe.model_validate(data)


def go_live(run: RunDir, recipe: Recipe, *versions: int) -> None:
    """Let each version go live as the trainer does, and eval look at it."""
    for version in versions:
        publish(run, version)
        move_live(run, version, by="train")
        follow_once(run, recipe)


def test_a_live_version_that_is_worse_is_rolled_back_and_only_live_versions_are_asked(tmp_path: Path) -> None:
    recipe, versions = after(tmp_path), list[int]()
    answers = scored({0: half, 1: mostly, 2: half})

    def answer(body: dict[str, Any]) -> str:
        versions.append(int(body["model"].partition("@")[2]))
        return answers(body)

    with answering(answer) as server:
        run = run_with(tmp_path, server.url)
        follow_once(run, recipe)
        go_live(run, recipe, 1, 2)
        follow_once(run, recipe)
    assert versions == [0] * 200 + [1] * 200 + [2] * 200
    assert live_version(run) == 1
    assert record(run, 1)["decision"]["promote"] is True
    decision = record(run, 2)["decision"]
    assert (decision["promote"], decision["against"]) == (False, 1)
    assert "right is worse: 0 won, 80 lost, 120 tied against the version before (version 1)" in decision["reason"]
    assert read_moves(run)[-1]["by"] == f"eval, because {decision['reason']}"
    assert set(read_lineage(run).dead()) == {2}


def by_chance(shares: dict[int, float]) -> dict[int, Callable[[int], float]]:
    """Versions that solve these shares of the tasks, each its own ones."""
    return {version: (lambda n, v=version, p=p: float(Random(f"{v} {n}").random() < p)) for version, p in shares.items()}


@pytest.mark.parametrize(
    ("shares", "anchor"),
    [
        ({0: 0.95, 1: 0.91, 2: 0.87, 3: 0.83, 4: 0.79, 5: 0.75}, "the base (version 0)"),
        ({0: 0.5, 1: 0.95, 2: 0.88, 3: 0.81, 4: 0.74, 5: 0.67, 6: 0.6}, "the best so far (version 1)"),
    ],
)
def test_small_steps_down_of_live_versions_are_stopped_by_an_anchor(tmp_path: Path, shares: dict[int, float], anchor: str) -> None:
    recipe = after(tmp_path)
    with answering(scored(by_chance(shares))) as server:
        run = run_with(tmp_path, server.url)
        follow_once(run, recipe)
        for version in range(1, len(shares)):
            go_live(run, recipe, version)
            if live_version(run) != version:
                break
    refused = record(run, version)["decision"]
    assert refused["promote"] is False
    assert f"against {anchor}" in refused["reason"]
    assert version > 2, "one step alone is too small to be found"
    assert live_version(run) == version - 1


def test_a_bad_version_that_was_replaced_while_it_was_measured_is_no_measure_for_the_next(tmp_path: Path) -> None:
    recipe, run, answers = after(tmp_path), open_run(tmp_path / "run"), scored({0: half, 1: mostly, 2: half, 3: half})

    def answer(body: dict[str, Any]) -> str:
        if body["model"].endswith("@2") and live_version(run) == 2:
            publish(run, 3)
            move_live(run, 3, by="train")
        return answers(body)

    with answering(answer) as server:
        run_with(tmp_path, server.url)
        follow_once(run, recipe)
        go_live(run, recipe, 1, 2)
    assert record(run, 2)["decision"]["promote"] is None
    assert "against the version before (version 1)" in record(run, 3)["decision"]["reason"]
    assert live_version(run) == 1


def test_the_first_version_that_is_measured_is_what_later_ones_are_compared_with(tmp_path: Path) -> None:
    recipe = after(tmp_path)
    with answering(scored({1: mostly, 2: half})) as server:
        run = run_with(tmp_path, server.url)
        go_live(run, recipe, 1, 2)
    assert record(run, 1)["decision"]["reason"] == "no earlier version was measured"
    assert live_version(run) == 1


def test_without_evidence_a_live_version_stays_unless_the_means_decide(tmp_path: Path) -> None:
    for undecided, live in (("keep", 1), ("estimate", 0)):
        folder = tmp_path / undecided
        folder.mkdir()
        data = after(folder, undecided=undecided).model_dump()
        data["eval"]["suites"][0]["problems"] = 8
        recipe = Recipe.model_validate(data)
        with answering(scored({0: mostly, 1: half})) as server:
            run = run_with(folder, server.url)
            follow_once(run, recipe)
            go_live(run, recipe, 1)
        assert live_version(run) == live


def test_a_version_that_a_person_promoted_stays_live(tmp_path: Path) -> None:
    recipe = after(tmp_path)
    with answering(scored({0: mostly, 1: half})) as server:
        run = run_with(tmp_path, server.url, 1)
        follow_once(run, recipe)
        move_live(run, 1, by="promoted by ada on box")
        follow_once(run, recipe)
    assert live_version(run) == 1
    assert record(run, 1)["decision"]["promote"] is None


@pytest.mark.parametrize(
    ("gate", "named"),
    [
        ({"when": "after", "share": 0.1, "limits": [{"suite": "own", "metric": "guards", "max_drop": 0.1}]}, "share"),
        ({"when": "after", "limits": [{"suite": "own", "metric": "preferred", "max_drop": 0.1}]}, "own accepted"),
    ],
)
def test_what_a_gate_after_going_live_cannot_do_is_refused(gate: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        Recipe.model_validate({"eval": {"suites": ["own"]}, "gate": gate})
