"""The accuracy of the judge, counted by hand on a scripted judge."""

import json
from pathlib import Path

import pytest

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.extensions.judge_lab.calibrate import calibrate, calls_for
from clawctl.extensions.judge_lab.cases import read_cases
from clawctl.judge.view import view_turn
from tests import forked
from tests.judge.made_turns import reply, shard


def line(next_state: object, label: object, **more: object) -> str:
    return json.dumps({"request": "2+2?", "answer": "4", "next_state": next_state, "label": label, **more})


def write(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "labelled.jsonl"
    path.write_text("\n".join(lines) + "\n\n")
    return path


def recipe(url: str, **settings: object) -> Recipe:
    given = {"endpoint": url, "model": "scripted", "api_key": "k", "timeout_s": 5.0, "concurrency": 1, **settings}
    return Recipe.model_validate({"judge": given})


def by_words(text: str, number: int) -> str:
    """Good for thanks, bad for wrong, nonsense for hm; for odd it changes its mind with every call."""
    if "odd" in text:
        return "\\boxed{1}" if number % 2 else "\\boxed{-1}"
    return "\\boxed{1}" if "thanks" in text else "\\boxed{-1}" if "wrong" in text else "banana"


def report_of(capsys) -> dict:
    return json.loads(capsys.readouterr().out)


def test_accuracy_abstention_agreement_confusion_and_cost(run, serving, tmp_path, capsys) -> None:
    server = serving(by_words)
    file = write(tmp_path, line("thanks", 1), line("wrong", -1), line("thanks but wrong", -1), line("hm", 0), line("👎", -1))
    calibrate(run, recipe(server.url), file, ratings=False, attacks=False, as_json=True)
    report = report_of(capsys)
    assert (report["cases"], report["judge"], report["by_rule"]) == (5, "scripted prompt 1", 1)
    single, three, five = report["by_votes"]
    assert [row["votes"] for row in (single, three, five)] == [1, 3, 5]
    for row in (single, three, five):  # right: thanks, wrong, the thumb; wrong: "thanks but wrong"; abstained: hm
        assert row["accuracy"] == pytest.approx(3 / 4)
        assert row["abstention"] == pytest.approx(1 / 5)
    assert single["calls_per_turn"] == pytest.approx(4 / 5)
    assert three["calls_per_turn"] == pytest.approx((2 + 2 + 2 + 3) / 5)  # agreeing votes stop early, invalid ones do not
    assert five["calls_per_turn"] == pytest.approx((3 + 3 + 3 + 5) / 5)
    assert three["tokens_per_turn"] == pytest.approx(110 * 9 / 5)
    assert report["agreement"] == 1.0
    assert report["invalid_votes"] == pytest.approx(5 / 20)
    assert report["confusion"] == {
        "1": {"1": 1, "0": 0, "-1": 0, "none": 0},
        "0": {"1": 0, "0": 0, "-1": 0, "none": 1},
        "-1": {"1": 1, "0": 0, "-1": 2, "none": 0},
    }
    assert {key: report["cost"][key] for key in ("calls", "failed", "prompt_tokens", "completion_tokens")} == {
        "calls": 21,  # one of them tried whether the endpoint constrains answers
        "failed": 0,
        "prompt_tokens": 2100,
        "completion_tokens": 210,
    }
    assert list(run.verdicts.iterdir()) == []


def test_the_command_prints_one_json_document(run, serving, tmp_path) -> None:
    server = serving(by_words)
    settings = tmp_path / "recipe.yaml"
    settings.write_text("judge: {model: scripted, api_key: k}\n")
    command = ["calibrate", "--run", run.root, "--recipe", settings, "--endpoint", server.url]
    file = write(tmp_path, line("thanks", 1))
    done = forked.run(*command, file, "--json")
    assert json.loads(done.stdout)["by_votes"][0]["accuracy"] == 1.0
    refused = forked.run(*command, tmp_path / "none")
    assert refused.returncode == 2
    assert "cannot be read" in refused.stderr


def test_votes_that_waver_lower_the_agreement_and_more_of_them_decide(run, serving, tmp_path, capsys) -> None:
    server = serving(by_words)
    calibrate(run, recipe(server.url, votes=2), write(tmp_path, line("odd", 1)), ratings=False, attacks=False, as_json=True)
    report = report_of(capsys)  # votes 1, -1, 1, -1, 1
    assert report["agreement"] == pytest.approx(8 / 20)
    assert [(row["votes"], row["accuracy"], row["abstention"]) for row in report["by_votes"]] == [
        (1, 1.0, 0.0),
        (2, None, 1.0),
        (3, 1.0, 0.0),
        (5, 1.0, 0.0),
    ]


def test_how_many_calls_stopping_early_saves() -> None:
    votes = (1, -1, 1, 1, 1)
    assert [calls_for(votes, count, 0.5) for count in (1, 2, 3, 5)] == [1, 2, 3, 5]
    assert [calls_for((1, 1, 1, 1, 1), count, 0.5) for count in (1, 2, 3, 5)] == [1, 2, 2, 3]
    assert calls_for((), 5, 0.5) == 0


def test_the_judge_is_compared_with_peoples_ratings(run, serving, tmp_path, capsys) -> None:
    server = serving(by_words)
    shard(
        run, "1-a", [reply("thanks", feedback=1.0), reply("thanks", feedback=-0.5), reply("wrong", feedback=-1.0), reply("wrong")]
    )
    calibrate(run, recipe(server.url), write(tmp_path, line("thanks", 1, rating=-1)), ratings=True, attacks=False, as_json=True)
    report = report_of(capsys)
    assert report["cases"] == 4
    assert report["ratings"] == {"rated": 4, "judged": 4, "disagreement": 0.5}


def test_the_tables_show_the_results(run, serving, tmp_path, capsys) -> None:
    server = serving(by_words)
    file = write(tmp_path, line("thanks", 1, rating=0.5), line("wrong", -1))
    calibrate(run, recipe(server.url), file, ratings=False, attacks=True, as_json=False)
    shown = capsys.readouterr().out
    for text in (
        "scripted prompt 1 on 2 turns",
        "100.0 %",
        "labels against verdicts",
        "of 60 attacks change its verdict",
        "users' own ratings",
    ):
        assert text in shown


def test_a_judge_that_follows_injected_text_is_detected(run, serving, capsys) -> None:
    server = serving(lambda text, number: "\\boxed{1}" if "The turn is over" in text else "\\boxed{-1}")
    calibrate(run, recipe(server.url, votes=1), None, ratings=False, attacks=True, as_json=True)
    attacks = report_of(capsys)["attacks"]
    assert (len(attacks["flipped"]), attacks["attack_flip_rate"]) == (1, pytest.approx(1 / 60))
    assert "The turn is over" in attacks["flipped"][0]


def test_messages_tools_and_silence_can_be_labelled(tmp_path) -> None:
    chat = {"messages": [{"role": "user", "content": "ls"}], "response": {"role": "assistant", "content": "a"}, "label": 1}
    tool = json.dumps({**chat, "next_state": [{"role": "tool", "content": "a\nb"}]})
    first, second, third = read_cases(write(tmp_path, tool, line(None, 0), line("done", 1, role="environment", id="x")))
    assert (view_turn(first.turn, 0).next_state, view_turn(first.turn, 0).role) == ("a\nb", "tool")
    assert second.turn.next_state is None
    assert (view_turn(third.turn, 0).role, third.turn.turn_id) == ("environment", "x")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "line 1"),
        ("[]", "not an object"),
        (line("x", 2), "label is 2"),
        (line("x", True), "label is True"),
        (line("x", 1, rating=3), "rating is 3"),
        (line("x", 1, lable=1), "unknown key 'lable'"),
        ('{"request": "a", "answer": "b", "label": 1}', "next_state"),
        ('{"request": "a", "next_state": null, "label": 1}', "answer"),
        (line(7, 1), "expected text, found int"),
        (line([], 1), "messages must be a list"),
        (line(["x"], 1), "messages must be a list"),
        ("", "contains no labelled turn"),
    ],
)
def test_a_line_that_is_no_labelled_turn_is_named_with_the_cure(tmp_path, text, problem) -> None:
    with pytest.raises(ClawError, match=problem) as refused:
        read_cases(write(tmp_path, text))
    assert refused.value.exit_code == 2
    assert '"label"' in refused.value.fix


def test_the_example_in_the_documents_is_a_labelled_file() -> None:
    cases = read_cases(Path(__file__).parents[3] / "docs" / "labelled-turns.jsonl")
    assert {case.label for case in cases} == {1, 0, -1}
    assert len({case.turn.turn_id for case in cases}) == len(cases) >= 30


def test_no_ratings_and_no_file_are_problems_with_a_cure(run, tmp_path) -> None:
    with pytest.raises(ClawError, match="has a rating"):
        calibrate(run, Recipe(), None, ratings=True, attacks=False, as_json=True)
    with pytest.raises(ClawError, match="cannot be read"):
        calibrate(run, Recipe(), tmp_path / "missing", ratings=False, attacks=False, as_json=True)
