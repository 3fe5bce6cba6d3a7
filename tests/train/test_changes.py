"""The trainer notices that people's wishes have changed."""

import logging
from dataclasses import replace

import pytest

from clawctl.run.directory import RunDir
from clawctl.train.changes import OUTDATED
from tests.train.feeding import feed_counts, make_feed
from tests.train.tiny import Sampler, publish_shard


def test_turns_from_before_a_change_of_wishes_are_not_trained(
    run: RunDir, sampler: Sampler, caplog: pytest.LogCaptureFixture
) -> None:
    """Sixty contents turns, then fourteen complaints. Turns of another key are not affected."""
    sampled = sampler.turn("one", tokens=3)
    calm = [replace(sampled, turn_id=f"calm-{n}", created_at=float(n), user="anna") for n in range(60)]
    angry = [replace(sampled, turn_id=f"angry-{n}", created_at=100.0 + n, user="anna") for n in range(14)]
    old = replace(sampler.turn("old", tokens=3), created_at=30.5, user="anna")
    new = replace(sampler.turn("new", tokens=3), created_at=105.5, user="anna")
    others = replace(sampler.turn("others", tokens=3), created_at=30.5, user="bert")
    publish_shard(run, "a", [(turn, 1.0, None) for turn in (*calm, old, others)])
    feed = make_feed(run, sampler, batch_turns=2, batch_wait_s=1e9)
    publish_shard(run, "b", [(turn, -1.0, None) for turn in (*angry, new)])
    with caplog.at_level(logging.WARNING):
        batch = feed.next_batch(0)
    assert batch is not None
    assert {sample.turn_id for sample in batch.samples} == {"new", "others"}
    assert feed_counts(run)["refused"][OUTDATED] == 2  # `old`, and the only calm turn that is not a copy
    assert "what people want has changed since" in caplog.text
    assert "key anna" in caplog.text
