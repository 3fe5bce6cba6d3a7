"""Which turns make a batch, and the reasons for the others."""

import os
import time
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clawctl.collect.merging import merge_shards
from clawctl.run.checksums import read_sealed
from clawctl.run.directory import RunDir, open_run
from clawctl.run.hint_places import with_hint
from clawctl.run.rows import Turn
from clawctl.run.shards import write_turns, write_verdicts
from clawctl.trainers.texts import prompt_ids_of
from tests.train.feeding import feed_counts, ids_of, make_feed, rewards_of
from tests.train.tiny import HINT, Sampler, publish_shard, publish_turns, verdict


def test_a_batch_takes_turns_in_the_order_of_their_shards_and_the_surplus_waits(run: RunDir, sampler: Sampler) -> None:
    publish_turns(run, sampler, 3, "b")
    publish_turns(run, sampler, 3, "a")
    feed = make_feed(run, sampler)
    batch = feed.next_batch(0)
    assert ids_of(batch) == ["a00", "a01", "a02", "b00"]
    feed.mark_done(ids_of(batch), "trained")
    assert feed.next_batch(1) is None
    assert [turn.sample.turn_id for turn in feed.queue.waiting] == ["b01", "b02"]
    publish_turns(run, sampler, 2, "c")
    assert ids_of(feed.next_batch(1)) == ["b01", "b02", "c00", "c01"]


def test_no_turn_and_a_shard_without_verdict_make_no_batch(run: RunDir, sampler: Sampler) -> None:
    feed = make_feed(run, sampler, batch_min_turns=1, batch_wait_s=0.001)
    assert feed.next_batch(0) is None
    write_turns(run.trajectories / "a.parquet", [sampler.turn("x")])
    write_turns(run.trajectories / "b.parquet", [])
    assert feed.next_batch(0) is None
    assert feed_counts(run)["waiting"] == 0


def test_turns_that_waited_long_enough_are_taken_if_there_are_enough(run: RunDir, sampler: Sampler) -> None:
    publish_turns(run, sampler, 1, "a")
    feed = make_feed(run, sampler)
    now = time.time()
    assert feed.next_batch(0, now + 61) is None  # one is fewer than batch_min_turns
    publish_turns(run, sampler, 1, "b")
    assert feed.next_batch(0, now) is None  # two, but they have not waited
    assert ids_of(feed.next_batch(0, now + 61)) == ["a00", "b00"]


def test_a_turn_waits_from_when_its_verdict_was_published_also_across_restarts(run: RunDir, sampler: Sampler) -> None:
    publish_turns(run, sampler, 2, "a")
    os.utime(run.verdicts / "a.parquet", (time.time() - 100, time.time() - 100))
    assert ids_of(make_feed(run, sampler).next_batch(0)) == ["a00", "a01"]


def test_a_turn_that_another_policy_sampled_is_refused_with_that_reason(run: RunDir, sampler: Sampler) -> None:
    turns = [sampler.turn("a"), replace(sampler.turn("b"), policy_name="anna"), sampler.turn("c")]
    publish_shard(run, "a", [(turn, 1.0, None) for turn in turns])
    feed = make_feed(run, sampler, batch_turns=2)
    assert ids_of(feed.next_batch(0)) == ["a", "c"]
    assert feed_counts(run)["refused"] == {"sampled by another policy": 1}
    anna = make_feed(open_run(run.root, policy="anna"), sampler, batch_turns=1, batch_min_turns=1)
    assert ids_of(anna.next_batch(0)) == ["b"]


def test_a_shard_of_other_people_is_passed_over_also_after_it_was_merged_with_an_own_one(run: RunDir, sampler: Sampler) -> None:
    for name in ("anna", "bert"):
        publish_shard(run, name, [(replace(sampler.turn(name), policy_name=name), 1.0, None)])
    feed = make_feed(open_run(run.root, policy="anna"), sampler, batch_turns=1, batch_min_turns=1)
    assert ids_of(feed.next_batch(0)) == ["anna"]
    assert feed_counts(feed.run)["refused"] == {}
    for kind, folder in (("turns", run.trajectories), ("verdicts", run.verdicts)):
        merge_shards(kind, [folder / "anna.parquet", folder / "bert.parquet"], folder / "merged.parquet")
        for name in ("anna", "bert"):
            (folder / f"{name}.parquet").unlink()
    assert ids_of(feed.next_batch(0)) == ["anna"]
    assert feed.origins.keys() == {"anna", "merged"}


def test_turns_in_the_ledger_are_not_taken_again(run: RunDir, sampler: Sampler) -> None:
    publish_turns(run, sampler, 6, "a")
    feed = make_feed(run, sampler, used={"a00": "trained", "a02": "skipped"})
    assert ids_of(feed.next_batch(0)) == ["a01", "a03", "a04", "a05"]
    assert (feed_counts(run)["used"], feed_counts(run)["skipped"]) == (1, 1)


def test_a_turn_that_comes_in_two_shards_is_taken_once(run: RunDir, sampler: Sampler) -> None:
    turn = sampler.turn("x")
    publish_shard(run, "a", [(turn, 1.0, None)])
    publish_shard(run, "b", [(turn, 1.0, None)])
    feed = make_feed(run, sampler, batch_turns=1)
    assert ids_of(feed.next_batch(0)) == ["x"]
    feed.mark_done(["x"], "trained")
    assert feed.next_batch(1) is None
    assert feed_counts(run)["refused"] == {"in two shards": 1}


def test_the_summary_line_counts_all_turns_and_states_what_the_next_step_needs(run: RunDir, sampler: Sampler) -> None:
    rows: list[tuple[Turn, float | None, str | None]] = [(sampler.turn(name), 1.0, None) for name in ("x", "y", "z")]
    publish_shard(run, "a", [*rows, (sampler.turn("u"), 0.0, None), (sampler.turn("v"), 0.0, None)])
    feed = make_feed(run, sampler, batch_turns=2)
    assert feed.next_batch(0) is not None
    feed.mark_done(["x"], "trained")
    feed.mark_done(["y"], "skipped")
    assert feed.summary() == ("1 turns trained so far, 1 skipped, 1 waiting (a step needs 2, or 2 after 60 s); refused: neutral 2")
    feed.mark_done(["z"], "trained")
    assert feed.summary() == "2 turns trained so far, 1 skipped, 0 waiting; refused: neutral 2"


def refusals() -> list[tuple[str, dict[str, Any], float | None, str | None, str]]:
    side = {"kind": "side", "trainable": False, "untrainable_reason": "side turn"}
    return [
        ("combine", side, 1.0, None, "untrainable"),
        ("combine", {}, 0.0, None, "neutral"),
        ("combine", {}, None, None, "neutral"),
        ("combine", {}, float("nan"), None, "reward is not a number"),
        ("grpo", {}, 1.0, None, "in no group"),
        ("opd_topk", {}, 1.0, None, "no hint"),
        ("opd", {}, 1.0, None, "no hint"),
        ("binary", {}, 0.0, HINT, "no reward"),
        ("combine", {"policy_version": 1}, 1.0, None, "stale"),
        ("combine", {"policy_version": 11}, 1.0, None, "sampled by a version that this trainer has not made"),
        ("combine", {"completion_ids": [3, 99999], "logprobs": [-1.0, -1.0]}, 1.0, None, "ids outside the vocabulary"),
        ("combine", {"prompt_ids": [3, -1]}, 1.0, None, "ids outside the vocabulary"),
        ("combine", {"prompt_ids": [3] * 4096}, 1.0, None, "longer than the model's context"),
        ("combine", {"completion_ids": [3, 4], "logprobs": [-1.0, None]}, 1.0, None, "a logprob is missing or invalid"),
        ("combine", {"completion_ids": [3, 4], "logprobs": [-1.0, float("nan")]}, 1.0, None, "a logprob is missing or invalid"),
        ("combine", {"completion_ids": [3, 4], "logprobs": [-1.0, 0.5]}, 1.0, None, "a logprob is missing or invalid"),
        ("combine", {"temperature": 0.0}, 1.0, None, "greedy"),
        ("combine", {"top_p": 0.9}, 1.0, None, "sampled with top-p or top-k"),
        ("combine", {"top_k": 50}, 1.0, None, "sampled with top-p or top-k"),
        ("opd", {"prompt_ids": [3, 4, 5]}, -1.0, HINT, "teacher prompt does not match"),
    ]


@pytest.mark.parametrize(("method", "changes", "reward", "hint", "reason"), refusals())
def test_a_turn_that_cannot_be_trained_is_refused_and_counted(
    run: RunDir, sampler: Sampler, method: str, changes: dict[str, Any], reward: float | None, hint: str | None, reason: str
) -> None:
    turn = replace(sampler.turn("x", tokens=2), **{"policy_version": 10, **changes})
    publish_shard(run, "a", [(turn, reward, hint)])
    feed = make_feed(run, sampler, method=method, max_staleness=8)
    assert feed.next_batch(10) is None
    assert feed_counts(run)["refused"] == {reason: 1}
    assert feed_counts(run)["waiting"] == 0


def test_a_turn_longer_than_the_recipe_allows_is_in_the_ledger_with_its_length(run: RunDir, sampler: Sampler) -> None:
    turns = [sampler.turn("long", tokens=9), sampler.turn("short", tokens=4)]
    publish_shard(run, "a", [(turn, 1.0, None) for turn in turns])
    long, short = (len(turn.prompt_ids or []) + len(turn.completion_ids or []) for turn in turns)
    feed = make_feed(run, sampler, batch_turns=1, longest_turn_tokens=short)
    assert ids_of(feed.next_batch(0)) == ["short"]
    assert feed_counts(run)["refused"] == {"longer than train.longest_turn_tokens": 1}
    reason = read_sealed((run.ledger / "skipped-long.json").read_bytes())["reason"]
    assert reason == f"too long: {long} tokens, and train.longest_turn_tokens is {short}"


@pytest.mark.parametrize("allowed", [None, 1000])
def test_a_turn_that_does_not_fit_into_memory_is_refused_unless_the_recipe_allows_it(
    run: RunDir, sampler: Sampler, allowed: int | None
) -> None:
    turns = [sampler.turn("long", tokens=9), sampler.turn("short", tokens=4)]
    publish_shard(run, "a", [(turn, 1.0, None) for turn in turns])
    long, short = (len(turn.prompt_ids or []) + len(turn.completion_ids or []) for turn in turns)
    feed = make_feed(run, sampler, longest_tokens=short, batch_turns=1, longest_turn_tokens=allowed)
    assert ids_of(feed.next_batch(0)) == (["short"] if allowed is None else ["long"])
    if allowed is None:
        assert feed_counts(run)["refused"] == {"longer than the trainer's memory holds": 1}
        reason = read_sealed((run.ledger / "skipped-long.json").read_bytes())["reason"]
        assert reason == f"too long: {long} tokens, and the trainer's memory holds {short}"


def test_a_cut_tool_call_that_an_older_collect_published_is_refused(run: RunDir, sampler: Sampler) -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    turns = [sampler.turn("cut", response=called), sampler.turn("whole", response=called, finish_reason="tool_calls")]
    publish_shard(run, "a", [(turn, 1.0, None) for turn in turns])
    feed = make_feed(run, sampler, batch_turns=1)
    assert ids_of(feed.next_batch(0)) == ["whole"]
    assert feed_counts(run)["refused"] == {"cut tool call": 1}


def test_staleness_is_bounded_inclusively_and_grows_while_a_turn_waits(run: RunDir, sampler: Sampler) -> None:
    publish_shard(run, "a", [(sampler.turn("x", policy_version=2), 1.0, None)])
    feed = make_feed(run, sampler, batch_turns=2, max_staleness=8)
    feed.next_batch(10)
    assert len(feed.queue.waiting) == 1
    feed.next_batch(11)
    assert (len(feed.queue.waiting), feed_counts(run)["refused"]) == (0, {"stale": 1})


def test_a_turn_with_a_reward_is_trained_without_a_hint_that_finds_no_place(run: RunDir, sampler: Sampler) -> None:
    publish_shard(run, "a", [(sampler.turn("x", prompt_ids=[3, 4, 5]), -1.0, HINT)])
    batch = make_feed(run, sampler, batch_turns=1).next_batch(0)
    assert batch is not None
    assert batch.samples[0].teacher_prompt_ids is None
    assert feed_counts(run)["lost_hints"] == {"teacher prompt does not match": 1}


def test_each_method_gets_its_own_fields_of_a_turn(run: RunDir, sampler: Sampler) -> None:
    publish_shard(run, "a", [(sampler.turn("x", task_id="chat/7"), -1.0, HINT)])
    seen = {}
    for method in ("binary", "opd", "opd_topk", "combine", "hybrid"):
        batch = make_feed(run, sampler, batch_turns=1, method=method).next_batch(0)
        assert batch is not None
        (sample,) = batch.samples
        assert sample.kind == "chat"
        seen[method] = (sample.reward, sample.teacher_prompt_ids is not None)
    both = (-1.0, True)
    assert seen == {"binary": (-1.0, False), "opd": (None, True), "opd_topk": (None, True), "combine": both, "hybrid": both}


def test_hybrid_has_a_prompt_for_each_different_hint_shortest_first(run: RunDir, sampler: Sampler) -> None:
    turn = sampler.turn("x")
    hints = [
        "Write plain sentences without steps.",
        "Write plain sentences.",
        "Write plain sentences. ",
        "No bold.",
        "Numbered steps.",
    ]
    write_turns(run.trajectories / "a.parquet", [turn])
    write_verdicts(run.verdicts / "a.parquet", [replace(verdict(turn, -1.0, hints[0]), hints=hints)])
    batch = make_feed(run, sampler, batch_turns=1, method="hybrid").next_batch(0)
    assert batch is not None
    (sample,) = batch.samples
    assert sample.teacher_prompt_ids == prompt_ids_of(sampler.tokenizer, turn, with_hint(turn.messages, "No bold."))
    assert [list(ids) for ids in sample.other_prompts] == [
        prompt_ids_of(sampler.tokenizer, turn, with_hint(turn.messages, hint))
        for hint in ("Numbered steps.", "Write plain sentences.")
    ]


def test_the_outcome_of_an_episode_is_added_to_the_reward_of_each_step(run: RunDir, sampler: Sampler) -> None:
    rows = [(1.0, 1.0), (-1.0, 1.0), (None, -1.0), (0.0, 0.0)]
    turns = [sampler.turn(f"x{i}", outcome_reward=outcome) for i, (_, outcome) in enumerate(rows)]
    publish_shard(run, "a", [(turn, step, None) for turn, (step, _) in zip(turns, rows, strict=True)])
    batch = make_feed(run, sampler, method="binary").next_batch(0)
    assert batch is not None
    assert [sample.reward for sample in batch.samples] == [2.0, 0.0, -1.0, 0.0]


@pytest.mark.parametrize("as_link", [False, True], ids=["missing", "dangling link"])
def test_a_shard_that_lacks_its_turns_for_a_minute_is_named_once(
    run: RunDir, sampler: Sampler, caplog: pytest.LogCaptureFixture, as_link: bool
) -> None:
    publish_turns(run, sampler, 1, "a")
    (run.trajectories / "a.parquet").unlink()
    if as_link:
        (run.trajectories / "a.parquet").symlink_to(run.root / "gone.parquet")
    feed, now = make_feed(run, sampler), time.time()
    said = []
    with caplog.at_level("WARNING", "clawctl.train"):
        for seconds in (0, 59, 61, 130):
            assert feed.next_batch(0, now + seconds) is None
            said.append(len(caplog.records))
    assert said == [0, 0, 1, 1]
    assert "trajectories/a.parquet is missing" in caplog.text
    assert "put it back, or delete" in caplog.text
    (run.trajectories / "a.parquet").unlink(missing_ok=True)
    publish_turns(run, sampler, 4, "a")
    assert ids_of(feed.next_batch(0, now + 131)) == ["a00", "a01", "a02", "a03"]


@pytest.mark.parametrize("half", ["trajectories", "verdicts"])
def test_an_unreadable_shard_goes_to_quarantine_and_the_others_are_used(run: RunDir, sampler: Sampler, half: str) -> None:
    publish_turns(run, sampler, 1, "a")
    publish_turns(run, sampler, 4, "b")
    broken = run.root / half / "a.parquet"
    broken.write_bytes(b"PAR1 but no shard")
    feed = make_feed(run, sampler)
    assert ids_of(feed.next_batch(0)) == ["b00", "b01", "b02", "b03"]
    assert not broken.exists()
    assert (run.quarantine / f"{half}-a.parquet").read_bytes() == b"PAR1 but no shard"
    assert "a.parquet" in (run.quarantine / f"{half}-a.parquet.reason.txt").read_text()
    assert feed_counts(run)["unreadable_shards"] == 1
    publish_turns(run, sampler, 1, "a")  # its writer makes it again
    assert feed.next_batch(0)
    assert feed.queue.waiting[0].sample.turn_id == "a00"


@pytest.mark.parametrize("column", ["prompt_ids", "completion_ids"])
def test_a_shard_with_an_empty_turn_is_quarantined(run: RunDir, sampler: Sampler, column: str) -> None:
    publish_turns(run, sampler, 2, "a")
    table = pq.read_table(run.trajectories / "a.parquet")
    empty = pa.array([[], *table[column].to_pylist()[1:]], table.schema.field(column).type)
    pq.write_table(table.set_column(table.schema.get_field_index(column), column, empty), run.trajectories / "a.parquet")
    publish_turns(run, sampler, 4, "b")
    assert ids_of(make_feed(run, sampler).next_batch(0)) == ["b00", "b01", "b02", "b03"]
    assert not (run.trajectories / "a.parquet").exists()
    assert feed_counts(run)["waiting"] == 4


def test_a_turn_without_a_verdict_in_its_shard_is_refused(run: RunDir, sampler: Sampler) -> None:
    turns: list[Turn] = [sampler.turn("x"), sampler.turn("y")]
    publish_shard(run, "a", [(turns[0], 1.0, None)])
    write_turns(run.trajectories / "a.parquet", [replace(turn) for turn in turns])
    make_feed(run, sampler).next_batch(0)
    assert feed_counts(run)["refused"] == {"no verdict": 1}


def test_a_turn_with_a_hint_may_learn_from_the_hint_alone(run: RunDir, sampler: Sampler) -> None:
    turns = [sampler.turn(name, tokens=3) for name in ("hinted", "praised", "both", "blamed")]
    publish_shard(run, "a", list(zip(turns, (-1.0, 1.0, 1.0, -1.0), ("be short", None, "be short", None), strict=True)))
    both = make_feed(run, sampler).next_batch(0)
    assert rewards_of(both) == {"hinted": -1.0, "praised": 1.0, "both": 1.0, "blamed": -1.0}
    alone = make_feed(run, sampler, reward_with_hint=False).next_batch(0)
    assert rewards_of(alone) == {"hinted": None, "praised": 1.0, "both": None, "blamed": -1.0}
