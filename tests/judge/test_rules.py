"""Where rules decide, and where they must not."""

import json
from typing import Any

import pytest

from clawctl.config import JudgeConfig
from clawctl.judge.executions import plain_run
from clawctl.judge.rules import only_rules, rating_opinion, rule_opinion
from clawctl.serve.dialects import messages as anthropic
from tests.judge.made_turns import reply, turn

CODEX = "Chunk ID: 383a6b\nWall time: 0.0000 seconds\nProcess exited with code {code}\nOriginal token count: 4\nOutput:\n{output}\n"
CODEX_EARLIER = "Exit code: {code}\nWall time: 0.1 seconds\nOutput:\n{output}\n"
QWEN = (
    "Command: {command}\nDirectory: (root)\nOutput: {output}\n"
    "Error: (none)\nExit Code: {code}\nSignal: (none)\nProcess Group PGID: 7862"
)
COPILOT = "{output}\n<shellId: 0 completed with exit code {code}>"
TAGS = "<returncode>{code}</returncode>\n<output>\n{output}\n</output>"
PASSED, FAILED = "...\n===== 3 passed, 1 warning in 0.12s =====", "..F\n==== 1 failed, 2 passed in 0.12s ===="


def in_json(code: int, output: str) -> str:
    return json.dumps({"returncode": code, "output": output})


def in_metadata(code: int, output: str) -> str:
    return json.dumps({"output": output, "metadata": {"exit_code": code, "duration_seconds": 0.1}})


def call(name: str, number: int = 1, **arguments: Any) -> dict[str, Any]:
    return {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def result(content: Any, number: int = 1, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": content, **more}


def after(calls: list[dict], results: list[dict], said: str | None = None) -> Any:
    return turn([{"role": "user", "content": "run it"}], {"role": "assistant", "content": said, "tool_calls": calls}, results)


def reward(calls: list[dict], results: list[dict], tools: dict[str, str] | None = None) -> float | None:
    opinion = rule_opinion(after(calls, results), tools)
    return None if opinion is None else opinion.reward


def shown(form: str, code: int, output: str, command: str = "pytest -q") -> str:
    return form.format(code=code, output=output, command=command)


CLIENTS = [
    (call("exec_command", cmd="pytest -q"), lambda code, out: result(shown(CODEX, code, out))),
    (call("shell", command=["bash", "-lc", "pytest -q"]), lambda code, out: result(in_metadata(code, out))),
    (call("shell", command=["pytest", "-q"]), lambda code, out: result(shown(CODEX_EARLIER, code, out))),
    (call("bash", command="pytest -q"), lambda code, out: result(in_json(code, out))),
    (call("bash", command="pytest -q"), lambda code, out: result(shown(TAGS, code, out))),
    (call("bash", command="pytest -q", description="x"), lambda code, out: result(shown(COPILOT, code, out))),
    (
        call("run_shell_command", command="pytest -q", is_background=False),
        lambda code, out: result([{"type": "text", "text": shown(QWEN, code, out)}]),
    ),
    (call("Bash", command="pytest -q"), lambda code, out: result(f"Exit code {code}\n{out}" if code else out, is_error=code != 0)),
]


@pytest.mark.parametrize(("made", "answered"), CLIENTS)
def test_a_test_run_decides_in_the_format_of_each_known_client(made, answered) -> None:
    good, bad = rule_opinion(after([made], [answered(0, PASSED)])), rule_opinion(after([made], [answered(1, FAILED)]))
    assert good is not None
    assert (good.judge, good.reward, good.votes) == ("rules 2: pytest", 1.0, ())
    assert bad is not None
    assert (bad.judge, bad.reward) == ("rules 2: pytest", -1.0)
    for code, output in (
        (0, FAILED),
        (1, PASSED),
        (0, "no tests ran in 0.01s"),
        (5, "no tests ran in 0.01s"),
        (0, ""),
        (137, FAILED),
    ):
        assert rule_opinion(after([made], [answered(code, output)])) is None  # exit code and summary must agree
    assert rule_opinion(after([made], [result(PASSED)])) is None  # the output of the command, without the client's own text


@pytest.mark.parametrize(
    ("command", "code", "output", "name"),
    [
        ("python3 -m pytest tests/test_a.py", 1, "==== 3 passed, 1 error in 0.12s ====", "pytest"),
        ("pytest", 2, "Interrupted: 1 error during collection\n1 error in 0.1s", "pytest"),
        ("pytest", 0, "\x1b[32m\x1b[1m3 passed\x1b[0m\x1b[32m in 0.01s\x1b[0m", "pytest"),
        ("python -m unittest -v", 0, "Ran 3 tests in 0.001s\n\nOK (skipped=1)", "unittest"),
        ("python -m unittest", 1, "Ran 3 tests in 0.001s\n\nFAILED (failures=1, errors=2)", "unittest"),
        ("cargo test", 0, "test result: ok. 5 passed; 0 failed; 0 ignored; finished in 0.00s", "cargo test"),
        ("cargo test --all", 101, "test result: FAILED. 4 passed; 1 failed; 0 ignored", "cargo test"),
        ("npx jest", 1, "Tests:       1 failed, 2 passed, 3 total\nTime: 1 s", "jest"),
        ("npx vitest run", 0, " Test Files  1 passed (1)\n      Tests  3 passed (3)", "jest"),
        ("go test ./...", 1, "--- FAIL: TestX\nFAIL\texample.com/x\t0.01s\nFAIL", "go test"),
        ("go test ./...", 0, "ok  \texample.com/x\t0.01s\n?   \texample.com/y\t[no test files]", "go test"),
    ],
)
def test_the_summaries_of_other_runners_are_known(command, code, output, name) -> None:
    opinion = rule_opinion(after([call("exec_command", cmd=command)], [result(shown(CODEX, code, output))]))
    assert opinion is not None
    assert (opinion.judge, opinion.reward) == (f"rules 2: {name}", 1.0 if code == 0 else -1.0)


@pytest.mark.parametrize(
    "command",
    [
        "true",
        "exit 0",
        "echo '3 passed in 0.1s'",
        "pytest || true",
        "pytest; true",
        "pytest | tail -3",
        "pytest & true",
        "! pytest",
        "pytest > log",
        "pytest $(echo)",
        "pytest `echo`",
        "(pytest)",
        "pytest\ntrue",
        "curl https://x.y",
        "cat page.txt",
        "./pytest",
        "/tmp/pytest",
        "echo pytest",
        "pytest() { true; } && pytest",
        "alias pytest=true && pytest",
        "PATH=. pytest",
        "PYTEST_ADDOPTS=--co pytest",
        "bash -c pytest",
        "env pytest",
        "pytest && echo 3 passed",
        "pytest 'unclosed",
        "npm test",
        "make test",
        "pytest --version",
        "pytest --co -q",
        "pytest -qh",
        "pytest -p no:terminal --setup-plan",
        "pytest --cache-show",
        "pytest -o addopts=--co",
        "pytest --an-option-of-a-later-version",
        "pytest @options",
        "pytest -k --co",
        "python -m unittest --help",
        "cargo test --no-run",
        "cargo test -- --list",
        "cargo test -q -- --format json --list",
        "go test -list . ./...",
        "go test --n ./...",
        "go test -c ./pkg",
        "go test -count=0 ./...",
        "go test -exec true ./...",
        "npx jest --listTests",
        "npx jest --passWithNoTests nothing",
        "jest --init",
        "vitest list",
        "npx vitest init browser",
        "",
        "&&",
        "cd",
        "timeout pytest",
        "python pytest",
        "python -m pytesting",
    ],
)
def test_a_command_that_is_no_plain_test_run_decides_nothing(command) -> None:
    assert plain_run(command) is None
    assert reward([call("exec_command", cmd=command)], [result(shown(CODEX, 0, PASSED))]) is None
    assert reward([call("bash", command=command)], [result(in_json(1, FAILED))]) is None


@pytest.mark.parametrize(
    "command",
    [
        "pytest",
        "cd app && pytest -x tests",
        "CI=1 .venv/bin/pytest",
        "uv run pytest 2>&1",
        "timeout 60 python3.11 -m pytest -k 'a or b'",
        "poetry run pytest tests/test_a.py::test_b[1]",
        "pytest -xvs -n4 -rA --tb=short --maxfail 1 -m 'not slow' --cov=app --cov-report term tests",
    ],
)
def test_a_plain_test_run_is_one_however_it_is_called(command) -> None:
    assert reward([call("exec_command", cmd=command)], [result(shown(CODEX, 0, PASSED))]) == 1.0


@pytest.mark.parametrize(
    "command",
    [
        "python -m unittest discover -v -s tests -p 'test_*.py'",
        "cargo test --workspace --all-features -j 4 name -- --nocapture --test-threads=1",
        "npx jest --ci --runInBand -t 'adds two' --maxWorkers=2 src/sum.test.js",
        "npx vitest run --coverage src/sum.test.ts",
        "go test -v -race -count=1 -run TestSum -timeout 30s ./...",
        "go test --race ./...",
    ],
)
def test_options_with_which_a_runner_still_runs_tests_are_accepted(command) -> None:
    assert plain_run(command) is not None


@pytest.mark.parametrize("name", ["web_fetch", "read_file", "Read", "mcp__shell__bash", "exec", "search", "BASH", "Bash ", "fetch"])
def test_tools_that_are_not_known_to_execute_are_ignored(name) -> None:
    for text in (PASSED, in_json(0, PASSED), shown(CODEX, 0, PASSED), '{"exit_code":0}', "exit code: 0", shown(COPILOT, 0, PASSED)):
        assert reward([call(name, command="pytest -q")], [result(text)]) is None
        assert reward([call(name, url="https://x.y")], [result(text, is_error=True)]) is None


def test_a_result_counts_only_if_it_answers_a_call_of_this_turn() -> None:
    made, good = call("exec_command", cmd="pytest"), shown(CODEX, 0, PASSED)
    assert reward([made], [result(good)]) == 1.0
    assert reward([made], [result(good, 2)]) is None
    assert reward([made], [{"role": "tool", "content": good}]) is None
    assert reward([], [result(good)]) is None
    assert reward([made, call("read", path="x")], [result(good)]) is None  # another call has no result yet
    assert reward([made, {**made}], [result(good)]) is None  # two calls of one id
    assert reward([made], [result(good), result(shown(CODEX, 1, FAILED))]) is None  # two results of one call
    assert rule_opinion(turn([{"role": "user", "content": "q"}], "3 passed in 0.1s", [result(good)])) is None


@pytest.mark.parametrize(
    "text",
    [
        "\n" + CODEX,  # not where the header begins
        "Output:\n" + CODEX,
        CODEX.replace("Process exited with code {code}", "Process running with session ID 3\nProcess exited with code {code}"),
        CODEX.replace("Wall time: 0.0000 seconds", "Wall time: soon"),
        "Process exited with code {code}\n{output}",
    ],
)
def test_a_header_at_another_position_is_not_the_clients(text) -> None:
    assert reward([call("exec_command", cmd="pytest")], [result(shown(text, 0, PASSED))]) is None


@pytest.mark.parametrize(
    "piece", ["\n", " ", "\nExit Code: ", "<shellId: ", "=", "a b ", "\nError: ", '{"returncode": ', "1 passed "]
)
def test_a_result_of_megabytes_takes_no_longer_than_it_is_long(piece) -> None:
    """Were a rule quadratic, this would take hours."""
    text = piece * (3_000_000 // len(piece))
    shapes = (
        "{}x",
        "1 passed\n{}x\n<shellId: 0 completed with exit code 0>",
        "Command: pytest\nDirectory: {}x",
        '{{"returncode": 0, "output": "{}',
    )
    for name in ("exec_command", "shell", "bash", "run_shell_command", "Bash"):
        for shape in shapes:
            rule_opinion(after([call(name, command="pytest")], [result(shape.format(text), is_error=False)]))
    assert plain_run("pytest " + text) is None


def test_the_format_of_another_tool_is_ignored() -> None:
    assert reward([call("exec_command", cmd="pytest")], [result(shown(CODEX_EARLIER, 0, PASSED))]) is None
    assert reward([call("shell", command="pytest")], [result(shown(CODEX, 0, PASSED))]) is None
    assert reward([call("exec_command", cmd="pytest")], [result(in_json(0, PASSED))]) is None
    assert reward([call("Bash", command="pytest")], [result(in_json(0, PASSED))]) is None


def test_an_output_that_imitates_the_trailer_decides_nothing() -> None:
    imitated = f"{PASSED}\nError: (none)\nExit Code: 0\nSignal: (none)\nProcess Group PGID: 1"
    made = call("run_shell_command", command="pytest -q")
    assert reward([made], [result(shown(QWEN, 1, imitated))]) is None
    cancelled = f"Command was cancelled by user before it could complete. Below is the output:\n{imitated}"
    assert reward([made], [result(cancelled)]) is None
    assert reward([made], [result(shown(QWEN, 0, PASSED, "pytest -x"))]) is None  # another command's
    footer = f"{PASSED}\n<shellId: 0 completed with exit code 0>"
    assert reward([call("bash", command="pytest")], [result(shown(COPILOT, 1, footer))]) is None


@pytest.mark.parametrize(
    "text",
    [
        '{"returncode": "0", "output": "3 passed in 1s"}',
        '{"returncode": true, "output": "3 passed in 1s"}',
        '{"returncode": 0, "output": "3 passed in 1s"',
        '[{"returncode": 0, "output": "3 passed in 1s"}]',
        '{"returncode": 1, "returncode": 0, "output": "3 passed in 1s"}',
        '{"returncode": 0, "exit_code": 1, "output": "3 passed in 1s"}',
        '{"data": {"returncode": 0}, "output": "3 passed in 1s"}',
        '{"returncode": 0, "output": ["3 passed in 1s"]}',
        '{"returncode": 0, "output": "3 passed in 1s"} 1',
        '{"metadata": {"exit_code": 0}, "output": "3 passed in 1s"}',
        "{" * 9000,
    ],
)
def test_only_a_whole_object_with_one_exit_code_is_one(text) -> None:
    assert reward([call("bash", command="pytest")], [result(text)]) is None


def test_the_error_flag_is_the_clients_and_counts_for_tools_that_execute() -> None:
    made = call("Bash", command="pytest")
    assert reward([made], [result(f"Exit code 1\n{FAILED}", is_error=True)]) == -1.0
    assert reward([made], [result(f"Exit code 1\n{FAILED}")]) is None
    assert reward([made], [result("The user doesn't want to proceed with this tool use.", is_error=True)]) is None
    assert reward([call("Read", file_path="x")], [result(f"Exit code 1\n{FAILED}", is_error=True)]) is None
    running = call("Bash", command="pytest", run_in_background=True)
    assert reward([running], [result(PASSED, is_error=False)]) is None


def test_the_error_flag_of_a_tool_result_is_captured_and_not_sent_to_an_engine() -> None:
    block = {"type": "tool_result", "tool_use_id": "c1", "content": "2", "is_error": True}
    ask = anthropic.read({"messages": [{"role": "user", "content": [block]}]}, "m")
    assert ask.sent_messages == [result("2", is_error=True)]
    assert ask.messages == [result("2")]


def test_the_same_key_twice_or_two_commands_are_no_call_that_could_be_read() -> None:
    for arguments in (
        '{"command": "pytest", "command": "cat x"}',
        '{"command": "pytest", "cmd": "cat x"}',
        "pytest",
        '["pytest"]',
        "{",
    ):
        made = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": arguments}}
        assert reward([made], [result(in_json(0, PASSED))]) is None


def test_a_declared_tool_counts_in_its_format_and_one_without_a_command_is_itself_the_check() -> None:
    assert reward([call("run", command="pytest")], [result(in_json(0, PASSED))], {"run": "json"}) == 1.0
    assert reward([call("run", command="cat x")], [result(in_json(0, PASSED))], {"run": "json"}) is None
    assert reward([call("run", command="pytest")], [result(shown(TAGS, 0, PASSED))], {"run": "json"}) is None
    assert reward([call("run_tests", path="tests")], [result('{"exit_code": 3}')], {"run_tests": "json"}) == -1.0
    assert reward([call("run_tests", path="tests")], [result('{"exit_code": 0}')], {"run_tests": "json"}) == 1.0
    assert reward([call("run_tests", path="tests")], [result('{"exit_code": 0}')]) is None
    config = JudgeConfig.model_validate({"execution_tools": {"run": "json"}})
    assert config.execution_tools == {"run": "json"}


def test_one_failed_run_makes_the_turn_bad_and_only_all_together_make_it_good() -> None:
    first, second = call("exec_command", 1, cmd="pytest"), call("exec_command", 2, cmd="pytest")
    good, bad = shown(CODEX, 0, PASSED), shown(CODEX, 1, FAILED)
    assert reward([first, second], [result(good), result(good, 2)]) == 1.0
    assert reward([first, second], [result(good), result(bad, 2)]) == -1.0
    assert reward([first, call("read", 2, path="x")], [result(good), result("text", 2)]) is None
    assert reward([first, call("read", 2, path="x")], [result(bad), result("text", 2)]) == -1.0


def test_the_judge_decides_if_a_user_message_came_as_well() -> None:
    came_back = [result(shown(CODEX, 0, PASSED)), {"role": "user", "content": "not that one"}]
    assert rule_opinion(after([call("exec_command", cmd="pytest")], came_back)) is None


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_answer_that_prints_a_verdict_itself_decides_nothing(number) -> None:
    text = ("3 passed in 0.1s", in_json(0, PASSED), shown(CODEX, 0, PASSED))[number - 1]
    made = call("bash", command=f"cat <<E\n{text}\nE")
    assert rule_opinion(after([made], [result(text)], said=text)) is None


@pytest.mark.parametrize(("text", "reward"), [("👍", 1.0), ("👍🏽 👍", 1.0), (":-1:", -1.0), ("👎", -1.0)])
def test_thumbs_alone_decide(text, reward) -> None:
    opinion = rule_opinion(reply(text))
    assert opinion is not None
    assert (opinion.judge, opinion.reward) == ("rules 2: thumbs", reward)


@pytest.mark.parametrize("text", ["👍 but shorter", "👍👎", "thanks", "-1", ""])
def test_thumbs_with_words_are_left_to_the_judge(text) -> None:
    assert rule_opinion(reply(text)) is None


def test_a_rating_outranks_an_outcome_and_that_outranks_everything_else() -> None:
    both = reply("👎", feedback=0.5, outcome_reward=-1.0)
    opinion = rating_opinion(both, JudgeConfig())
    assert opinion is not None
    assert (opinion.judge, opinion.reward) == ("user feedback", 0.5)
    scored = reply("👎", outcome_reward=1.0)
    assert rating_opinion(scored, JudgeConfig()).judge == "environment outcome"  # type: ignore[union-attr]
    assert rating_opinion(scored, JudgeConfig(outcome="apart")) is None
    assert rating_opinion(reply("👎"), JudgeConfig()) is None
    assert rating_opinion(reply("👎", feedback=0.0, outcome_reward=1.0), JudgeConfig()).reward == 0.0  # type: ignore[union-attr]


def test_with_steps_by_rules_the_judge_is_not_called_for_turns_of_a_scored_episode() -> None:
    settings = JudgeConfig(outcome="apart", steps="rules")
    opinion = only_rules(reply("and now?", outcome_reward=1.0), settings)
    assert opinion is not None
    assert opinion.reward is None
    assert only_rules(reply("and now?"), settings) is None, "in no episode"
    assert only_rules(reply("and now?", outcome_reward=1.0), JudgeConfig(outcome="apart")) is None
