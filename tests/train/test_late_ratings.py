"""Ratings that come after the verdict."""

import time
from dataclasses import replace
from typing import Literal

import pytest

from clawctl.run.directory import RunDir
from clawctl.run.feedback import FeedbackFile
from clawctl.run.hint_places import with_hint
from clawctl.run.outcomes import SessionOutcome
from clawctl.trainers.texts import prompt_ids_of
from tests.train.feeding import feed_counts, ids_of, make_feed, rate, rewards_of
from tests.train.tiny import Sampler, publish_shard


def test_a_rating_outranks_the_verdict_whenever_it_comes_before_the_turn_is_trained(run: RunDir, sampler: Sampler) -> None:
    turns = [sampler.turn(name, tokens=3) for name in ("early", "late", "refused", "anothers")]
    publish_shard(run, "a", list(zip(turns, (1.0, 1.0, 0.0, 1.0), (None,) * 4, strict=True)))
    rate(run, "early", -0.5)
    feed = make_feed(run, sampler)
    assert feed.next_batch(0) is None
    assert feed_counts(run)["refused"] == {"neutral": 1}
    rate(run, "late", -1.0)
    rate(run, "refused", 1.0)
    rate(run, "anothers", -1.0, key="mallory")
    assert rewards_of(feed.next_batch(0)) == {"early": -0.5, "late": -1.0, "refused": 1.0, "anothers": 1.0}
    assert feed_counts(run)["refused"] == {}


def test_the_comment_of_a_late_rating_is_the_hint_of_its_turn(run: RunDir, sampler: Sampler) -> None:
    turns = [sampler.turn(name, tokens=3) for name in ("x", "y")]
    publish_shard(run, "a", [(turns[0], 1.0, "Use bold words."), (turns[1], -1.0, None)])
    rate(run, "x", -1.0, comment="Answer in one\nshort sentence.")
    rate(run, "y", -1.0)
    feed = make_feed(run, sampler, method="combine", batch_turns=2)
    prompts = {sample.turn_id: sample.teacher_prompt_ids for sample in feed.next_batch(0).samples}
    hinted = with_hint(turns[0].messages, "Answer in one short sentence.")
    assert prompts == {"x": prompt_ids_of(sampler.tokenizer, turns[0], hinted), "y": None}


@pytest.mark.parametrize("reason", ["no next state", "regenerated"])
def test_a_turn_without_a_reaction_is_trained_by_a_late_rating(run: RunDir, sampler: Sampler, reason: str) -> None:
    """The last turn of a conversation: its row was published when the session ended, and its user comes back with a thumb."""
    last, side = sampler.turn("last", tokens=3), sampler.turn("side", tokens=3)
    last = replace(last, next_state=None, trainable=False, untrainable_reason=reason)
    side = replace(side, next_state=None, trainable=False, untrainable_reason="side turn")
    publish_shard(run, "a", [(turn, None, None) for turn in (last, side)])
    feed = make_feed(run, sampler, batch_turns=1)
    assert feed.next_batch(0) is None
    assert feed_counts(run)["refused"] == {"untrainable": 2}
    rate(run, "last", -1.0)
    rate(run, "side", -1.0)
    assert rewards_of(feed.next_batch(0)) == {"last": -1.0}
    assert feed_counts(run)["refused"] == {"untrainable": 1}
    assert rewards_of(make_feed(run, sampler, batch_turns=1).next_batch(0)) == {"last": -1.0}


def test_a_rating_may_take_a_turn_out_of_the_waiting_ones(run: RunDir, sampler: Sampler) -> None:
    publish_shard(run, "a", [(sampler.turn("x", tokens=3), 1.0, None)])
    feed = make_feed(run, sampler)
    feed.next_batch(0)
    rate(run, "x", 0.0)
    feed.next_batch(0)
    assert (feed_counts(run)["waiting"], feed_counts(run)["refused"]) == (0, {"neutral": 1})


def test_a_rating_of_a_trained_turn_trains_it_no_second_time(run: RunDir, sampler: Sampler) -> None:
    publish_shard(run, "a", [(sampler.turn("x", tokens=3), 1.0, None)])
    feed = make_feed(run, sampler, batch_turns=1)
    feed.mark_done(ids_of(feed.next_batch(0)), "trained")
    rate(run, "x", -1.0)
    assert feed.next_batch(1) is None
    assert make_feed(run, sampler, {"x": "trained"}, batch_turns=1).next_batch(1) is None


def test_a_rating_of_one_turn_of_a_group_moves_its_credit(run: RunDir, sampler: Sampler) -> None:
    names = ("g0", "g1")
    publish_shard(run, "a", [(sampler.turn(name, tokens=3, group_id="g"), 1.0, None) for name in names])
    feed = make_feed(run, sampler, method="grpo", group_size=3, batch_turns=3)
    assert feed.next_batch(0) is None
    rate(run, "g1", -1.0)
    publish_shard(run, "b", [(sampler.turn("g2", tokens=3, group_id="g"), 0.0, None)])
    credits = {sample.turn_id: sample.credit for sample in feed.next_batch(0).samples}
    assert credits["g0"] == pytest.approx(-credits["g1"])  # 1, -1 and 0 about their mean of 0
    assert credits["g0"] > credits["g2"] > credits["g1"]


def give_outcome(run: RunDir, turn_id: str, reward: float | None, status: Literal["done", "failed"] = "done") -> None:
    """In the form that collect writes for a published turn."""
    line = SessionOutcome(f"late-{turn_id}", time.time(), "default", "s", status, reward, {}, {}, [turn_id])
    FeedbackFile(run.feedback).append(line)


def test_a_turn_whose_outcome_comes_late_is_worth_the_outcome_alone(run: RunDir, sampler: Sampler) -> None:
    turns = [sampler.turn(name, tokens=3) for name in ("judged", "neutral", "rated", "last", "failed", "other")]
    turns[3] = replace(turns[3], next_state=None, trainable=False, untrainable_reason="no next state")
    publish_shard(run, "a", list(zip(turns, (-1.0, 0.0, 1.0, None, 1.0, 1.0), (None,) * 6, strict=True)))
    give_outcome(run, "judged", 0.5)
    feed = make_feed(run, sampler, batch_turns=5)
    assert feed.next_batch(0) is None
    for name in ("neutral", "rated", "last"):
        give_outcome(run, name, -0.25)
    give_outcome(run, "failed", None, "failed")
    rate(run, "rated", 0.75)
    assert rewards_of(feed.next_batch(0)) == {"judged": 0.5, "neutral": -0.25, "rated": 0.75, "last": -0.25, "other": 1.0}
    assert rewards_of(make_feed(run, sampler, batch_turns=5).next_batch(0)) == rewards_of(feed.next_batch(0)), "and after a restart"


@pytest.mark.parametrize("method", ["binary", "grpo"])
def test_a_held_out_turn_is_never_trained_whatever_its_later_ratings(run: RunDir, sampler: Sampler, method: str) -> None:
    held = replace(sampler.turn("held", tokens=3), trainable=False, untrainable_reason="held out", group_id="g")
    others = [replace(sampler.turn(name, tokens=3), group_id="g") for name in ("good", "bad")]
    publish_shard(run, "a", [(held, -1.0, "Be brief."), (others[0], 1.0, None), (others[1], -1.0, None)])
    feed = make_feed(run, sampler, method=method, batch_turns=2)
    rate(run, "held", -1.0)
    batch = feed.next_batch(0, now=time.time() + 1e6)
    rate(run, "held", 1.0)
    assert rewards_of(batch) == {"good": 1.0, "bad": -1.0}
    feed.mark_done(["good", "bad"], "trained")
    assert feed.next_batch(0, now=time.time() + 2e6) is None
    assert rewards_of(make_feed(run, sampler, method=method, batch_turns=2).next_batch(0, now=time.time() + 3e6)).keys() == {
        "good",
        "bad",
    }
