"""Turns of groups and sessions wait for one another, for a limited time."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from clawctl.config import TrainConfig
from clawctl.run.directory import RunDir
from clawctl.run.feedback import FeedbackFile
from clawctl.run.outcomes import EPISODE_FAILED, SessionOutcome
from clawctl.train.forming import MAX_IDLE, Forming
from clawctl.train.sample import Sample
from clawctl.train.waiting import Waiting
from tests.train.feeding import feed_counts, ids_of, make_feed
from tests.train.tiny import HINT, Sampler, publish_shard


def episodes(sampler: Sampler, *names: str, group: str = "g1", **changes: Any) -> list[Any]:
    return [replace(sampler.turn(name, tokens=2), group_id=group, **changes) for name in names]


def test_a_group_waits_for_its_members_and_is_taken_whole(run: RunDir, sampler: Sampler) -> None:
    a, b, c = episodes(sampler, "a", "b", "c")
    feed = make_feed(run, sampler, method="grpo", group_size=3, batch_turns=2, group_std=False)
    publish_shard(run, "1", [(a, 1.0, None), (b, -1.0, None)])
    assert feed.next_batch(0) is None
    assert (feed_counts(run)["waiting"], feed_counts(run)["forming"]) == (2, 2)
    publish_shard(run, "2", [(c, 0.0, None)])
    batch = feed.next_batch(0)
    assert batch is not None
    assert [(sample.turn_id, sample.credit) for sample in batch.samples] == [("a", 1.0), ("b", -1.0), ("c", 0.0)]
    feed.mark_done(ids_of(batch), "trained")
    assert (feed_counts(run)["waiting"], feed_counts(run)["forming"]) == (0, 0)


def test_a_group_that_waited_long_enough_goes_with_those_that_are_there(run: RunDir, sampler: Sampler) -> None:
    publish_shard(run, "1", [(turn, reward, None) for turn, reward in zip(episodes(sampler, "a", "b"), (1.0, -1.0), strict=True)])
    feed = make_feed(run, sampler, method="grpo", group_size=8, batch_turns=2, batch_wait_s=50)
    assert feed.next_batch(0) is None
    import time

    batch = feed.next_batch(0, time.time() + 51)
    assert batch is not None
    assert [sample.credit for sample in batch.samples] == pytest.approx([1.0, -1.0], rel=1e-5)


def test_a_group_without_a_difference_is_dropped_and_counted_and_takes_no_place_in_a_batch(run: RunDir, sampler: Sampler) -> None:
    same, other = episodes(sampler, "a", "b"), episodes(sampler, "c", "d", group="g2")
    publish_shard(run, "1", [(turn, 1.0, None) for turn in same])
    publish_shard(run, "2", [(other[0], 1.0, None), (other[1], -1.0, None)])
    batch = make_feed(run, sampler, method="grpo", group_size=2, batch_turns=2).next_batch(0)
    assert ids_of(batch) == ["c", "d"]
    assert feed_counts(run)["refused"] == {"no difference in its group": 2}


def test_a_member_that_is_not_trained_still_counts_in_the_mean_of_its_group(run: RunDir, sampler: Sampler) -> None:
    a, b = episodes(sampler, "a", "b")
    (greedy,) = episodes(sampler, "z", temperature=0.0)
    publish_shard(run, "1", [(a, 1.0, None), (b, 1.0, None), (greedy, -1.0, None)])
    batch = make_feed(run, sampler, method="grpo", group_size=3, batch_turns=2, group_std=False).next_batch(0)
    assert batch is not None
    assert [(sample.turn_id, sample.credit) for sample in batch.samples] == [
        ("a", pytest.approx(2 / 3)),
        ("b", pytest.approx(2 / 3)),
    ]
    assert feed_counts(run)["refused"] == {"greedy": 1}


def test_two_groups_are_not_torn_apart_though_their_turns_came_mixed(run: RunDir, sampler: Sampler) -> None:
    first, second = episodes(sampler, "a", "c", group="g1"), episodes(sampler, "b", "d", group="g2")
    publish_shard(run, "1", [(first[0], 1.0, None), (second[0], 1.0, None)])
    publish_shard(run, "2", [(first[1], -1.0, None), (second[1], -1.0, None)])
    feed = make_feed(run, sampler, method="grpo", group_size=2, batch_turns=3)
    assert ids_of(feed.next_batch(0)) == ["a", "c", "b", "d"]
    assert ids_of(make_feed(run, sampler, method="grpo", group_size=2, batch_turns=2).next_batch(0)) == ["a", "c"]


def test_after_a_restart_a_trained_turn_still_counts_for_the_rest_of_its_group(run: RunDir, sampler: Sampler) -> None:
    a, b = episodes(sampler, "a", "b")
    publish_shard(run, "1", [(a, 1.0, None), (b, -1.0, None)])
    feed = make_feed(run, sampler, method="grpo", group_size=2, batch_turns=1, used={"a": "trained"}, group_std=False)
    batch = feed.next_batch(1)
    assert batch is not None
    assert [(sample.turn_id, sample.credit) for sample in batch.samples] == [("b", -1.0)]


def test_a_session_waits_until_nothing_can_follow_and_hands_credit_back(run: RunDir, sampler: Sampler) -> None:
    first = replace(sampler.turn("a", tokens=2), session_id="s")
    last = replace(sampler.turn("b", tokens=2), session_id="s", parent_turn_id="a", turn_index=1, next_state=None)
    last = replace(last, trainable=False, untrainable_reason="no next state")
    feed = make_feed(run, sampler, method="binary", advantage="gae", gamma=1.0, gae_lambda=0.5, batch_turns=1)
    publish_shard(run, "1", [(first, 0.0, None)])
    assert feed.next_batch(0) is None
    publish_shard(run, "2", [(last, 1.0, None)])
    batch = feed.next_batch(0)
    assert batch is not None
    assert [(sample.turn_id, sample.reward, sample.credit) for sample in batch.samples] == [("a", 0.0, 0.5)]


def test_a_turn_that_its_group_teaches_nothing_is_still_trained_on_its_hint(run: RunDir, sampler: Sampler) -> None:
    a, b = episodes(sampler, "a", "b")
    publish_shard(run, "1", [(a, -1.0, HINT), (b, -1.0, None)])
    batch = make_feed(run, sampler, method="combine", advantage="group", group_size=2, batch_turns=1).next_batch(0)
    assert batch is not None
    assert [(sample.turn_id, sample.reward, sample.credit) for sample in batch.samples] == [("a", None, None)]
    assert batch.samples[0].teacher_prompt_ids is not None


def test_memory_is_bounded_by_waiting_turns_and_recent_groups(sampler: Sampler) -> None:
    """Three times as many lone episodes as are remembered; one that waits is kept, and the newest still count."""
    forming = Forming(TrainConfig(method="grpo", group_size=2, group_std=False, batch_wait_s=1e9), Counter())
    (turn,) = episodes(sampler, "a", group="waits")
    forming.add(turn, 1.0)
    sample = Sample("a", "1", "", [1], [2], [-0.5], 1.0, 0, 1.0, None)
    forming.queue(Waiting(sample, 0.0, "waits"))
    for number in range(3 * MAX_IDLE):
        forming.add(replace(turn, turn_id=f"t{number}", session_id=f"s{number}", group_id=f"g{number}"), 1.0)
    assert MAX_IDLE < len(forming._units) <= 2 * MAX_IDLE + 1
    assert f"g{3 * MAX_IDLE - 1}" in forming._units
    assert "g0" not in forming._units
    assert forming.pop_ready(0.0) == []
    forming.add(replace(turn, turn_id="b", session_id="other"), -1.0)
    assert [(waiting.sample.turn_id, waiting.sample.credit) for waiting in forming.pop_ready(0.0)] == [("a", 1.0)]


def settle(
    run: RunDir, attempt: int, session: str, attempts: int = 4, reward: float | None = 1.0, settled: bool = True, group: str = "g1"
) -> None:
    """The outcome of one episode of a group, as its worker appends it."""
    spec = {"group_id": group, "attempt": attempt, "attempts": attempts, "created_at": 0.0, "deadline": 600.0}
    status: Any = "failed" if reward is None else "done"
    line = SessionOutcome(f"o-{session}", 1.0, "default", session, status, reward, {}, {}, settled=settled, episode=spec)
    FeedbackFile(run.feedback).append(line)


def test_a_played_group_is_complete_when_its_episodes_are_over_and_not_when_their_sessions_were_seen(
    run: RunDir, sampler: Sampler
) -> None:
    a, b, c = episodes(sampler, "a", "b", "c")
    feed = make_feed(run, sampler, method="grpo", group_size=2, batch_turns=2, batch_wait_s=50, group_std=False)
    for attempt, turn, reward in ((0, a, 1.0), (1, b, -1.0)):
        settle(run, attempt, turn.session_id, 3, reward)
    publish_shard(run, "1", [(a, 1.0, None), (b, -1.0, None)])
    assert feed.next_batch(0) is None, "although `group_size` sessions were seen"
    import time

    assert feed.next_batch(0, time.time() + 51) is None, "however long its third episode takes"
    settle(run, 2, c.session_id, 3, 0.0)
    assert feed.next_batch(0) is None, "its turns are not there"
    publish_shard(run, "2", [(c, 0.0, None)])
    batch = feed.next_batch(0)
    assert batch is not None
    assert {sample.turn_id: sample.credit for sample in batch.samples} == {"a": 1.0, "b": -1.0, "c": 0.0}


def test_a_sample_repeated_in_another_group_counts_again(run: RunDir, sampler: Sampler) -> None:
    """Tasks may have equal prompts, and are played in several rounds."""
    (turn,) = episodes(sampler, "a")
    feed = make_feed(run, sampler, method="grpo", batch_turns=1)
    for group in ("g1", "g2"):
        same, other = (replace(turn, turn_id=f"{group}{n}", session_id=f"{group}{n}", group_id=group) for n in "ab")
        other = replace(other, completion_ids=[*other.completion_ids[:-1], 5])
        settle(run, 0, same.session_id, 2, 1.0, group=group)
        settle(run, 1, other.session_id, 2, 0.0, group=group)
        publish_shard(run, group, [(same, 1.0, None), (other, 0.0, None)])
        batch = feed.next_batch(0)
        assert batch is not None
        assert {sample.turn_id for sample in batch.samples} == {f"{group}a", f"{group}b"}
        feed.mark_done([sample.turn_id for sample in batch.samples], "trained")


def test_the_advantages_of_a_group_do_not_change_if_one_of_its_episodes_fails(run: RunDir, sampler: Sampler) -> None:
    a, b, failed = episodes(sampler, "a", "b", "f")
    failed = replace(failed, trainable=False, untrainable_reason=EPISODE_FAILED)
    feed = make_feed(run, sampler, method="grpo", batch_turns=2)
    settle(run, 0, a.session_id, 3, 1.0)
    settle(run, 1, b.session_id, 3, 0.5)
    settle(run, 2, failed.session_id, 3, None, settled=False)
    publish_shard(run, "1", [(a, 1.0, None), (b, 0.5, None), (failed, None, None)])
    assert feed.next_batch(0) is None, "the attempt gets another episode"
    settle(run, 2, "f-again", 3, None)
    batch = feed.next_batch(0)
    assert batch is not None
    assert {sample.turn_id: sample.credit for sample in batch.samples} == pytest.approx({"a": 1.0, "b": -1.0}, rel=1e-4)


def test_a_played_group_whose_workers_are_gone_is_taken_after_the_time_of_two_episodes(run: RunDir, sampler: Sampler) -> None:
    a, b = episodes(sampler, "a", "b")
    feed = make_feed(run, sampler, method="grpo", batch_turns=2)
    settle(run, 0, a.session_id, 8, 1.0)
    settle(run, 1, b.session_id, 8, -1.0)
    publish_shard(run, "1", [(a, 1.0, None), (b, -1.0, None)])
    import time

    assert feed.next_batch(0, time.time() + 1100) is None
    batch = feed.next_batch(0, time.time() + 1201)
    assert ids_of(batch) == ["a", "b"]
