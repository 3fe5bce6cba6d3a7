"""Whether a judge can judge: twelve planted turns, asked once, and what follows from the result."""

import logging
from collections import Counter

import orjson
import pytest
from starlette.responses import Response

from clawctl.config import Recipe
from clawctl.engines.vllm.child import free_port
from clawctl.errors import ClawError
from clawctl.judge.fitness import planted_turns
from clawctl.judge.worker import judge
from clawctl.run.directory import RunDir
from clawctl.run.fitness import UNFIT, Fitness, read_fitness
from tests.judge.judging import by_words, recipe, verdicts_of
from tests.judge.made_turns import reply, shard
from tests.judge.test_judge_worker import rate
from tests.waiting import until

CONSTRAINED = 1  # the call that tries whether the endpoint constrains answers, if an answer had no score


def knows(right: int):
    """A judge of rules that scores the first `right` planted turns as a person does and answers the others with "I like it"."""
    scores = {str(turn.messages[0]["content"]): score for turn, score in planted_turns()[:right]}
    others = [str(turn.messages[0]["content"]) for turn, _ in planted_turns()[right:]]

    def script(text: str, number: int) -> str:
        score = next((score for request, score in scores.items() if request in text), None)
        if score is None and any(request in text for request in others):
            return "I like it"
        return by_words(text, number) if score is None else f"\\boxed{{{score}}}"

    return script


def fitness_of(run: RunDir) -> Fitness:
    fitness = read_fitness(run)
    assert fitness is not None
    return fitness


def test_the_planted_turns_are_four_of_each_kind_and_all_differ() -> None:
    planted = planted_turns()
    assert Counter(score for _, score in planted) == {1: 4, -1: 4, 0: 4}
    assert len({orjson.dumps([turn.messages, turn.response, turn.next_state]) for turn, _ in planted}) == 12


def test_a_judge_with_too_few_right_answers_is_not_used_and_the_log_gives_the_result_and_the_cure(run, serving, caplog) -> None:
    server = serving(knows(9))
    shard(run, "1-a", [reply("thanks"), reply("too much bold")])
    with caplog.at_level(logging.WARNING):
        judge(run, recipe(server.url, fitness="check"), once=True)
    assert [(verdict.reward, verdict.votes, verdict.hints, verdict.reason, verdict.judge) for verdict in verdicts_of(run)] == [
        (None, [], [], UNFIT, "scripted prompt 1")
    ] * 2
    assert len(server.asked) == 12 + CONSTRAINED
    lines = [record.message for record in caplog.records if "planted" in record.message]
    assert len(lines) == 1
    assert lines[0].startswith("scripted is not used as the judge: 9 of 12 planted turns right, 3 without a valid vote; ")
    assert all(cure in lines[0] for cure in ("judge.endpoint", "ratings", "thumbs", "your own words", "rules"))


def test_ratings_outcomes_and_rules_decide_as_before_without_a_fit_judge(run, serving) -> None:
    server = serving(lambda text, number: "banana")
    rated = reply("thanks")
    rate(run, rated, -1.0, comment="Leave out the bold.")
    shard(run, "1-a", [rated, reply("👍"), reply("no", outcome_reward=1.0), reply("thanks")])
    judge(run, recipe(server.url, fitness="check", hints="apart"), once=True)
    assert [(verdict.reward, verdict.judge, verdict.hint, verdict.reason) for verdict in verdicts_of(run)] == [
        (-1.0, "user feedback", "Leave out the bold.", None),
        (1.0, "rules 2: thumbs", None, None),
        (1.0, "environment outcome", None, None),
        (None, "scripted prompt 1", None, UNFIT),
    ]
    assert len(server.asked) == 12 + CONSTRAINED  # no call for a hint either
    assert fitness_of(run).line.startswith(
        "scripted is not used as the judge: 0 of 12 planted turns right, 12 without a valid vote"
    )


@pytest.mark.parametrize("right", [10, 12])
def test_a_judge_that_is_right_is_used_and_its_votes_count(run, serving, right) -> None:
    server = serving(knows(right))
    shard(run, "1-a", [reply("thanks"), reply("too much bold")])
    judge(run, recipe(server.url, fitness="check"), once=True)
    assert [(verdict.reward, verdict.votes, verdict.hint) for verdict in verdicts_of(run)] == [
        (1.0, [1, 1], None),
        (-1.0, [-1, -1], "Write plain sentences."),
    ]
    assert (fitness_of(run).right, fitness_of(run).without_vote, fitness_of(run).fit) == (right, 12 - right, True)
    assert len(server.asked) == 12 + 4 + (CONSTRAINED if right < 12 else 0)


def test_the_planted_turns_are_asked_concurrently(run, serving) -> None:
    server = serving(knows(12))
    server.wait_for_calls = 12
    shard(run, "1-a", [reply("thanks")])
    judge(run, recipe(server.url, fitness="check", timeout_s=30.0), once=True)
    assert server.max_at_once == 12


def test_a_restart_does_not_ask_again_and_another_judge_is_asked(run, serving) -> None:
    server, other = serving(knows(9)), serving(knows(12))

    def calls(stem: str, **settings: object) -> int:
        before = len(server.asked) + len(other.asked)
        shard(run, stem, [reply("thanks")])
        judge(run, recipe(**{"url": server.url, "fitness": "check", "votes": 1, **settings}), once=True)
        return len(server.asked) + len(other.asked) - before

    assert calls("1") == 12 + CONSTRAINED
    assert calls("2") == 0
    assert calls("3", model="another") == 12 + CONSTRAINED
    assert calls("4", model="another", max_tokens=99) == 12 + CONSTRAINED
    assert calls("5", url=other.url) == 12 + 1
    assert calls("6", url=other.url) == 1
    assert (fitness_of(run).judge.backend, fitness_of(run).fit) == (other.url, True)


def test_of_several_workers_one_asks_and_the_others_wait_for_its_result(run, serving, start_worker) -> None:
    server = serving(knows(12), delay_s=0.5)
    for number in range(4):
        shard(run, f"{number}", [reply("thanks")])
    judge_settings = f"judge: {{endpoint: '{server.url}', api_key: k, model: scripted, votes: 1, concurrency: 4}}\n"
    for _ in range(2):
        start_worker("judge", run, judge_settings)
    until(lambda: len(verdicts_of(run)) == 4)
    assert [verdict.reward for verdict in verdicts_of(run)] == [1.0] * 4
    assert len(server.asked) == 12 + 4


def test_a_judge_is_checked_at_the_start_of_the_stage_before_there_is_a_turn(run, serving, start_worker) -> None:
    server = serving(knows(3))
    start_worker("judge", run, f"judge: {{endpoint: '{server.url}', api_key: k, model: scripted}}\n")
    until(lambda: read_fitness(run) is not None)
    assert (fitness_of(run).right, fitness_of(run).without_vote) == (3, 9)


def test_a_run_without_a_turn_for_the_judge_asks_nothing(run, serving) -> None:
    server = serving(knows(12))
    shard(run, "1-a", [reply("👍"), reply("thanks", feedback=1.0)])
    judge(run, recipe(server.url, fitness="check"), once=True)
    assert (len(server.asked), read_fitness(run)) == (0, None)


def test_a_judge_that_is_not_checked_leaves_no_result_of_an_earlier_one(run, serving) -> None:
    server = serving(knows(0))
    shard(run, "1-a", [reply("thanks")])
    judge(run, recipe(server.url, fitness="check"), once=True)
    assert not fitness_of(run).fit
    shard(run, "2-a", [reply("thanks")])
    judge(run, recipe(server.url, votes=1), once=True)
    assert read_fitness(run) is None
    assert [verdict.reward for verdict in verdicts_of(run)] == [None, 1.0]


def test_a_server_that_is_away_or_fails_is_not_an_unfit_judge_and_nothing_is_lost(run, serving) -> None:
    shard(run, "1-a", [reply("thanks")])
    with pytest.raises(ClawError, match="is not available"):
        judge(run, recipe(f"http://127.0.0.1:{free_port()}/v1", fitness="check", timeout_s=0.3), once=True)
    slow = serving(knows(12), delay_s=2.0)
    with pytest.raises(ClawError, match="answered only 0 of 12 planted turns"):
        judge(run, recipe(slow.url, fitness="check", timeout_s=0.2), once=True)
    refused = serving(lambda text, number: Response(status_code=401))
    with pytest.raises(ClawError, match="answers 401"):
        judge(run, recipe(refused.url, fitness="check"), once=True)
    assert (read_fitness(run), verdicts_of(run)) == (None, [])


def test_a_damaged_result_is_asked_for_again(run, serving) -> None:
    server = serving(knows(12))
    run.fitness.write_bytes(b'{"right": 12')
    shard(run, "1-a", [reply("thanks")])
    judge(run, recipe(server.url, fitness="check", votes=1), once=True)
    assert (len(server.asked), fitness_of(run).right) == (13, 12)


def test_a_custom_reward_model_is_not_asked_the_planted_turns(run, tmp_path) -> None:
    model = tmp_path / "rm.py"
    model.write_text("def score(prompt, response, next_state):\n    return -1.0\n\n\nscore.reward_range = (-1, 1)\n")
    shard(run, "1-a", [reply("thanks")])
    judge(run, Recipe.model_validate({"judge": {"custom_rm": f"{model}:score"}}), once=True)
    assert ([verdict.reward for verdict in verdicts_of(run)], read_fitness(run)) == ([-1.0], None)
