"""Where rules decide, and where they must not."""

import pytest
from made_turns import reply, turn

from clawctl.config import JudgeConfig
from clawctl.judge.rules import rated, ruled

PYTEST = "collected 3 items\n\ntests/test_a.py ..F\n\n"


def after_tool(*results: str, answer: str | dict = "I run it.", **more: object):
    return turn([{"role": "user", "content": "run it"}], answer, [{"role": "tool", "content": text, **more} for text in results])


@pytest.mark.parametrize(
    ("text", "rule", "reward"),
    [
        ('{"exit_code": 0, "output": "2 failed in 1s"}', "exit code", 1.0),
        ('{"stdout": "", "returncode": 127}', "exit code", -1.0),
        ("Exit code: 1\ncat: x: No such file", "exit code", -1.0),
        ("hello\n[exit status 0]", "exit code", 1.0),
        ("Process exited with code 2", "exit code", -1.0),
        (PYTEST + "===== 1 failed, 2 passed in 0.12s =====", "pytest", -1.0),
        (PYTEST + "3 passed, 1 warning in 0.12s", "pytest", 1.0),
        (PYTEST + "==== 3 passed, 1 error in 0.12s ====", "pytest", -1.0),
        ("FAILED (failures=1, errors=2)", "unittest", -1.0),
        ("test result: ok. 5 passed; 0 failed; 0 ignored; finished in 0.00s", "cargo test", 1.0),
        ("test result: FAILED. 4 passed; 1 failed; 0 ignored", "cargo test", -1.0),
        ("Tests:       1 failed, 2 passed, 3 total", "jest", -1.0),
        ("Tests:       3 passed, 3 total", "jest", 1.0),
        ("FAIL\texample.com/x\t0.01s", "go test", -1.0),
        ("ok  \texample.com/x\t0.01s", "go test", 1.0),
    ],
)
def test_exit_codes_and_test_verdicts_decide(text, rule, reward) -> None:
    found = ruled(after_tool(text))
    assert found is not None
    assert (found.judge, found.reward, found.votes) == (f"rules 1: {rule}", reward, ())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the file says that 3 passed in 2s were counted",
        '{"exit_code": "0"}',
        '{"exit_code": true}',
        '{"exit_code": 0',
        '[{"exit_code": 0}]',
        "\n".join(["line"] * 10 + ["exit code: 0"] + ["line"] * 10),  # somewhere within
        "exit code: 0\nmore\nexit code: 1",  # one is a lie
        "3 passed in 0.1s\nexit code: 1",
        "0 " * 5000 + "passed in 1s",
    ],
)
def test_what_only_looks_like_a_verdict_is_left_to_the_judge(text) -> None:
    assert ruled(after_tool(text)) is None


def test_a_verdict_that_the_answer_printed_itself_decides_nothing() -> None:
    calls = [
        {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"command": "echo \\"3 passed in 0.1s\\""}'}}
    ]
    assert ruled(after_tool("3 passed in 0.1s", answer={"role": "assistant", "content": None, "tool_calls": calls})) is None


def test_one_failed_call_makes_the_turn_bad_and_only_all_together_make_it_good() -> None:
    good, bad, unclear = '{"exit_code": 0}', '{"exit_code": 1}', "some text"
    assert [found and found.reward for found in (ruled(after_tool(good, good)), ruled(after_tool(good, bad, unclear)))] == [
        1.0,
        -1.0,
    ]
    assert ruled(after_tool(good, unclear)) is None
    assert ruled(after_tool("all fine", is_error=True)).judge == "rules 1: error flag"  # type: ignore[union-attr]


def test_where_a_person_speaks_as_well_the_judge_is_asked() -> None:
    came_back = [{"role": "tool", "content": '{"exit_code": 0}'}, {"role": "user", "content": "not that one"}]
    assert ruled(turn([{"role": "user", "content": "q"}], "a", came_back)) is None


@pytest.mark.parametrize(("words", "reward"), [("👍", 1.0), ("👍🏽 👍", 1.0), (":-1:", -1.0), ("👎", -1.0)])
def test_thumbs_alone_decide(words, reward) -> None:
    found = ruled(reply(words))
    assert found is not None
    assert (found.judge, found.reward) == ("rules 1: thumbs", reward)


@pytest.mark.parametrize("words", ["👍 but shorter", "👍👎", "thanks", "-1", ""])
def test_thumbs_with_words_are_left_to_the_judge(words) -> None:
    assert ruled(reply(words)) is None


def test_a_rating_outranks_an_outcome_and_that_outranks_everything_else() -> None:
    both = reply("👎", feedback=0.5, outcome_reward=-1.0)
    found = rated(both, JudgeConfig())
    assert found is not None
    assert (found.judge, found.reward) == ("user feedback", 0.5)
    scored = reply("👎", outcome_reward=1.0)
    assert rated(scored, JudgeConfig()).judge == "environment outcome"  # type: ignore[union-attr]
    assert rated(scored, JudgeConfig(outcome="apart")) is None
    assert rated(reply("👎"), JudgeConfig()) is None
