"""Tasks for a shell and their verdicts, in the real sandbox."""

import asyncio
import shutil
from pathlib import Path

import pytest

from clawctl.errors import ClawError
from clawctl.extensions.worlds.agent import command_in
from clawctl.extensions.worlds.terminal.environment import Terminal, solve
from clawctl.extensions.worlds.terminal.families import FAMILIES, draw_tasks
from clawctl.extensions.worlds.terminal.harbor import read_task, read_tasks
from scripts.benchmarks.environments_cheats_scripts import ATTACKS, ScriptAttack

needs_sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing: apt-get install bubblewrap")

TEST_SH = """#!/bin/bash
apt-get update
apt-get install -y curl
curl -LsSf https://example.invalid/uv/0.9.7/install.sh | sh
source $HOME/.local/bin/env
uvx -p 3.13 -w pytest==8.4.1 -w pytest-json-ctrf==0.3.5 pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py -rA
if [ $? -eq 0 ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""
TESTS = """import sys

sys.path.insert(0, "/app")


def test_add():
    from calc import add

    assert add(2, 3) == 5
"""


def harbor_folder(folder: Path, **files: str) -> Path:
    """A task as Harbor's authors write them. `files` replace or add: tests_test_sh becomes tests/test.sh."""
    content = {
        "instruction.md": "Write calc.py with a function add(a, b).\n",
        "task.toml": 'version = "1.0"\n[verifier]\ntimeout_sec = 30.0\n[agent]\ntimeout_sec = 60.0\n',
        "environment/Dockerfile": "FROM ubuntu:24.04\nRUN apt-get install -y bash\nWORKDIR /app\nCOPY start.txt ./\n",
        "environment/start.txt": "start\n",
        "solution/solve.sh": "#!/bin/bash\nprintf 'def add(a, b):\\n    return a + b\\n' > calc.py\n",
        "tests/test.sh": TEST_SH,
        "tests/test_outputs.py": TESTS,
    } | files
    for name, text in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@needs_sandbox
@pytest.mark.parametrize("index", range(len(FAMILIES)))
def test_each_drawn_task_is_worth_one_with_its_solution_and_nothing_without(index: int) -> None:
    task = draw_tasks("eval", len(FAMILIES), 3)[index]
    assert asyncio.run(solve(task)).value == 1
    assert asyncio.run(solve(task, "")).value == 0


@needs_sandbox
def test_a_harbor_task_runs_unchanged(tmp_path: Path) -> None:
    task = read_task(harbor_folder(tmp_path / "add"))
    assert dict(task.seed) == {"start.txt": b"start\n"}
    assert asyncio.run(solve(task)).value == 1
    assert asyncio.run(solve(task, "")).value == 0


# Attempts that a verdict must reject. More are in scripts/benchmarks/environments_cheats.py.
FORGERIES = {
    "leaves with code 0": "echo 'import os; os._exit(0)' > calc.py",
    "is equal to everything": "printf 'class E:\\n    __eq__ = lambda a, b: True\\ndef add(a, b): return E()\\n' > calc.py",
    "ends the tests and writes the reward": (
        'printf \'import os\\nopen("/logs/verifier/reward.txt", "w").write("1")\\nos.kill(-1, 9)\\nos._exit(0)\\n\' > calc.py'
    ),
}


@needs_sandbox
@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_verdict_is_worth_nothing(tmp_path: Path, name: str) -> None:
    task = read_task(harbor_folder(tmp_path / "add"))
    score = asyncio.run(solve(task, FORGERIES[name]))
    assert score.value == 0 or score.verdict == "unverified", score.log


@needs_sandbox
@pytest.mark.parametrize("case", ATTACKS, ids=lambda case: case.name)
def test_the_graded_code_does_not_decide_the_verdict_of_a_test_script(case: ScriptAttack) -> None:
    attacked = asyncio.run(solve(case.task, case.attack))
    assert attacked.value == 0 or attacked.verdict == "unverified", attacked.log
    honest = asyncio.run(solve(case.task, case.honest))
    assert (honest.value, honest.verdict) == (1, case.verdict), honest.log


def test_a_task_without_a_verdict_is_refused_with_the_cure(tmp_path: Path) -> None:
    folder = harbor_folder(tmp_path / "add")
    (folder / "tests" / "test.sh").unlink()
    with pytest.raises(ClawError, match=r"no verdict -> add tests/test\.sh"):
        read_task(folder)


def test_a_task_of_another_version_is_refused_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(ClawError, match=r"format version 2\.0 -> convert"):
        read_task(harbor_folder(tmp_path / "add", **{"task.toml": 'version = "2.0"\n'}))


def test_a_task_that_needs_its_image_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ClawError, match="needs an image of its own"):
        read_task(harbor_folder(tmp_path / "add", **{"environment/Dockerfile": "FROM ubuntu\nCOPY start.txt /etc/start.txt\n"}))


def test_a_folder_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClawError, match="there is no task"):
        read_tasks(tmp_path)


def test_training_tasks_and_held_out_tasks_are_never_the_same() -> None:
    drawn = {split: {task.id for seed in range(5) for task in Terminal().tasks(split, 30, seed)} for split in ("train", "eval")}
    assert not drawn["train"] & drawn["eval"]
    assert [task.id for task in Terminal().tasks("train", 6, 1)] == [task.id for task in Terminal().tasks("train", 6, 1)]


def test_the_command_of_an_answer_is_its_blocks() -> None:
    assert command_in("I look.\n```bash\nls -a\n```\nThen:\n```sh\npwd\n```") == "ls -a\npwd"
    assert command_in("submit") is None
    assert command_in("```bash\nsubmit\n```") is None
    assert command_in("The answer is 3.") is None


@needs_sandbox
def test_variables_of_a_task_are_those_of_its_agent_and_of_its_tests(tmp_path: Path) -> None:
    """`harbor init` writes all of these tables."""
    settings = (
        'schema_version = "1.4"\nartifacts = []\n[task]\nname = "me/add"\n[metadata]\n[verifier]\ntimeout_sec = 30.0\n'
        '[verifier.env]\nWANTED = "5"\nKEY = "${OPENAI_API_KEY}"\n[environment]\nnetwork_mode = "public"\nos = "linux"\n'
        'mcp_servers = []\n[environment.env]\nSHOWN = "a b"\n'
    )
    script = (
        '#!/bin/bash\n[ "$SHOWN $WANTED $(cat said.txt)" = "a b 5 a b" ] && [ -z "$KEY" ]\n'
        "echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    )
    solution = 'echo "$SHOWN$WANTED" > said.txt\n'
    task = read_task(
        harbor_folder(tmp_path / "add", **{"task.toml": settings, "tests/test.sh": script, "solution/solve.sh": solution})
    )
    assert asyncio.run(solve(task)).value == 1


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ('[[steps]]\nname = "one"\n', "has several steps"),
        ('[environment]\nos = "windows"\n', r"needs os = windows"),
        ("[environment]\ngpus = 1\n", "a GPU"),
        ('[[environment.mcp_servers]]\nname = "a"\n', "MCP servers"),
        ('[agent]\ntimeout_sec = "long"\n', r"timeout_sec of \[agent\] .* is 'long' -> set seconds"),
        ("agent = 3\n", r"agent in .*task\.toml is not a table"),
        ("agent = \n", "cannot be read"),
        ("[verifier]\nenv = 3\n", r"env in .*task\.toml is not a table"),
        ('[environment]\nmemory_mb = "much"\n', r"memory_mb in .*task\.toml is 'much' -> set a number of mebibytes"),
        ("[environment]\nstorage_mb = inf\n", r"storage_mb in .*task\.toml is inf"),
    ],
)
def test_a_task_that_this_sandbox_cannot_be_is_refused_with_the_reason(tmp_path: Path, settings: str, problem: str) -> None:
    folder = harbor_folder(tmp_path / "add", **{"task.toml": settings})
    with pytest.raises(ClawError, match=problem):
        read_task(folder)


@pytest.mark.parametrize("content", [b"FROM debian\n# \xe9t\xe9\n", b'FROM debian\nENV A="x\n'], ids=["bytes", "quotes"])
def test_a_dockerfile_that_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    folder = harbor_folder(tmp_path / "add")
    (folder / "environment" / "Dockerfile").write_bytes(content)
    with pytest.raises(ClawError, match=r"environment/Dockerfile cannot be read: .* -> correct it"):
        read_task(folder)


@pytest.mark.parametrize(
    ("name", "text"),
    [("docker-compose.yaml", "services: 3"), ("solution.yaml", "3"), ("solution.yaml", "x: ["), ("task.yaml", "- x")],
)
def test_a_file_of_terminal_bench_that_is_not_what_it_should_be_is_refused(tmp_path: Path, name: str, text: str) -> None:
    folder = tmp_path / "add"
    (folder / "tests").mkdir(parents=True)
    for file, content in {"task.yaml": "instruction: add", "run-tests.sh": "pytest", name: text}.items():
        (folder / file).write_text(content)
    with pytest.raises(ClawError, match=r"the task in .* cannot be read: .* -> correct its files in YAML"):
        read_task(folder)


def test_an_image_without_a_dockerfile_is_refused(tmp_path: Path) -> None:
    folder = harbor_folder(tmp_path / "add", **{"task.toml": '[environment]\ndocker_image = "me/own:1"\n'})
    (folder / "environment" / "Dockerfile").unlink()
    with pytest.raises(ClawError, match="docker_image = me/own:1"):
        read_task(folder)


def test_a_task_that_cannot_be_played_stops_no_other_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    harbor_folder(tmp_path / "good")
    (harbor_folder(tmp_path / "bad") / "tests" / "test.sh").unlink()
    assert [task.name for task in read_tasks(tmp_path)] == ["good"]
    assert "bad has no verdict: add tests/test.sh" in caplog.text
