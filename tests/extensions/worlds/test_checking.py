"""`clawctl play --check` says of each task whether it can be played here, and whether its verdict holds."""

import json
from pathlib import Path
from typing import Any

import pytest

from clawctl.environments.checking import check
from clawctl.errors import ClawError
from clawctl.extensions.worlds.adapters.verifiers import _cannot_load
from clawctl.extensions.worlds.terminal.environment import Terminal
from tests import forked
from tests.extensions.worlds.test_terminal import harbor_folder, needs_sandbox

REWARD = "echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi\n"
CHECKED = f'#!/bin/bash\ncd /app\nif [ -f done.sh ] && [ "$(bash done.sh)" = 4 ]; then {REWARD}'
SOURCED = f'#!/bin/bash\ncd /app\n[ -f done.sh ] && source ./done.sh > found\nif [ "$(cat found)" = 4 ]; then {REWARD}'


def make_tasks(folder: Path) -> Path:
    solved, image = "#!/bin/bash\necho 'echo 4' > done.sh\n", "FROM ubuntu\nRUN pip install numpy\nWORKDIR /app\n"
    for name, script, solution, dockerfile in (
        ("good", CHECKED, solved, ""),
        ("oracle", CHECKED, solved.replace("4", "5"), ""),
        ("empty", "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n", solved, ""),
        ("believing", SOURCED, solved, ""),
        ("image", CHECKED, solved, image),
    ):
        files = {"tests/test.sh": script, "solution/solve.sh": solution}
        harbor_folder(folder / name, **{**files, "environment/Dockerfile": dockerfile or "FROM ubuntu\nWORKDIR /app\n"})
    return folder


@needs_sandbox
def test_each_task_is_set_up_solved_and_left_alone_and_its_finding_has_a_reason(tmp_path: Path) -> None:
    done = forked.run("play", "--check", make_tasks(tmp_path), "--json", timeout_s=300)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert {task["task"]: task["found"] for task in answer["tasks"]} == {
        "good": "playable", "oracle": "oracle fails", "empty": "no-op passes", "believing": "verdict cannot be trusted",
        "image": "needs an image",
    }  # fmt: skip
    assert set(answer["sums"].values()) == {1}
    reasons = {task["task"]: task["reason"] for task in answer["tasks"]}
    assert "RUN installs pip install numpy" in reasons["image"]
    assert "the shell of the tests runs text of the graded code" in reasons["believing"]


@needs_sandbox
def test_play_refuses_a_task_whose_dockerfile_installs_what_is_not_here(tmp_path: Path) -> None:
    make_tasks(tmp_path)
    with pytest.raises(ClawError, match=r"needs an image of its own \(RUN installs pip install numpy\)"):
        Terminal(path=str(tmp_path / "image"))


def test_a_folder_of_tau_bench_is_named_as_such_and_a_folder_without_tasks_has_none(tmp_path: Path) -> None:
    retail = tmp_path / "envs" / "retail"
    retail.mkdir(parents=True)
    with pytest.raises(ClawError, match="there are no tasks in"):
        check(str(tmp_path), {})
    for name, text in (("tasks_test.py", "tasks = []\n"), ("rules.py", "RULES = []\n"), ("wiki.md", "# Retail\n")):
        (retail / name).write_text(text)
    for folder in (retail, tmp_path):
        (found,) = check(str(folder), {})
        assert (found.task, found.found) == (folder.name, "not playable")
        assert "tau-bench" in found.reason
        assert "-> write an environment around its tools" in found.reason


def test_what_a_taskset_lacks_is_named_with_the_cure() -> None:
    lacks = _cannot_load("mine", "python", {"problem": "ModuleNotFoundError: No module named 'datasets.arrow'", "version": "0.4.1"})
    assert lacks.problem == "the taskset mine needs the module datasets.arrow, which is not installed for python"
    assert lacks.fix.startswith("run `python -m pip install datasets`")
    old = _cannot_load("mine", "python", {"problem": "AttributeError: load_taskset", "version": "0.4.1", "is_legacy": True})
    assert "before 0.4" in old.problem
    assert old.fix.startswith("port it to a Taskset of verifiers.v1")
