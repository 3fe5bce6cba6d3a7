"""Repositories and questions: tasks, verdicts, and whole episodes against a scripted server."""

import asyncio
import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from clawctl.environments import Environment, Outcome, Task
from clawctl.environments.episode import play_task
from clawctl.errors import ClawError
from clawctl.extensions.worlds.sandbox.tars import files_of, tar_of
from clawctl.extensions.worlds.splits import SHOWN
from clawctl.extensions.worlds.swe.environment import Swe, solve
from clawctl.extensions.worlds.swe.families import draw_task
from clawctl.extensions.worlds.swe.rows import read_rows
from clawctl.extensions.worlds.terminal.environment import Terminal
from clawctl.extensions.worlds.toolcall.calls import is_same_call
from clawctl.extensions.worlds.toolcall.environment import ToolCall
from clawctl.extensions.worlds.toolcall.questions import Question, decide, draw_question, is_right, number_in, read_questions
from clawctl.extensions.worlds.toolcall.tools import problem_of, read_tools
from clawctl.extensions.worlds.verdicts.python_code import clean, is_same
from clawctl.run.endpoint import Endpoint
from scripts.benchmarks.environments_answers import wrong_pairs
from tests.stub_http import StubHandler, StubServer, running

needs_sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing: apt-get install bubblewrap")


def episode(environment: Environment, task: Task, says: Callable[[list[dict[str, Any]]], str | dict[str, Any]]) -> Outcome:
    """One episode whose model's answers are `says(messages)`."""

    class Model(StubHandler):
        def do_POST(self) -> None:
            messages = self.sent()["messages"]
            said = says(messages)
            message = {"role": "assistant", "content": said} if isinstance(said, str) else said
            turn = f"chatcmpl-turn{len(messages)}"
            self.answer({"id": turn, "choices": [{"message": message}], "usage": {"total_tokens": 1}})

    with running(StubServer(Model)) as server:
        return asyncio.run(play_task(environment, task, Endpoint(f"{server.url}/e/secret/v1", "key", "model")))


# Whole episodes


@needs_sandbox
def test_an_agent_that_finds_the_file_and_moves_it_is_worth_one() -> None:
    task = Terminal().tasks("train", 1, 0)[0]
    commands = task.spec.solution["solve.sh"].decode()
    outcome = episode(Terminal(), task, lambda messages: "submit" if len(messages) > 2 else f"```bash\n{commands}```")
    assert (outcome.reward, outcome.ending) == (1, "done")
    outcome = episode(Terminal(max_turns=2), task, lambda _: "```bash\nls\n```")
    assert (outcome.reward, outcome.ending) == (0, "turns")


@needs_sandbox
def test_an_agent_that_mends_the_function_is_worth_one() -> None:
    task = Swe().tasks("train", 1, 2)[0]

    def mend(messages: list[dict[str, Any]]) -> str:
        assert "Correct it." in messages[1]["content"]
        return "Done." if len(messages) > 2 else f"```bash\ngit apply - <<'EOF'\n{task.spec.patch}EOF\n```"

    assert episode(Swe(), task, mend).reward == 1


@needs_sandbox
def test_with_steps_each_command_is_worth_how_it_ended_and_the_other_turns_nothing() -> None:
    task, commands = Terminal().tasks("train", 1, 0)[0], iter(("ls", "false"))

    def work(_: Any) -> str:
        return f"```bash\n{command}\n```" if (command := next(commands, None)) else "submit"

    outcome = episode(Terminal(steps=True), task, work)
    assert outcome.steps == {"chatcmpl-turn2": 1, "chatcmpl-turn4": -1}
    assert episode(Terminal(), task, lambda messages: "submit").steps == {}


@needs_sandbox
def test_a_tool_call_is_answered_from_the_sandbox() -> None:
    task = ToolCall().tasks("eval", 1, 0)[0]
    arguments = json.dumps({"expression": task.spec.text.strip("?.").split(" ", 2 if task.spec.text.startswith("W") else 1)[-1]})
    if task.spec.text.startswith("How"):
        arguments = json.dumps({"expression": task.spec.text.removeprefix("How much is ").strip("?")})

    def call(messages: list[dict[str, Any]]) -> str | dict[str, Any]:
        if messages[-1]["role"] == "tool":
            return f"It is {messages[-1]['content']}."
        function = {"name": "calculator", "arguments": arguments}
        return {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]}

    assert episode(ToolCall(steps=True), task, call).steps == {"chatcmpl-turn1": 1}
    outcome = episode(ToolCall(), task, call)
    assert (outcome.reward, outcome.parts["called"], outcome.ending) == (1, True, "done")


@needs_sandbox
@pytest.mark.parametrize("made", [ToolCall, Terminal, Swe])
def test_a_solved_task_in_a_prompt_is_what_an_episode_with_its_answers_would_be(made: type[ToolCall | Terminal | Swe]) -> None:
    sent, tasks = list[list[dict[str, Any]]](), made().tasks("train", 6, SHOWN)
    episode(made(examples=6), made().tasks("eval", 1, 0)[0], lambda messages: sent.append(messages) or "submit")
    assert "examples" not in str(sent[0])
    begins = [sent[0].index({"role": "user", "content": getattr(task.spec, "text", "") or prompt_of(task)}) for task in tasks]
    for task, begin, end in zip(tasks, begins, [*begins[1:], len(sent[0]) - 1], strict=True):
        *shown, last = sent[0][begin:end]
        answers, seen = iter([message for message in (*shown, last) if message["role"] == "assistant"]), list[dict[str, Any]]()
        outcome = episode(made(), task, lambda messages: seen.extend(messages[len(seen) :]) or next(answers))  # noqa: B023
        assert (outcome.reward, outcome.ending) == (1, "done")
        assert [message for message in seen if message["role"] != "system"] == shown


def prompt_of(task: Task) -> str:
    return str(getattr(task.spec, "instruction", "") or task.spec.statement)


def test_solved_tasks_are_not_shown_to_a_harness_or_taken_from_rows(tmp_path: Path) -> None:
    with pytest.raises(ClawError, match="a harness is not shown solved tasks"):
        Terminal(examples=2, harness="true")
    row = {"instance_id": "a-1", "problem_statement": "x", "FAIL_TO_PASS": ["t.py::t"], "files": {"a.py": ""}}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ClawError, match="a row has a patch, and no commands"):
        Swe(examples=2, path=str(tmp_path / "rows.jsonl"))


def test_a_sum_that_is_only_repeated_is_no_answer() -> None:
    question = draw_question(15)
    assert (question.text, question.answer) == ("What is (38 - 40) - 56?", "-58")
    repeated = ("(38 - 40) - 56", "The answer is (38 - 40) - 56, which is 36.", r"\boxed{(38-40)-56}", r"-2 \times 29")
    assert [is_right(reply, question) for reply in repeated] == [False] * 4
    right = ("(38 - 40) - 56 = -58", "It is -58.", r"\boxed{-58}", "-58")
    assert [is_right(reply, question) for reply in right] == [True] * 4


HARNESS = """python3 - <<'EOF'
import json, os, subprocess, urllib.request
body = {"model": os.environ["MODEL"], "messages": [{"role": "user", "content": os.environ["INSTRUCTION"]}]}
asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode())
said = json.load(urllib.request.urlopen(asked))["choices"][0]["message"]["content"]
subprocess.run(["bash", "-c", said], check=True)
EOF
"""


@needs_sandbox
def test_a_harness_in_the_sandbox_reaches_its_episode() -> None:
    task = Terminal().tasks("train", 2, 0)[1]
    outcome = episode(Terminal(harness=HARNESS), task, lambda _: task.spec.solution["solve.sh"].decode())
    assert (outcome.reward, outcome.ending) == (1, "done"), outcome


# Verdicts on code


@needs_sandbox
def test_a_drawn_repository_is_worth_one_with_its_patch_and_nothing_without() -> None:
    task = draw_task(5)
    assert asyncio.run(solve(task)).value == 1
    assert asyncio.run(solve(task, "")).value == 0


def test_files_that_change_how_tests_run_are_restored() -> None:
    before = {"conftest.py": b"old", "a.py": b"", "json/__init__.py": b"theirs", "tests/helpers.py": b"strict"}
    agents = {"conftest.py": b"new", "a.py": b"better", "tests/test_a.py": b"easy", "pytest.ini": b"", "x/conftest.py": b""}
    agents |= {
        "random.py": b"",
        "json/__init__.py": b"better",
        "b.pth": b"",
        "__pycache__/a.cpython-311.pyc": b"",
        "tests/new.py": b"n",
        "tests/helpers.py": b"lax",
    }
    cleaned, not_its_own = clean(tar_of(agents), before, {"tests/test_a.py": b"hard"})
    assert not_its_own == {"conftest.py", "tests/test_a.py", "tests/helpers.py"}
    assert files_of(cleaned) == {
        "conftest.py": b"old", "a.py": b"better", "tests/test_a.py": b"hard", "json/__init__.py": b"better",
        "tests/helpers.py": b"strict",
    }  # fmt: skip


def test_true_is_not_one_and_the_last_digits_do_not_count() -> None:
    assert is_same([1, {"a": 0.1 + 0.2}], [1, {"a": 0.3}])
    assert not is_same(True, 1)
    assert not is_same(1, True)
    assert not is_same(None, False)


# Files of tasks


def row(**changes: Any) -> dict[str, Any]:
    whole = {"instance_id": "a-1", "problem_statement": "Mend it.", "files": {"a.py": "x = 1\n"}}
    return whole | {"FAIL_TO_PASS": '["tests/test_a.py::test_x"]'} | changes


def test_rows_of_swe_bench_are_read_and_bad_ones_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row()) + "\n")
    assert read_rows(path, None)[0].tests == ("tests/test_a.py::test_x",)
    pro = {"fail_to_pass": "['tests/test_a.py::test_x']", "pass_to_pass": "[]"}
    inner = {"responses_create_params": {"metadata": {"instance_dict": json.dumps(row())}}}
    for given in ({name: value for name, value in (row() | pro).items() if name != "FAIL_TO_PASS"}, inner):
        path.write_text(json.dumps(given))
        assert read_rows(path, None)[0].tests == ("tests/test_a.py::test_x",)
    for changes, problem in (({"FAIL_TO_PASS": []}, "no verdict"), ({"files": None, "repo": "a/b"}, "not on this machine")):
        path.write_text(json.dumps(row(**changes)))
        with pytest.raises(ClawError, match=problem):
            read_rows(path, None)


def test_questions_of_several_data_sets_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [
        {"prompt": [{"role": "user", "content": "1+1?"}], "reward_model": {"ground_truth": "2"}},
        {"Problem": "3+4?", "Answer": 7},
        {"question": "2*3?", "answer": "so\n#### 6"},
        {"question": "4/8?", "final_answer": "1/2"},
        {"expected_answer": "9", "responses_create_params": {"input": [{"role": "user", "content": "3*3?"}]}},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    wanted = [("1+1?", "2"), ("3+4?", "7"), ("2*3?", "6"), ("4/8?", "1/2"), ("3*3?", "9")]
    assert [(question.text, question.answer) for question in read_questions(path)] == wanted
    path.write_text(json.dumps({"question": "2*3?"}))
    with pytest.raises(ClawError, match="has no verdict"):
        read_questions(path)
    path.write_text('{"question": "2*3?", "answer": "6"}\n{"question": "2*')
    with pytest.raises(ClawError, match="line 2 is no JSON: Unterminated string"):
        read_questions(path)


def test_calls_of_bfcl_are_compared_with_the_allowed_values(tmp_path: Path) -> None:
    path = tmp_path / "BFCL_v4_simple.json"
    function = {"name": "area", "description": "", "parameters": {"type": "dict", "properties": {"base": {"type": "integer"}}}}
    question = {"id": "simple_0", "question": [[{"role": "user", "content": "How large?"}]], "function": [function]}
    path.write_text(json.dumps(question))
    with pytest.raises(ClawError, match="has no verdict"):
        read_questions(path)
    allowed = [{"area": {"base": [10, 10.0], "unit": ["cm", ""]}}]
    (tmp_path / "possible_answer").mkdir()
    (tmp_path / "possible_answer" / path.name).write_text(json.dumps({"id": "simple_0", "ground_truth": allowed}))
    read = read_questions(path)[0]
    assert read.tools[0]["function"]["parameters"]["type"] == "object"
    assert is_same_call([("area", {"base": 10})], allowed, read.tools)
    for wrong in (
        [],
        [("area", {"base": 11})],
        [("area", {"base": 10, "more": 1})],
        [("area", {"base": 10})] * 2,
        [("area", None)],
    ):
        assert not is_same_call(wrong, allowed, read.tools)  # type: ignore[arg-type]


def test_a_tool_schema_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    bad = '[{"name": "a", "parameters": [1]}]'
    for text, problem in (("{}", "is not a list of tools"), ('[{"x": 1}]', "tool 1 .*not a function"), (bad, "not a JSON schema")):
        path.write_text(text)
        with pytest.raises(ClawError, match=problem):
            read_tools(path)


def test_an_answer_is_right_by_its_box_or_its_last_number() -> None:
    question = Question("q", "?", "1024")
    for right in (r"so \boxed{1,024}", "First 3, then 1024.", r"\boxed{3} no, \boxed{1024}"):
        assert is_right(right, question), right
    for wrong in ("", "1024 or 3", r"1024 \boxed{3}", "10240", "$9^{9^{9^9}}$"):
        assert not is_right(wrong, question), wrong
    assert number_in("3/4") == 0.75
    assert problem_of("__import__('os')") is not None
    assert problem_of("2 ** (3 + 4)") is None
    for text in ("'a' * 10 ** 9", "b'a' * 9", "True + 1", "None", "..."):
        assert "only numbers" in str(problem_of(text))


def test_equivalent_answers_are_found_and_no_different_one_is_accepted() -> None:
    pytest.importorskip("math_verify", reason="the extra environments is not installed")
    assert wrong_pairs() == ([], [])


@pytest.mark.skipif(find_spec("math_verify") is None, reason="math-verify is missing: pip install -e '.[test]'")
@pytest.mark.parametrize(
    ("wanted", "reply", "right", "decided"),
    [
        ("8", "Answer: 8. I used 2 steps", True, "math-verify"),
        (r"(3, \frac{\pi}{2})", r"\boxed{\left(3, \frac{\pi}{2}\right)}", True, "math-verify"),
        (r"\frac{1}{2}", "so it is 0.5", True, "math-verify"),
        (r"2\sqrt{3}", r"\boxed{\sqrt{12}}", True, "math-verify"),
        (r"\{1, 2\}", r"\boxed{\{2, 1\}}", True, "math-verify"),
        (r"(1, 2)", r"\boxed{[1, 2]}", False, "math-verify"),
        ("x^2", r"\boxed{x^3}", False, "math-verify"),
        ("Paris", "It is:\nParis.", True, "text"),
        ("Paris", "Lyon", False, "text"),
        ('{"a": [1, 2.0]}', 'So:\n```json\n{ "a": [1.0, 2] }\n```', True, "JSON"),
        ('{"a": [1, 2]}', '{"a": [2, 1]}', False, "JSON"),
    ],
)
def test_an_answer_is_compared_by_what_it_means(wanted: str, reply: str, right: bool, decided: str) -> None:
    assert decide(reply, Question("q", "?", wanted)) == (right, decided)


HEDGES = (
    *(
        "8 or 9",
        "either 9 or 8.",
        "The answer is 9, 8",
        "7, 8 or 8",
        "between 7 and 8",
        "nine or eight",
        "1 2 3 4 5 6 7 8",
        "not 8",
    ),
    *(r"\boxed{9}\boxed{8}", r"$\boxed{9}$ or $\boxed{8}$", r"\boxed{9} \boxed{7} \boxed{8}", r"\boxed{9=8}", r"\boxed{9 \to 8}"),
    *(r"\boxed{9, 8}", r"\boxed{9 \text{ or } 8}", "$9$ or $8$", r"\boxed{\geq 8}"),
)
REPEATS = (
    *(
        r"\boxed{8}\boxed{8}",
        r"\boxed{8} or \boxed{8.0}",
        "8 or 8",
        "$8$ so the answer is $8$",
        r"The answer is 8: \boxed{8}",
        "It is 8, so 8.",
    ),
    *(r"\boxed{7 + 1 = 8}", r"\boxed{x = 8}", "3 + 5\n8", "5 and 3 make 8.", "It is not even, so 8.", r"\boxed{3} no, \boxed{8}"),
)


@pytest.mark.skipif(find_spec("math_verify") is None, reason="math-verify is missing: pip install -e '.[test]'")
def test_an_answer_that_names_several_values_is_wrong_and_one_that_repeats_its_value_is_right() -> None:
    question = Question("q", "?", "8")
    assert [reply for reply in HEDGES if is_right(reply, question)] == []
    assert [reply for reply in REPEATS if not is_right(reply, question)] == []
    assert not is_right(r"\boxed{Lyon} or \boxed{Paris}", Question("q", "?", "Paris"))
    assert not is_right("1/3 or 1/2", Question("q", "?", r"\frac{1}{2}"))
    assert is_right(r"\boxed{\frac{2}{4} = \frac{1}{2}}", Question("q", "?", r"\frac{1}{2}"))


def test_drawn_tasks_are_the_same_for_the_same_number() -> None:
    assert draw_task(7) == draw_task(7)
    assert draw_question(7) == draw_question(7)
