"""Which turns make a batch, and what is said of the others."""

import os
import time
from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clawctl.config import TrainConfig
from clawctl.feedback import FeedbackFile
from clawctl.run_dir import RunDir
from clawctl.shards import merge_shards, write_turns, write_verdicts
from clawctl.train.feed import Feed
from clawctl.train.teacher import teacher_prompt_ids
from clawctl.types import Feedback, Turn
from tests.train.tiny import HINT, Sampler, publish_shard, publish_turns, verdict


def make_feed(run: RunDir, sampler: Sampler, used: dict[str, str] | None = None, **config: Any) -> Feed:
    settings = TrainConfig.model_validate({"batch_turns": 4, "batch_wait_s": 60, "batch_min_turns": 2, **config})
    return Feed(run, settings, sampler.tokenizer, len(sampler.tokenizer), 4096, used or {})


def ids_of(batch: Any) -> list[str]:
    return [sample.turn_id for sample in batch.samples]


def told(run: RunDir) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads((run.train / "feed.json").read_bytes())
    return found


def test_a_batch_takes_turns_in_the_order_of_their_shards_and_the_surplus_waits(run: RunDir, sampler: Sampler) -> None:
    publish_turns(run, sampler, 3, "b")
    publish_turns(run, sampler, 3, "a")
    feed = make_feed(run, sampler)
    batch = feed.take(0)
    assert ids_of(batch) == ["a00", "a01", "a02", "b00"]
    feed.done(ids_of(batch), "trained")
    assert feed.take(1) is None
    assert [turn.sample.turn_id for turn in feed.waiting] == ["b01", "b02"]
    publish_turns(run, sampler, 2, "c")
    assert ids_of(feed.take(1)) == ["b01", "b02", "c00", "c01"]


def test_no_turn_and_a_shard_without_verdict_make_no_batch(run: RunDir, sampler: Sampler) -> None:
    feed = make_feed(run, sampler, batch_min_turns=1, batch_wait_s=0.001)
    assert feed.take(0) is None
    write_turns(run.trajectories / "a.parquet", [sampler.turn("x")])
    write_turns(run.trajectories / "b.parquet", [])
    assert feed.take(0) is None
    assert told(run)["waiting"] == 0


def test_turns_that_waited_long_enough_are_taken_if_there_are_enough(run: RunDir, sampler: Sampler) -> None:
    publish_turns(run, sampler, 1, "a")
    feed = make_feed(run, sampler)
    now = time.time()
    assert feed.take(0, now + 61) is None  # one is fewer than batch_min_turns
    publish_turns(run, sampler, 1, "b")
    assert feed.take(0, now) is None  # two, but they have not waited
    assert ids_of(feed.take(0, now + 61)) == ["a00", "b00"]


def test_a_turn_waits_from_when_its_verdict_was_published_also_across_restarts(run: RunDir, sampler: Sampler) -> None:
    publish_turns(run, sampler, 2, "a")
    os.utime(run.verdicts / "a.parquet", (time.time() - 100, time.time() - 100))
    assert ids_of(make_feed(run, sampler).take(0)) == ["a00", "a01"]


def test_turns_in_the_ledger_are_not_taken_again(run: RunDir, sampler: Sampler) -> None:
    publish_turns(run, sampler, 6, "a")
    feed = make_feed(run, sampler, used={"a00": "trained", "a02": "skipped"})
    assert ids_of(feed.take(0)) == ["a01", "a03", "a04", "a05"]
    assert (told(run)["used"], told(run)["skipped"]) == (1, 1)


def test_a_turn_that_comes_in_two_shards_is_taken_once(run: RunDir, sampler: Sampler) -> None:
    turn = sampler.turn("x")
    publish_shard(run, "a", [(turn, 1.0, None)])
    publish_shard(run, "b", [(turn, 1.0, None)])
    feed = make_feed(run, sampler, batch_turns=1)
    assert ids_of(feed.take(0)) == ["x"]
    feed.done(["x"], "trained")
    assert feed.take(1) is None
    assert told(run)["refused"] == {"in two shards": 1}


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
        ("combine", {"completion_ids": [3, 4], "logprobs": [-1.0, None]}, 1.0, None, "a logprob is missing or not one"),
        ("combine", {"completion_ids": [3, 4], "logprobs": [-1.0, float("nan")]}, 1.0, None, "a logprob is missing or not one"),
        ("combine", {"completion_ids": [3, 4], "logprobs": [-1.0, 0.5]}, 1.0, None, "a logprob is missing or not one"),
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
    assert feed.take(10) is None
    assert told(run)["refused"] == {reason: 1}
    assert told(run)["waiting"] == 0


def test_staleness_is_bounded_inclusively_and_grows_while_a_turn_waits(run: RunDir, sampler: Sampler) -> None:
    publish_shard(run, "a", [(sampler.turn("x", policy_version=2), 1.0, None)])
    feed = make_feed(run, sampler, batch_turns=2, max_staleness=8)
    feed.take(10)
    assert len(feed.waiting) == 1
    feed.take(11)
    assert (len(feed.waiting), told(run)["refused"]) == (0, {"stale": 1})


def test_a_turn_with_a_reward_is_trained_without_a_hint_that_finds_no_place(run: RunDir, sampler: Sampler) -> None:
    publish_shard(run, "a", [(sampler.turn("x", prompt_ids=[3, 4, 5]), -1.0, HINT)])
    batch = make_feed(run, sampler, batch_turns=1).take(0)
    assert batch is not None
    assert batch.samples[0].teacher_prompt_ids is None
    assert told(run)["lost_hints"] == {"teacher prompt does not match": 1}


def test_what_each_method_sees_of_a_turn(run: RunDir, sampler: Sampler) -> None:
    publish_shard(run, "a", [(sampler.turn("x", task_id="chat/7"), -1.0, HINT)])
    seen = {}
    for method in ("binary", "opd", "opd_topk", "combine", "hybrid"):
        batch = make_feed(run, sampler, batch_turns=1, method=method).take(0)
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
    batch = make_feed(run, sampler, batch_turns=1, method="hybrid").take(0)
    assert batch is not None
    (sample,) = batch.samples
    assert sample.teacher_prompt_ids == teacher_prompt_ids(sampler.tokenizer, turn, "No bold.")
    assert [list(ids) for ids in sample.other_prompts] == [
        teacher_prompt_ids(sampler.tokenizer, turn, hint) for hint in ("Numbered steps.", "Write plain sentences.")
    ]


def test_what_an_environment_says_of_an_episode_is_added_to_the_reward_of_each_step(run: RunDir, sampler: Sampler) -> None:
    rows = [(1.0, 1.0), (-1.0, 1.0), (None, -1.0), (0.0, 0.0)]
    turns = [sampler.turn(f"x{i}", outcome_reward=outcome) for i, (_, outcome) in enumerate(rows)]
    publish_shard(run, "a", [(turn, step, None) for turn, (step, _) in zip(turns, rows, strict=True)])
    batch = make_feed(run, sampler, method="binary").take(0)
    assert batch is not None
    assert [sample.reward for sample in batch.samples] == [2.0, 0.0, -1.0, 0.0]


@pytest.mark.parametrize("half", ["trajectories", "verdicts"])
def test_an_unreadable_shard_goes_to_quarantine_and_the_others_are_used(run: RunDir, sampler: Sampler, half: str) -> None:
    publish_turns(run, sampler, 1, "a")
    publish_turns(run, sampler, 4, "b")
    broken = run.root / half / "a.parquet"
    broken.write_bytes(b"PAR1 but no shard")
    feed = make_feed(run, sampler)
    assert ids_of(feed.take(0)) == ["b00", "b01", "b02", "b03"]
    assert not broken.exists()
    assert (run.quarantine / f"{half}-a.parquet").read_bytes() == b"PAR1 but no shard"
    assert "a.parquet" in (run.quarantine / f"{half}-a.parquet.reason.txt").read_text()
    assert told(run)["unreadable_shards"] == 1
    publish_turns(run, sampler, 1, "a")  # whoever made it makes it again
    assert feed.take(0)
    assert feed.waiting[0].sample.turn_id == "a00"


@pytest.mark.parametrize("column", ["prompt_ids", "completion_ids"])
def test_a_shard_with_a_turn_that_says_nothing_goes_to_quarantine(run: RunDir, sampler: Sampler, column: str) -> None:
    publish_turns(run, sampler, 2, "a")
    table = pq.read_table(run.trajectories / "a.parquet")
    empty = pa.array([[], *table[column].to_pylist()[1:]], table.schema.field(column).type)
    pq.write_table(table.set_column(table.schema.get_field_index(column), column, empty), run.trajectories / "a.parquet")
    publish_turns(run, sampler, 4, "b")
    assert ids_of(make_feed(run, sampler).take(0)) == ["b00", "b01", "b02", "b03"]
    assert not (run.trajectories / "a.parquet").exists()
    assert told(run)["waiting"] == 4


def test_a_turn_without_a_verdict_in_its_shard_is_refused(run: RunDir, sampler: Sampler) -> None:
    turns: list[Turn] = [sampler.turn("x"), sampler.turn("y")]
    publish_shard(run, "a", [(turns[0], 1.0, None)])
    write_turns(run.trajectories / "a.parquet", [replace(turn) for turn in turns])
    make_feed(run, sampler).take(0)
    assert told(run)["refused"] == {"no verdict": 1}


# ---- ratings that come late ------------------------------------------------------------------------------------------------


def rate(run: RunDir, turn_id: str, rating: float, key: str = "default") -> None:
    FeedbackFile(run.feedback).append(Feedback(f"f{time.time_ns()}", time.time(), key, turn_id, rating, None))


def rewards_of(batch: Any) -> dict[str, float | None]:
    return {sample.turn_id: sample.reward for sample in batch.samples}


def test_a_rating_outranks_the_verdict_whenever_it_comes_before_the_turn_is_trained(run: RunDir, sampler: Sampler) -> None:
    turns = [sampler.turn(name, tokens=3) for name in ("early", "late", "refused", "anothers")]
    publish_shard(run, "a", list(zip(turns, (1.0, 1.0, 0.0, 1.0), (None,) * 4, strict=True)))
    rate(run, "early", -0.5)
    feed = make_feed(run, sampler)
    assert feed.take(0) is None
    assert told(run)["refused"] == {"neutral": 1}
    rate(run, "late", -1.0)
    rate(run, "refused", 1.0)
    rate(run, "anothers", -1.0, key="mallory")
    assert rewards_of(feed.take(0)) == {"early": -0.5, "late": -1.0, "refused": 1.0, "anothers": 1.0}
    assert told(run)["refused"] == {}


@pytest.mark.parametrize("reason", ["no next state", "regenerated"])
def test_a_turn_that_nobody_had_reacted_to_is_trained_by_a_rating_that_comes_late(
    run: RunDir, sampler: Sampler, reason: str
) -> None:
    """The last turn of a conversation: its row was published when the session ended, and its user comes back with a thumb."""
    last, side = sampler.turn("last", tokens=3), sampler.turn("side", tokens=3)
    last = replace(last, next_state=None, trainable=False, untrainable_reason=reason)
    side = replace(side, next_state=None, trainable=False, untrainable_reason="side turn")
    publish_shard(run, "a", [(turn, None, None) for turn in (last, side)])
    feed = make_feed(run, sampler, batch_turns=1)
    assert feed.take(0) is None
    assert told(run)["refused"] == {"untrainable": 2}
    rate(run, "last", -1.0)
    rate(run, "side", -1.0)
    assert rewards_of(feed.take(0)) == {"last": -1.0}
    assert told(run)["refused"] == {"untrainable": 1}
    assert rewards_of(make_feed(run, sampler, batch_turns=1).take(0)) == {"last": -1.0}


def test_a_rating_may_take_a_turn_out_of_the_waiting_ones(run: RunDir, sampler: Sampler) -> None:
    publish_shard(run, "a", [(sampler.turn("x", tokens=3), 1.0, None)])
    feed = make_feed(run, sampler)
    feed.take(0)
    rate(run, "x", 0.0)
    feed.take(0)
    assert (told(run)["waiting"], told(run)["refused"]) == (0, {"neutral": 1})


def test_a_rating_of_a_trained_turn_trains_it_no_second_time(run: RunDir, sampler: Sampler) -> None:
    publish_shard(run, "a", [(sampler.turn("x", tokens=3), 1.0, None)])
    feed = make_feed(run, sampler, batch_turns=1)
    feed.done(ids_of(feed.take(0)), "trained")
    rate(run, "x", -1.0)
    assert feed.take(1) is None
    assert make_feed(run, sampler, {"x": "trained"}, batch_turns=1).take(1) is None


def test_a_rating_of_one_turn_of_a_group_moves_its_credit(run: RunDir, sampler: Sampler) -> None:
    names = ("g0", "g1")
    publish_shard(run, "a", [(sampler.turn(name, tokens=3, group_id="g"), 1.0, None) for name in names])
    feed = make_feed(run, sampler, method="grpo", group_size=3, batch_turns=3)
    assert feed.take(0) is None
    rate(run, "g1", -1.0)
    publish_shard(run, "b", [(sampler.turn("g2", tokens=3, group_id="g"), 0.0, None)])
    credits = {sample.turn_id: sample.credit for sample in feed.take(0).samples}
    assert credits["g0"] == pytest.approx(-credits["g1"])  # 1, -1 and 0 about their mean of 0
    assert credits["g0"] > credits["g2"] > credits["g1"]


# ---- merged shards ---------------------------------------------------------------------------------------------------------


def merge(run: RunDir, stems: list[str]) -> str:
    merged = f"{stems[0]}-merged"
    for folder, kind in ((run.verdicts, "verdicts"), (run.trajectories, "turns")):
        merge_shards(kind, [folder / f"{stem}.parquet" for stem in stems], folder / f"{merged}.parquet", ())
        for stem in stems:
            (folder / f"{stem}.parquet").unlink()
    return merged


def test_the_rows_of_a_merged_shard_are_known_and_nobody_is_told(run: RunDir, sampler: Sampler) -> None:
    publish_shard(run, "1", [(sampler.turn("x", tokens=3), 1.0, None)])
    publish_shard(run, "2", [(sampler.turn("y", tokens=3), 0.0, None)])
    feed = make_feed(run, sampler, batch_turns=1)
    feed.done(ids_of(feed.take(0)), "trained")
    merged = merge(run, ["1", "2"])
    assert feed.take(1) is None
    assert told(run)["refused"] == {"neutral": 1}
    rate(run, "y", 1.0)  # its row is found where it lies now
    (sample,) = feed.take(1).samples
    assert (sample.turn_id, sample.stem, sample.reward) == ("y", merged, 1.0)


def test_a_merged_shard_with_a_part_that_was_never_read_gives_its_rows_and_no_other(run: RunDir, sampler: Sampler) -> None:
    publish_shard(run, "1", [(sampler.turn("x", tokens=3), 1.0, None)])
    feed = make_feed(run, sampler)
    feed.take(0)
    publish_shard(run, "2", [(sampler.turn("y", tokens=3), 1.0, None)])
    merge(run, ["1", "2"])
    feed.take(0)
    assert sorted(turn.sample.turn_id for turn in feed.waiting) == ["x", "y"]
    assert told(run)["refused"] == {}


def test_what_no_batch_needs_yet_stays_on_disk_and_comes_in_its_turn(run: RunDir, sampler: Sampler) -> None:
    for stem in "abcd":
        publish_turns(run, sampler, 3, stem)
    settings = TrainConfig.model_validate({"batch_turns": 3})
    feed = Feed(run, settings, sampler.tokenizer, len(sampler.tokenizer), 4096, {}, read_ahead=5)
    trained = []
    for waiting in (6, 6, 6, 3):  # two batches, however small `read_ahead` is
        batch = feed.take(0)
        assert told(run)["waiting"] == waiting
        trained += ids_of(batch)
        feed.done(ids_of(batch), "trained")
    assert trained == [f"{stem}{i:02d}" for stem in "abcd" for i in range(3)]
    assert told(run)["used"] == 12
    assert feed.take(0) is None


def test_a_backlog_that_is_too_stale_does_not_hide_what_lies_behind_it(run: RunDir, sampler: Sampler) -> None:
    for stem in "abc":
        publish_turns(run, sampler, 4, stem)
    publish_turns(run, sampler, 2, "d", policy_version=9, policy_version_end=9)
    settings = TrainConfig.model_validate({"batch_turns": 2, "max_staleness": 8})
    feed = Feed(run, settings, sampler.tokenizer, len(sampler.tokenizer), 4096, {}, read_ahead=4)
    assert ids_of(feed.take(9)) == ["d00", "d01"]
    assert told(run)["refused"] == {"stale": 12}


def test_a_rating_of_a_turn_that_was_trained_or_whose_shard_was_deleted_changes_nothing(run: RunDir, sampler: Sampler) -> None:
    publish_shard(run, "1", [(sampler.turn("x", tokens=3), 1.0, None)])
    publish_shard(run, "2", [(sampler.turn("y", tokens=3), 0.0, None), (sampler.turn("z", tokens=3), 0.0, None)])
    feed = make_feed(run, sampler, batch_turns=1)
    feed.done(ids_of(feed.take(0)), "trained")
    for folder in (run.trajectories, run.verdicts):
        (folder / "2.parquet").unlink()
    assert feed.take(1) is None
    for turn_id in "xyz":
        rate(run, turn_id, 1.0)
    assert feed.take(1) is None
    assert told(run)["used"] == 1
    assert told(run)["refused"] == {"neutral": 2}
