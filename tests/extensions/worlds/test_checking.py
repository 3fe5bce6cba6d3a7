"""`clawctl play --check` says of each task whether it can be played here, and whether its verdict holds."""

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clawctl.environments import ENVIRONMENTS
from clawctl.environments.checking import CheckedTask, check
from clawctl.environments.player import make_plan
from clawctl.errors import ClawError
from clawctl.extensions.worlds.adapters.verifiers import _cannot_load
from clawctl.extensions.worlds.checking import Findings, check_task
from clawctl.extensions.worlds.sandbox import SandboxFailed
from clawctl.extensions.worlds.terminal.environment import Terminal
from clawctl.extensions.worlds.terminal.harbor import read_task
from clawctl.extensions.worlds.verdicts import Graded
from tests import forked
from tests.extensions.worlds.test_terminal import harbor_folder, needs_sandbox

REWARD = "echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi\n"
CHECKED = f'#!/bin/bash\ncd /app\nif [ -f done.sh ] && [ "$(bash done.sh)" = 4 ]; then {REWARD}'
SOURCED = f'#!/bin/bash\ncd /app\n[ -f done.sh ] && source ./done.sh > found\nif [ "$(cat found)" = 4 ]; then {REWARD}'


CRASHES = "#!/bin/bash\npython3 -c 'raise ValueError(\"no such table\")'\nexit 3\n"


def make_tasks(folder: Path) -> Path:
    solved, image = "#!/bin/bash\necho 'echo 4' > done.sh\n", "FROM ubuntu\nRUN pip install numpy\nWORKDIR /app\n"
    for name, script, solution, dockerfile in (
        ("good", CHECKED, solved, ""),
        ("oracle", CHECKED, solved.replace("4", "5"), ""),
        ("empty", "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n", solved, ""),
        ("believing", SOURCED, solved, ""),
        ("crashing", CRASHES, solved, ""),
        ("writing", "#!/bin/bash\necho banana > /logs/verifier/reward.txt\n", solved, ""),
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
        "crashing": "not playable", "writing": "not playable", "image": "needs an image",
    }  # fmt: skip
    assert answer["sums"]["playable"] == 1
    reasons = {task["task"]: task["reason"] for task in answer["tasks"]}
    assert "RUN installs pip install numpy" in reasons["image"]
    assert "the shell of the tests runs text of the graded code" in reasons["believing"]
    assert "the tests ended with code 3 and wrote no reward" in reasons["crashing"]
    assert "ValueError: no such table" in reasons["crashing"]
    assert "wrote 'banana' as the reward" in reasons["writing"]
    for name, reason in reasons.items():
        assert "\n" not in reason, name
        assert name == "good" or " -> " in reason, name


@needs_sandbox
def test_play_refuses_a_task_whose_dockerfile_installs_what_is_not_here(tmp_path: Path) -> None:
    make_tasks(tmp_path)
    with pytest.raises(ClawError, match=r"needs an image of its own \(RUN installs pip install numpy\)"):
        Terminal(path=str(tmp_path / "image"))


UNSOLVED, RIGHT, BROKEN = (
    Graded(0.0, "1 != 4"),
    Graded(1.0, ""),
    Graded(0.0, "the tests did not end within 3 s", cure="let them end"),
)


@pytest.mark.parametrize(
    ("without", "solved", "finding", "reason"),
    [
        (UNSOLVED, RIGHT, "playable", ""),
        (UNSOLVED, None, "playable", "no solution"),
        (BROKEN, RIGHT, "playable", ""),  # they wait for what the agent does, and its verdict is that of the agent
        (BROKEN, BROKEN, "not playable", "with and without its solution -> let them end"),
        (BROKEN, None, "not playable", "although nothing was done"),
        (UNSOLVED, BROKEN, "oracle fails", "after its solution -> let them end"),
        (UNSOLVED, UNSOLVED, "oracle fails", "the reward is 0 after its solution: 1 != 4 -> "),
        (RIGHT, RIGHT, "no-op passes", "although nothing was done -> "),
        (UNSOLVED, replace(RIGHT, log="not verified: a belief", verdict="unverified"), "verdict cannot be trusted", "a belief -> "),
    ],
)
def test_tests_are_broken_if_they_give_no_verdict_where_they_have_to(
    without: Graded, solved: Graded | None, finding: str, reason: str
) -> None:
    async def solve(task: str, commands: str | None) -> Graded:
        verdict = without if commands == "" else solved
        assert verdict is not None
        return verdict

    checked = asyncio.run(check_task("task", "task", solved is not None, solve))
    assert checked.found == finding
    assert reason in checked.reason


def test_a_task_is_checked_once_in_a_run_and_again_where_the_sandbox_failed(tmp_path: Path) -> None:
    checks = list[str]()

    async def check() -> CheckedTask:
        checks.append("check")
        if len(checks) == 1:
            raise SandboxFailed("no space left")
        return CheckedTask("task", "oracle fails", "because")

    async def several(findings: Findings) -> list[CheckedTask | None]:
        return await asyncio.gather(*(findings.of("digest", check) for _ in range(3)))

    first, later = Findings(), Findings()
    first.folder = later.folder = tmp_path / "checked"
    finding = CheckedTask("task", "oracle fails", "because")
    assert asyncio.run(several(first)) == [None, None, None]
    assert [asyncio.run(several(findings)) for findings in (first, first, later)] == [[finding, finding, finding]] * 3
    assert len(checks) == 2
    (file,) = first.folder.iterdir()
    for content in (b'{"name": "ta', b"[]", b'{"other": 1}'):
        file.write_bytes(content)
        damaged = Findings()
        damaged.folder = first.folder
        assert asyncio.run(several(damaged)) == [finding, finding, finding]
    assert len(checks) == 5


@needs_sandbox
def test_only_tasks_whose_verdict_holds_are_played_unless_the_user_accepts_the_others(tmp_path: Path) -> None:
    make_tasks(tmp_path)
    place = str(tmp_path)
    environments = (Terminal(path=place), Terminal(path=place, accept_unverified=True), Terminal(path=place, accept_unchecked=True))

    async def refused(environment: Terminal) -> dict[str, str]:
        every = [*environment.tasks("train", 9, 0), *environment.tasks("eval", 9, 0)]
        kept = [task for task in every if task.id in ("good", "empty", "believing")]
        return {task.id: reason for task in kept if (reason := await environment.refusal(task)) is not None}

    first, second, third = (asyncio.run(refused(environment)) for environment in environments)
    assert {name: reason.partition(":")[0] for name, reason in first.items()} == {
        "empty": "no-op passes", "believing": "verdict cannot be trusted",
    }  # fmt: skip
    assert (second.keys(), third) == ({"empty"}, {})


def test_a_folder_without_tasks_has_none(tmp_path: Path) -> None:
    with pytest.raises(ClawError, match="there are no tasks in"):
        check(str(tmp_path), {})


@pytest.mark.parametrize(
    ("dockerfile", "reason"),
    [
        ("FROM\n", "names no image -> begin it with FROM"),
        (
            "FROM ubuntu\nWORKDIR /app\nRUN if true; then python3 -m pip install foo; fi\n",
            "RUN installs then python3 -m pip install foo",
        ),
        ("FROM ubuntu\nWORKDIR /app\nRUN <<EOF\necho a\napk add foo\nEOF\n", "RUN installs apk add foo"),
        ("FROM rust AS build\nFROM build\nWORKDIR /app\n", "FROM build"),
        ("FROM ubuntu\nWORKDIR /app\nONBUILD RUN true\n", "ONBUILD RUN true"),
        ("FROM ubuntu\nWORKDIR /app\nENV A='b\n", "No closing quotation"),
    ],
)
def test_a_dockerfile_is_refused_for_what_is_in_it(tmp_path: Path, dockerfile: str, reason: str) -> None:
    folder = harbor_folder(tmp_path / "task", **{"environment/Dockerfile": dockerfile})
    (checked,) = check(str(folder), {})
    assert reason in checked.reason
    assert " -> " in checked.reason


def test_a_text_that_mentions_an_installer_and_a_stage_that_is_left_behind_install_nothing(tmp_path: Path) -> None:
    written = "RUN echo 'run pip install foo first' > README && echo \"a && apt-get install foo\" >> README\n"
    written += "RUN echo no pip install > b\n"
    document = "RUN cat > c <<EOF\npip install foo\nEOF\n"
    stages = "FROM ubuntu AS build\nRUN pip install foo\nRUN touch left\nFROM ubuntu\nWORKDIR /app\n"
    task = read_task(harbor_folder(tmp_path / "task", **{"environment/Dockerfile": stages + written + document}))
    assert len(task.setup) == 3
    assert not any("left" in command for command in task.setup)


def test_a_place_that_has_no_tasks_is_refused_for_what_it_is(tmp_path: Path) -> None:
    for name, text in (("notes.txt", "x"), ("empty.jsonl", ""), ("half.jsonl", "{\n"), ("class.py", "class B:\n    tasks = len\n")):
        (tmp_path / name).write_text(text)
    (tmp_path / "bfcl").mkdir()
    (tmp_path / "bfcl/BFCL_v4_simple_python.json").write_text('{"id": "simple_python_0", "question": [[')
    for place, reason in (
        ("/no/such/folder", r"there is no file or folder /no/such/folder"),
        ("rows.jsonl", r"there is no file or folder rows.jsonl"),
        (f"{tmp_path}/notes.txt", r"there are no tasks in .*notes.txt"),
        (f"{tmp_path}/empty.jsonl", r"is empty: it has no row"),
        (f"{tmp_path}/bfcl", r"cannot be read as questions: .* -> write one JSON object in each line"),
        (f"{tmp_path}/half.jsonl", r"cannot be read as rows of tasks: .* -> write one JSON object in each line"),
    ):
        with pytest.raises(ClawError, match=reason):
            check(place, {})
    (checked,) = check(f"{tmp_path}/class.py:B", {})
    assert "is not an environment, because it has no play -> write a class with tasks" in checked.reason
    done = forked.run("play", f"{tmp_path}/class.py:B", "--run", tmp_path / "run", timeout_s=60)
    assert "because it has no play" in done.stderr


@pytest.mark.parametrize(
    ("tasks", "reason"),
    [("open('/no/such/rows')", r"raised FileNotFoundError: .* \(mine.py, line 2\)"), ("['one']", r"has 'one', not a Task")],
)
def test_an_environment_whose_tasks_cannot_be_drawn_is_refused_with_what_they_are(tmp_path: Path, tasks: str, reason: str) -> None:
    code = f"class Mine:\n    def tasks(self, split, count, seed): return {tasks}\n    async def play(self, task, endpoint): ...\n"
    (tmp_path / "mine.py").write_text(code)
    (checked,) = check(f"{tmp_path}/mine.py:Mine", {})
    assert checked.found == "not playable"
    assert re.search(reason, checked.reason), checked.reason
    mine = ENVIRONMENTS.load(f"{tmp_path}/mine.py:Mine", "play.env")()
    with pytest.raises(ClawError, match=reason):
        make_plan(mine, "mine.py:Mine", 1, 1, 0)


def test_what_a_taskset_lacks_is_named_with_the_cure() -> None:
    lacks = _cannot_load("mine", "python", {"problem": "ModuleNotFoundError: No module named 'datasets.arrow'", "version": "0.4.1"})
    assert lacks.problem == "the taskset mine needs the module datasets.arrow, which is not installed for python"
    assert lacks.fix.startswith("run `python -m pip install datasets`")
    old = _cannot_load("mine", "python", {"problem": "AttributeError: load_taskset", "version": "0.4.1", "is_legacy": True})
    assert "before 0.4" in old.problem
    assert old.fix.startswith("port it to a Taskset of verifiers.v1")
