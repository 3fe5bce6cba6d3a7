"""The world of many wishes: its answers, people, reader and judge. Held-out phrasings are not read here."""

import json
import urllib.request
from random import Random
from threading import Thread

import pytest

from clawctl.errors import ClawError
from clawctl.judge.prompts import judge_messages, read_vote
from scripts.wishes.axes import AXES, USUAL, draw_style, is_correct, measure, write
from scripts.wishes.environment import Wishes, scored, wants_in
from scripts.wishes.judge import answer_to, judge_server, judged
from scripts.wishes.people import MAX_COMPLAINTS, Wisher, unmet
from scripts.wishes.problems import make_problems
from scripts.wishes.reader import read
from scripts.wishes.wording import chosen_axes, complaint, hint, say
from scripts.wishes_model.split import WORDS, split

PLAIN = dict(USUAL)


def some_style(rng: Random) -> dict[str, str]:
    return {axis: rng.choice(list(values)) for axis, values in AXES.items()}


def test_measuring_an_answer_gives_back_the_style_it_was_written_in():
    rng = Random(1)
    for problem in make_problems(600, 0):
        style = some_style(rng)
        answer = write(problem, style, Random(0))
        if answer == write(problem, {**style, "case": "normal"}, Random(0)):
            style["case"] = "normal"  # a sentence without a place for a capital
        assert measure(answer) == style, answer


def test_a_right_answer_is_correct_in_every_style_and_a_wrong_one_in_none():
    rng = Random(2)
    for problem in make_problems(300, 1):
        style = some_style(rng)
        assert is_correct(problem, write(problem, style, rng))
        assert not is_correct(problem, write(problem, style, rng, off_by=1))


def test_text_without_an_answer_shows_no_language_digits_or_order():
    measured = measure("I do not know.")
    assert [measured[axis] for axis in ("language", "digits", "signs", "order")] == [None] * 4
    assert not is_correct(make_problems(1, 0)[0], "I do not know.")


def test_rare_values_are_drawn_by_their_shares():
    rng = Random(3)
    drawn = [draw_style(rng) for _ in range(4000)]
    for axis, values in AXES.items():
        for value, share in values.items():
            assert sum(style[axis] == value for style in drawn) / 4000 == pytest.approx(share, abs=0.03)
        assert all(0.02 <= share <= 0.2 for value, share in values.items() if value != USUAL[axis])


def test_no_problem_of_training_is_held_out():
    assert not {p.text for p in make_problems(400, 5)} & {p.text for p in make_problems(400, 5, "eval")}


def test_the_reader_understands_nearly_every_complaint_and_hint():
    rng, total, understood = Random(4), 0, 0
    for axis in chosen_axes():
        for value in AXES[axis]:
            for _ in range(20):
                other = rng.choice([a for a in chosen_axes() if a != axis])
                wants = {axis: value} if rng.random() < 0.6 else {axis: value, other: rng.choice(list(AXES[other]))}
                for text in (complaint(wants, rng), hint(wants, rng)):
                    total += 1
                    understood += read(text).wants == wants and read(text).score == -1
    assert understood / total > 0.97


@pytest.mark.parametrize(("rule", "score"), [("happy", 1), ("wrong", -1), ("vague", -1), ("unclear", 0)])
def test_the_reader_recognises_thanks_doubts_and_neutral_replies(rule: str, score: int):
    rng = Random(5)
    for _ in range(60):
        said = read(say(rule, rng, "trained", said=5, right=6))
        assert said.score == score
        assert not said.wants


def test_a_problem_is_no_feedback_but_moving_on_to_the_next_one_is():
    for problem in make_problems(100, 6):
        assert not read(problem.text).wants
        assert read(problem.text).score == 1


def test_a_person_complains_until_every_wish_is_met_and_gives_up_after_some_answers():
    rng, wants = Random(7), {"emoji": "emoji", "language": "german", "signoff": "says bye"}
    for problem in make_problems(40, 7):
        reaction = Wisher(wants, 1, "trained").react(problem, write(problem, PLAIN, rng), 0)
        assert reaction.text
        assert not reaction.done
        said = read(reaction.text).wants
        assert 1 <= len(said) <= 2
        assert said.items() <= wants.items()
        assert Wisher(wants, 1).react(problem, write(problem, {**PLAIN, **wants}, rng), 0).satisfied
        assert Wisher(wants, 1).react(problem, write(problem, PLAIN, rng), MAX_COMPLAINTS).done


def test_wrong_numbers_are_doubted_by_half_of_the_people_without_wishes():
    problem = make_problems(1, 8)[0]
    wrong = write(problem, PLAIN, Random(0), off_by=1)
    reactions = [Wisher({}, seed, "trained").react(problem, wrong, 0) for seed in range(200)]
    doubted = [r for r in reactions if not r.satisfied]
    assert 0.4 < len(doubted) / 200 < 0.6
    assert all(read(r.text or "").doubts for r in doubted)


def test_the_judge_scores_a_complaint_and_its_hint_asks_for_the_same():
    score, said = judged("no, where is the emoji?", "1")
    assert score == -1
    assert said is not None
    assert read(said).wants == {"emoji": "emoji"}
    assert judged("thanks a lot", "2") == (1, None)
    assert judged("check the sum again", "3") == (-1, "Work out the result again.")


def test_the_judge_answers_the_prompts_of_the_judge_stage_over_http():
    messages = judge_messages("2 + 2?", "The answer is 4.", "please answer in German", "user", "a1b2c3")
    assert read_vote(answer_to(messages[-1]["content"])).score == -1
    with judge_server() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1/chat/completions"
        body = json.dumps({"model": "wishes", "messages": messages}).encode()
        with urllib.request.urlopen(urllib.request.Request(url, body)) as response:
            text = json.load(response)["choices"][0]["message"]["content"]
        server.shutdown()
    vote = read_vote(text)
    assert vote.score == -1
    assert vote.hint is not None
    assert read(vote.hint).wants == {"language": "german"}


def test_an_outcome_has_satisfaction_correctness_and_a_rate_for_each_axis():
    problem, rng = make_problems(1, 9)[0], Random(0)
    answer = write(problem, {**PLAIN, "emoji": "emoji"}, rng)
    outcome = scored(problem, {"emoji": "emoji", "greeting": "greets"}, problem.text, answer)
    assert unmet({"emoji": "emoji", "greeting": "greets"}, answer) == {"greeting": "greets"}
    assert outcome.parts["satisfaction"] == 0
    assert outcome.parts["correctness"] == 1
    assert {axis for axis in AXES if outcome.parts[axis]} == {"emoji"}
    assert set(outcome.parts) == set(Wishes.metrics)


def test_what_people_wish_for_is_part_of_the_version_of_the_environment() -> None:
    assert Wishes("say hello first").version != Wishes("answer in German").version


def test_a_wish_in_words_is_understood_or_refused_with_the_axes():
    assert wants_in("answer in German and end with a smiley") == {"language": "german", "emoji": "emoji"}
    with pytest.raises(ClawError, match="no wish") as refused:
        wants_in("be taller")
    assert "emoji" in refused.value.fix


def test_the_draw_of_held_out_axes_and_phrasings_repeats() -> None:
    before = {file: file.read_bytes() for file in WORDS.rglob("*.txt")}
    split(20)
    assert {file: file.read_bytes() for file in WORDS.rglob("*.txt")} == before
    assert len(chosen_axes()) == 12
