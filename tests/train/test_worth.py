"""The trainer's use of ratings, outcomes and verdicts: each counts once."""

import math
from dataclasses import replace

import pytest

from clawctl.run.directory import RunDir
from clawctl.run.reward import OUTCOME, RATING
from clawctl.run.shards import write_turns, write_verdicts
from clawctl.train.advantages.gae import session_credits
from clawctl.train.advantages.grpo import TurnReward
from tests.train.feeding import feed_counts, make_feed, rate, rewards_of
from tests.train.tiny import Sampler, verdict


def publish(
    run: RunDir, sampler: Sampler, rows: list[tuple[float | None, float | None, str, float | None]], **changes: object
) -> None:
    """Turns t0, t1, … with the rating in their row, their outcome, and their verdict's judge and reward."""
    turns = [
        sampler.turn(f"t{i}", tokens=3, feedback=rating, outcome_reward=outcome, **changes)
        for i, (rating, outcome, _, _) in enumerate(rows)
    ]
    said = [replace(verdict(turn, reward), judge=judge) for turn, (_, _, judge, reward) in zip(turns, rows, strict=True)]
    write_turns(run.trajectories / "a.parquet", turns)
    write_verdicts(run.verdicts / "a.parquet", said)


def test_a_verdict_that_repeats_an_outcome_or_a_rating_trains_it_once(run: RunDir, sampler: Sampler) -> None:
    publish(run, sampler, [
        (None, 1.0, OUTCOME, 1.0), (None, -1.0, OUTCOME, -1.0), (1.0, -1.0, RATING, 1.0), (None, -1.0, RATING, 1.0),
        (None, -1.0, "rules 1: pytest", 1.0), (None, 0.0, OUTCOME, 0.0),
    ])  # fmt: skip
    batch = make_feed(run, sampler, method="binary", batch_turns=6).next_batch(0)
    assert list(rewards_of(batch).values()) == [1.0, -1.0, 1.0, 1.0, 0.0, 0.0]
    assert batch is not None
    assert [sample.worth for sample in batch.samples][4] == "0 = outcome -1, rules 1: pytest +1"


def test_a_rating_that_comes_late_outranks_an_outcome(run: RunDir, sampler: Sampler) -> None:
    publish(run, sampler, [(None, -1.0, OUTCOME, -1.0), (None, 1.0, OUTCOME, 1.0), (None, 1.0, OUTCOME, 1.0)])
    rate(run, "t0", 1.0)
    feed = make_feed(run, sampler, method="binary", batch_turns=3)
    assert rewards_of(feed.next_batch(0)) == {"t0": 1.0, "t1": 1.0, "t2": 1.0}
    rate(run, "t1", -0.5)
    rate(run, "t2", 0.0)  # neutral: nothing to train, although the environment liked it
    assert feed.next_batch(0) is None
    assert feed_counts(run)["refused"] == {"neutral": 1}


def test_a_nan_reward_is_refused_and_does_not_change_the_credit_of_other_turns(run: RunDir, sampler: Sampler) -> None:
    publish(run, sampler, [(None, outcome, OUTCOME, outcome) for outcome in (1.0, -1.0, math.nan)], group_id="g")
    batch = make_feed(run, sampler, method="grpo", group_size=3, batch_turns=2, group_std=False).next_batch(0)
    assert batch is not None
    assert {sample.turn_id: sample.credit for sample in batch.samples} == {"t0": 1.0, "t1": -1.0}
    assert feed_counts(run)["refused"] == {"reward is not a number": 1}


def test_an_outcome_counts_once_in_the_credit_of_a_session() -> None:
    """gamma * lambda = 1/2. Each of three turns has the outcome 1 in its row; a step reward of 1/4 is its own."""
    names = ("a", "b", "c")
    chain = [
        TurnReward(name, "s", parent, at, 1.0, 1.0) for at, (name, parent) in enumerate(zip(names, (None, *names), strict=False))
    ]
    assert session_credits(chain, 1.0, 0.5) == pytest.approx({"a": 0.25, "b": 0.5, "c": 1.0})
    stepped = [replace(turn, reward=1.25) for turn in chain]
    assert session_credits(stepped, 1.0, 0.5) == pytest.approx({"a": 0.6875, "b": 0.875, "c": 1.25})
    only_last = [replace(turn, reward=0.0, outcome=None) for turn in chain[:2]] + chain[2:]
    assert session_credits(only_last, 1.0, 0.5) == session_credits(chain, 1.0, 0.5)
    rated = [*chain[:2], replace(chain[2], reward=-1.0, outcome=None)]  # a rating outranks it there
    assert session_credits(rated, 1.0, 0.5) == pytest.approx({"a": 0.25, "b": 0.5, "c": -1.0})


def test_the_outcome_of_an_episode_that_forked_counts_once_on_each_branch() -> None:
    tree = [TurnReward(name, "s", parent, at, 1.0, 1.0) for name, parent, at in (("a", None, 0), ("b", "a", 1), ("c", "a", 1))]
    assert session_credits(tree, 1.0, 0.5) == pytest.approx({"a": 0.5, "b": 1.0, "c": 1.0})
