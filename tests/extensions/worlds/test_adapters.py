"""Environments of other libraries: a server of OpenEnv, and a taskset of verifiers."""

import ast
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import clawctl
from clawctl.config.environment import environment_of_program, names_in
from clawctl.environments import EpisodeFailed, Outcome, create
from clawctl.environments.episode import play_task
from clawctl.errors import ClawError
from clawctl.eval.suites import CannotMeasure
from clawctl.eval.suites.installed import run_program
from clawctl.extensions.worlds.adapters.openenv import OpenEnv
from clawctl.extensions.worlds.adapters.processes import AnsweringProcess
from clawctl.extensions.worlds.adapters.verifiers import Verifiers, outcome_of
from clawctl.run.endpoint import Endpoint
from tests.stub_http import StubHandler, StubServer, running
from tests.waiting import until

COMMAND = f"{sys.executable} {Path(__file__).parent / 'openenv_server.py'} --port {{port}}"


@pytest.fixture(scope="module")
def counter() -> OpenEnv:
    pytest.importorskip("websockets", reason="the extra environments is not installed")
    return OpenEnv(command=COMMAND)


def episodes(environment: OpenEnv, arguments: list[str], attempts: int = 1) -> tuple[list[Outcome], list[dict[str, Any]]]:
    """The outcomes of attempts at once, whose model calls with each of `arguments` and then ends; and the last request."""
    requests: list[dict[str, Any]] = []

    class Model(StubHandler):
        def do_POST(self) -> None:
            requests.append(self.sent())
            number = sum(message["role"] == "assistant" for message in requests[-1]["messages"])
            message: dict[str, Any] = {"role": "assistant", "content": "Done."}
            if number < len(arguments):
                function = {"name": "act", "arguments": arguments[number]}
                message = {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "c", "type": "function", "function": function}],
                }
            self.answer({"choices": [{"message": message}], "usage": {"total_tokens": 1}})

    async def play(endpoint: Endpoint) -> list[Outcome]:
        task = environment.tasks("train", 1, 0)[0]
        return list(await asyncio.gather(*(play_task(environment, task, endpoint) for _ in range(attempts))))

    with running(StubServer(Model)) as server:
        return asyncio.run(play(Endpoint(f"{server.url}/v1", "key", "model"))), requests


def test_an_agent_acts_in_a_server_of_openenv_until_it_is_done(counter: OpenEnv) -> None:
    (outcome,), requests = episodes(counter, ['{"add": 2}', '{"add": 1}', '{"add": 9}'])
    assert (outcome.reward, outcome.ending, outcome.parts["solved"]) == (0.75, "done", True)
    offered = requests[0]["tools"][0]["function"]
    assert (offered["name"], list(offered["parameters"]["properties"])) == ("act", ["add"])
    assert requests[-1]["messages"][-1] == {"role": "tool", "tool_call_id": "c", "content": json.dumps({"count": 2})}


def test_an_action_that_the_environment_refuses_is_reported_to_the_model(counter: OpenEnv) -> None:
    (outcome,), requests = episodes(counter, ['{"add": "x"}', "no json"])
    assert outcome.ending == "done"
    answers = [message["content"] for message in requests[-1]["messages"] if message["role"] == "tool"]
    assert answers == ["error: add: a number is missing", "error: the arguments are no JSON object"]


def test_episodes_wait_for_a_server_that_has_room_for_one(counter: OpenEnv) -> None:
    outcomes, _ = episodes(counter, ['{"add": 3}'], attempts=3)
    assert [outcome.reward for outcome in outcomes] == [0.5] * 3


def test_an_agent_that_stalls_in_a_server_of_openenv_gets_the_worst_reward(counter: OpenEnv) -> None:
    (stalled,), _ = episodes(counter, [])
    assert (stalled.reward, counter.worst) == (-1.0, -1.0)
    with pytest.raises(ClawError, match="the option worst is 2 -> input should be less than or equal to 1"):
        create(OpenEnv, "openenv", "--env", {"url": "http://127.0.0.1:9", "worst": 2})


def test_an_openenv_server_that_is_not_there_is_named_with_the_cure() -> None:
    pytest.importorskip("websockets", reason="the extra environments is not installed")
    with pytest.raises(ClawError, match=r"no OpenEnv server answers at http://127\.0\.0\.1:9.* -> start it"):
        OpenEnv(url="http://127.0.0.1:9")
    with pytest.raises(ClawError, match=r"did not start: .*No module named"):
        OpenEnv(command=f"{sys.executable} -m no_such_module_at_all {{port}}")


def test_an_error_that_is_not_the_policys_fails_the_episode_of_a_taskset() -> None:
    for error, ending in (
        ("SandboxError", "sandbox"),
        ("TaskError", "verifier"),
        ("ProviderError", "server"),
        ("X", "environment"),
    ):
        with pytest.raises(EpisodeFailed) as raised:
            outcome_of({"errors": [{"type": error, "text": "it broke", "status": None}]}, 5)
        assert raised.value.ending == ending
    with pytest.raises(EpisodeFailed, match="returned no reward"):
        outcome_of({"errors": []}, 5)


def test_an_episode_of_a_taskset_that_the_policy_ended_is_graded() -> None:
    full = {"type": "ProviderError", "text": '{"code": "context_length_exceeded"}', "status": 400}
    assert outcome_of({"errors": [full], "reward": 0.5}, 5).ending == "context"
    assert outcome_of({"timed_out": True}, 5) == Outcome(-1.0, {}, ending="time")
    trace = {"reward": 1.5, "parts": {"right": 1.0, "length": 90.0}, "stopped": ["max_turns"]}
    assert outcome_of(trace, 5) == Outcome(1.0, {"right": 1.0}, ending="turns")


# ---- processes -----------------------------------------------------------------------------------------------------------

STARTS = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
with open(os.environ["CHILD_FILE"], "w") as file:
    file.write(str(child.pid))
"""


def ended(child: Path) -> bool:
    """Whether the process whose id is in the file has ended. A zombie counts as ended."""
    try:
        return Path(f"/proc/{child.read_text()}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def answering_process(folder: Path, code: str) -> AnsweringProcess:
    program = folder / "program.py"
    program.write_text(code)
    return AnsweringProcess(sys.executable, program, {}, {"PATH": os.environ["PATH"], "CHILD_FILE": str(folder / "child")})


def test_closing_a_process_ends_its_children(tmp_path: Path) -> None:
    process = answering_process(tmp_path, f"{STARTS}\nprint('{{}}')\nsys.stdin.read()")
    assert process.first.result(20) == {}
    process.close()
    until(lambda: ended(tmp_path / "child"))


def test_invalid_lines_and_cancelled_requests_do_not_block_other_answers(tmp_path: Path) -> None:
    code = """
import json, sys
for number, line in enumerate(sys.stdin):
    if number == 0:
        print("loading", json.dumps({"ready": 1}), sep="\\n")
        continue
    print("100 %", 5, "{}", '{"id": []}', sep="\\n")
    if number > 1:
        print(json.dumps({"id": 0}), json.dumps({"id": 1, "heard": json.loads(line)["word"]}), sep="\\n")
"""
    process = answering_process(tmp_path, code)
    assert process.first.result(20) == {"ready": 1}
    assert process.ask({"word": "one"}).cancel()
    assert process.ask({"word": "two"}).result(20) == {"heard": "two"}
    process.close()


def test_closing_an_openenv_server_ends_its_children(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(STARTS)
    with pytest.raises(ClawError, match="did not start"):
        OpenEnv(command=f"env CHILD_FILE={tmp_path / 'child'} {sys.executable} {program}")
    until(lambda: ended(tmp_path / "child"))


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_suites_program_leaves_no_process_behind(tmp_path: Path, cancelled: bool) -> None:
    program, child = tmp_path / "program.py", tmp_path / "child"
    program.write_text(STARTS + ("import time; time.sleep(600)" if cancelled else "sys.exit('no data')"))

    async def work() -> None:
        running = asyncio.create_task(run_program([sys.executable, str(program)], {"CHILD_FILE": str(child)}, tmp_path, "mine"))
        while cancelled and not (child.exists() and child.read_text()):
            await asyncio.sleep(0.02)
        if cancelled:
            running.cancel()
        await running

    with pytest.raises(asyncio.CancelledError if cancelled else CannotMeasure, match=None if cancelled else "with 1: no data"):
        asyncio.run(work())
    until(lambda: ended(child))


def test_a_python_without_verifiers_is_named_with_the_cure() -> None:
    with pytest.raises(ClawError, match=r"verifiers is not installed for .* -> run `.* -m pip install"):
        Verifiers(taskset="any", python=sys.executable)
    with pytest.raises(ClawError, match="is not a program"):
        Verifiers(taskset="any", python="/no/such/python")


GIVEN = {
    "PATH": "/usr/bin", "LC_ALL": "C", "HF_HOME": "/cache", "HF_TOKEN": "secret", "OPENAI_API_KEY": "secret", "GH_PAT": "secret",
    "DATABASE_URL": "postgres://me:secret@db", "AWS_CREDENTIALS": "secret", "HTTPS_PROXY": "http://me:secret@proxy",
    "MYPASSWORD": "secret", "PYTHONPATH": "/mine", "http_proxy": "http://proxy:3128",
}  # fmt: skip


def test_a_foreign_program_gets_only_named_variables() -> None:
    variables = environment_of_program({"OPENAI_API_KEY": "the episode's"}, all_of=GIVEN)
    assert variables == {
        "PATH": "/usr/bin", "LC_ALL": "C", "HF_HOME": "/cache", "http_proxy": "http://proxy:3128", "OPENAI_API_KEY": "the episode's"
    }  # fmt: skip
    assert environment_of_program(named=names_in("HF_TOKEN, ABSENT"), all_of=GIVEN)["HF_TOKEN"] == "secret"


@pytest.mark.parametrize("folder", ["extensions/worlds", "eval"])
def test_each_program_that_an_environment_or_a_suite_starts_is_given_its_variables(folder: str) -> None:
    root = Path(clawctl.__file__).parent / folder
    inside = {"inside.py", "attempts.py", "run_tests.py", "graded_code.py"}  # run in a sandbox
    calls = ("subprocess.Popen", "subprocess.run", "asyncio.create_subprocess_exec")
    starts = [
        (path.name, node)
        for path in root.rglob("*.py")
        if path.name not in inside
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in calls
    ]
    without = [name for name, node in starts if "env" not in {word.arg for word in node.keywords}]
    assert starts
    assert set(without) <= {"probe.py"}  # a process of this test, which the sandbox attacks
