"""`clawctl eval --tasks … --against M`: which suites it runs, and what it counts."""

import json
import signal
import time
from pathlib import Path

import pytest

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.eval.comparisons import Comparison
from clawctl.eval.pairs import choose_suites, evaluate_chosen, summary
from clawctl.run.directory import open_run
from clawctl.run.policies import ensure_base_policy, publish_policy
from clawctl.run.rows import Policy
from tests import forked
from tests.eval.answering_server import announce, answering

SUITE = """
from clawctl.errors import ClawError
from clawctl.eval.comparisons import Comparison

class Shorter:
    async def compare(self, candidate, reference, settings, begin, count):
        return [Comparison("shorter", f"t{n}", 1.0, n % 2) for n in range(begin, min(begin + count, 4))]
"""


ENDLESS = """
import asyncio, os, signal

class Endless:
    async def compare(self, candidate, reference, settings, begin, count):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)
"""


def suites(recipe: Recipe) -> list[object]:
    return [suite.short() for suite in recipe.eval.suites]


def test_tasks_are_names_of_suites_and_aliases_of_one_suite_are_joined() -> None:
    recipe = Recipe.model_validate({"eval": {"suites": [{"name": "replay", "problems": 7}]}})
    assert suites(choose_suites(recipe, None, [])) == [{"name": "replay", "problems": 7}]
    chosen = choose_suites(recipe, "conversation, coding,tool-use,replay", ["mine.py:suite"])
    ability = {"name": "ability", "options": {"categories": ["code", "tools"]}}
    assert suites(chosen) == ["own", ability, {"name": "replay", "problems": 7}, "mine.py:suite"]


def test_wins_losses_and_ties_are_counted_for_each_metric() -> None:
    comparisons = [Comparison("a", str(n), candidate, 0.5) for n, candidate in enumerate((1.0, 1.0, 0.0, 0.5))]
    report = summary([*comparisons, Comparison("b", "0", 0.2, 0.2)])
    assert {name: report["a"][name] for name in ("n", "wins", "losses", "ties", "mean", "mean_against")} == {
        "n": 4, "wins": 2, "losses": 1, "ties": 1, "mean": 0.625, "mean_against": 0.5,
    }  # fmt: skip
    assert report["b"]["won"] is None


def test_the_command_compares_two_versions_and_writes_no_record(tmp_path: Path) -> None:
    run, suite = open_run(tmp_path / "run"), tmp_path / "shorter.py"
    suite.write_text(SUITE)
    ensure_base_policy(run, "crafts")
    command = ["eval", "--run", run.root, "--suite", f"{suite}:Shorter", "--json"]
    (tmp_path / "recipe.yaml").write_text("model: {path: crafts}\n")
    command += ["--recipe", tmp_path / "recipe.yaml"]
    with answering(lambda body: "ok") as server:
        announce(run, server.url)
        done = forked.run(*command, "--version", "0", "--against", "0")
        assert (done.returncode, "cannot be compared with itself" in done.stderr) == (2, True)
        policy = Policy(1, 0, 1, "binary", "full", "crafts", [], None, {}, 0.0)
        publish_policy(run, policy, lambda folder: None)
        done = forked.run(*command, "--against", "0")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["version"], report["suites"][f"{suite}:Shorter"]["shorter"]["wins"]) == (1, 2)
    assert list(run.eval.glob("*.json")) == []


def test_a_signal_stops_a_comparison(tmp_path: Path) -> None:
    run, suite = open_run(tmp_path / "run"), tmp_path / "endless.py"
    suite.write_text(ENDLESS)
    ensure_base_policy(run, "crafts")
    publish_policy(run, Policy(1, 0, 1, "binary", "full", "crafts", [], None, {}, 0.0), lambda folder: None)
    announce(run, "http://127.0.0.1:9/v1")
    recipe = Recipe.model_validate({"model": {"path": "crafts"}, "eval": {"suites": [f"{suite}:Endless"]}})
    handlers, began = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}, time.monotonic()
    try:
        with pytest.raises(ClawError, match="stopped before everything was measured"):
            evaluate_chosen(run, recipe, None, 0, as_json=True)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert time.monotonic() - began < 30
