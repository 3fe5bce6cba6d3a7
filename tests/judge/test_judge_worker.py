"""The judge stage against a real HTTP server with scripted answers."""

import time

from clawctl.judge.worker import judge
from clawctl.run.directory import RunDir, claimed, published
from clawctl.run.feedback import FeedbackFile
from clawctl.run.rows import TEXT_ONLY, Feedback, Turn
from clawctl.run.shards import read_verdicts
from tests.judge.judging import by_words, recipe, verdicts_of
from tests.judge.made_turns import reply, shard, turn


def test_every_row_gets_its_verdict_in_the_shard_of_the_same_stem(run, serving) -> None:
    server = serving(by_words)
    turns = [reply("thanks"), reply("too much bold"), reply("hm"), reply("thanks", untrainable_reason="side turn")]
    shard(run, "1-a", turns)
    shard(run, "2-b", [reply("thanks")])
    judge(run, recipe(server.url), once=True)
    assert [path.name for path in published(run.verdicts, ".parquet")] == ["1-a.parquet", "2-b.parquet"]
    verdicts = read_verdicts(run.verdicts / "1-a.parquet")
    assert [verdict.turn_id for verdict in verdicts] == [turn.turn_id for turn in turns]
    assert [verdict.reward for verdict in verdicts] == [1.0, -1.0, 0.0, None]
    assert [verdict.votes for verdict in verdicts] == [[1, 1], [-1, -1], [0, 0], []]
    assert [verdict.hint for verdict in verdicts] == [None, "Write plain sentences.", None, None]
    assert [verdict.reason for verdict in verdicts] == [None, None, None, "not trainable: side turn"]
    assert [verdict.judge for verdict in verdicts] == ["scripted prompt 1"] * 3 + ["nobody"]
    assert verdicts[0].latency_s is not None
    assert verdicts[3].latency_s is None
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


def test_disagreeing_votes_are_extended_up_to_the_limit_and_each_call_has_its_own_fence(run, serving) -> None:
    answers = {1: "\\boxed{1}", 2: "\\boxed{-1}", 3: "\\boxed{-1}"}
    server = serving(lambda text, number: answers[number])
    shard(run, "1-a", [reply("hm")])
    judge(run, recipe(server.url, concurrency=1), once=True)
    (verdict,) = verdicts_of(run)
    assert (verdict.votes, verdict.reward) == ([1, -1, -1], -1.0)
    assert len({body["messages"][1]["content"] for body in server.asked}) == 3
    assert len({body["messages"][0]["content"] for body in server.asked}) == 1


def test_an_explicit_rating_outranks_the_judge_without_a_call(run, serving) -> None:
    server = serving(by_words)
    shard(run, "1-a", [reply("thanks", feedback=-0.5)])
    judge(run, recipe(server.url), once=True)
    (verdict,) = verdicts_of(run)
    assert (verdict.reward, verdict.votes, verdict.judge, server.asked) == (-0.5, [], "user feedback", [])


def rate(run: RunDir, turn: Turn, rating: float, key: str = "default", comment: str | None = None) -> None:
    FeedbackFile(run.feedback).append(Feedback(f"f{time.time_ns()}", time.time(), key, turn.turn_id, rating, comment))


def test_a_late_rating_outranks_the_row_and_other_keys_cannot_rate_the_turn(run, serving) -> None:
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


def test_rules_and_outcomes_decide_before_the_judge_is_called(run, serving) -> None:
    server = serving(by_words)
    shard(run, "1-a", [reply("👎"), reply("thanks", outcome_reward=-1.0), reply("thanks")])
    judge(run, recipe(server.url), once=True)
    expected = [(-1.0, "rules 2: thumbs"), (-1.0, "environment outcome"), (1.0, "scripted prompt 1")]
    assert [(verdict.reward, verdict.judge) for verdict in verdicts_of(run)] == expected
    assert len(server.asked) == 2
    shard(run, "2-b", [reply("👎 thanks", outcome_reward=-1.0), reply("👎")])
    judge(run, recipe(server.url, rules=False, outcome="apart"), once=True)
    assert {verdict.judge for verdict in read_verdicts(run.verdicts / "2-b.parquet")} == {"scripted prompt 1"}


def test_hints_may_be_requested_separately_from_the_votes(run, serving) -> None:
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


def test_the_comment_of_a_bad_rating_is_the_hint_as_it_stands(run) -> None:
    late, praised, silent = reply("thanks"), reply("thanks"), turn([{"role": "user", "content": "2+2?"}], "4", None)
    for rated, rating in ((late, -1.0), (praised, 1.0), (silent, -0.5)):
        rate(run, rated, rating, comment="Answer in one\nshort sentence.")
    shard(run, "1-a", [late, praised, silent])
    judge(run, recipe("http://127.0.0.1:9/v1"), once=True)
    assert [(verdict.reward, verdict.hint, verdict.hints) for verdict in verdicts_of(run)] == [
        (-1.0, "Answer in one short sentence.", ["Answer in one short sentence."]),
        (1.0, None, []),
        (-0.5, "Answer in one short sentence.", ["Answer in one short sentence."]),
    ]


def test_a_hint_made_from_a_comment_comes_after_the_persons_own_words(run, serving) -> None:
    server = serving(
        lambda text, number: "[HINT_START]Leave out the bold.[HINT_END]" if "too bold" in text else "[HINT_START][HINT_END]"
    )
    silent = turn([{"role": "user", "content": "2+2?"}], "4", None)
    rate(run, silent, -1.0, comment="too bold for me")
    shard(run, "1-a", [silent])
    judge(run, recipe(server.url, hints="apart"), once=True)
    (verdict,) = verdicts_of(run)
    assert (verdict.reward, verdict.hint, len(server.asked)) == (-1.0, "too bold for me", 1)
    assert verdict.hints == ["too bold for me", "Leave out the bold."]


def test_an_abstention_has_a_reason(run, serving) -> None:
    answers = ["\\boxed{1}", "\\boxed{-1}", "banana"]
    server = serving(lambda text, number: answers[number - 1])
    shard(run, "1-a", [reply("hm")])
    judge(run, recipe(server.url, concurrency=1), once=True)
    (verdict,) = verdicts_of(run)
    assert (verdict.reward, verdict.votes, verdict.reason) == (None, [1, -1, None], "no consensus")


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
    assert server.max_at_once == 8


def test_an_imported_text_without_token_ids_is_judged_like_any_other(run, serving) -> None:
    text = {"source": "import", "prompt_ids": None, "completion_ids": None, "logprobs": None, "policy_version": None}
    shard(run, "0-a", [
        reply("thanks", untrainable_reason=TEXT_ONLY, **text),
        reply("thanks", untrainable_reason="not wanted", **text),
        reply("thanks", untrainable_reason=TEXT_ONLY),  # served: its ids should be there
    ])  # fmt: skip
    judge(run, recipe(serving(by_words).url), once=True)
    verdicts = verdicts_of(run)
    assert [verdict.reward for verdict in verdicts] == [1.0, None, None]
    assert verdicts[1].reason == "not trainable: not wanted"


def test_a_turn_of_practice_has_a_verdict_without_a_judge(run, serving) -> None:
    """It carries the note as its hint. No rule applies to it, and the judge is not asked."""
    server = serving(by_words)
    hints = {"told": "Answer in one short sentence.", "elsewhere": ""}
    turns = [reply("👎", episode={"hint": hint, "hint_place": None}) for hint in hints.values()]
    shard(run, "1-a", [*turns, reply("thanks", episode={"hint": None})])
    judge(run, recipe(server.url, votes=1), once=True)
    assert [(verdict.reward, verdict.votes, verdict.hint, verdict.hints, verdict.judge) for verdict in verdicts_of(run)] == [
        (None, [], hints["told"], [hints["told"]], "practice"),
        (None, [], None, [], "practice"),
        (1.0, [1], None, [], "scripted prompt 1"),
    ]
    assert len(server.asked) == 1


def test_a_recipe_without_a_judge_asks_none_and_people_still_decide(run, serving) -> None:
    server = serving(by_words)
    shard(run, "1-a", [reply("thanks"), reply("👎"), reply("thanks", feedback=-1.0)])
    judge(run, recipe(server.url, ask=False), once=True)
    assert [(verdict.reward, verdict.judge) for verdict in verdicts_of(run)] == [
        (None, "nobody"), (-1.0, "rules 2: thumbs"), (-1.0, "user feedback"),
    ]  # fmt: skip
    assert server.asked == []
