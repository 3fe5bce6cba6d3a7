"""The eval stage against a real server with scripted versions."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clawctl.config import Recipe, dump_recipe
from clawctl.errors import ClawError
from clawctl.eval.results import write_record
from clawctl.eval.worker import Follower, evaluate, follow, measure_by_hand
from clawctl.run.capabilities import Measurement, episode_secret, read_capability
from clawctl.run.checksums import read_sealed
from clawctl.run.directory import RunDir, open_run
from clawctl.run.keys import OWN
from clawctl.run.lineage import read_lineage
from clawctl.run.policies import ensure_base_policy, live_version, move_live, publish_policy
from clawctl.run.rows import Policy
from tests.eval.answering_server import Answering, announce, answering
from tests.eval.sums import MARGINS, SUMS, Sum, bad, good, sums
from tests.waiting import exit_code_of, until

RECIPE = Recipe.model_validate({"eval": {"suites": [SUMS], "problems": 9, "temperature": 0.7}})
GATED = Recipe.model_validate({"eval": {"suites": [SUMS], "problems": 8}, "gate": MARGINS})


def tasks(recipe: Recipe) -> list[Sum]:
    """The held-out problems that each version is asked."""
    return sums("eval", recipe.eval.problems, recipe.eval.seed)


def run_with(folder: Path, *versions: int, url: str | None = None) -> RunDir:
    run = open_run(folder / "run")
    ensure_base_policy(run, "crafts")
    for version in versions:
        publish(run, version)
    if url is not None:
        announce(run, url)
    return run


def publish(run: RunDir, version: int, parent: int | None = None) -> None:
    parent = version - 1 if parent is None else parent
    publish_policy(run, Policy(version, parent, version, "combine", "full", "crafts", [], None, {}, 1.0), lambda folder: None)


def versions_that(behave: dict[int, Callable[[Sum], str | int]], recipe: Recipe = GATED) -> Callable[[dict[str, Any]], str | int]:
    drawn = tasks(recipe)

    def answer(body: dict[str, Any]) -> str | int:
        version = int(body["model"].partition("@")[2])
        question = body["messages"][-1]["content"]
        task = next(task for task in drawn if task.prompt in question)
        return behave[version](task) if version in behave else 404

    return answer


def record(run: RunDir, version: int) -> dict[str, Any]:
    content: dict[str, Any] = read_sealed((run.eval / f"{version}.json").read_bytes())
    return content


def follow_once(run: RunDir, recipe: Recipe = GATED) -> None:
    Follower(run, recipe, threading.Event(), as_json=False).catch_up(once=True)


def asked_of(server: Answering) -> list[int]:
    """The versions that were asked, in order, each once for as long as it was asked."""
    versions = [int(call["body"]["model"].partition("@")[2]) for call in server.asked]
    return [version for at, version in enumerate(versions) if at == 0 or versions[at - 1] != version]


def test_one_version_is_measured_and_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(versions_that({1: good}, RECIPE)) as server:
        run = run_with(tmp_path, 1, url=server.url)
        evaluate(run, RECIPE, version=1, once=False, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report == record(run, 1)
    numbers = report["suites"][SUMS]
    assert (numbers["satisfaction"]["mean"], numbers["correctness"]["mean"]) == (1.0, 1.0)
    assert (numbers["satisfaction"]["n"], numbers["by_role"]["student"]["correctness"]["n"]) == (9, 5)
    assert numbers["by_role"]["teacher"]["satisfaction"]["n"] == 4
    assert numbers["correctness"]["ci95"] == [pytest.approx(9 / (9 + 1.95996**2), abs=1e-5), pytest.approx(1.0)]
    assert report["decision"]["promote"] is None
    assert {(example["role"], example["satisfaction"], example["correct"]) for example in report["examples"]} == {
        ("student", 1.0, True),
        ("teacher", 1.0, True),
    }


def test_measuring_uses_the_held_out_tasks_at_addresses_of_one_version_without_capture(tmp_path: Path) -> None:
    with answering(versions_that({0: good}, RECIPE)) as server:
        run = run_with(tmp_path, url=server.url)
        measure_by_hand(run, RECIPE, 0, threading.Event())
    assert len(server.asked) == 9
    for call in server.asked:
        assert call["headers"]["x-capture"] == "off"
        opened = read_capability(episode_secret(run), call["headers"]["authorization"].removeprefix("Bearer "))
        assert opened is not None
        assert opened.key == OWN  # its places for versions are reserved: no client can hold up a measurement
        assert opened.measurement == Measurement("crafts@0", 0.7, RECIPE.eval.max_tokens)
        assert (call["body"]["model"], call["body"]["temperature"]) == ("crafts@0", 0.7)
        assert len(call["body"]["messages"]) == 1
    trained_on = {task.prompt for task in sums("train", 600, 0)}
    assert not trained_on & {task.prompt for task in tasks(RECIPE)}


def test_each_version_gets_the_same_tasks(tmp_path: Path) -> None:
    with answering(versions_that({0: good, 1: bad}, RECIPE)) as server:
        run = run_with(tmp_path, 1, url=server.url)
        follow_once(run, RECIPE)
    prompts: dict[str, set[str]] = {}
    for call in server.asked:
        prompts.setdefault(call["body"]["model"], set()).add(call["body"]["messages"][0]["content"])
    assert prompts["crafts@0"] == prompts["crafts@1"]
    assert record(run, 1)["suites"][SUMS]["correctness"]["mean"] == 0.0


def test_without_a_gate_everything_is_measured_newest_first_and_live_stays(tmp_path: Path) -> None:
    with answering(versions_that({0: bad, 1: good, 2: good})) as server:
        run = run_with(tmp_path, 1, 2, url=server.url)
        open_recipe = GATED.model_copy(update={"gate": None})
        follow_once(run, open_recipe)
        assert asked_of(server) == [2, 1, 0]
        follow_once(run, open_recipe)
        assert asked_of(server) == [2, 1, 0], "what was measured is not measured again"
    assert live_version(run) == 0
    assert record(run, 2)["decision"]["promote"] is None


def test_the_gate_lets_a_good_candidate_in(tmp_path: Path) -> None:
    with answering(versions_that({0: bad, 1: good})) as server:
        run = run_with(tmp_path, 1, url=server.url)
        follow_once(run)
        assert asked_of(server) == [0, 1], "the live version is measured on the same tasks, once"
        publish(run, 2)
    assert live_version(run) == 1
    decision = record(run, 1)["decision"]
    assert (decision["promote"], decision["against"]) == (True, 0)
    assert "correctness is better: 8 won, 0 lost, 0 tied against the live version (version 0)" in decision["reason"]


def test_the_gate_keeps_a_bad_candidate_out_for_good(tmp_path: Path) -> None:
    with answering(versions_that({0: good, 1: bad})) as server:
        run = run_with(tmp_path, 1, url=server.url)
        follow_once(run)
        follow_once(run)
        assert asked_of(server) == [0, 1]
    assert live_version(run) == 0
    assert record(run, 1)["decision"]["promote"] is False
    assert "correctness fell from 1.00 to 0.00" in record(run, 1)["decision"]["reason"]


def test_overtaken_candidates_are_skipped_with_that_reason(tmp_path: Path) -> None:
    with answering(versions_that({0: bad, 3: good})) as server:
        run = run_with(tmp_path, 1, 2, 3, url=server.url)
        follow_once(run)
        assert asked_of(server) == [0, 3]
    assert live_version(run) == 3
    for version in (1, 2):
        assert record(run, version)["suites"] == {}
        assert record(run, version)["decision"] == {
            "promote": False,
            "reason": "overtaken by 3 before it was measured",
            "against": 0,
        }


def some_right(drawn: list[Sum], right: int) -> Callable[[Sum], str]:
    """Answers the first so many of the tasks well."""
    return lambda task: good(task) if drawn.index(task) < right else bad(task)


def test_many_small_drops_do_not_pass_where_one_large_one_would_not(tmp_path: Path) -> None:
    recipe = GATED.model_copy(update={"eval": GATED.eval.model_copy(update={"problems": 20})})
    drawn = tasks(recipe)
    behave = {version: some_right(drawn, 19 - version) for version in range(8)}  # correctness 0.95, 0.90, 0.85, …
    with answering(versions_that(behave, recipe)) as server:
        run = run_with(tmp_path, url=server.url)
        for version in range(1, 6):
            publish(run, version, parent=live_version(run))
            follow_once(run, recipe)
    assert live_version(run) == 2
    assert [record(run, version)["decision"]["promote"] for version in range(1, 6)] == [True, True, False, False, False]
    reason = record(run, 3)["decision"]["reason"]
    assert "correctness is 0.80, more than 0.10 below the 0.95 of the base (version 0)" in reason
    assert {"what": "the base", "version": 0, "suite": SUMS, "metric": "correctness", "value": 0.95} in record(run, 3)["compared"]


def test_the_best_so_far_is_an_anchor_too_and_is_measured_again_once(tmp_path: Path) -> None:
    recipe = GATED.model_copy(update={"eval": GATED.eval.model_copy(update={"problems": 20})})
    drawn = tasks(recipe)
    right = {0: 10, 1: 20, 2: 19, 3: 18, 4: 17, 5: 17}
    with answering(versions_that({v: some_right(drawn, n) for v, n in right.items()}, recipe)) as server:
        run = run_with(tmp_path, url=server.url)
        for version in range(1, 6):
            publish(run, version, parent=live_version(run))
            follow_once(run, recipe)
        times = [sum(call["body"]["model"] == f"crafts@{v}" for call in server.asked) // 20 for v in right]
    assert live_version(run) == 3
    assert "0.15" not in record(run, 4)["decision"]["reason"]
    assert "below the 1.00 of the best so far (version 1)" in record(run, 4)["decision"]["reason"]
    assert record(run, 1)["again"]["suites"][SUMS]["correctness"]["mean"] == 1.0
    assert times == [1, 2, 1, 1, 1, 1]


def test_a_lucky_best_version_keeps_no_candidate_out(tmp_path: Path) -> None:
    recipe = GATED.model_copy(update={"eval": GATED.eval.model_copy(update={"problems": 20})})
    drawn = tasks(recipe)
    lucky = {1: 20, 0: 16, 2: 18, 3: 16}
    with answering(versions_that({v: (lambda task, v=v: some_right(drawn, lucky[v])(task)) for v in lucky}, recipe)) as server:
        run = run_with(tmp_path, url=server.url)
        for version in (1, 2, 3):
            publish(run, version, parent=live_version(run))
            if version == 3:
                lucky[1] = 16  # measured again it is as good as the others
            follow_once(run, recipe)
    assert live_version(run) == 3


def test_versions_built_on_a_refused_one_are_neither_measured_nor_promoted(tmp_path: Path) -> None:
    with answering(versions_that({0: good, 1: bad, 2: good, 3: good, 4: good})) as server:
        run = run_with(tmp_path, 1, url=server.url)
        follow_once(run)
        publish(run, 2)  # the trainer ran ahead
        publish(run, 3)
        follow_once(run)
        assert asked_of(server) == [0, 1]
        publish(run, 4, parent=0)
        follow_once(run)
        assert asked_of(server) == [0, 1, 4]
        follow_once(run, GATED.model_copy(update={"gate": None}))
        assert asked_of(server) == [0, 1, 4], "not without a gate either"
    assert live_version(run) == 4
    for version in (2, 3):
        assert record(run, version)["decision"] == {
            "promote": False, "reason": f"built on version {version - 1}, which did not go live", "against": 0,
        }  # fmt: skip


def test_a_version_measured_by_hand_is_still_decided_by_the_gate_and_not_measured_twice(tmp_path: Path) -> None:
    with answering(versions_that({0: bad, 1: good})) as server:
        run = run_with(tmp_path, 1, url=server.url)
        measure_by_hand(run, GATED, 1, threading.Event())
        follow_once(run)
        assert asked_of(server) == [1, 0]
        assert (live_version(run), record(run, 1)["decision"]["promote"]) == (1, True)
        measure_by_hand(run, GATED, 1, threading.Event())
    assert record(run, 1)["decision"]["promote"] is True, "what was decided stays decided"


def test_numbers_of_other_tasks_are_not_compared(tmp_path: Path) -> None:
    more = GATED.model_copy(update={"eval": GATED.eval.model_copy(update={"problems": 10})})
    with answering(versions_that({0: good, 1: good}, more)) as server:
        run = run_with(tmp_path, url=server.url)
        follow_once(run, GATED)
        publish(run, 1)
        follow_once(run, more)
        assert asked_of(server) == [0, 1] or asked_of(server) == [0, 0, 1]
        assert sum(call["body"]["model"] == "crafts@0" for call in server.asked) == 18
    assert record(run, 1)["decision"]["against"] == 0


def test_a_rollback_by_hand_is_not_undone(tmp_path: Path) -> None:
    with answering(versions_that({0: bad, 1: good})) as server:
        run = run_with(tmp_path, 1, url=server.url)
        follow_once(run)
        move_live(run, 0)
        follow_once(run)
    assert live_version(run) == 0


def test_a_version_that_the_server_cannot_serve_stays_out(tmp_path: Path) -> None:
    with answering(versions_that({0: good, 1: lambda task: 404})) as server:
        run = run_with(tmp_path, 1, url=server.url)
        follower = Follower(run, GATED, threading.Event(), as_json=False)
        for _ in range(2):
            with pytest.raises(ClawError, match="status 404"):
                follower.catch_up(once=True)
        follower.catch_up(once=True)
    assert live_version(run) == 0
    assert record(run, 1)["decision"]["promote"] is False
    assert "status 404" in record(run, 1)["decision"]["reason"]


def test_a_refused_key_is_an_error_of_the_setup_not_of_the_policy(tmp_path: Path) -> None:
    with answering(lambda body: 401) as server:
        run = run_with(tmp_path, 1, url=server.url)
        with pytest.raises(ClawError, match="status 401") as error:
            follow_once(run)
    assert "key" in error.value.fix
    assert list(run.eval.iterdir()) == []


def test_a_missing_server_is_an_error_for_one_version_and_patience_for_a_follower(tmp_path: Path) -> None:
    run = run_with(tmp_path, 1)
    with pytest.raises(ClawError, match="no server has registered") as error:
        measure_by_hand(run, GATED, 1, threading.Event())
    assert "clawctl serve" in error.value.fix
    announce(run, "http://127.0.0.1:9/v1")
    with pytest.raises(ClawError, match="cannot be measured"):
        measure_by_hand(run, GATED, 1, threading.Event())
    (run.root / "serve.json").unlink()
    stop = threading.Event()
    follower = threading.Thread(target=lambda: follow(run, GATED, stop, as_json=False, once=False))
    follower.start()
    time.sleep(0.5)
    with answering(versions_that({0: bad, 1: good})) as server:
        announce(run, server.url)
        try:
            until(lambda: live_version(run) == 1)
            publish(run, 2)
        finally:
            stop.set()
            follower.join()
    assert live_version(run) == 1


def test_an_unknown_version_is_an_error_that_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ClawError, match="there is no policy 7") as error:
        evaluate(run_with(tmp_path, 1), GATED, version=7, once=False, as_json=False)
    assert "0, 1" in error.value.fix


def test_a_record_that_cannot_be_read_is_put_aside_and_measured_again(tmp_path: Path) -> None:
    with answering(versions_that({0: good})) as server:
        run = run_with(tmp_path, url=server.url)
        (run.eval / "0.json").write_bytes(b'{"suites": ')
        follow_once(run)
    assert record(run, 0)["suites"]
    assert (run.quarantine / "eval-0.json").read_bytes() == b'{"suites": '


def test_two_eval_workers_on_one_run_are_refused_and_sigterm_ends_one_that_measures(tmp_path: Path) -> None:
    slow = threading.Event()

    def answer(body: dict[str, Any]) -> str | int:
        slow.wait(3)  # on the server's loop, one request after another: the first worker measures until it is stopped
        return "4"

    with answering(answer) as server:
        run, recipe = run_with(tmp_path, url=server.url), tmp_path / "recipe.yaml"
        recipe.write_text(dump_recipe(RECIPE))
        command = [sys.executable, "-m", "clawctl", "eval", "--run", str(run.root), "--recipe", str(recipe)]
        first = subprocess.Popen(command, stderr=subprocess.PIPE)
        until(lambda: server.asked)
        second = subprocess.run([*command, "--once"], capture_output=True, text=True, check=False)
        first.send_signal(signal.SIGTERM)
        assert exit_code_of(first) == 0
        slow.set()
        first.communicate()
    assert second.returncode == 1
    assert "is already the eval worker" in second.stderr
    assert list(run.eval.iterdir()) == []


def test_a_refusal_that_comes_while_a_version_is_measured_by_hand_stays(tmp_path: Path) -> None:
    behave = versions_that({0: good, 1: bad})
    decided = threading.Event()

    def answer(body: dict[str, Any]) -> str | int:
        if not decided.is_set():
            decided.set()  # the gate decides in the middle of the measurement by hand
            reply = {"promote": False, "reason": "correctness fell", "against": 0}
            write_record(run, {"version": 1, "settings": {}, "suites": {}, "examples": [], "decision": reply})
        return behave(body)

    with answering(answer) as server:
        run = run_with(tmp_path, 1, url=server.url)
        measure_by_hand(run, GATED, 1, threading.Event())
    assert record(run, 1)["suites"], "the numbers are those by hand"
    assert record(run, 1)["decision"]["reason"] == "correctness fell"
    assert read_lineage(run).tip == 0


def test_a_best_version_that_was_measured_on_other_tasks_hides_none_that_was_measured_on_these(tmp_path: Path) -> None:
    recipe = GATED.model_copy(update={"eval": GATED.eval.model_copy(update={"problems": 20})})
    drawn = tasks(recipe)
    right = {0: 4, 1: 6, 2: 19, 3: 18, 4: 17, 5: 16}  # version 1 was good at the tasks of an older recipe, and is not at these
    with answering(versions_that({v: some_right(drawn, n) for v, n in right.items()}, recipe)) as server:
        run = run_with(tmp_path, 1, url=server.url)
        move_live(run, 1, by="eval")
        perfect = {name: {"mean": 1.0, "ci95": [0.9, 1.0], "n": 8} for name in ("satisfaction", "correctness")}
        older = {"suites": [SUMS], "problems": 8, "seed": 0, "temperature": 0.7}
        let_in = {"promote": True, "reason": "satisfaction 1.00 -> 1.00", "against": 0}
        write_record(
            run, {"version": 1, "settings": older, "suites": {SUMS: {**perfect, "by_role": {}}}, "examples": [], "decision": let_in}
        )
        for version in range(2, 6):
            publish(run, version, parent=live_version(run))
            if version == 2:  # not measured again as the live version before: as after a change of the recipe
                move_live(run, 2, by="promote")
            else:
                follow_once(run, recipe)
    assert [record(run, v)["decision"]["promote"] for v in (3, 4, 5)] == [True, True, False]
    assert "of the best so far (version 2)" in record(run, 5)["decision"]["reason"]


def test_where_the_live_version_cannot_be_measured_the_anchors_still_keep_a_bad_candidate_out(tmp_path: Path) -> None:
    with answering(versions_that({0: good, 1: lambda task: 404, 2: bad, 3: good})) as server:
        run = run_with(tmp_path, 1, url=server.url)
        move_live(run, 1, by="promote")
        publish(run, 2)
        follower = Follower(run, GATED, threading.Event(), as_json=False)
        for _ in range(2):
            with pytest.raises(ClawError, match="status 404"):
                follower.catch_up(once=True)
        follower.catch_up(once=True)
        assert record(run, 2)["decision"]["promote"] is False
        assert "below the 1.00 of the base (version 0)" in record(run, 2)["decision"]["reason"]
        publish(run, 3, parent=1)
        follower.catch_up(once=True)
    assert live_version(run) == 3
    assert "the live version itself" in record(run, 3)["decision"]["reason"]
