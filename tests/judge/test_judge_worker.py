"""The judge stage against a real HTTP server that answers by script."""

import logging
import re
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable

import pytest
from made_turns import reply, shard, turn
from scripted_judge import ScriptedJudge
from starlette.responses import JSONResponse, PlainTextResponse, Response

from clawctl.config import Recipe
from clawctl.endpoint import announce
from clawctl.errors import ClawError
from clawctl.feedback import FeedbackFile
from clawctl.judge.worker import judge
from clawctl.run_dir import RunDir, claimed, published
from clawctl.serve.backends.vllm import free_port
from clawctl.shards import read_verdicts
from clawctl.types import TEXT_ONLY, Feedback, Turn, Verdict
from tests.waiting import until


def recipe(url: str | None, **settings: object) -> Recipe:
    return Recipe.model_validate({"judge": {"endpoint": url, "model": "scripted", "api_key": "k", "timeout_s": 5.0, **settings}})


def verdicts_of(run: RunDir) -> list[Verdict]:
    return [verdict for path in published(run.verdicts, ".parquet") for verdict in read_verdicts(path)]


def by_words(text: str, number: int) -> str:
    """Good if it says thanks, bad with a hint if it says bold, neutral else."""
    if "thanks" in text:
        return "It is accepted. \\boxed{1}"
    return "\\boxed{-1} [HINT_START]Write plain sentences.[HINT_END]" if "bold" in text else "\\boxed{0}"


def test_every_row_gets_its_verdict_in_the_shard_of_the_same_stem(run, serving) -> None:
    server = serving(by_words)
    turns = [reply("thanks"), reply("too much bold"), reply("hm"), reply("thanks", untrainable_reason="side turn")]
    shard(run, "1-a", turns)
    shard(run, "2-b", [reply("thanks")])
    judge(run, recipe(server.url), once=True)
    assert [path.name for path in published(run.verdicts, ".parquet")] == ["1-a.parquet", "2-b.parquet"]
    found = read_verdicts(run.verdicts / "1-a.parquet")
    assert [verdict.turn_id for verdict in found] == [turn.turn_id for turn in turns]
    assert [verdict.reward for verdict in found] == [1.0, -1.0, 0.0, None]
    assert [verdict.votes for verdict in found] == [[1, 1], [-1, -1], [0, 0], []]
    assert [verdict.hint for verdict in found] == [None, "Write plain sentences.", None, None]
    assert [verdict.reason for verdict in found] == [None, None, None, "not trainable: side turn"]
    assert [verdict.judge for verdict in found] == ["scripted prompt 1"] * 3 + ["nobody"]
    assert found[0].latency_s is not None
    assert found[3].latency_s is None
    assert len(server.asked) == 8


def test_the_call_is_plain_chat_completions_with_the_recipes_settings(run, serving) -> None:
    server = serving(by_words)
    shard(run, "1-a", [reply("thanks")])
    judge(run, recipe(server.url + "/", votes=1, temperature=0.3, max_tokens=77), once=True)
    body = server.asked[0]
    assert {name: body[name] for name in ("model", "temperature", "max_tokens")} == {
        "model": "scripted",
        "temperature": 0.3,
        "max_tokens": 77,
    }
    assert "2+2?" in body["messages"][1]["content"]
    assert server.headers[0]["authorization"] == "Bearer k"
    assert server.headers[0]["x-turn-type"] == "judge"


def test_votes_that_disagree_are_asked_up_to_the_limit_and_each_call_has_its_own_fence(run, serving) -> None:
    answers = {1: "\\boxed{1}", 2: "\\boxed{-1}", 3: "\\boxed{-1}"}
    server = serving(lambda text, number: answers[number])
    shard(run, "1-a", [reply("hm")])
    judge(run, recipe(server.url, concurrency=1), once=True)
    (verdict,) = verdicts_of(run)
    assert (verdict.votes, verdict.reward) == ([1, -1, -1], -1.0)
    assert len({body["messages"][1]["content"] for body in server.asked}) == 3
    assert len({body["messages"][0]["content"] for body in server.asked}) == 1


def test_an_explicit_rating_outranks_the_judge_and_is_not_asked_about(run, serving) -> None:
    server = serving(by_words)
    shard(run, "1-a", [reply("thanks", feedback=-0.5)])
    judge(run, recipe(server.url), once=True)
    (verdict,) = verdicts_of(run)
    assert (verdict.reward, verdict.votes, verdict.judge, server.asked) == (-0.5, [], "user feedback", [])


def rate(run: RunDir, turn: Turn, rating: float, key: str = "default", comment: str | None = None) -> None:
    FeedbackFile(run.feedback).append(Feedback(f"f{time.time_ns()}", time.time(), key, turn.turn_id, rating, comment))


def test_a_rating_that_comes_late_outranks_the_row_and_nobody_rates_anothers_turn(run, serving) -> None:
    server = serving(by_words)
    mine, regretted, foreign = reply("thanks"), reply("thanks", feedback=1.0), reply("thanks")
    rate(run, mine, -0.5)
    rate(run, mine, -1.0)
    rate(run, regretted, -1.0)
    rate(run, foreign, -1.0, key="somebody else")
    shard(run, "1-a", [mine, regretted, foreign])
    judge(run, recipe(server.url), once=True)
    assert [(verdict.reward, verdict.judge) for verdict in verdicts_of(run)] == [
        (-1.0, "user feedback"),
        (-1.0, "user feedback"),
        (1.0, "scripted prompt 1"),
    ]
    assert len(server.asked) == 2


def test_a_rating_that_comes_while_the_judge_works_still_decides(run, serving) -> None:
    turns = [reply("thanks"), reply("thanks")]

    def rated_meanwhile(text: str, number: int) -> str:
        rate(run, turns[1], -1.0)
        return "\\boxed{1}"

    server = serving(rated_meanwhile)
    shard(run, "1-a", turns)
    judge(run, recipe(server.url, votes=1), once=True)
    first, second = verdicts_of(run)
    assert (first.reward, first.judge) == (1.0, "scripted prompt 1")
    assert (second.reward, second.judge, second.votes) == (-1.0, "user feedback", [1])


def test_rules_and_outcomes_decide_before_anybody_is_asked(run, serving) -> None:
    server = serving(by_words)
    shard(run, "1-a", [reply("👎"), reply("thanks", outcome_reward=-1.0), reply("thanks")])
    judge(run, recipe(server.url), once=True)
    expected = [(-1.0, "rules 1: thumbs"), (-1.0, "environment outcome"), (1.0, "scripted prompt 1")]
    assert [(verdict.reward, verdict.judge) for verdict in verdicts_of(run)] == expected
    assert len(server.asked) == 2
    shard(run, "2-b", [reply("👎 thanks", outcome_reward=-1.0), reply("👎")])
    judge(run, recipe(server.url, rules=False, outcome="apart"), once=True)
    assert {verdict.judge for verdict in read_verdicts(run.verdicts / "2-b.parquet")} == {"scripted prompt 1"}


def test_hints_may_be_asked_apart_from_the_votes(run, serving) -> None:
    def script(text: str, number: int) -> str:
        if server.asked[-1]["model"] == "writer":
            return "[HINT_START]Ask for the units.[HINT_END]"
        return "\\boxed{-1} [HINT_START]Not this hint.[HINT_END]"

    server = serving(script)
    shard(run, "1-a", [reply("no"), reply("👎"), reply("no", feedback=-1.0)])
    judge(run, recipe(server.url, votes=1, concurrency=1, hints="apart", hint_model="writer"), once=True)
    assert [(verdict.reward, verdict.hint) for verdict in verdicts_of(run)] == [(-1.0, "Ask for the units.")] * 3
    assert [body["model"] for body in server.asked].count("writer") == 3
    assert len(server.asked) == 4
    shard(run, "2-b", [reply("no")])
    judge(run, recipe(server.url, votes=1, hints="off"), once=True)
    assert read_verdicts(run.verdicts / "2-b.parquet")[0].hints == []


def test_the_comment_of_a_rating_is_what_its_hint_is_made_of(run, serving) -> None:
    server = serving(
        lambda text, number: "[HINT_START]Leave out the bold.[HINT_END]" if "too bold" in text else "[HINT_START][HINT_END]"
    )
    silent = turn([{"role": "user", "content": "2+2?"}], "4", None)
    rate(run, silent, -1.0, comment="too bold for me")
    shard(run, "1-a", [silent])
    judge(run, recipe(server.url, hints="apart"), once=True)
    (verdict,) = verdicts_of(run)
    assert (verdict.reward, verdict.hint, len(server.asked)) == (-1.0, "Leave out the bold.", 1)


def test_an_abstention_says_why(run, serving) -> None:
    answers = ["\\boxed{1}", "\\boxed{-1}", "banana"]
    server = serving(lambda text, number: answers[number - 1])
    shard(run, "1-a", [reply("hm")])
    judge(run, recipe(server.url, concurrency=1), once=True)
    (verdict,) = verdicts_of(run)
    assert (verdict.reward, verdict.votes, verdict.reason) == (None, [1, -1, None], "no consensus")


def test_a_judge_that_answers_nonsense_is_told_once_and_the_stage_goes_on(run, serving, caplog) -> None:
    server = serving(lambda text, number: "banana")
    for stem in ("1-a", "2-b"):
        shard(run, stem, [reply("thanks"), reply("hm")])
    with caplog.at_level(logging.WARNING):
        judge(run, recipe(server.url), once=True)
    found = verdicts_of(run)
    assert [(verdict.reward, verdict.votes, verdict.reason) for verdict in found] == [(None, [None] * 3, "no valid vote")] * 4
    assert len([record for record in caplog.records if "no valid score" in record.message]) == 1


@pytest.mark.parametrize("said", [PlainTextResponse("<html>"), JSONResponse({"choices": []}), JSONResponse([1])])
def test_an_answer_of_another_shape_is_a_failed_vote(run, serving, said) -> None:
    server = serving(lambda text, number: said)
    shard(run, "1-a", [reply("thanks")])
    judge(run, recipe(server.url, votes=1), once=True)
    assert [verdict.reason for verdict in verdicts_of(run)] == ["no valid vote"]


@pytest.mark.parametrize("status", [401, 404, 400, 302])
def test_a_judge_that_refuses_us_is_a_problem_with_a_cure_and_nothing_is_lost(run, serving, status) -> None:
    server = serving(lambda text, number: Response(status_code=status))
    shard(run, "1-a", [reply("thanks"), reply("hm")])
    with pytest.raises(ClawError, match=f"answers {status}"):
        judge(run, recipe(server.url), once=True)
    assert verdicts_of(run) == []
    server.script = by_words
    judge(run, recipe(server.url), once=True)
    assert [verdict.reward for verdict in verdicts_of(run)] == [1.0, 0.0]


def test_a_turn_that_is_too_long_for_the_judge_is_a_failed_vote_and_the_others_are_judged(run, serving) -> None:
    server = serving(lambda text, number: Response(status_code=400) if "endless" in text else by_words(text, number))
    shard(run, "1-a", [reply("endless words"), reply("thanks")])
    judge(run, recipe(server.url), once=True)
    assert [(verdict.reward, verdict.reason) for verdict in verdicts_of(run)] == [(None, "no valid vote"), (1.0, None)]


def test_a_call_that_breaks_is_tried_again(run, serving) -> None:
    server = serving(lambda text, number: Response(status_code=500) if number < 3 else "\\boxed{1}")
    shard(run, "1-a", [reply("thanks")])
    judge(run, recipe(server.url, votes=1), once=True)
    assert ([verdict.reward for verdict in verdicts_of(run)], len(server.asked)) == ([1.0], 3)


def test_a_server_that_is_busy_is_waited_for_and_costs_no_vote(run, serving) -> None:
    server = serving(lambda text, number: Response(status_code=503 if number % 2 else 429) if number < 5 else "\\boxed{1}")
    shard(run, "1-a", [reply("thanks")])
    judge(run, recipe(server.url, votes=1, timeout_s=30.0), once=True)
    assert [verdict.votes for verdict in verdicts_of(run)] == [[1]]


def test_a_judge_that_never_answers_is_a_failed_vote_after_some_tries(run, serving) -> None:
    server = serving(by_words, delay_s=1.0)
    shard(run, "1-a", [reply("thanks")])
    judge(run, recipe(server.url, votes=1, timeout_s=0.1), once=True)
    assert [verdict.reason for verdict in verdicts_of(run)] == ["no valid vote"]
    assert 1 <= len(server.asked) <= 4


def test_once_does_not_wait_for_ever_for_a_server_that_is_away(run) -> None:
    shard(run, "1-a", [reply("thanks")])
    with pytest.raises(ClawError, match="is away"):
        judge(run, recipe(f"http://127.0.0.1:{free_port()}/v1", timeout_s=0.3), once=True)
    with pytest.raises(ClawError, match="no server has announced itself"):
        judge(run, Recipe.model_validate({"judge": {"timeout_s": 0.3}}), once=True)
    with pytest.raises(ClawError, match="not an http URL"):
        judge(run, recipe("localhost:8000"), once=True)


def test_shards_without_anything_to_ask_need_no_server(run) -> None:
    shard(run, "1-a", [reply("thanks", untrainable_reason="side turn")])
    judge(run, recipe("http://127.0.0.1:9/v1"), once=True)
    assert [verdict.reason for verdict in verdicts_of(run)] == ["not trainable: side turn"]


def test_an_unreadable_shard_is_put_aside_and_the_rest_is_judged(run, serving) -> None:
    server = serving(by_words)
    (run.trajectories / "1-a.parquet").write_bytes(b"PAR1 broken")
    shard(run, "2-b", [reply("thanks")])
    judge(run, recipe(server.url), once=True)
    assert [path.stem for path in published(run.verdicts, ".parquet")] == ["2-b"]
    assert (run.quarantine / "trajectories-1-a.parquet.reason.txt").exists()


def test_a_shard_that_another_worker_holds_is_left_to_it(run, serving) -> None:
    server = serving(by_words)
    for stem in ("1-a", "2-b"):
        shard(run, stem, [reply("thanks")])
    with claimed(run, "judge-1-a"):
        judge(run, recipe(server.url), once=True)
    assert [path.stem for path in published(run.verdicts, ".parquet")] == ["2-b"]
    judge(run, recipe(server.url), once=True)
    assert len(published(run.verdicts, ".parquet")) == 2
    assert list(run.locks.glob("judge-*")) == []


def test_small_shards_do_not_make_the_calls_wait_for_one_another(run, serving) -> None:
    server = serving(by_words)
    server.wait_for_calls = 8
    for number in range(24):
        shard(run, f"{number:02d}", [reply("thanks")])
    judge(run, recipe(server.url, concurrency=8, votes=1, timeout_s=30.0), once=True)
    assert len(verdicts_of(run)) == 24
    assert server.most_at_a_time == 8


@pytest.fixture
def start(run, start_worker) -> Callable:
    """Starts `clawctl judge` as its own process."""

    def begin(url: str | None) -> subprocess.Popen:
        where = f"endpoint: '{url}', api_key: k, model: scripted, " if url else ""
        return start_worker("judge", run, f"judge: {{{where}votes: 1, concurrency: 4}}\n")

    return begin


def test_two_workers_never_judge_a_turn_twice_and_a_signal_ends_them(run, serving, start) -> None:
    server = serving(by_words, delay_s=0.02)
    for number in range(40):
        shard(run, f"{number:02d}", [reply("thanks"), reply("hm")])
    workers = [start(server.url) for _ in range(2)]
    until(lambda: len(published(run.verdicts, ".parquet")) == 40)
    assert (len(server.asked), len(verdicts_of(run))) == (80, 80)
    shard(run, "40", [reply("thanks")])
    until(lambda: len(published(run.verdicts, ".parquet")) == 41)
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    assert [worker.wait(60) for worker in workers] == [0, 0]


def test_of_two_workers_one_is_killed_in_the_middle_of_a_shard_and_the_other_takes_it_over(run, serving, start) -> None:
    """Each turn has one verdict, and only what was under way when the worker died (`concurrency`: 4) is asked again."""
    asked: list[str] = []

    def script(text: str, number: int) -> str:
        asked.append(re.search(r"turn \d+", text)[0])  # type: ignore[index]
        return "\\boxed{1}"

    server = serving(script, delay_s=0.05)
    turns = [reply(f"thanks for turn {number:03d}") for number in range(120)]
    for first in range(0, 120, 30):
        shard(run, f"{first:03d}", turns[first : first + 30])
    workers = [start(server.url) for _ in range(2)]
    until(lambda: len(list(run.verdicts.glob("*.jsonl"))) >= 2 and len(asked) >= 12)
    workers[0].kill()
    workers[0].wait()
    until(lambda: len(published(run.verdicts, ".parquet")) == 4)
    assert sorted(verdict.turn_id for verdict in verdicts_of(run)) == sorted(turn.turn_id for turn in turns)
    assert {verdict.reward for verdict in verdicts_of(run)} == {1.0}
    assert len(set(asked)) == 120
    assert len(asked) - 120 <= 4
    until(lambda: not list(run.verdicts.glob("*.jsonl")))


def test_the_work_of_a_killed_worker_is_done_by_the_next(run, serving, start) -> None:
    server = serving(by_words, delay_s=0.5)
    for number in range(4):
        shard(run, f"{number:02d}", [reply("thanks"), reply("hm"), reply("hm")])
    worker = start(server.url)
    until(lambda: len(server.asked) >= 2)
    worker.kill()
    worker.wait()
    assert verdicts_of(run) == []
    server.delay_s = 0.0
    start(server.url)
    until(lambda: len(published(run.verdicts, ".parquet")) == 4)
    assert [verdict.reward for verdict in verdicts_of(run)] == [1.0, 0.0, 0.0] * 4


def test_a_killed_worker_does_not_pay_again_for_the_votes_it_had(run, serving, start) -> None:
    server = serving(by_words)
    server.script = lambda text, number: by_words(text, number) if number <= 6 else hold()

    def hold() -> str:
        time.sleep(0.3)  # the server answers nobody any more
        return "\\boxed{0}"

    shard(run, "1-a", [reply("thanks") for _ in range(20)])
    worker = start(server.url)
    journal = run.verdicts / "1-a.jsonl"
    until(lambda: journal.exists() and len(journal.read_bytes().splitlines()) >= 7)
    worker.kill()
    worker.wait()
    kept = len([line for line in journal.read_bytes().splitlines() if line.endswith(b"}")])
    with journal.open("ab") as file:
        file.write(b'{"turn_id": "half')
    time.sleep(1.5)  # calls that were under way
    server.script, asked = by_words, len(server.asked)
    start(server.url)
    until(lambda: len(verdicts_of(run)) == 20)
    assert len(server.asked) - asked == 20 - kept
    until(lambda: not journal.exists())
    assert stat.S_IMODE((run.verdicts / "1-a.parquet").stat().st_mode) == 0o600


def test_this_runs_server_may_come_up_late_and_restart_elsewhere_in_the_middle_of_a_shard(run, serving, start) -> None:
    turns = [reply("thanks") for _ in range(30)]
    shard(run, "1-a", turns)
    start(None)
    time.sleep(1.0)
    first = ScriptedJudge(by_words, delay_s=0.1).start()
    announce(run, "127.0.0.1", first.port)
    until(lambda: len(first.asked) >= 8)
    threading.Thread(target=first.stop).start()
    time.sleep(1.0)
    second = serving(by_words)
    announce(run, "127.0.0.1", second.port)
    until(lambda: len(verdicts_of(run)) == 30)
    assert [verdict.reward for verdict in verdicts_of(run)] == [1.0] * 30
    assert len(first.asked) + len(second.asked) <= 34
    assert second.asked[0]["model"] == "demo@0"
    assert {verdict.judge for verdict in verdicts_of(run)} == {"demo@0 prompt 1"}


def test_an_imported_text_without_token_ids_is_judged_like_any_other(run, serving) -> None:
    text = {"source": "import", "prompt_ids": None, "completion_ids": None, "logprobs": None, "policy_version": None}
    shard(run, "0-a", [
        reply("thanks", untrainable_reason=TEXT_ONLY, **text),
        reply("thanks", untrainable_reason="not wanted", **text),
        reply("thanks", untrainable_reason=TEXT_ONLY),  # served: its ids should be there
    ])  # fmt: skip
    judge(run, recipe(serving(by_words).url), once=True)
    found = verdicts_of(run)
    assert [verdict.reward for verdict in found] == [1.0, None, None]
    assert found[1].reason == "not trainable: not wanted"
